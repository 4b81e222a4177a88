"""Load what an engine is made of: the device, the model's files, the weights of its networks.

Promises: a model that this engine cannot run, or whose weights do not fit, is a ValueError that names
the setting, before weights are read.
Does not know: caches, steps, requests.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from eyas.cache.store import KVScales
from eyas.config import EngineConfig, StartChoice
from eyas.engine.rank_group import Ranks, shard_of
from eyas.engine.startup.drafting import (
    Drafting,
    decide_drafting,
    load_network,
    read_draft_scales,
)
from eyas.engine.startup.kv_format import resolve_kv_dtype
from eyas.engine.startup.start_choices import (
    Stopwatch,
    drafter_choice,
    model_choice,
    order_choice,
    products_choice,
)
from eyas.kernels import usable
from eyas.layers.gemm.products import Products
from eyas.layers.gemm.search import search_on
from eyas.layers.gemm.variants import is_supported, pad_for_device
from eyas.layers.row_order import RowOrder, RowOrderReport
from eyas.layers.row_probe import find_row_order
from eyas.models import (
    Decoder,
    ModelFiles,
    ModelSpec,
    Progress,
    choose_dtype,
    locate_model,
)
from eyas.models.heads import DraftHead, HeadSpec
from eyas.models.sharding import check_ranks, of_rank
from eyas.native.products import is_available
from eyas.parallel.shard import Shard
from eyas.runner.device import Device, memory_bytes, open_device
from eyas.text import Tokenizer

log = logging.getLogger(__name__)

MAX_POSITIONS = 2**22
"""Longest context, since the rotary angles of all positions are computed at start-up."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The loaded parts that an engine is built from.

    order: the row order of the model's matrix products. drafting: None if the drafter is passed in.
    network: the weights of the drafting network; None if the drafter has none. directory: of the
    model; None if it is in no files. tokenizer: None if prompts and answers are token ids only, and
    then outputs cannot be constrained. eos_token_ids: the tokens that end a text. kv_scales,
    draft_kv_scales: of an FP8 cache, by layer; empty is 1. choices: what was chosen while loading.
    ranks: the other ones; None where there are none.
    """

    spec: ModelSpec
    num_parameters: int
    model: Decoder
    order: RowOrderReport
    drafting: Drafting | None
    network: Decoder | DraftHead | None
    directory: Path | None
    tokenizer: Tokenizer | None
    eos_token_ids: tuple[int, ...]
    dtype: torch.dtype
    kv_scales: tuple[KVScales, ...] = ()
    draft_kv_scales: tuple[KVScales, ...] = ()
    choices: tuple[StartChoice, ...] = ()
    ranks: Ranks | None = None


def open_hardware(config: EngineConfig, local_rank: int = 0) -> Device:
    """Return the device of a rank. local_rank: its number on this machine."""
    parallel = config.parallel
    if parallel.num_ranks == 1:
        return open_device(config.device)
    number = parallel.first_device + local_rank
    hardware = open_device(config.device, parallel.ranks_of_node, number)
    if usable(hardware.device) and (processes := search_on(hardware.device).processes) is not None:
        processes.num_sharing = parallel.ranks_of_node
    return hardware


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A model's files that this engine can run, before weights are read.

    dtype, dtype_reason: the number format of the weights, and why.
    """

    directory: Path
    files: ModelFiles
    dtype: torch.dtype
    dtype_reason: str


def open_files(config: EngineConfig, hardware: Device, shard: Shard) -> OpenedModel:
    """Find the model's files and read their headers. ValueError: this engine cannot run the model."""
    directory = locate_model(config.model.path, config.model.revision, config.model.offline)
    files = ModelFiles.open(directory)
    spec = files.spec
    check_ranks(spec, shard, on_gpu=hardware.device.type != "cpu")
    dtype, reason = _model_dtype(config, hardware, shard)
    _check_memory(config, files, dtype, hardware, shard)
    return OpenedModel(directory, files, dtype, reason)


def _model_dtype(config: EngineConfig, hardware: Device, shard: Shard) -> tuple[torch.dtype, str]:
    """Return the number format of the weights, and why. ValueError: ranks cannot divide sums in it."""
    name = config.model.dtype
    if hardware.device.type != "cpu" or shard.is_whole:
        return choose_dtype(name, hardware.device)
    option = f"parallel.{shard.option}"
    if name not in ("auto", "float32"):
        raise ValueError(
            f"{option}: on a CPU the sums of ranks are float32 alone, not {name}; pass --dtype float32"
        )
    if not is_available(torch.float32, hardware.device):
        raise ValueError(
            f"{option}: needs products that are compiled on this machine; install a C compiler (gcc or "
            "clang), or leave the option out"
        )
    return torch.float32, "in which the sums of ranks have one order"


def load(
    config: EngineConfig,
    hardware: Device,
    progress: Progress | None = None,
    *,
    drafts: bool = True,
) -> Parts:
    """Load the model from its files, and with `drafts` the drafting network that `config.draft` names.

    progress: see `build_engine`.
    """
    progress = progress or (lambda stage, done, total: None)
    progress("finding the model's files", 0, 0)
    shard = shard_of(config, hardware.device)
    opened = open_files(config, hardware, shard)
    directory, files, dtype = opened.directory, opened.files, opened.dtype
    spec = files.spec
    tokenizer = _open_tokenizer(directory, spec)
    drafting = decide_drafting(config, directory, spec) if drafts else None
    kv_scales: tuple[KVScales, ...] = ()
    draft_kv_scales: tuple[KVScales, ...] = ()
    if resolve_kv_dtype(config.cache.dtype, dtype, hardware.device) != dtype:
        _check_fp8_cache(spec)
        kv_scales, draft_kv_scales = files.kv_scales(), read_draft_scales(drafting, spec)
    longest = longest_sequence(config, spec)
    ranks = None
    if shard.size > 1:
        progress("meeting the other ranks", 0, 0)
        ranks = Ranks(config, str(directory), hardware)
        shard = ranks.shard
    try:
        progress("timing products", 0, 0)
        watch = Stopwatch()
        order = find_order(config, hardware, dtype, of_rank(spec, shard))
        order_seconds = watch.lap()
        model = files.load(
            dtype=dtype,
            device=hardware.device,
            max_model_len=longest,
            order=order.order,
            progress=lambda _, done, total: progress("loading weights", done, total),
            shard=shard,
        )
        model_seconds = watch.lap()
        network = None
        if drafting is not None and drafting.network is not None:
            draft_order = find_order(config, hardware, dtype, drafting.network, drafts=True)
            network = load_network(
                drafting,
                model,
                directory,
                draft_order.order,
                lambda _, done, total: progress("loading the draft's weights", done, total),
            )
        return Parts(
            spec=spec,
            num_parameters=files.num_parameters,
            model=model,
            order=order,
            drafting=drafting,
            network=network,
            directory=directory,
            tokenizer=tokenizer,
            eos_token_ids=_eos_token_ids(spec.eos_token_ids, tokenizer, spec.vocab_size),
            dtype=dtype,
            kv_scales=kv_scales,
            draft_kv_scales=draft_kv_scales,
            choices=(
                model_choice(config, files, model_seconds),
                StartChoice("dtype", str(dtype).removeprefix("torch."), opened.dtype_reason),
                products_choice(hardware, dtype),
                order_choice(order, order_seconds),
                *(() if drafting is None else (drafter_choice(drafting, watch.lap()),)),
            ),
            ranks=ranks,
        )
    except BaseException:
        if ranks is not None:
            ranks.close()
        raise


def _open_tokenizer(directory: Path, spec: ModelSpec) -> Tokenizer | None:
    """Return the model's tokenizer, and log what does not work without it or with it."""
    tokenizer = Tokenizer.from_directory_if_there(directory)
    if tokenizer is None:
        log.warning("%s has no tokenizer.json: prompts and answers are token ids alone", directory)
    elif tokenizer.vocab_size > spec.vocab_size:
        log.warning(
            "%s: the tokenizer has %d tokens and the model %d; prompts with others are refused",
            directory,
            tokenizer.vocab_size,
            spec.vocab_size,
        )
    return tokenizer


def _check_fp8_cache(spec: ModelSpec) -> None:
    """Raise ValueError if the model's cache cannot have another format than the model."""
    if spec.compressed:
        raise ValueError(
            f"cache.dtype: {spec.architecture} has compressed attention, whose cache has the model's "
            "format; leave the option out"
        )


def find_order(
    config: EngineConfig,
    hardware: Device,
    dtype: torch.dtype,
    spec: ModelSpec | HeadSpec,
    *,
    drafts: bool = False,
) -> RowOrderReport:
    """Find how the matrix products of a network must be run so that a row's bits do not depend on the
    number of rows.

    drafts: the network only drafts. On a device its products are then the fastest ones, since no output
    depends on their bits.
    """
    max_rows = config.scheduler.limits(on_gpu=hardware.is_gpu).max_rows
    if usable(hardware.device):
        exact = hardware.exact and not drafts
        # The number of sequences is rounded up to a bucket, by up to half.
        products = Products(exact, hardware.device, pad_for_device(max_rows + max_rows // 2))
        reason = "products have one order" if exact else "products are the fastest; pass --exact"
        shapes = (*spec.linear_shapes, *spec.head_shapes)
        if not all(is_supported(num_in) for _, num_in in shapes):
            exact, reason = False, "a product's input features are no multiple of 16"
        return RowOrderReport(RowOrder(products=products), exact, reason)
    return find_row_order(spec.linear_shapes, dtype, max_rows, heads=spec.head_shapes)


def longest_sequence(config: EngineConfig, spec: ModelSpec) -> int:
    """Return the number of positions to serve: `max_model_len`, or `ModelSpec.default_length`.

    Raises ValueError if that is more than the model or this engine can have.
    """
    requested = config.model.max_model_len
    if requested is not None and requested > spec.max_position:
        raise ValueError(
            f"model.max_model_len: {requested} is beyond the {spec.max_position} positions this model "
            "was made for"
        )
    longest = requested or spec.default_length
    if requested is None and longest < spec.max_position:
        log.warning(
            "%d of the model's %d positions are served: its angles (longrope) are different for longer "
            "contexts, also those of short texts; set --max-model-len if you need longer ones",
            longest,
            spec.max_position,
        )
    if longest > MAX_POSITIONS:
        raise ValueError(
            f"model.max_model_len: {longest} positions are too many to prepare (at most "
            f"{MAX_POSITIONS}); pass a smaller --max-model-len"
        )
    return longest


def _check_memory(
    config: EngineConfig, files: ModelFiles, dtype: torch.dtype, hardware: Device, shard: Shard
) -> None:
    """Raise ValueError if the weights of a rank are larger than its memory."""
    needed = files.num_bytes(dtype, stays_packed=usable(hardware.device), shard=shard)
    available = memory_bytes(hardware.device)
    if hardware.device.type == "cpu":
        available //= config.parallel.ranks_of_node
    if needed > available:
        raise ValueError(
            f"model.path: {config.model.path} takes {needed / 2**30:.1f} GiB as "
            f"{str(dtype).removeprefix('torch.')}, {hardware.device} has {available / 2**30:.1f}; take "
            "a smaller model, or a smaller --dtype"
        )


def _eos_token_ids(
    from_files: tuple[int, ...], tokenizer: Tokenizer | None, vocab_size: int
) -> tuple[int, ...]:
    """Return the tokens that end a text: those of config.json and generation_config.json, and the
    tokenizer's own. A chat fine-tune often changes only one of the three."""
    eos_id = None if tokenizer is None else tokenizer.eos_id
    from_tokenizer = () if eos_id is None or eos_id >= vocab_size else (eos_id,)
    return tuple(dict.fromkeys((*from_files, *from_tokenizer)))
