"""Measurements: decoding speed, serving, and how well the built-in model answers."""
