"""Formats of quantised checkpoints: FP8, MXFP4, AWQ, GPTQ, compressed-tensors.

Promises: a `Format` is read from config.json once; it presents a checkpoint's tensors as if they
were not quantised, with the packing of each that is; an unknown scheme, a missing piece and a wrong
shape are ValueErrors by name, before a weight is read.
Does not know: families, layers, where the values go.
"""

from eyas.models.formats.base import Format, Packing, StoredTensor, without_cache_scales
from eyas.models.formats.read import format_of, read_format

__all__ = ["Format", "Packing", "StoredTensor", "format_of", "read_format", "without_cache_scales"]
