"""From the drafting settings to a drafter: what drafts is decided, checked against its target, loaded.

Promises: everything that can be wrong is a ValueError that names the setting, before weights are
loaded. "auto" is resolved here: the head that a model brings along, or what the path turns out to be,
else plain decoding.
Does not know: requests, the engine it will serve.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from eyas import builtin
from eyas.attention.base import Layout
from eyas.attention.reference import ReferenceAttention
from eyas.cache import KVStore
from eyas.cache.store import LayerStore
from eyas.config import DrafterName, EngineConfig
from eyas.draft import (
    BlendDrafter,
    Drafter,
    HeadNetwork,
    ModelNetwork,
    NgramDrafter,
    PacedDrafter,
    RootDrafter,
    Shape,
    TreeDrafter,
)
from eyas.draft.costs import NOTHING, Costs, measure_costs
from eyas.draft.network import DraftNetwork
from eyas.draft.pace import Pace, usual_shapes
from eyas.draft.tree import num_scratch
from eyas.models import ModelSpec, load_model, read_spec
from eyas.models.heads import HeadSpec, has_mtp, is_head, load_head, locate_head, read_head
from eyas.runner.rows import ForwardRows
from eyas.runner.runner import ModelRunner

log = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]

MAX_NGRAM_TOKENS = 8
COST_POSITION = 128
"""Where in a text the rows stand whose cost is measured."""


@dataclass(frozen=True, slots=True)
class Drafting:
    """Who will draft. directory: of the draft model or head. One of model and head is set, or none.

    shape: the largest tree.
    """

    names: tuple[DrafterName, ...]
    shape: Shape
    is_paced: bool
    directory: Path | None = None
    model: ModelSpec | None = None
    head: HeadSpec | None = None
    token_map: Path | None = None

    @property
    def stores(self) -> tuple[LayerStore, ...]:
        """What the drafting network keeps per token."""
        network = self.model or self.head
        return network.stores if network is not None else ()

    @property
    def linear_shapes(self) -> tuple[tuple[int, int], ...]:
        """The products of the drafting network."""
        network = self.model or self.head
        return network.linear_shapes if network is not None else ()

    @property
    def head_shapes(self) -> tuple[tuple[int, int], ...]:
        """(vocabulary, hidden size) of the drafting network's output layer."""
        network = self.model or self.head
        return (network.head_shape,) if network is not None else ()

    def bytes_per_slot(self, dtype: torch.dtype) -> int:
        """Keys, values and features of one token."""
        feature_size = self.head.feature_size if self.head is not None else 0
        return KVStore.bytes_per_slot(self.stores, dtype) + feature_size * dtype.itemsize


def decide_drafting(config: EngineConfig, directory: Path, spec: ModelSpec) -> Drafting:
    """Resolve the drafting settings for the target in `directory`."""
    draft = config.draft
    names, found = draft.names, _find(config, directory)
    if not names:
        names = (
            ("root",) if found is None else ("head",) if _is_head(found, directory) else ("model",)
        )
    shape = Shape(draft.steps, draft.topk, draft.max_nodes)
    shape = shape.within(shape.nodes)
    drafting = Drafting(names, shape, draft.nodes == "auto")
    if draft.token_map is not None and "head" not in names:
        raise ValueError("draft.token_map: cuts the vocabulary of a head; pass --drafter head")
    if "model" in names:
        assert found is not None
        return _with_model(drafting, config, found, spec)
    if "head" in names:
        if found is None or not _is_head(found, directory):
            what = "it has none" if found is None else f"{found} holds no head"
            raise ValueError(
                f"draft.model: drafter 'head' needs a head for {config.model.path}, and {what}; "
                "name one with --draft-model"
            )
        token_map = None if draft.token_map is None else Path(draft.token_map)
        head = read_head(found, spec, target_directory=directory, token_map=token_map)
        return Drafting(names, shape, drafting.is_paced, found, head=head, token_map=token_map)
    return drafting


def _find(config: EngineConfig, directory: Path) -> Path | None:
    """Where the draft model or head is, if there is one."""
    draft = config.draft
    if draft.model == "builtin" and draft.names != ("model",):
        return builtin.head_path()
    if draft.model is not None:
        return locate_head(draft.model, None, config.model.offline)
    if has_mtp(directory):
        return directory
    if config.model.path == "builtin":
        return builtin.head_path()
    return None


def _is_head(found: Path, directory: Path) -> bool:
    return is_head(found) or (found == directory and has_mtp(directory))


def _with_model(
    drafting: Drafting, config: EngineConfig, directory: Path, spec: ModelSpec
) -> Drafting:
    draft_spec = read_spec(directory)
    if draft_spec.vocab_size != spec.vocab_size:
        raise ValueError(
            f"draft.model: {config.draft.model} has a vocabulary of {draft_spec.vocab_size}, the "
            f"target one of {spec.vocab_size}; a draft model must share the target's tokenizer"
        )
    return Drafting(drafting.names, drafting.shape, drafting.is_paced, directory, model=draft_spec)


def build_drafter(
    drafting: Drafting,
    config: EngineConfig,
    runner: ModelRunner,
    target_directory: Path,
    num_slots: int,
    max_length: int,
    progress: Progress | None,
) -> Drafter:
    """Load what drafts, and put the drafter together."""
    if drafting.names == ("root",):
        return RootDrafter()
    shape = drafting.shape
    sources: list[Drafter] = []
    for name in drafting.names:
        if name == "ngram":
            num_tokens = shape.nodes - 1
            if drafting.is_paced:
                num_tokens = min(num_tokens, MAX_NGRAM_TOKENS)
            sources.append(NgramDrafter(num_tokens))
            continue
        scratch = config.scheduler.max_num_seqs * num_scratch(shape)
        network = _network(
            drafting, runner, target_directory, num_slots, scratch, max_length, progress
        )
        sources.append(
            TreeDrafter(
                network,
                shape,
                first_scratch=num_slots + 1,
                max_rows=config.scheduler.max_batch_tokens,
            )
        )
    nodes = max(source.width for source in sources)
    drafter = sources[0] if len(sources) == 1 else BlendDrafter(sources, nodes)
    if not drafting.is_paced:
        return drafter
    return pace(drafter, runner, config.scheduler.max_num_seqs, max_length)


def pace(
    drafter: Drafter, runner: ModelRunner, max_num_seqs: int, max_length: int
) -> PacedDrafter:
    """The drafter with its shape chosen step by step, by what steps and passes cost here."""
    shape = drafter.shape
    most = max_num_seqs * shape.nodes
    costs = measure_costs(lambda n: _run_target(runner, n, max_length), min(most, 128))
    log.info("a step costs %s ms", _as_text(costs))
    network_costs = NOTHING
    for network in drafter.networks:
        network_costs = _network_costs(network, runner.model.device, max_length)
        log.info("a pass of the drafter costs %s ms", _as_text(network_costs))
    shapes = usual_shapes(shape.steps, shape.topk, shape.nodes)
    return PacedDrafter(drafter, Pace(shapes, costs, network_costs))


def _network(
    drafting: Drafting,
    runner: ModelRunner,
    target_directory: Path,
    num_slots: int,
    num_scratch_slots: int,
    max_length: int,
    progress: Progress | None,
) -> DraftNetwork:
    target, order = runner.model, runner.order
    kv = KVStore(
        drafting.stores, num_slots + num_scratch_slots, dtype=target.dtype, device=target.device
    )
    backend = ReferenceAttention(kv)
    assert drafting.directory is not None
    if drafting.model is not None:
        model = load_model(
            drafting.directory,
            dtype=target.dtype,
            device=target.device,
            max_model_len=max_length,
            order=order,
            progress=progress,
        )
        return ModelNetwork(model, backend, order)
    head = load_head(
        drafting.directory,
        target,
        target_directory,
        dtype=target.dtype,
        device=target.device,
        max_model_len=max_length,
        order=order,
        token_map=drafting.token_map,
        progress=progress,
    )
    return HeadNetwork(head, backend, order, num_slots)


def _probe_rows(num_rows: int, max_length: int, device: torch.device) -> ForwardRows:
    """Rows of as many sequences, in the middle of nothing: everything is the null slot's."""
    position = min(COST_POSITION, max_length - 1)
    rows_B1 = torch.arange(num_rows, device=device).unsqueeze(1)
    nothing_T = torch.zeros(num_rows, dtype=torch.int64, device=device)
    layout = Layout(
        slots_BL=torch.zeros((num_rows, position + 1), dtype=torch.int64, device=device),
        contexts=(),
        node_rows_BW=rows_B1,
        node_slots_BW=torch.zeros_like(rows_B1),
        root_positions_B=nothing_T + position,
        parents_BW=None,
        max_position=position,
    )
    return ForwardRows(
        tokens_T=nothing_T,
        positions_T=nothing_T + position,
        write_slots_T=nothing_T,
        layout=layout,
        logits_rows_R=rows_B1.view(-1),
        num_leading=num_rows,
    )


def _run_target(runner: ModelRunner, num_rows: int, max_length: int) -> None:
    runner.forward(_probe_rows(num_rows, max_length, runner.model.device))
    _wait(runner.model.device)


def _network_costs(network: DraftNetwork, device: torch.device, max_length: int) -> Costs:
    def run(num_rows: int) -> None:
        rows = _probe_rows(num_rows, max_length, device)
        network.forward(rows, network.recall(rows.write_slots_T))
        _wait(device)

    return measure_costs(run, 64)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _as_text(costs: Costs) -> str:
    pairs = zip(costs.rows, costs.seconds, strict=True)
    return ", ".join(f"{1000 * seconds:.2f} ({rows})" for rows, seconds in pairs)
