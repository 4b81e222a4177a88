"""A reader of config.json whose errors name the file, the field and the remedy.

Promises: an unsupported feature is refused by name, never ignored; code that a checkpoint names
(`auto_map`) is never loaded.
Does not know: families, the fields of rope (`rope_fields` does) and of experts (`expert_fields`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.models.other_kinds import other_kind

log = logging.getLogger(__name__)

MAX_VALUES = {
    "num_hidden_layers": 4096,
    "num_attention_heads": 65536,
    "num_key_value_heads": 65536,
    "head_dim": 65536,
    "num_experts": 4096,
    "num_local_experts": 4096,
    "n_routed_experts": 4096,
    "linear_num_key_heads": 65536,
    "linear_num_value_heads": 65536,
    "linear_key_head_dim": 65536,
    "linear_value_head_dim": 65536,
    "linear_conv_kernel_dim": 64,
    "num_experts_per_tok": 64,
}
"""The largest value of a field; far above any model, so that a wrong file is refused quickly."""
LARGEST_NUMBER = 1e18
"""The largest absolute value of a number; integers up to it are those of tensors, too."""
_OTHER_MODALITIES = frozenset(
    (
        *(
            "text_config",
            "vision_config",
            "mm_tokens_per_image",
            "image_token_id",
            "video_token_id",
        ),
        *("image_token_index", "boi_token_index", "eoi_token_index", "vision_token_id"),
        *("vision_start_token_id", "vision_end_token_id", "multimodal_projector_bias"),
        *("projector_hidden_act", "spatial_merge_size", "vision_feature_layer"),
    )
)


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A parsed JSON object and the path of its file. Its readers raise ValueError on a bad field.

    prefix: where the object stands in the file, for messages: "rope_scaling." or nothing.
    """

    path: Path
    values: Mapping[str, Any]
    prefix: str = ""

    @classmethod
    def read(cls, path: Path) -> ConfigFile:
        """Parse the file at `path`. ValueError: it cannot be read, or holds no JSON object."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ValueError(f"{path} cannot be read ({error.strerror})") from error
        except (ValueError, RecursionError) as error:
            text = f"{path} cannot be read as JSON ({error}); download it again"
            raise ValueError(text) from error
        if not isinstance(values, dict):
            raise ValueError(f"{path} must hold a JSON object; download it again")
        return cls(path, values)

    @classmethod
    def of_model(cls, directory: Path | str) -> ConfigFile:
        """Parse config.json of a checkpoint directory. ValueError: as `read`, or there is none."""
        path = Path(directory) / "config.json"
        if not path.is_file():
            found = other_kind(path.parent) or (
                "has no config.json; give the directory of a Hugging Face checkpoint "
                "(config.json, tokenizer.json, *.safetensors)"
            )
            raise ValueError(f"{directory} {found}")
        return cls.read(path)

    def text_config(self) -> ConfigFile:
        """Return the fields of the text model inside a model of images.

        Fields that stand beside `text_config` count where it does not have them; old files have no
        `text_config` and all fields side by side.
        """
        outer = {k: v for k, v in self.values.items() if k not in _OTHER_MODALITIES}
        inner = self.nested("text_config").values
        values = {**outer, **inner, "architectures": self.values["architectures"]}
        for field in ("rope_scaling", "rope_parameters"):  # text has one position, not three
            rope = ConfigFile(self.path, values).nested(field).values
            if "mrope" in (rope.get("rope_type"), rope.get("type")):
                plain = {k: v for k, v in rope.items() if k not in ("type", "mrope_section")}
                values[field] = {**plain, "rope_type": "default"}
        return ConfigFile(self.path, values)

    def with_defaults(self, defaults: Mapping[str, Any]) -> ConfigFile:
        """Return a copy with these values for the fields that are absent."""
        return ConfigFile(self.path, {**defaults, **self.values})

    def with_layer_types(self, *, every: int) -> ConfigFile:
        """Return a copy with `layer_types`. every: which layers have full attention, if the file has no
        list; the others have a window."""
        if self.values.get("layer_types") is not None:
            return self
        types = [
            "full_attention" if (layer + 1) % every == 0 else "sliding_attention"
            for layer in range(self.count("num_hidden_layers"))
        ]
        return ConfigFile(self.path, {**self.values, "layer_types": types})

    def with_ropes_by_layer_type(
        self, *, every: int, window_theta: float | None = None
    ) -> ConfigFile:
        """Return a copy as transformers 5 writes it: with `layer_types`, and a rope for each type.

        every: as in `with_layer_types`. window_theta: base of the rope of layers with a window, which
        is not scaled; None is `rope_theta`. A type that `rope_parameters` leaves out is not scaled.
        """
        values = dict(self.with_layer_types(every=every).values)
        ropes = self.nested("rope_parameters")
        if not ropes.values.keys().isdisjoint({"full_attention", "sliding_attention"}):
            if self.nested("rope_scaling").values:
                raise self.error(
                    "rope_scaling", "stands beside rope_parameters of each layer type; remove it"
                )
            theta = values.get("rope_theta")
            thetas = {"full_attention": theta, "sliding_attention": window_theta or theta}
            values["rope_parameters"] = {
                kind: {"rope_theta": default, **ropes.nested(kind).values}
                for kind, default in thetas.items()
            }
        else:
            theta, scaling = self.number("rope_theta"), self.nested("rope_scaling").values
            values["rope_parameters"] = {
                "full_attention": {"rope_theta": theta, **scaling},
                "sliding_attention": {"rope_theta": window_theta or theta},
            }
        values.pop("rope_scaling", None)
        values.pop("rope_theta", None)
        return ConfigFile(self.path, values)

    def with_rope_of(self, layer_type: str) -> ConfigFile:
        """Return a copy with the rope of one type of layers for all of them."""
        ropes = self.nested("rope_parameters").values
        return ConfigFile(self.path, {**self.values, "rope_parameters": ropes[layer_type]})

    def error(self, field: str, problem: str) -> ValueError:
        """Return the error of a field. problem: a predicate such as "must be ...", and the remedy."""
        return ValueError(f"{self.path}: {self.prefix}{field} {problem}")

    def count(self, field: str, default: int | None = None) -> int:
        """Return a whole number above 0; `default` where the field is absent or null."""
        value = self.values.get(field)
        if value is None:
            value = default
        if value is None:
            raise self.error(field, "is missing; the checkpoint's configuration is incomplete")
        largest = MAX_VALUES.get(field, 2**31 - 1)
        if type(value) is not int or not 0 < value <= largest:
            raise self.error(field, f"must be a whole number from 1 to {largest}, not {value!r}")
        return value

    def index(self, field: str, default: int) -> int:
        """Return a whole number of at least 0; `default` where the field is absent or null."""
        value = self.values.get(field)
        value = default if value is None else value
        if type(value) is not int or not 0 <= value < 2**31:
            raise self.error(field, f"must be a whole number of at least 0, not {value!r}")
        return value

    def indices(self, field: str) -> frozenset[int]:
        """Return the whole numbers that a field lists; none where it is absent or null."""
        value = self.values.get(field) or []
        if not isinstance(value, list) or not all(
            type(each) is int and each >= 0 for each in value
        ):
            raise self.error(field, f"must be a list of whole numbers of at least 0, not {value!r}")
        return frozenset(value)

    def optional_number(self, field: str) -> float | None:
        """Return a number that is not too large; None where the field is absent or null."""
        value = self.values.get(field)
        if value is None:
            return None
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not abs(value) <= LARGEST_NUMBER:
            text = repr(value)
            shown = text if len(text) <= 60 else f"{text[:57]}..."
            raise self.error(field, f"must be a number, not {shown}")
        return value

    def number(self, field: str, default: float | None = None) -> float:
        """Return a number, as `optional_number`; `default` where the field is absent or null."""
        value = self.optional_number(field)
        value = default if value is None else value
        if value is None:
            raise self.error(field, "is missing; the checkpoint's configuration is incomplete")
        return value

    def window(self) -> int | None:
        """Return `sliding_window`; None where the field is absent or null."""
        return None if self.values.get("sliding_window") is None else self.count("sliding_window")

    def flag(self, field: str, default: bool = False) -> bool:
        """Return a boolean; `default` where the field is absent. null is false, as in transformers."""
        value = self.values.get(field, default)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise self.error(field, f"must be true or false, not {value!r}")
        return value

    def token_ids(self, field: str, vocab_size: int) -> tuple[int, ...]:
        """Return the ids of a field that holds one token id or a list; -1 stands for none.

        Ids that are not below `vocab_size` are left out with a warning: files in use name such tokens
        (transformers' defaults in small models among them), and no model can produce one.
        """
        value = self.values.get(field)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(i) is int and i >= -1 for i in ids):
            raise self.error(field, f"must be a token id or a list of them, not {value!r}")
        if beyond := [i for i in ids if i >= vocab_size]:
            log.warning(
                "%s: %s %d is outside the vocabulary of %d tokens (vocab_size) and is ignored",
                self.path,
                field,
                beyond[0],
                vocab_size,
            )
        return tuple(dict.fromkeys(i for i in ids if 0 <= i < vocab_size))

    def require(self, field: str, wanted: object, default: object, remedy: str) -> None:
        """Refuse every value of `field` but `wanted`. remedy: shown in parentheses."""
        value = self.values.get(field, default)
        value = default if value is None else value
        if value != wanted:
            raise self.error(field, f"{value!r} is not supported ({remedy})")

    def require_silu(self) -> None:
        """Refuse every activation but silu, which is also called swish."""
        if self.values.get("hidden_act") != "swish":
            self.require("hidden_act", "silu", "silu", "silu is")

    def epsilon(self) -> float:
        """Return the epsilon of the RMS norms."""
        value = self.number("rms_norm_eps", 1e-6)
        if value < 0:
            raise self.error("rms_norm_eps", f"must be at least 0, not {value}")
        return value

    def nested(self, field: str) -> ConfigFile:
        """Return the JSON object under `field`; empty where it is absent."""
        value = self.values.get(field) or {}
        if not isinstance(value, dict):
            raise self.error(field, f"must be a JSON object, not {value!r}")
        return ConfigFile(self.path, value, f"{self.prefix}{field}.")

    def layer_windows(self, num_layers: int, window: int | None) -> tuple[int | None, ...]:
        """Return each layer's window: `window` where `layer_types` says sliding, None where full."""
        types = self.values["layer_types"]
        if not isinstance(types, list) or len(types) != num_layers:
            raise self.error("layer_types", f"must list {num_layers} layers")
        for kind in types:
            if kind not in ("full_attention", "attention", "sliding_attention"):
                raise self.error("layer_types", f"{kind!r} is not supported (full or sliding is)")
            if kind == "sliding_attention" and window is None:
                raise self.error(
                    "layer_types",
                    "has sliding layers but no sliding_window is in use; give their window in "
                    "sliding_window (with use_sliding_window where the family has it)",
                )
        return tuple(window if kind == "sliding_attention" else None for kind in types)
