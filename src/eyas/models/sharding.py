"""The sizes of one rank's part of a model, and which models ranks can divide.

Promises: a model that the ranks cannot divide is refused by name, before weights are read.
Does not know: layers beyond their sizes, how ranks are started.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from eyas.kernels.tiles import SPLIT_MULTIPLE
from eyas.models.spec import ModelSpec
from eyas.parallel.shard import PIECES, Shard


def of_rank(spec: ModelSpec, shard: Shard) -> ModelSpec:
    """Return the description of this rank's layers, whose stores and products have its sizes."""
    if shard.size == 1 or shard.by_sequence:
        return spec
    experts, state = spec.experts, spec.state
    if experts is not None:
        inner = experts.intermediate_size
        if not shard.by_expert:
            inner = shard.part(inner).count
        shared = shard.part(experts.shared_size).count
        experts = replace(experts, intermediate_size=inner, shared_size=shared)
    if state is not None:
        state = replace(
            state,
            num_key_heads=shard.part(state.num_key_heads).count,
            num_value_heads=shard.part(state.num_value_heads).count,
        )
    num_kv_heads = spec.num_kv_heads
    if spec.latent is None:
        num_kv_heads = shard.kv_heads(num_kv_heads).count
    return replace(
        spec,
        num_query_heads=shard.part(spec.num_query_heads).count,
        num_kv_heads=num_kv_heads,
        intermediate_size=shard.part(spec.intermediate_size).count,
        experts=experts,
        state=state,
    )


def check_ranks(spec: ModelSpec, shard: Shard, *, on_gpu: bool) -> None:
    """Raise ValueError if the ranks cannot divide the model."""
    if shard.by_sequence:
        _check_sequences(spec, shard)
        shard = shard.dense
    if shard.is_whole:
        return
    if spec.compressed or spec.hyper is not None:
        raise ValueError(
            f"parallel.tp: {spec.architecture} has compressed attention, which is not divided yet; "
            "leave --tp and --exact-across-tp out, or take another model"
        )
    for field, count in _divided(spec, shard):
        if count % shard.size:
            fitting = [str(size) for size in (1, 2, 4, 8) if not count % size]
            raise ValueError(
                f"parallel.tp: {shard.size} ranks do not divide the {count} {field} of this model; "
                f"pass --tp {' or '.join(fitting)}"
            )
    groups = spec.num_kv_heads
    if spec.latent is None and groups % shard.size and shard.size % groups:
        raise ValueError(
            f"parallel.tp: {shard.size} ranks do not divide the {groups} key/value heads of the model, "
            "nor are a multiple of them; pass another --tp"
        )
    if shard.by_tree:
        _check_pieces(spec, shard, on_gpu=on_gpu)


def _check_sequences(spec: ModelSpec, shard: Shard) -> None:
    """Refuse models whose sequences and experts ranks cannot divide."""
    if spec.latent is None:
        raise ValueError(
            f"parallel.dp: {spec.architecture} has no latent attention, and ranks divide sequences of "
            f"models that have it alone; pass --tp {shard.size}, which divides its key/value heads"
        )
    if spec.experts is None:
        raise ValueError(
            f"parallel.dp: no layer of this {spec.architecture} has experts, so that every rank would "
            f"hold the whole model; pass --tp {shard.size}, or start {shard.size} servers "
            "(docs/replicas.md)"
        )
    count = spec.experts.num_experts
    if count % shard.size:
        fitting = [str(size) for size in (1, 2, 4, 8) if not count % size]
        raise ValueError(
            f"parallel.dp: {shard.size} ranks do not divide the {count} experts of this model; pass "
            f"--dp {' or '.join(fitting)}"
        )


def _divided(spec: ModelSpec, shard: Shard) -> Iterator[tuple[str, int]]:
    """Yield the name and number of everything that ranks divide into equal parts."""
    layers = range(spec.num_layers)
    if any(layer not in spec.state_layers for layer in layers):
        yield "query heads", spec.num_query_heads
    if any(layer not in spec.expert_layers for layer in layers):
        yield "features between the products of a feed-forward block", spec.intermediate_size
    if (experts := spec.experts) is not None:
        if shard.by_expert:
            yield "experts", experts.num_experts
        else:
            yield "features between the products of an expert", experts.intermediate_size
        if experts.shared_size:
            yield "features between the products of the shared expert", experts.shared_size
    if spec.state is not None:
        yield "key heads of its delta nets", spec.state.num_key_heads


def _summed(spec: ModelSpec) -> Iterator[tuple[str, int]]:
    """Yield the name and number of input features of the products whose sums ranks complete."""
    head_dim = spec.head_dim if spec.latent is None else spec.latent.value_dim
    yield "numbers of all query heads", spec.num_query_heads * head_dim
    if len(spec.expert_layers) < spec.num_layers:
        yield "features between the products of a feed-forward block", spec.intermediate_size
    if (experts := spec.experts) is not None:
        yield "features between the products of an expert", experts.intermediate_size
        if experts.shared_size:
            yield "features between the products of the shared expert", experts.shared_size
    if spec.state is not None:
        yield "numbers of all value heads", spec.state.output_width


def _check_pieces(spec: ModelSpec, shard: Shard, *, on_gpu: bool) -> None:
    """Refuse sums that the pieces of the tree do not divide."""
    multiple = PIECES * (SPLIT_MULTIPLE if on_gpu else 1)
    for field, count in _summed(spec):
        if on_gpu and spec.experts is not None and field.endswith("of an expert"):
            continue  # a rank has whole experts, whose sums are those of one rank
        if count % multiple:
            option = "parallel.tp" if shard.size > 1 and not on_gpu else "parallel.exact_across_tp"
            raise ValueError(
                f"{option}: the {count} {field} of this model are no multiple of "
                f"{multiple}, so their sums cannot be the same for every number of ranks; leave --tp "
                "and --exact-across-tp out" + (", or the latter alone" if on_gpu else "")
            )
    if on_gpu and spec.experts is not None and shard.size > 1 and not shard.by_expert:
        raise ValueError(
            "parallel.exact_across_tp: on GPUs ranks must hold whole experts for it; pass "
            f"--ep {shard.size}"
        )
