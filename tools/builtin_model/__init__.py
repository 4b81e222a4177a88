"""Create the built-in model: its conversations, its tokenizer and its training.

Promises: no external text and no other model is used. The package ships the results in
`eyas.builtin`. Does not know: the engine that runs the model.

    python -m builtin_model.tokenizer DIRECTORY         train its tokenizer
    python -m builtin_model.training OUTPUT             train the checkpoint, on a GPU
    python -m builtin_model.conversations FILE COUNT    write conversations to train a head with
    python -m builtin_model.conversations               write those that the package ships
"""
