"""The process of a rank whose part of a named shape has random weights (`shape.dummy_engine`).

Promises: everything but the weights is as in a rank that loads a model from files.
Does not know: what is measured.
"""

from __future__ import annotations

from eyas.cache.store import KVScales
from eyas.config import EngineConfig
from eyas.engine.rank_main import end_process
from eyas.engine.startup.load import find_order, longest_sequence
from eyas.models import Decoder, resolve_dtype
from eyas.models.sharding import of_rank
from eyas.parallel.shard import Shard
from eyas.runner.device import Device
from eyas_bench.shapes import dummy_decoder, dummy_layouts, find_shape


def load_dummy(
    config: EngineConfig, hardware: Device, shard: Shard
) -> tuple[Decoder, tuple[KVScales, ...]]:
    """Return a rank's part of the shape that `config.model.path` names; after a colon comes how its
    weights are packed."""
    shape, _, quantization = config.model.path.partition(":")
    spec = find_shape(shape).model
    dtype = resolve_dtype(config.model.dtype, hardware.device)
    model = dummy_decoder(
        spec,
        dtype=dtype,
        device=hardware.device,
        max_model_len=longest_sequence(config, spec),
        order=find_order(config, hardware, dtype, of_rank(spec, shard)).order,
        layouts=dummy_layouts(spec, quantization or None, shard),
        shard=shard,
        seed=shard.rank,
    )
    return model, ()


if __name__ == "__main__":
    end_process(load_dummy)
