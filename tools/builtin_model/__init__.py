"""How the built-in model was made: its conversations, its tokenizer and its training.

Promises: no outside text and no other model is needed. The package ships what comes out of it, in
`eyas.builtin`. Knows nothing of the engine that runs the model.

    python -m builtin_model.tokenizer DIRECTORY         its tokenizer
    python -m builtin_model.training OUTPUT             the checkpoint, on a GPU
    python -m builtin_model.conversations FILE COUNT    conversations to train a head with
    python -m builtin_model.conversations               those that the package ships
"""
