"""FP8 (e4m3): `fp8` in blocks (DeepSeek, Qwen3) or by tensor, and `fbgemm_fp8` by row.

Promises: a weight that is stored in FP8 has a scale, or it is refused by name.
Does not know: how activations may be quantised: they are not.

Names: `X.weight` with `X.weight_scale_inv` (which is multiplied, in spite of its name) or
`X.weight_scale`; packed experts are `X` with `X_scale_inv`; DeepSeek-V4 has `X.weight` with
`X.scale`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from eyas.models.config_file import ConfigFile
from eyas.models.formats.base import StoredTensor, take_pieces, visible
from eyas.models.formats.config import block_size
from eyas.models.formats.mxfp4 import mxfp4_rows
from eyas.models.formats.scaled import scaled_tensor

FP8_TYPES = ("F8_E4M3",)
STORED_FP8 = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")


@dataclass(frozen=True, slots=True)
class Fp8:
    """block: rows and columns that share a scale; None where a tensor or a row has one.

    has_fp4: whether weights that are stored in bytes are FP4 (DeepSeek-V4's experts).
    """

    block: tuple[int, int] | None
    ignored: tuple[str, ...]
    has_fp4: bool = False

    @classmethod
    def read(cls, config: ConfigFile) -> Fp8:
        """Read the fields of `quant_method: fp8`. ValueError: one of them is not supported."""
        config.require("fmt", "e4m3", "e4m3", "e4m3 is")
        config.require("is_checkpoint_fp8_serialized", True, True, "weights stored in FP8 are")
        scheme = config.values.get("activation_scheme", "dynamic")
        experts = config.values.get("expert_dtype") or "fp8"
        if experts not in ("fp8", "fp4"):
            raise config.error("expert_dtype", f"{experts!r} is not supported (fp8 and fp4 are)")
        ignored = (f"{scheme} 8-bit activations",)
        return cls(block_size(config, "weight_block_size"), ignored, experts == "fp4")

    @classmethod
    def read_fbgemm(cls, config: ConfigFile) -> Fp8:
        """Read the fields of `quant_method: fbgemm_fp8`."""
        return cls(None, ("dynamic 8-bit activations",))

    @property
    def description(self) -> str:
        if self.block is None:
            return "FP8 with a scale for each tensor or row"
        experts = ", experts in FP4" if self.has_fp4 else ""
        return f"FP8 in blocks of {self.block[0]} x {self.block[1]}{experts}"

    def logical(self, stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
        tensors = visible(stored)
        if self.block is None:
            blocks, why = [(0, 0), (1, 0)], "the format (one scale, or one for each row)"
        else:
            blocks, why = [self.block], "weight_block_size of quantization_config"
        for name, weight in visible(stored).items():
            scales = [scale for scale in _scale_names(name) if scale in stored]
            if weight.dtype in STORED_FP8 or (scales and name.endswith(".weight")):
                names = {"weight": name, "scale": [*scales, f"{name}_scale_inv"][0]}
                pieces = take_pieces(tensors, weight, names)
                if self.has_fp4 and weight.dtype == "I8":
                    tensors[name] = mxfp4_rows(name, pieces)
                    continue
                tensors[name] = scaled_tensor(name, pieces, blocks, why, FP8_TYPES)
        return tensors


def _scale_names(name: str) -> tuple[str, ...]:
    names = (f"{name}_scale_inv", f"{name}_scale")
    return (*names, f"{name.removesuffix('weight')}scale") if name.endswith(".weight") else names
