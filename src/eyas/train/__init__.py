"""Training: the built-in model and draft heads."""
