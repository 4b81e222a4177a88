"""MTP layers: draft heads that are stored in the model's own checkpoint.

Promises: the wiring and the names of a layout are one entry of `LAYOUTS`; layers that `DraftHead`
cannot run are refused by name.
Does not know: how the layer is run; EAGLE heads.

MiMo-7B (Xiaomi, 2505.07608) and DeepSeek-V3 (2412.19437), whose layout GLM-4.5 uses too, read the
output of the model's final norm, project state and embedding to one stream, run one layer of the
model's own kind, and pass the normalised result on. They differ in the order of the two inputs and in
names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from eyas.models.checkpoint import Checkpoint
from eyas.models.heads.read import check_parameters
from eyas.models.heads.spec import HeadSpec
from eyas.models.registry import family_of
from eyas.models.spec import ModelSpec
from eyas.models.weights import HARMLESS, checkpoint_name, listed


@dataclass(frozen=True, slots=True)
class MtpLayout:
    """How a group of models stores its MTP layer.

    prefix: of its tensors; {layer} stands for the model's number of layers. marker: the tensor, after
    the prefix, by which the layout is recognised. embedding_first: order of the inputs of fc.
    names: parameter -> name after the prefix; the layer's names are those of the model's layers.
    refusal: the feature that makes the layout unsupported; None where it is supported.
    """

    title: str
    prefix: str
    marker: str
    embedding_first: bool = True
    names: Mapping[str, str] | None = None
    refusal: str | None = None

    def file_name(self, parameter: str, target: ModelSpec) -> str:
        """Return the tensor name of a parameter of `DraftHead`."""
        assert self.names is not None
        prefix = self.prefix.replace("{layer}", str(target.num_layers))
        if parameter.startswith("layers.0."):
            names = family_of(target.architecture).CHECKPOINT_NAMES
            return prefix + checkpoint_name(parameter, names).removeprefix("model.layers.0.")
        return prefix + self.names.get(parameter, parameter)


LAYOUTS = (
    MtpLayout(
        "MiMo",
        "model.mtp_layers.0.",
        "input_proj.weight",
        embedding_first=False,
        names={
            "fc.weight": "input_proj.weight",
            "embedding_norm.weight": "token_layernorm.weight",
            "feature_norm.weight": "hidden_layernorm.weight",
            "norm.weight": "final_layernorm.weight",
        },
    ),
    MtpLayout(
        "DeepSeek and GLM",
        "model.layers.{layer}.",
        "eh_proj.weight",
        names={
            "fc.weight": "eh_proj.weight",
            "embedding_norm.weight": "enorm.weight",
            "feature_norm.weight": "hnorm.weight",
            "norm.weight": "shared_head.norm.weight",
            "embedding.weight": "embed_tokens.weight",
            "head.weight": "shared_head.head.weight",
        },
    ),
    MtpLayout(
        "Qwen3-Next",
        "mtp.",
        "fc.weight",
        refusal="its gated attention and zero-centred norms are",
    ),
)
REFUSED_PARTS = {
    "self_attn.indexer.": "sparse attention is",
}


def find_layout(checkpoint: Checkpoint, num_target_layers: int) -> MtpLayout | None:
    """Return the layout of the checkpoint's MTP layer; None where it has none."""
    for layout in LAYOUTS:
        prefix = layout.prefix.replace("{layer}", str(num_target_layers))
        if prefix + layout.marker in checkpoint.tensors:
            return layout
    return None


def read_mtp(checkpoint: Checkpoint, layout: MtpLayout, target: ModelSpec) -> HeadSpec:
    """Read the facts of a model's MTP layer; of several layers, the first.

    ValueError: the layer is not supported, incomplete, or has unknown tensors.
    """
    if layout.refusal is not None:
        raise _refused(checkpoint.directory, layout, layout.refusal)
    prefix = layout.prefix.replace("{layer}", str(target.num_layers))
    stored = {
        name.removeprefix(prefix)
        for name in checkpoint.tensors
        if name.startswith(prefix) and not HARMLESS.search(name)
    }
    for part, refusal in REFUSED_PARTS.items():
        if any(name.startswith(part) for name in stored):
            raise _refused(checkpoint.directory, layout, refusal)
    assert layout.names is not None
    spec = HeadSpec(
        kind="mtp",
        hidden_size=target.hidden_size,
        target_hidden_size=target.hidden_size,
        num_target_layers=target.num_layers,
        vocab_size=target.vocab_size,
        draft_vocab_size=target.vocab_size,
        num_layers=1,
        num_query_heads=target.num_query_heads,
        num_kv_heads=target.num_kv_heads,
        head_dim=target.head_dim,
        intermediate_size=target.intermediate_size,
        norm_epsilon=target.norm_epsilon,
        rope=target.rope,
        max_position=target.max_position,
        taps=(target.num_layers + 1,),
        windows=(target.windows[-1],),
        own_embedding=layout.names.get("embedding.weight") in stored,
        own_head=layout.names.get("head.weight") in stored,
        qkv_bias=target.qkv_bias,
        output_bias=target.output_bias,
        mlp_bias=target.mlp_bias,
        qk_norm=target.qk_norm,
        latent=target.latent,
        attention_scale=target.attention_scale,
        embedding_first=layout.embedding_first,
        entry_norms=True,
        first_attention_norm=True,
        final_norm=True,
        norm_output=True,
        zero_first_embedding=True,
        experts=target.experts if any(".experts." in name for name in stored) else None,
    )
    files = mtp_files(spec, layout, target)
    check_parameters(spec, checkpoint, files)
    if unknown := sorted(stored - {name.removeprefix(prefix) for name in files.values()}):
        raise ValueError(
            f"{checkpoint.directory} holds {listed([prefix + name for name in unknown])}, which an "
            f"MTP layer ({layout.title}) of its architecture does not have"
        )
    return spec


def mtp_files(spec: HeadSpec, layout: MtpLayout, target: ModelSpec) -> dict[str, str]:
    """Return the tensor name of each parameter of the layer."""
    return {parameter: layout.file_name(parameter, target) for parameter in spec.parameter_shapes}


def _refused(directory: Path, layout: MtpLayout, reason: str) -> ValueError:
    return ValueError(
        f"{directory} holds an MTP layer of {layout.title}'s kind, which cannot draft here: {reason} "
        "not supported; use another drafter"
    )
