"""Models: load a checkpoint directory or hub name into a decoder that maps token rows to logits.

Promises: `load_model` streams safetensors into a `Decoder`; `read_spec` needs the JSON files alone;
every ValueError names the file, the field or tensor, and the remedy; code of a checkpoint is never
run. Does not know: engines, caches, sampling.
"""

from eyas.models.decoder import Decoder
from eyas.models.dtype import choose_dtype, cpu_has_bfloat16, resolve_dtype
from eyas.models.load import ModelFiles, load_model, num_parameters
from eyas.models.locate import locate_model
from eyas.models.registry import read_spec, supported_architectures
from eyas.models.spec import ModelSpec
from eyas.models.weights import Progress

__all__ = [
    "Decoder",
    "ModelFiles",
    "ModelSpec",
    "Progress",
    "choose_dtype",
    "cpu_has_bfloat16",
    "load_model",
    "locate_model",
    "num_parameters",
    "read_spec",
    "resolve_dtype",
    "supported_architectures",
]
