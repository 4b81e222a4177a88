"""The families of models: what a config.json means, and how a checkpoint's tensors are named.

A family is data for the one decoder of all (`eyas.models.decoder`): a module of about 30 to 60 lines,
which `eyas.models.registry` finds by the architecture. `dense` and `latent` have what many share.
docs/models.md tells how to add one.

Promises: no code of a family runs in a step.
"""
