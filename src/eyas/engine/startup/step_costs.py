"""Measures what steps cost at start-up, and builds the drafter that chooses its tree shape by it.

Promises: what is measured are the engine's own forward passes, run as in steps: captured where steps
are. They read and write the null slot only.
Does not know: which drafters there are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from eyas.attention.base import AttentionLayout, ContextRun, NodeGrid
from eyas.draft import AdaptiveDrafter, Drafter, TreeShape
from eyas.draft.costs import NOTHING, Costs, measure_costs
from eyas.draft.network import DraftNetwork
from eyas.draft.shape_policy import ShapePolicy, usual_shapes
from eyas.kernels import usable
from eyas.runner.graphs import Stages, StepGraphs
from eyas.runner.rows import ForwardRows
from eyas.runner.runner import ModelRunner

log = logging.getLogger(__name__)

MOST_COST_ROWS, MOST_LOGITS = 2048, 256
"""Rows of the largest forward pass whose cost is measured at start-up on a device, and the rows of it
that have logits, of which a prompt has none."""
MOST_CATCH_UP_ROWS = 128
"""Rows of the largest chunk of missing rows whose cost is measured; that of more is extrapolated."""
COST_POSITION = 128
"""Position of the rows whose cost is measured at start-up."""


def with_adaptive_shape(
    drafter: Drafter,
    shape: TreeShape,
    runner: ModelRunner,
    max_num_seqs: int,
    max_length: int,
    *,
    captures: bool = True,
) -> AdaptiveDrafter:
    """Wrap a drafter so that its tree shape, at most `shape`, is chosen step by step.

    The choice is made by the cost of forward passes of target and drafting network, measured here.
    captures: steps run from CUDA graphs on a device.
    """
    max_rows = max_num_seqs * shape.nodes
    # On a CPU time grows evenly with rows, and many of them would take long here.
    most = MOST_COST_ROWS if runner.model.device.type == "cuda" else 128
    costs = _target_costs(runner, max_length, min(max_rows, most), captures)
    log.debug("a step costs %s ms", _format_costs(costs))
    network_costs = catch_up_costs = NOTHING
    for network in drafter.networks:
        network_costs = _network_costs(network, runner.model.device, max_length, captures)
        catch_up_costs = _catch_up_costs(network, runner.model.device, max_length)
        log.debug("a pass of the drafter costs %s ms", _format_costs(network_costs))
        log.debug("one over missing rows costs %s ms", _format_costs(catch_up_costs))
    policy = ShapePolicy(usual_shapes(shape), costs, network_costs, catch_up_costs)
    return AdaptiveDrafter(drafter, policy)


def _probe_rows(num_rows: int, max_length: int, device: torch.device) -> ForwardRows:
    """Return rows of `num_rows` sequences at one position, which read and write the null slot only. At
    most `MOST_LOGITS` have logits."""
    position = min(COST_POSITION, max_length - 1)
    rows_B1 = torch.arange(num_rows, device=device).unsqueeze(1)
    zeros_T = torch.zeros(num_rows, dtype=torch.int64, device=device)
    slots_AC = torch.zeros((1, position + 1), dtype=torch.int64, device=device)
    nodes = NodeGrid(rows_B1, torch.zeros_like(rows_B1), zeros_T + position)
    return ForwardRows(
        tokens_T=zeros_T,
        positions_T=zeros_T + position,
        write_slots_T=zeros_T,
        layout=AttentionLayout(slots_AC, zeros_T, position, nodes=nodes),
        logits_rows_R=rows_B1.view(-1)[:MOST_LOGITS],
        num_leading=min(num_rows, MOST_LOGITS),
    )


def _probe_chain(num_rows: int, max_length: int, device: torch.device) -> ForwardRows:
    """Return rows of one sequence, each the node of a chain; else like `_probe_rows`. Many sequences
    would need as many states."""
    position = min(COST_POSITION, max_length - 1)
    rows = _probe_rows(num_rows, max_length, device)
    zeros_1W = torch.zeros((1, num_rows), dtype=torch.int64, device=device)
    rows_1W = torch.arange(num_rows, device=device).unsqueeze(0)
    nodes = NodeGrid(rows_1W, zeros_1W, zeros_1W[:, 0] + position)
    stop = position + num_rows
    slots_AC = torch.zeros((1, stop), dtype=torch.int64, device=device)
    rows.layout = AttentionLayout(slots_AC, zeros_1W[:, 0], stop - 1, nodes=nodes)
    return rows


def _target_costs(runner: ModelRunner, max_length: int, max_rows: int, captures: bool) -> Costs:
    device = runner.model.device
    if runner.backend.kv.states is not None:
        runner.backend.kv.states.resize(1, max_rows)

    def forward(num_rows: int) -> object:
        if (states := runner.backend.kv.states) is None:
            return runner.forward(_probe_rows(num_rows, max_length, device))
        rows = _probe_chain(num_rows, max_length, device)
        states.assume(0, rows.layout.max_position + 1 - num_rows)
        return runner.forward(rows)

    stages = StepGraphs(device, announcer=runner.leader).of("forwards")
    return measure_costs(_as_in_steps(forward, stages, device, captures), max_rows)


def _network_costs(
    network: DraftNetwork, device: torch.device, max_length: int, captures: bool
) -> Costs:
    def forward(num_rows: int) -> object:
        rows = _probe_rows(num_rows, max_length, device)
        return network.forward(rows, network.recall(rows.write_slots_T))

    stages = StepGraphs(device).of("forwards")
    return measure_costs(_as_in_steps(forward, stages, device, captures), 64)


def _catch_up_costs(network: DraftNetwork, device: torch.device, max_length: int) -> Costs:
    """Return the cost of a chunk of missing rows of one sequence, which steps never capture."""

    def forward(num_rows: int) -> object:
        zeros_T = torch.zeros(num_rows, dtype=torch.int64, device=device)
        stop = network.first_position + num_rows
        layout = AttentionLayout(
            torch.zeros((1, stop), dtype=torch.int64, device=device),
            zeros_T[:1],
            stop - 1,
            (ContextRun(0, 0, network.first_position, num_rows),),
        )
        rows = ForwardRows(
            tokens_T=zeros_T,
            positions_T=torch.arange(network.first_position, stop, device=device),
            write_slots_T=zeros_T,
            layout=layout,
            logits_rows_R=None,
            num_outputs=0,
        )
        return network.forward(rows, network.recall(zeros_T))

    most = min(MOST_CATCH_UP_ROWS, max_length - 1 - network.first_position)
    return measure_costs(_as_in_steps(forward, None, device, captures=False), max(1, most))


def _as_in_steps(
    forward: Callable[[int], object], stages: Stages | None, device: torch.device, captures: bool
) -> Callable[[int], None]:
    """Return a function that runs `forward` as steps do on this device, and waits for its end. stages:
    None where steps never capture it."""
    captures = captures and usable(device)

    def run(num_rows: int) -> None:
        if captures and stages is not None:
            stages.run("forward", num_rows, lambda: forward(num_rows))
        else:
            forward(num_rows)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return run


def _format_costs(costs: Costs) -> str:
    pairs = zip(costs.rows, costs.seconds, strict=True)
    return ", ".join(f"{1000 * seconds:.2f} ({rows})" for rows, seconds in pairs)
