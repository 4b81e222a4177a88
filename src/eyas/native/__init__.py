"""Code in C, compiled on the machine that runs it.

Promises: nothing here is required. Where it cannot be compiled, `packed_weight`, `compiled_attention`
and `compiled_rows` return None, and torch does the same work.
Does not know: layers, models.
"""
