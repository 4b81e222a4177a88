"""The runner: rows of tokens in, logits and tapped hidden states out."""
