"""Build the drafter of an engine around its loaded network.

Does not know: how drafters are chosen (`drafting`), requests.
"""

from __future__ import annotations

from eyas.attention import open_attention
from eyas.cache import KVStore
from eyas.draft import (
    BlendDrafter,
    Drafter,
    ForcedDrafter,
    HeadNetwork,
    ModelNetwork,
    NgramDrafter,
    RootDrafter,
    TreeDrafter,
)
from eyas.draft.network import DraftNetwork
from eyas.draft.tree import num_scratch
from eyas.engine.startup.drafting import MAX_FORCED
from eyas.engine.startup.load import Parts
from eyas.engine.startup.memory import EngineSizes
from eyas.engine.startup.step_costs import with_adaptive_shape
from eyas.models.heads import DraftHead
from eyas.runner.runner import ModelRunner


def build_drafter(parts: Parts, sizes: EngineSizes, runner: ModelRunner) -> Drafter:
    """Build the drafter that the settings have been resolved to. runner: of the target."""
    drafting, limits = parts.drafting, sizes.limits
    assert drafting is not None
    if drafting.names == ("root",):
        return RootDrafter()
    shape = drafting.shape.alone
    sources: list[Drafter] = []
    for name in drafting.names:
        if name == "forced":
            continue
        if name == "ngram":
            sources.append(NgramDrafter(min(drafting.settings.max_steps, shape.nodes - 1)))
            continue
        network = _network(parts, sizes)
        sources.append(
            TreeDrafter(
                network,
                shape,
                first_scratch=sizes.num_slots + 1,
                max_rows=limits.max_rows,
                trust=network.beta,
            )
        )
    if not sources:
        return ForcedDrafter(RootDrafter(), MAX_FORCED)
    drafter = sources[0] if len(sources) == 1 else BlendDrafter(sources, shape.nodes)
    if drafting.is_adaptive:
        drafter = with_adaptive_shape(
            drafter,
            drafter.shape,
            runner,
            limits.num_seats,
            sizes.max_length,
            captures=limits.max_captured_seqs > 0,
        )
    return ForcedDrafter(drafter, MAX_FORCED) if "forced" in drafting.names else drafter


def _network(parts: Parts, sizes: EngineSizes) -> DraftNetwork:
    """Allocate the cache of the drafting network, with scratch slots, and connect both."""
    loaded, drafting, num_seats = parts.network, parts.drafting, sizes.limits.num_seats
    assert loaded is not None and drafting is not None
    num_scratch_slots = (num_seats + 1) * num_scratch(drafting.shape)  # one more: the padding seat
    kv = KVStore(
        drafting.stores,
        sizes.num_slots + num_scratch_slots,
        dtype=loaded.dtype,
        device=loaded.device,
        stored_dtype=sizes.kv_dtype,
        scales=parts.draft_kv_scales,
    )
    backend = open_attention(kv)
    if isinstance(loaded, DraftHead):
        return HeadNetwork(loaded, backend, sizes.num_slots)
    return ModelNetwork(loaded, backend)
