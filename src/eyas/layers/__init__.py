"""Inference layers on raw tensors: a row's result depends on that row alone, bit for bit.

Promises: no operation here gives a row other bits because other rows are in the call, as long as
every call carries a number of rows that its `RowOrder` allows.
Does not know: checkpoints, model families, caches, batches.
"""
