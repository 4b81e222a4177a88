"""From the drafting settings to a drafter: what drafts is decided, checked against its target, loaded.

Promises: everything that can be wrong is a ValueError that names the setting, before weights are
loaded. "auto" is resolved here: the head that a model brings along, or what the path turns out to be,
else plain decoding.
Does not know: requests, the engine it will serve.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import torch

from eyas import builtin
from eyas.attention import open_attention
from eyas.attention.base import Layout, NodeGrid
from eyas.cache import KVStore
from eyas.cache.store import LayerStore
from eyas.config import DraftConfig, DrafterName, EngineConfig
from eyas.draft import (
    BlendDrafter,
    Drafter,
    ForcedDrafter,
    HeadNetwork,
    ModelNetwork,
    NgramDrafter,
    PacedDrafter,
    RootDrafter,
    TreeDrafter,
    TreeShape,
)
from eyas.draft.costs import NOTHING, Costs, measure_costs
from eyas.draft.network import DraftNetwork
from eyas.draft.pace import Pace, usual_shapes
from eyas.draft.tree import num_scratch
from eyas.kernels import usable
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
)
from eyas.models.locate import locate_file
from eyas.runner.graphs import StepGraphs
from eyas.runner.rows import ForwardRows
from eyas.runner.runner import ModelRunner

log = logging.getLogger(__name__)

MAX_FORCED = 24
"""Nodes of a tree that forced spans may add."""
COST_POSITION = 128
"""Where in a text the rows stand whose cost is measured."""


@dataclass(frozen=True, slots=True)
class Drafting:
    """Who will draft, under which settings. One of model and head is set, or none. directory: of the
    head; None where it is in no file."""

    names: tuple[DrafterName, ...]
    settings: DraftConfig
    model: ModelFiles | None = None
    head: HeadSpec | None = None
    directory: Path | None = None

    @property
    def shape(self) -> TreeShape:
        """The largest tree."""
        extra = MAX_FORCED if "forced" in self.names else 0
        if self.names in (("root",), ("forced",)):
            return TreeShape(0, 1, 1, extra)
        settings, nodes = self.settings, self.settings.max_nodes
        own = TreeShape(settings.max_steps, settings.topk, nodes).within(nodes)
        return replace(own, extra=extra)

    @property
    def is_paced(self) -> bool:
        """Is the size of trees chosen step by step?"""
        return self.settings.nodes == "auto"

    @property
    def network(self) -> ModelSpec | HeadSpec | None:
        """The network that drafts; None where none does."""
        return self.head if self.model is None else self.model.spec

    @property
    def stores(self) -> tuple[LayerStore, ...]:
        """What the drafting network keeps per token."""
        return () if self.network is None else self.network.stores

    def scratch_bytes(self, max_num_seqs: int, dtype: torch.dtype) -> int:
        """Keys and values of the inner nodes of all trees."""
        per_slot = KVStore.bytes_per_slot(self.stores, dtype)
        return (max_num_seqs + 1) * num_scratch(self.shape) * per_slot

    def bytes_per_slot(self, dtype: torch.dtype) -> int:
        """Keys, values and features of one token."""
        feature_size = self.head.feature_size if self.head is not None else 0
        return KVStore.bytes_per_slot(self.stores, dtype) + feature_size * dtype.itemsize


def decide_drafting(config: EngineConfig, directory: Path, spec: ModelSpec) -> Drafting:
    """Resolve the drafting settings for the target in `directory`."""
    draft = config.draft
    names = draft.names
    is_asked = not names or {"model", "head"} & set(names)
    found = _find(config, directory, spec) if is_asked else None
    if not names and found is None:
        names = ("forced",)
    elif not names:
        assert found is not None
        names = ("head" if _is_head(found, directory) else "model", "forced")
    if draft.token_map is not None and "head" not in names:
        raise ValueError("draft.token_map: cuts the vocabulary of a head; pass --drafter head")
    if "model" in names:
        assert found is not None
        return Drafting(names, draft, model=_open_model(config, found, spec))
    if "head" in names:
        if found is None:
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
            head = read_head(found, spec, target_directory=directory, token_map=draft.token_map)
        except ValueError as error:
            raise ValueError(f"draft.model: {error}") from error
        return Drafting(names, draft, head=head, directory=found)
    return Drafting(names, draft)


def _find(config: EngineConfig, directory: Path, spec: ModelSpec) -> Path | None:
    """Where the draft model or head is, if there is one."""
    draft, wants_head = config.draft, "model" not in config.draft.names
    if draft.model == "builtin" and wants_head:
        return builtin.head_path()
    if draft.model is not None:
        return locate_head(draft.model, None, config.model.offline)
    if config.model.path == "builtin":
        return builtin.head_path()
    is_asked = "head" in draft.names  # reading it then says what is wrong with it
    if has_supported_mtp(directory) or (is_asked and has_mtp_layers(directory, spec)):
        return directory
    return None


def _is_head(found: Path, directory: Path) -> bool:
    return is_head(found) or (
        found.resolve() == directory.resolve() and has_supported_mtp(directory)
    )


def _open_model(config: EngineConfig, directory: Path, spec: ModelSpec) -> ModelFiles:
    """The files of a draft model; it must share the target's vocabulary."""
    if is_head(directory):
        raise ValueError(
            f"draft.model: {config.draft.model} is a draft head, not a model; pass --drafter head"
        )
    try:
        files = ModelFiles.open(directory)
    except ValueError as error:
        raise ValueError(f"draft.model: {error}") from error
    if files.spec.vocab_size != spec.vocab_size:
        raise ValueError(
            f"draft.model: {config.draft.model} has a vocabulary of {files.spec.vocab_size}, the "
            f"target one of {spec.vocab_size}; a draft model must share the target's tokenizer"
        )
    if files.spec.max_position < spec.max_position:
        log.warning(
            "the draft model was made for %d tokens; behind them its drafts are worse",
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
    """The weights of the network that drafts, in the target's type and place."""
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


def build_drafter(
    drafting: Drafting,
    config: EngineConfig,
    runner: ModelRunner,
    loaded: Decoder | DraftHead | None,
    num_slots: int,
    max_length: int,
) -> Drafter:
    """Put the drafter together around what was loaded for it."""
    if drafting.names == ("root",):
        return RootDrafter()
    shape, max_num_seqs = drafting.shape.alone, config.scheduler.max_num_seqs
    sources: list[Drafter] = []
    for name in drafting.names:
        if name == "forced":
            continue
        if name == "ngram":
            sources.append(NgramDrafter(min(drafting.settings.max_steps, shape.nodes - 1)))
            continue
        assert loaded is not None
        num_scratch_slots = (max_num_seqs + 1) * num_scratch(shape)  # the padding seat too
        network = _network(drafting, loaded, num_slots, num_scratch_slots)
        max_rows = config.scheduler.rows(on_gpu=loaded.device.type == "cuda")
        place = {"first_scratch": num_slots + 1, "max_rows": max_rows}
        sources.append(TreeDrafter(network, shape, **place, trust=network.beta))
    if not sources:
        return ForcedDrafter(RootDrafter(), MAX_FORCED)
    drafter = sources[0] if len(sources) == 1 else BlendDrafter(sources, shape.nodes)
    if drafting.is_paced:
        captures = config.scheduler.max_graph_batch != 0
        drafter = pace(drafter, drafter.shape, runner, max_num_seqs, max_length, captures=captures)
    return ForcedDrafter(drafter, MAX_FORCED) if "forced" in drafting.names else drafter


def pace(
    drafter: Drafter,
    shape: TreeShape,
    runner: ModelRunner,
    max_num_seqs: int,
    max_length: int,
    *,
    captures: bool = True,
) -> PacedDrafter:
    """The drafter with its shape chosen step by step, at most `shape`, by what steps and passes cost
    here. captures: steps are run from CUDA graphs where there is a device."""
    most = max_num_seqs * shape.nodes
    costs = _target_costs(runner, max_length, min(most, 128), captures)
    log.info("a step costs %s ms", _as_text(costs))
    network_costs = NOTHING
    for network in drafter.networks:
        network_costs = _network_costs(network, runner.model.device, max_length, captures)
        log.info("a pass of the drafter costs %s ms", _as_text(network_costs))
    shapes = usual_shapes(shape)
    return PacedDrafter(drafter, Pace(shapes, costs, network_costs))


def _network(
    drafting: Drafting, loaded: Decoder | DraftHead, num_slots: int, num_scratch_slots: int
) -> DraftNetwork:
    kv = KVStore(
        drafting.stores, num_slots + num_scratch_slots, dtype=loaded.dtype, device=loaded.device
    )
    backend = open_attention(kv)
    if isinstance(loaded, DraftHead):
        return HeadNetwork(loaded, backend, num_slots)
    return ModelNetwork(loaded, backend)


def _probe_rows(num_rows: int, max_length: int, device: torch.device) -> ForwardRows:
    """Rows of as many sequences, in the middle of nothing: everything is the null slot's."""
    position = min(COST_POSITION, max_length - 1)
    rows_B1 = torch.arange(num_rows, device=device).unsqueeze(1)
    nothing_T = torch.zeros(num_rows, dtype=torch.int64, device=device)
    slots_AC = torch.zeros((1, position + 1), dtype=torch.int64, device=device)
    nodes = NodeGrid(rows_B1, torch.zeros_like(rows_B1), nothing_T + position)
    return ForwardRows(
        tokens_T=nothing_T,
        positions_T=nothing_T + position,
        write_slots_T=nothing_T,
        layout=Layout(slots_AC, nothing_T, position, nodes=nodes),
        logits_rows_R=rows_B1.view(-1),
        num_leading=num_rows,
    )


def _target_costs(runner: ModelRunner, max_length: int, max_rows: int, captures: bool) -> Costs:
    device = runner.model.device

    def run(num_rows: int) -> object:
        return runner.forward(_probe_rows(num_rows, max_length, device))

    return measure_costs(_as_run(run, device, captures), max_rows)


def _network_costs(
    network: DraftNetwork, device: torch.device, max_length: int, captures: bool
) -> Costs:
    def run(num_rows: int) -> object:
        rows = _probe_rows(num_rows, max_length, device)
        return network.forward(rows, network.recall(rows.write_slots_T))

    return measure_costs(_as_run(run, device, captures), 64)


def _as_run(
    run: Callable[[int], object], device: torch.device, captures: bool
) -> Callable[[int], None]:
    """`run` the way steps run it on this device, and waited for."""
    if not usable(device):

        def wait_for_nothing(num_rows: int) -> None:
            run(num_rows)

        return wait_for_nothing
    stages = StepGraphs(device).of("forwards")

    def replay(num_rows: int) -> None:
        if captures:
            stages.run("forward", num_rows, lambda: run(num_rows))
        else:
            run(num_rows)
        torch.cuda.synchronize(device)

    return replay


def _as_text(costs: Costs) -> str:
    pairs = zip(costs.rows, costs.seconds, strict=True)
    return ", ".join(f"{1000 * seconds:.2f} ({rows})" for rows, seconds in pairs)
