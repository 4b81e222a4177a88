"""The tensor operations of a step, each with several bodies: torch operations, Triton kernels, and for
some C.

Promises: a file holds the one operation that it is named after (`dispatch.Operation`). Its
`by_torch` runs on any device and is the reference that `by_kernel` and `by_native` are tested
against; where results can differ, the operation's docstring says how. Importing a file of this
package needs no triton.
Does not know: batches, drafters, layers, what a result is used for.
"""
