"""Benchmarks of eyas: decoding speed, serving, grammars, and the built-in model's answers.

Promises: a result includes machine, commit and command. This is a separate package, which adds
`eyas bench` to the commands. Does not know: how results are used.
"""
