"""The table of quantisation methods, and the format that a `quantization_config` describes.

Promises: a method that is not in the table is refused by name, from config.json alone.
Does not know: the methods' fields.

To add a method, write one module with a `Format` and the packing of its tensors, and add a line to
`METHODS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from eyas.models.config_file import ConfigFile
from eyas.models.formats.awq import Awq
from eyas.models.formats.base import Format
from eyas.models.formats.compressed_tensors import CompressedTensors
from eyas.models.formats.fp8 import Fp8
from eyas.models.formats.gptq import Gptq
from eyas.models.formats.mxfp4 import Mxfp4

METHODS: Mapping[str, Callable[[ConfigFile], Format | None]] = {
    "awq": Awq.read,
    "compressed-tensors": CompressedTensors.read,
    "fbgemm_fp8": Fp8.read_fbgemm,
    "fp8": Fp8.read,
    "gptq": Gptq.read,
    "mxfp4": Mxfp4.read,
}


def read_format(config: ConfigFile) -> Format | None:
    """Return the format that config.json describes; None where its weights are not quantised.

    ValueError: it is not supported; the text names the field and the remedy.
    """
    quantization = config.nested("quantization_config")
    if not quantization.values:  # the text model's, inside a model of images
        quantization = config.nested("text_config").nested("quantization_config")
    if not quantization.values:
        return None
    method = quantization.values.get("quant_method")
    if method not in METHODS:
        raise quantization.error(
            "quant_method",
            f"{method!r} is not supported ({', '.join(METHODS)} are); use a checkpoint of the model in "
            "one of these formats, or the unquantised one",
        )
    return METHODS[method](quantization)


def format_of(directory: Path) -> Format | None:
    """Return the format of the checkpoint in `directory`, as `read_format`; None without
    config.json."""
    if not (directory / "config.json").is_file():
        return None
    return read_format(ConfigFile.of_model(directory))
