"""MTP layers: draft heads that are stored in the model's own checkpoint.

Promises: the wiring and the names of a layout are one entry of `LAYOUTS`; layers that `DraftHead`
cannot run are refused by name.
Does not know: how the layer is run; EAGLE heads.

MiMo-7B (Xiaomi, 2505.07608) and DeepSeek-V3 (2412.19437), whose layout GLM-4.5 uses too, read the
output of the model's final norm, project state and embedding to one stream, run one layer of the
model's own kind, and pass the normalised result on. So does Qwen3-Next (and Qwen3.5), whose layer has
attention. They differ in the order of the two inputs, in the first position and in names. DeepSeek-V4's
reads all residual streams after the last layer instead, and passes its own on (`hyper`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from eyas.models.checkpoint import Checkpoint
from eyas.models.heads.hyper import parameter_shapes
from eyas.models.heads.read import check_parameters
from eyas.models.heads.spec import HeadSpec
from eyas.models.registry import family_of, published_names
from eyas.models.spec import ModelSpec
from eyas.models.weights import HARMLESS, checkpoint_name, listed


@dataclass(frozen=True, slots=True)
class MtpLayout:
    """How a group of models stores its MTP layer.

    prefix: of its tensors; {layer} stands for the model's number of layers. marker: the tensor, after
    the prefix, by which the layout is recognised. embedding_first: order of the inputs of fc.
    names: parameter -> name after the prefix. layer_prefix: of the layer's tensors, after the prefix;
    the rest of their names is that of the model's layers. zero_first_embedding: as in `HeadSpec`.
    """

    title: str
    prefix: str
    marker: str
    names: Mapping[str, str]
    embedding_first: bool = True
    layer_prefix: str = ""
    zero_first_embedding: bool = True

    def file_name(self, parameter: str, target: ModelSpec) -> str:
        """Return the tensor name of a parameter of `DraftHead`."""
        prefix = self.prefix.replace("{layer}", str(target.num_layers))
        if parameter.startswith("layers.0."):
            name = checkpoint_name(parameter, published_names(target.architecture))
            name = name.removeprefix("model.").removeprefix("layers.0.")
            return prefix + self.layer_prefix + name
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
        names={
            "embedding_norm.weight": "pre_fc_norm_embedding.weight",
            "feature_norm.weight": "pre_fc_norm_hidden.weight",
        },
        layer_prefix="layers.0.",
        zero_first_embedding=False,
    ),
    MtpLayout(
        "DeepSeek-V4",
        "mtp.0.",
        "e_proj.weight",
        names={
            "embedding_fc.weight": "e_proj.weight",
            "feature_fc.weight": "h_proj.weight",
            "embedding_norm.weight": "enorm.weight",
            "feature_norm.weight": "hnorm.weight",
            "embedding.weight": "emb.tok_emb.weight",
            "head.weight": "head.weight",
            **{f"collapse.{part}": f"hc_head_{part}" for part in ("fn", "base", "scale")},
        },
        zero_first_embedding=False,
    ),
    MtpLayout("DSpark", "mtp.0.", "main_proj.weight", names={}),
)
REFUSED_PARTS = {
    "self_attn.indexer.": "sparse attention is",
    "attn.compressor.": "an MTP layer with compressed entries is",
    "main_proj.": "drafting in blocks is",
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
    prefix = layout.prefix.replace("{layer}", str(target.num_layers))
    stored = {
        name.removeprefix(prefix)
        for name in checkpoint.tensors
        if name.startswith(prefix) and not HARMLESS.search(name)
    }
    for part, refusal in REFUSED_PARTS.items():
        if any(name.startswith(part) for name in stored):
            raise _refused(checkpoint.directory, layout, refusal)
    has_streams = target.hyper is not None
    has_experts = has_streams or any(".experts." in name for name in stored)
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
        rope=(target.window_rope or target.rope) if has_streams else target.rope,
        max_position=target.max_position,
        taps=(target.num_layers + (not has_streams),),
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
        norm_output=not has_streams,
        zero_first_embedding=layout.zero_first_embedding,
        experts=target.experts if has_experts else None,
        traits=target.traits,
        compressed=target.compressed[0].without_entries if target.compressed else None,
        hyper=target.hyper,
    )
    shapes = _stored_shapes(spec, layout, target, checkpoint)
    files = {parameter: layout.file_name(parameter, target) for parameter in shapes}
    check_parameters(spec, checkpoint, files, shapes)
    if unknown := sorted(stored - {name.removeprefix(prefix) for name in files.values()}):
        raise ValueError(
            f"{checkpoint.directory} holds {listed([prefix + name for name in unknown])}, which an "
            f"MTP layer ({layout.title}) of its architecture does not have"
        )
    return spec


def mtp_files(
    spec: HeadSpec, layout: MtpLayout, target: ModelSpec, checkpoint: Checkpoint
) -> dict[str, str]:
    """Return the tensor name of each parameter of the layer, grouped as `weights.fused` does."""
    shapes = _stored_shapes(spec, layout, target, checkpoint)
    return {parameter: layout.file_name(parameter, target) for parameter in shapes}


def _stored_shapes(
    spec: HeadSpec, layout: MtpLayout, target: ModelSpec, checkpoint: Checkpoint
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the layer's parameters as stored: all experts may be one tensor."""
    shapes, experts = parameter_shapes(spec), spec.experts
    names = family_of(target.architecture).CHECKPOINT_NAMES
    if experts is None or "layers.{layer}.mlp.experts.gate_up.weight" not in names:
        return shapes
    prefix = "layers.0.mlp.experts."
    if layout.file_name(f"{prefix}gate_up.weight", target) not in checkpoint.tensors:
        return shapes
    inner, hidden = experts.intermediate_size, spec.hidden_size
    others = {name: shape for name, shape in shapes.items() if not name.startswith(prefix)}
    return others | {
        f"{prefix}gate_up.weight": (experts.num_experts, 2 * inner, hidden),
        f"{prefix}down.weight": (experts.num_experts, hidden, inner),
    }


def _refused(directory: Path, layout: MtpLayout, reason: str) -> ValueError:
    return ValueError(
        f"{directory} holds an MTP layer of {layout.title}'s kind, which cannot draft here: {reason} "
        "not supported; use another drafter"
    )
