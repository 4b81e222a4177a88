"""eyas, measured: decoding speed, serving, grammars, and how well the built-in model answers.

Promises: results with machine, commit and command. A package of its own, which adds `eyas bench` to the
commands. Does not know: who reads the numbers.
"""
