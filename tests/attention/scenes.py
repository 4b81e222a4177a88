"""Scenes for attention: sequences whose stored prefix, prompt chunks and trees share one forward.

Legend: T rows, N query heads, G key/value heads, H head dim, B sequences, W nodes, L positions.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import torch

from eyas.attention.base import AttentionLayout, ContextRun, KVDestination, NodeGrid
from eyas.cache.kv import KVStore
from eyas.cache.store import KVScales, LayerStore
from eyas.ops.rotate_and_store import as_bytes, to_stored


@dataclass
class Lane:
    """One sequence: `stored` positions are in the cache already, `context` more are in this forward,
    then a tree whose node 0 stands at position stored + context (None: no tree)."""

    stored: int
    context: int
    parents: list[int] | None

    @property
    def root(self) -> int:
        return self.stored + self.context

    def depth(self, node: int) -> int:
        assert self.parents is not None
        return 0 if node == 0 else 1 + self.depth(self.parents[node])

    def path(self, node: int) -> list[int]:
        assert self.parents is not None
        return [0] if node == 0 else [*self.path(self.parents[node]), node]


@dataclass
class Scene:
    """A layout, the tensors to run it with, and for each row the (key, value) history it may see."""

    layout: AttentionLayout
    write_slots_T: torch.Tensor
    q_TNH: torch.Tensor
    k_TGH: torch.Tensor
    v_TGH: torch.Tensor
    kv: KVStore
    seen: list[list[torch.Tensor]] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    names: list[tuple[int, str, int]] = field(default_factory=list)

    def store(self, destination: KVDestination) -> None:
        """Put the rows' keys and values where a layer would."""
        destination.store_keys(self.k_TGH)
        if destination.kv_S2GH.shape[1] == 2:
            destination.store_values(self.v_TGH)


def quantised(scene: Scene, scales: KVScales) -> Scene:
    """The scene over a store of FP8, whose unused slots hold what is no number. Its content, built with
    `is_coarse`, is the same."""
    old = scene.kv
    fp8 = torch.float8_e4m3fn
    kv = KVStore(
        old.stores,
        len(old.layers[0]) - 1,
        dtype=old.dtype,
        device=old.device,
        stored_dtype=fp8,
        scales=[scales],
    )
    own = kv.scales[0]
    for stored, content, scale in (
        (kv.keys, old.keys, own.key),
        (kv.values, old.values, own.value),
    ):
        numbers = as_bytes(to_stored(content[0], scale, fp8))
        as_bytes(stored[0]).copy_(torch.where(content[0].isfinite(), numbers, 0x7F))
    return replace(scene, kv=kv)


def with_window_slots(scene: Scene, lanes: list[Lane]) -> Scene:
    """The scene over a store whose layer has fewer slots than there are, in another order, and none for
    what no row's window shows."""
    old = scene.kv
    (store,) = old.stores
    assert isinstance(store, LayerStore) and store.window is not None
    used = (set(scene.write_slots_T.tolist()) | set(scene.layout.slots_AC.flatten().tolist())) - {0}
    for b, lane in enumerate(lanes):
        used -= set(scene.layout.slots_AC[b, : max(0, lane.stored - store.window + 1)].tolist())
    kv = KVStore(
        old.stores,
        len(old.layers[0]) - 1,
        dtype=old.dtype,
        device=old.device,
        num_window_slots=len(used),
    )
    assert kv.windows is not None and len(kv.layers[0]) < len(old.layers[0])
    slots = torch.tensor(sorted(used))
    order = torch.randperm(len(used), generator=torch.Generator().manual_seed(5))
    kv.windows.slots_S[slots] = 1 + order
    kv.layers[0][1 + order] = old.layers[0][slots]
    return replace(scene, kv=kv)


def random_parents(draw: random.Random, size: int) -> list[int]:
    return [-1] + [i - 1 if draw.random() < 0.5 else draw.randrange(i) for i in range(1, size)]


def build(
    lanes: list[Lane],
    store: LayerStore,
    dtype: torch.dtype,
    seed: int,
    *,
    is_chain: bool = False,
    num_padding: int = 3,
    is_coarse: bool = False,
) -> Scene:
    """Random content; slots in random order; unused slots hold infinities. Where values are a part of
    keys, both are the whole row here. is_coarse: multiples of a half, which FP8 has too."""
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    rooted = [lane for lane in lanes if lane.parents is not None]
    assert lanes[: len(rooted)] == rooted, "sequences with trees come first"
    width = max((len(lane.parents or ()) for lane in rooted), default=1)
    needed = sum(lane.root + width for lane in lanes)
    order = list(range(1, needed + 20))
    draw.shuffle(order)
    kv = KVStore([store], needed + 20, dtype=dtype, device=torch.device("cpu"))
    kv.layers[0].fill_(float("inf"))
    kv.layers[0][0].zero_()
    length = max(lane.root for lane in lanes) + width + 1
    slots_AC = torch.zeros((len(lanes), length), dtype=torch.int64)
    node_slots_BW = torch.zeros((len(rooted), width), dtype=torch.int64)

    num_sides = store.slot_shape[0]

    def vectors(num: int, heads: int) -> torch.Tensor:
        drawn = torch.randn(num, heads, store.head_dim, generator=generator)
        if is_coarse:
            drawn = drawn.clamp_(-3, 3).mul_(2).round_().div_(2)
        return drawn.to(dtype)

    histories = []
    for b, lane in enumerate(lanes):
        own = [order.pop() for _ in range(lane.root)]
        slots_AC[b, : lane.root] = torch.tensor(own, dtype=torch.int64)
        history = torch.stack(
            (vectors(lane.root, store.num_kv_heads), vectors(lane.root, store.num_kv_heads)), dim=1
        )
        if num_sides == 1:
            history[:, 1] = history[:, 0]
        kv.layers[0][own[: lane.stored]] = history[: lane.stored, :num_sides]
        histories.append(history)
        if lane.parents is not None:
            node_slots_BW[b] = torch.tensor([order.pop() for _ in range(width)])
            if is_chain:
                slots_AC[b, lane.root : lane.root + width] = node_slots_BW[b]
    scene = Scene(None, *[None] * 4, kv)  # type: ignore[arg-type]
    rows: list[tuple[int, torch.Tensor]] = []  # slot, its key and value
    node_rows_BW = torch.full((len(rooted), width), -1)
    parents_BW = torch.zeros((len(rooted), width), dtype=torch.int64)
    for b, lane in enumerate(rooted):
        assert lane.parents is not None
        content = torch.stack(
            (vectors(len(lane.parents), store.num_kv_heads),) * 2, dim=1
        ) * torch.tensor([1.0, -0.5 if num_sides == 2 else 1.0]).view(1, 2, 1, 1).to(dtype)
        for node, parent in enumerate(lane.parents):
            node_rows_BW[b, node] = len(rows)
            parents_BW[b, node] = parent
            rows.append((int(node_slots_BW[b, node]), content[node]))
            scene.seen.append([*histories[b], *(content[u] for u in lane.path(node))])
            scene.positions.append(lane.root + lane.depth(node))
            scene.names.append((b, "node", node))
    runs = []
    for b, lane in enumerate(lanes):
        if lane.context:
            runs.append(ContextRun(b, len(rows), lane.stored, lane.context))
            for position in range(lane.stored, lane.root):
                rows.append((int(slots_AC[b, position]), histories[b][position]))
                scene.seen.append(list(histories[b][: position + 1]))
                scene.positions.append(position)
                scene.names.append((b, "context", position))
    total = len(rows) + num_padding
    content_T = torch.stack([c for _, c in rows])
    padding = torch.zeros((num_padding, *content_T.shape[1:]), dtype=dtype)
    content_T = torch.cat([content_T, padding])
    scene.write_slots_T = torch.tensor([slot for slot, _ in rows] + [0] * num_padding)
    scene.k_TGH, scene.v_TGH = content_T[:, 0].contiguous(), content_T[:, 1].contiguous()
    scene.q_TNH = vectors(total, store.num_query_heads)
    roots_B = torch.tensor([lane.root for lane in rooted])
    nodes = NodeGrid(node_rows_BW, node_slots_BW, roots_B, None if is_chain else parents_BW)
    scene.layout = AttentionLayout(
        slots_AC,
        torch.arange(len(lanes)),
        max_position=length - 1,
        contexts=tuple(runs),
        nodes=nodes if rooted else None,
    )
    return scene


def dense(scene: Scene, store: LayerStore, sinks_N: torch.Tensor | None = None) -> torch.Tensor:
    """[rows, N, H] float64: each row against what it may see of its own history."""
    per_kv = store.num_query_heads // store.num_kv_heads
    scale = store.head_dim**-0.5 if store.scale is None else store.scale
    outputs = []
    for row, seen in enumerate(scene.seen):
        last = len(seen) - 1
        first = max(store.first_position, 0 if store.window is None else last - store.window + 1)
        history = torch.stack(seen[min(first, last) :]).double().repeat_interleave(per_kv, dim=2)
        scores_NL = torch.einsum("nh,lnh->nl", scene.q_TNH[row].double(), history[:, 0]) * scale
        if sinks_N is not None:
            scores_NL = torch.cat([scores_NL, sinks_N.double().unsqueeze(1)], dim=1)
        weights_NL = scores_NL.softmax(1)[:, : len(history)]
        values_LNH = history[:, 1, :, : store.output_dim]
        outputs.append(torch.einsum("nl,lnh->nh", weights_NL, values_LNH))
    return torch.stack(outputs)
