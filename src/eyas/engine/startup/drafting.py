"""Resolve the drafting settings: choose drafters, check them against the target, load their network.

Promises: a setting that cannot be used raises a ValueError that names it, before weights are loaded.
"auto" is resolved here: a head where the model has one, or the kind of network that `draft.model`
names, else no network.
Does not know: requests, the engine that the drafter is for.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import torch

from eyas import builtin
from eyas.cache import KVStore
from eyas.cache.store import KVScales, Store
from eyas.config import DraftConfig, DrafterName, EngineConfig
from eyas.draft import TreeShape
from eyas.draft.network import stored_size
from eyas.draft.tree import num_scratch
from eyas.layers.row_order import RowOrder
from eyas.models import Decoder, ModelFiles, ModelSpec, Progress
from eyas.models.heads import (
    DraftHead,
    HeadSpec,
    has_mtp_layers,
    has_supported_mtp,
    is_head,
    load_head,
    locate_head,
    read_head,
    read_head_kv_scales,
)
from eyas.models.locate import locate_file

log = logging.getLogger(__name__)

MAX_FORCED = 24
"""Most nodes that forced spans add to a tree."""


@dataclass(frozen=True, slots=True)
class Drafting:
    """The resolved drafting settings.

    names: the drafters. model, head: the drafting network; at most one of them is set. directory: of
    the head; None if it is in no files. reason: why these drafters, for the log.
    """

    names: tuple[DrafterName, ...]
    settings: DraftConfig
    model: ModelFiles | None = None
    head: HeadSpec | None = None
    directory: Path | None = None
    reason: str = "--drafter"

    @property
    def shape(self) -> TreeShape:
        """The shape of the largest tree."""
        extra = MAX_FORCED if "forced" in self.names else 0
        if self.names in (("root",), ("forced",)):
            return TreeShape(0, 1, 1, extra)
        settings, nodes = self.settings, self.settings.max_nodes
        shape = TreeShape(settings.max_steps, settings.topk, nodes).within(nodes)
        return replace(shape, extra=extra)

    @property
    def is_adaptive(self) -> bool:
        """Whether the tree shape is chosen step by step."""
        return self.settings.nodes == "auto" and self.shape.steps > 0

    @property
    def network(self) -> ModelSpec | HeadSpec | None:
        """The description of the drafting network; None without one."""
        return self.head if self.model is None else self.model.spec

    @property
    def stores(self) -> tuple[Store, ...]:
        """What the layers of the drafting network store per token."""
        return () if self.network is None else self.network.stores

    def scratch_bytes(self, max_num_seqs: int, dtype: torch.dtype) -> int:
        """Return the bytes of the keys and values of the inner nodes of all trees. dtype: of the
        cache."""
        per_slot = KVStore.bytes_per_slot(self.stores, dtype)
        return (max_num_seqs + 1) * num_scratch(self.shape) * per_slot

    def bytes_per_slot(
        self, dtype: torch.dtype, kv_dtype: torch.dtype, device: torch.device
    ) -> int:
        """Return the bytes of the keys and values of one token, stored as `kv_dtype`, and of its
        features."""
        size = stored_size(self.head, device) if self.head is not None else 0
        return KVStore.bytes_per_slot(self.stores, kv_dtype) + size * dtype.itemsize


def decide_drafting(config: EngineConfig, directory: Path, spec: ModelSpec) -> Drafting:
    """Resolve the drafting settings for the target in `directory`. Raises ValueError with a remedy."""
    draft = config.draft
    names = draft.names
    may_use_network = not names or {"model", "head"} & set(names)
    source = _locate_network(config, directory, spec) if may_use_network else None
    reason = "--drafter"
    if source is not None and draft.model is not None:
        _refuse_other_heads(source)
    if not names and source is None:
        names, reason = ("forced",), "auto: the model brings no draft head; see --draft-model"
    elif not names:
        assert source is not None
        names = ("head" if _is_head(source, directory) else "model", "forced")
        reason = f"auto: {'--draft-model' if draft.model else 'the model brings a draft head'}"
    if draft.token_map is not None and "head" not in names:
        raise ValueError("draft.token_map: cuts the vocabulary of a head; pass --drafter head")
    if "model" in names:
        assert source is not None
        model = _open_model(config, source, spec)
        _note_tokenizer(source, directory)
        return Drafting(names, draft, model=model, reason=reason)
    if "head" in names:
        if source is None:
            raise ValueError(
                f"draft.model: drafter 'head' needs a draft head, and {config.model.path} brings none "
                "along; name one with --draft-model, or train one with `eyas train head`"
            )
        if draft.token_map is not None:
            try:
                file = locate_file(draft.token_map, config.model.offline)
            except ValueError as error:
                raise ValueError(f"draft.token_map: {error}") from error
            draft = msgspec.structs.replace(draft, token_map=str(file))
        try:
            head = read_head(source, spec, target_directory=directory, token_map=draft.token_map)
        except ValueError as error:
            raise ValueError(f"draft.model: {error}") from error
        return Drafting(names, draft, head=head, directory=source, reason=reason)
    return Drafting(names, draft, reason=reason)


def _locate_network(config: EngineConfig, directory: Path, spec: ModelSpec) -> Path | None:
    """Return the directory of the draft model or head; None if there is none."""
    draft, wants_head = config.draft, "model" not in config.draft.names
    if draft.model == "builtin" and wants_head:
        return builtin.head_path()
    if draft.model is not None:
        return locate_head(draft.model, None, config.model.offline)
    if config.model.path == "builtin":
        return builtin.head_path()
    wants_own_head = "head" in draft.names  # reading it reports what is wrong with it
    if has_supported_mtp(directory) or (wants_own_head and has_mtp_layers(directory, spec)):
        return directory
    return None


_OTHER_HEADS = {
    "medusa": "a Medusa head",
    "hydra": "a Hydra head",
    "mlp_speculator": "an MLP speculator",
}


def _refuse_other_heads(source: Path) -> None:
    """Raise ValueError for heads of kinds that are not served: without a name for them they look like
    broken models."""
    try:
        values = json.loads((source / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        values = {}
    names = [file.name for file in source.glob("*lm_head.pt")]
    if isinstance(values, dict):
        names += [*values, values.get("model_type"), *(values.get("architectures") or [])]
    for sign, kind in _OTHER_HEADS.items():
        if any(sign in str(name).lower() for name in names):
            raise ValueError(
                f"draft.model: {source} is {kind}, which is not supported (EAGLE heads, MTP layers and "
                "draft models are)"
            )


def _note_tokenizer(source: Path, directory: Path) -> None:
    """Log a warning if a draft model's tokens are not those of the target, whose ids it is given."""
    files = [folder / "tokenizer.json" for folder in (source, directory)]
    try:
        texts = [file.read_text(encoding="utf-8") for file in files]
        if texts[0] == texts[1]:
            return
        vocabularies = [json.loads(text)["model"]["vocab"] for text in texts]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if vocabularies[0] != vocabularies[1]:
        log.warning(
            "the tokenizer of the draft model %s is not the target's; most drafts will be refused",
            source,
        )


def _is_head(source: Path, directory: Path) -> bool:
    """Whether `source` holds a draft head. directory: of the target, which may have MTP layers."""
    return is_head(source) or (
        source.resolve() == directory.resolve() and has_supported_mtp(directory)
    )


def _open_model(config: EngineConfig, directory: Path, spec: ModelSpec) -> ModelFiles:
    """Open the files of a draft model. Raises ValueError if its vocabulary is not the target's."""
    if is_head(directory):
        raise ValueError(
            f"draft.model: {config.draft.model} is a draft head, not a model; pass --drafter head"
        )
    try:
        files = ModelFiles.open(directory)
    except ValueError as error:
        raise ValueError(f"draft.model: {error}") from error
    if files.spec.state is not None:
        raise ValueError(
            f"draft.model: {config.draft.model} ({files.spec.architecture}) has layers with a state "
            "per sequence, which cannot draft; take a draft model with attention in all layers"
        )
    if files.spec.compressed:
        raise ValueError(
            f"draft.model: {config.draft.model} ({files.spec.architecture}) has compressed attention, "
            "which cannot draft yet; take a draft model with other attention in all layers"
        )
    if files.spec.vocab_size != spec.vocab_size:
        raise ValueError(
            f"draft.model: {config.draft.model} has a vocabulary of {files.spec.vocab_size}, the "
            f"target one of {spec.vocab_size}; a draft model must share the target's tokenizer"
        )
    if files.spec.max_position < spec.max_position:
        log.warning(
            "the draft model was made for contexts of %d tokens; in longer ones its drafts are worse",
            files.spec.max_position,
        )
    return files


def load_network(
    drafting: Drafting,
    target: Decoder,
    target_directory: Path,
    order: RowOrder,
    progress: Progress | None,
) -> Decoder | DraftHead:
    """Load the weights of the drafting network, in the target's number format and on its device."""
    if drafting.model is not None:
        return drafting.model.load(
            dtype=target.dtype,
            device=target.device,
            max_model_len=target.max_model_len,
            extends=True,
            order=order,
            progress=progress,
        )
    assert drafting.directory is not None, "a head that is in no file"
    return load_head(
        drafting.directory,
        target,
        target_directory,
        order=order,
        token_map=drafting.settings.token_map,
        progress=progress,
    )


def read_draft_scales(drafting: Drafting | None, target: ModelSpec) -> tuple[KVScales, ...]:
    """Return the scales of an FP8 cache of the drafting network's layers; nothing without one."""
    if drafting is None:
        return ()
    if drafting.model is not None:
        return drafting.model.kv_scales()
    if drafting.head is None or drafting.directory is None:
        return ()
    return read_head_kv_scales(drafting.directory, drafting.head, target)
