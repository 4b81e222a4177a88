"""Build an engine for a shape with random weights, to measure speed without a checkpoint.

Promises: everything but the weights is as in an engine from files: sizes, exactness check,
drafting. Does not know: what is measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from eyas.children import freeze_loaded, python_command
from eyas.config import DraftConfig, EngineConfig
from eyas.engine.engine import Engine
from eyas.engine.rank_group import Ranks, shard_of
from eyas.engine.startup.build import assemble
from eyas.engine.startup.drafting import Drafting
from eyas.engine.startup.load import Parts, find_order, longest_sequence, open_hardware
from eyas.engine.startup.rehearsal import start_compilers
from eyas.engine.verifier import Verify, verify
from eyas.kernels import usable
from eyas.models import num_parameters, resolve_dtype
from eyas.models.sharding import check_ranks, of_rank
from eyas.runner.device import Device
from eyas.text import Tokenizer, has_tokenizer
from eyas_bench.shapes import NamedShape, dummy_decoder, dummy_head, dummy_layouts, find_shape


def dummy_engine(
    name: str,
    config: EngineConfig,
    *,
    quantization: str | None = None,
    tokenizer_directory: Path | None = None,
    verify: Verify = verify,
    captures: bool = True,
) -> Engine:
    """Return the engine that `config` describes, with random weights.

    quantization: one of `shapes.QUANTIZATIONS`, in which weights of layers are packed.
    verify: returns the verdicts. captures: capture the usual steps of a device as CUDA graphs
    immediately.
    """
    shape = find_shape(name)
    model = msgspec.structs.replace(config.model, path=f"{name}, dummy weights")
    config = msgspec.structs.replace(config, model=model)
    place = open_hardware(config)
    start_compilers(place.device)
    parts = dummy_parts(
        shape,
        config,
        place,
        quantization=quantization,
        tokenizer_directory=tokenizer_directory,
    )
    try:
        engine = assemble(config, place, parts, verify=verify, captures=captures)
        freeze_loaded()  # as an engine's own process does
        return engine
    except BaseException:
        if parts.ranks is not None:
            parts.ranks.close()
        raise


def dummy_parts(
    shape: NamedShape,
    config: EngineConfig,
    place: Device,
    *,
    quantization: str | None = None,
    tokenizer_directory: Path | None = None,
) -> Parts:
    """Return the parts of an engine with random weights, drawn on the device; starts the other ranks.

    tokenizer_directory: of a model whose vocabulary fits the shape's, for constrained outputs; None
    leaves tokens without text.
    """
    dtype = resolve_dtype(config.model.dtype, place.device)
    shard = shard_of(config, place.device)
    check_ranks(shape.model, shard, on_gpu=place.device.type != "cpu")
    layouts = dummy_layouts(shape.model, quantization, shard)
    if layouts and not usable(place.device):
        raise ValueError(
            f"quantization: packed weights are for a CUDA device, not {place.device}; leave it out"
        )
    drafting = decide(shape, config.draft)
    ranks = None
    if shard.size > 1:
        named = shape.name if quantization is None else f"{shape.name}:{quantization}"
        ranks = Ranks(config, named, place, python_command("eyas_bench.rank"))
        shard = ranks.shard
    order = find_order(config, place, dtype, of_rank(shape.model, shard))
    model = dummy_decoder(
        shape.model,
        dtype=dtype,
        device=place.device,
        max_model_len=longest_sequence(config, shape.model),
        order=order.order,
        layouts=layouts,
        shard=shard,
    )
    head = None
    if drafting.head is not None:
        draft_order = find_order(config, place, dtype, drafting.head, drafts=True)
        head = dummy_head(drafting.head, model, order=draft_order.order)
    tokenizer, eos_token_ids = None, ()
    if tokenizer_directory is not None:
        tokenizer = _tokenizer(tokenizer_directory, shape)
        eos_token_ids = _ends(tokenizer)
    return Parts(
        spec=shape.model,
        num_parameters=num_parameters(shape.model),
        model=model,
        order=order,
        drafting=drafting,
        network=head,
        directory=tokenizer_directory,
        tokenizer=tokenizer,
        eos_token_ids=eos_token_ids,
        dtype=dtype,
        ranks=ranks,
    )


def decide(shape: NamedShape, draft: DraftConfig) -> Drafting:
    """Return the drafting for a model of this shape; "auto" is its head."""
    names = draft.names or ("head", "forced")
    if "model" in names or draft.model is not None:
        raise ValueError(
            "draft.drafter: a named shape brings a head along and has no draft model; use head"
        )
    if draft.token_map is not None:
        raise ValueError("draft.token_map: the head of a named shape has a vocabulary of its own")
    return Drafting(names, draft, head=shape.head if "head" in names else None)


def about(engine: Engine, name: str) -> dict[str, Any]:
    """Return the description of the engine for a result: shape, dtype and exactness."""
    info = engine.info
    return {
        "name": name,
        "weights": "dummy",
        "architecture": info.architecture,
        "parameters": info.num_parameters,
        "dtype": info.dtype,
        "kv_cache_dtype": info.kv_cache_dtype,
        "device": info.device,
        "exact": info.exact,
        "exact_reason": info.exact_reason,
        "num_flights": info.num_flights,
        "num_ranks": info.num_ranks,
        "num_slots": info.num_slots,
        "max_model_len": info.max_model_len,
    }


def _ends(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the end-of-text tokens; if the tokenizer names none, any token without text."""
    if tokenizer.eos_id is not None:
        return (tokenizer.eos_id,)
    return (min(tokenizer.control_ids),) if tokenizer.control_ids else ()


def _tokenizer(directory: Path, shape: NamedShape) -> Tokenizer:
    if not has_tokenizer(directory):
        raise ValueError(f"tokenizer: {directory} holds no tokenizer.json")
    tokenizer = Tokenizer.from_directory(directory)
    if tokenizer.vocab_size > shape.model.vocab_size:
        raise ValueError(
            f"tokenizer: {directory} has {tokenizer.vocab_size} tokens, the shape {shape.name} "
            f"{shape.model.vocab_size}; give one that fits"
        )
    return tokenizer
