"""Which kernel runs a matrix product on a device: variants, their measurement at start-up, plans.

Does not know: layers.
"""
