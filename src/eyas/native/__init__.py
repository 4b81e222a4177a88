"""Code in C, compiled on the machine that runs it.

Promises: nothing here is required. Where it cannot be compiled, `packed_weight` and
`compiled_attention` return None, and torch does the same work. Does not know: layers, models.
"""
