"""The settings of the engine: frozen structs that commands, server and the Python API share.

Promises: an `EngineConfig` holds what a user asked for, "auto" included; `eyas.engine.startup` resolves
it. Structs are never changed in place, and nothing here touches a device.
Does not know: torch, models, where the values came from.
"""

from __future__ import annotations

import math
from typing import Literal, cast, get_args

import msgspec

from eyas.grammar import SPACED, Spacing
from eyas.white_space import read_optional

Auto = Literal["auto"]
DrafterName = Literal["root", "ngram", "model", "head", "forced"]
GrammarBackend = Literal["llguidance", "xgrammar"]
DtypeName = Literal["auto", "bfloat16", "float16", "float32"]
Role = Literal["both", "prefill", "decode"]
KVTransport = Literal["tcp", "nixl"]
CacheDtypeName = Literal["auto", "bfloat16", "float16", "float32", "fp8_e4m3"]

AUTO_NODES, AUTO_STEPS = 16, 8
"""Most nodes and levels of a tree whose shape is chosen by cost."""
USUAL_STEPS = 5
"""Levels of a tree of fixed shape."""


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """path: "builtin", a directory, or a Hugging Face hub name."""

    path: str = "builtin"
    revision: str | None = None
    dtype: DtypeName = "auto"
    max_model_len: int | None = None
    offline: bool = False


EventEncoding = Literal["array", "map"]


class KVEventsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Publishing of the prefix cache's content to routers (`eyas.engine.kv_events`). The names up to
    `topic` are those of vLLM's option.

    enable_kv_cache_events: whether events are published. publisher: "zmq", or "null" for none; None is
    "zmq" if events are enabled. endpoint: of the PUB socket, which is bound if the address has a
    wildcard or is of the kind ipc, and else connected. replay_endpoint: of the ROUTER socket that sends
    past batches again; None has none. buffer_steps: batches that are kept for it. hwm: messages kept
    for a subscriber that is slow. max_queue_size: batches between the engine and the thread that
    publishes them. topic: of all messages. block_size: tokens of a block. encoding: how an event is
    written, "array" as in SGLang and in vLLM until 2026, or "map" as in vLLM since then.
    """

    enable_kv_cache_events: bool = False
    publisher: Literal["zmq", "null"] | None = None
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    topic: str = ""
    block_size: int = 16
    encoding: EventEncoding = "array"

    @property
    def is_on(self) -> bool:
        """Whether events are published."""
        return self.enable_kv_cache_events and self.publisher != "null"

    def __post_init__(self) -> None:
        for name, low, high in (
            ("buffer_steps", 0, 10_000_000),
            ("hwm", 1, 10_000_000),
            ("max_queue_size", 1, 10_000_000),
            ("block_size", 1, 4096),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"cache.kv_events: {name} must be {low} to {high}, not {value}")
        for name in ("endpoint", "replay_endpoint"):
            address = getattr(self, name)
            if address is not None and not address.startswith(("tcp://", "ipc://")):
                raise ValueError(
                    f"cache.kv_events: {name}: give tcp://HOST:PORT or ipc://PATH, not {address!r}"
                )


def read_kv_events(text: str) -> KVEventsConfig:
    """Return the settings that a JSON object has, as the option --kv-events-config. Raises ValueError
    that names a field that cannot be used."""
    try:
        return msgspec.json.decode(text, type=KVEventsConfig)
    except msgspec.ValidationError as error:
        raise ValueError(
            f"cache.kv_events: {str(error).removeprefix('cache.kv_events: ')}"
        ) from None
    except msgspec.DecodeError as error:
        raise ValueError(
            f"cache.kv_events: {error}; give a JSON object such as "
            '{"enable_kv_cache_events": true}'
        ) from None


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """num_slots: tokens whose keys and values are stored at once, on each rank of `parallel.dp`;
    None computes it from memory_fraction.
    memory_fraction: on a GPU the share of its memory for weights and cache; on a CPU the share of
    free memory for the cache, up to a limit.
    prefix_cache: whether requests share stored prefixes.
    dtype: number format of keys and values. "auto" is that of the model; "fp8_e4m3" takes a byte, with
    the scales of the checkpoint, or 1.
    kv_events: publishing of the stored prefixes.
    """

    num_slots: int | None = None
    memory_fraction: float = 0.85
    prefix_cache: bool = True
    dtype: CacheDtypeName = "auto"
    kv_events: KVEventsConfig = KVEventsConfig()


FEWEST_AUTO_SEATS, MOST_AUTO_SEATS = 64, 512
"""Sequences that run at once where the engine chooses how many."""


class StepLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How large the steps of an engine are.

    num_seats: most sequences that run at once. max_rows: most rows of a step (prompt chunks and tree
    nodes together). max_captured_seqs: sequences of the largest step that runs from CUDA graphs, on a
    CPU from recordings; 0 if none does. num_flights: steps that may be in flight when the next one is
    launched. step_seconds: how long a step may take while sequences decode; None is any time.
    """

    num_seats: int
    max_rows: int
    max_captured_seqs: int
    num_flights: int
    step_seconds: float | None


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """max_num_seqs: most sequences that run at once. "auto" is 64 on a CPU, and on a GPU up to 512, as
    memory allows.
    max_batch_tokens: most rows of a step (prompt chunks and tree nodes together). "auto" is 512 on
    a CPU and 2048 on a GPU, where a step of few rows takes as long as one of many.
    flights: steps that may be in flight when the next one is launched (0 or 1).
    max_graph_batch: largest number of sequences of a step that runs from CUDA graphs, on a CPU from
    recordings. None captures steps of any size, 0 captures none.
    max_step_ms: milliseconds that a step may take while sequences decode. Prompt chunks are made
    smaller accordingly, by the time of the steps before. "auto" is 50 on a GPU, and no limit on a CPU.
    """

    max_num_seqs: int | Auto = "auto"
    max_batch_tokens: int | Auto = "auto"
    flights: int | Auto = "auto"
    max_graph_batch: int | None = None
    max_step_ms: float | Auto = "auto"

    @property
    def num_seats(self) -> int:
        """max_num_seqs, and the least that is chosen where that is "auto"."""
        return FEWEST_AUTO_SEATS if self.max_num_seqs == "auto" else self.max_num_seqs

    @property
    def most_seats(self) -> int:
        """max_num_seqs, and the most that is chosen where that is "auto"."""
        return MOST_AUTO_SEATS if self.max_num_seqs == "auto" else self.max_num_seqs

    def limits(self, *, on_gpu: bool, num_seats: int | None = None) -> StepLimits:
        """Return what these settings are on this kind of device. num_seats: instead of `num_seats`,
        where the engine has chosen it."""
        rows, flights, most = self.max_batch_tokens, self.flights, self.max_graph_batch
        num_seats = num_seats or self.num_seats
        step_ms = self.max_step_ms
        if step_ms == "auto":
            step_ms = 50.0 if on_gpu else None
        return StepLimits(
            num_seats=num_seats,
            max_rows=rows if rows != "auto" else 2048 if on_gpu else 512,
            max_captured_seqs=num_seats if most is None else min(most, num_seats),
            num_flights=int(on_gpu) if flights == "auto" else flights,
            step_seconds=None if step_ms is None else step_ms / 1000,
        )


class DraftConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which drafters propose the trees of a step, and how large the trees may be.

    drafter: "auto", or one or more of root, ngram, model, head, forced joined by "+". If the nodes
    do not suffice for all, the drafters named first get more. forced adds text that a grammar
    leaves no choice about to the trees of the others. "auto" is forced, with the draft model or
    head that `model` names or the head that the model has (the built-in model's, or an MTP layer).
    model: a draft model or a draft head: "builtin", a directory, or a hub name.
    steps, topk, nodes: levels of a tree, children that a node proposes, nodes with the root
    (SGLang's num_steps, eagle_topk, num_draft_tokens). nodes "auto" chooses the shape by cost for
    every batch, with "no draft" as one of the choices. steps "auto" is 5, and up to 8 if nodes is
    "auto".
    token_map: file with the ids that an EAGLE-2 head may propose (FR-Spec).
    """

    drafter: str = "auto"
    model: str | None = None
    steps: int | Auto = "auto"
    topk: int = 4
    nodes: int | Auto = "auto"
    token_map: str | None = None

    @property
    def names(self) -> tuple[DrafterName, ...]:
        """The names of the drafters; empty for "auto"."""
        if self.drafter == "auto":
            return ()
        return tuple(cast(DrafterName, name) for name in self.drafter.split("+"))

    @property
    def max_steps(self) -> int:
        """Most levels below the root."""
        if self.steps != "auto":
            return self.steps
        return AUTO_STEPS if self.nodes == "auto" else USUAL_STEPS

    @property
    def max_nodes(self) -> int:
        """Most nodes of a tree, the root included."""
        return AUTO_NODES if self.nodes == "auto" else self.nodes


class GrammarConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How grammars are enforced on outputs.

    backend: the grammar library.
    compile_seconds: time limit for compiling one grammar.
    cache_bytes: memory limit of compiled grammars, as counted by the C allocator where it can be;
    unused grammars are evicted first.
    num_threads: threads that compile.
    mask_seconds: time limit for the masks of one step; draft nodes without a mask by then are not
    used.
    white_space: regular expression of the white space allowed between tokens of JSON, "" for none;
    None allows one blank, or one line break with indentation.
    any_white_space: False allows only ", " and ": ".
    """

    backend: GrammarBackend = "llguidance"
    compile_seconds: float = 5.0
    cache_bytes: int = 256 * 2**20
    num_threads: int = 1
    mask_seconds: float = 0.02
    white_space: str | None = None
    any_white_space: bool = True

    @property
    def spacing(self) -> Spacing:
        """The white space of JSON, unless a request sets another. Raises ValueError for a pattern that
        matches anything but white space."""
        if not self.any_white_space:
            return Spacing("", *SPACED)
        return Spacing() if self.white_space is None else Spacing(read_optional(self.white_space))


class DeviceConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """device: "auto" is the GPU if there is one.
    num_threads: CPU threads; None is all cores but one, which is left to the HTTP process.
    exact: whether the bits of a row must not depend on the batch, the chunks of the prompt or the
    drafts. On a GPU False allows kernels whose bits do depend on them, where they are faster. On a
    CPU it has no effect.
    """

    device: str = "auto"
    num_threads: int | None = None
    exact: bool = True


class DisaggregationConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prompts that one server computes and another one continues (docs/disaggregation.md).

    role: "prefill" holds the keys and values of prompts for other servers, "decode" reads them from
    there, "both" computes prompts and answers itself.
    transport: how keys and values move: "tcp", or "nixl" (extra eyas[nixl]). Both servers need the
    same.
    host, port: where a prefill server is asked for them, an address that decode servers reach; port 0
    chooses a free one.
    peers: hosts of prefill servers that a decode server reads from.
    hold_seconds: how long a prompt is held for a decode server, and how long a decode server waits for
    a prompt that a router has named.
    timeout_seconds: time limit for moving the keys and values of one prompt.
    """

    role: Role = "both"
    transport: KVTransport = "tcp"
    host: str = "127.0.0.1"
    port: int = 0
    peers: tuple[str, ...] = ("127.0.0.1",)
    hold_seconds: float = 60.0
    timeout_seconds: float = 30.0


def _number(value: float | Auto) -> float | None:
    return None if value == "auto" else value


class ParallelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The processes, or ranks, that run the model together.

    tp: the number of ranks, each with a part of every layer. ep: with 1 each rank holds a part of every
    expert; with the number of ranks, or 0, each holds some experts whole.
    dp: above 1, the number of ranks, which divide experts and sequences: each has all heads, and the
    keys and values of its own sequences. dp_attention: says that this is meant, where ep does not.
    exact_across_tp: the bits of a row do not depend on the number of ranks either. On a CPU they never
    do with several ranks; with one rank it changes the order of sums, and so the bits.
    timeout_seconds: how long a rank may take for its part of an exchange, before the group counts as
    lost.
    num_nodes, node_rank, address: machines that have as many ranks each, which of them this is,
    and the "host:port" where rank 0 listens.
    first_device: number of the GPU of this machine's first rank.
    """

    tp: int = 1
    ep: int = 1
    dp: int = 1
    dp_attention: bool = False
    exact_across_tp: bool = False
    timeout_seconds: float = 120.0
    num_nodes: int = 1
    node_rank: int = 0
    address: str | None = None
    first_device: int = 0

    @property
    def num_ranks(self) -> int:
        """The number of ranks, on all machines."""
        return max(self.tp, self.dp)

    @property
    def divides_sequences(self) -> bool:
        """Whether ranks have sequences of their own, and all heads."""
        return self.dp > 1

    @property
    def divides_by_expert(self) -> bool:
        """Whether ranks hold whole experts."""
        return self.divides_sequences or (self.tp > 1 and self.ep != 1)

    @property
    def ranks_of_node(self) -> int:
        """The number of ranks on each machine."""
        return self.num_ranks // self.num_nodes


MOST_RANKS = 8


def _check_parallel(parallel: ParallelConfig, device: str) -> None:
    """Raise ValueError that names a setting of the ranks that cannot be used."""
    tp, ep, nodes, ranks = parallel.tp, parallel.ep, parallel.num_nodes, parallel.num_ranks
    if tp not in (1, 2, 4, MOST_RANKS):
        raise ValueError(f"parallel.tp: 1, 2, 4 or {MOST_RANKS} ranks, not {tp}")
    _check_sequences(parallel)
    if ep not in (0, 1, ranks):
        raise ValueError(
            f"parallel.ep: 1 (each rank holds a part of every expert) or the number of ranks, "
            f"{ranks} (each holds some experts whole), not {ep}"
        )
    if not 1 <= parallel.timeout_seconds <= 86400:
        raise ValueError(f"parallel.timeout_seconds: 1 to 86400, not {parallel.timeout_seconds}")
    if nodes < 1 or ranks % nodes:
        option = "--dp" if parallel.divides_sequences else "--tp"
        raise ValueError(
            f"parallel.num_nodes: {nodes} machines do not divide {ranks} ranks; change --nnodes or "
            f"{option}"
        )
    if not 0 <= parallel.node_rank < nodes:
        raise ValueError(
            f"parallel.node_rank: 0 to {nodes - 1} with --nnodes {nodes}, not {parallel.node_rank}"
        )
    if nodes > 1 and parallel.address is None:
        raise ValueError(
            "parallel.address: several machines need the host and port of the first one; pass "
            "--dist-init-addr HOST:PORT"
        )
    if parallel.address is not None:
        host, _, port = parallel.address.rpartition(":")
        is_host = bool(host) and (":" not in host or (host[0], host[-1]) == ("[", "]"))
        if not is_host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(
                f"parallel.address: HOST:PORT, with an IPv6 address in brackets, not "
                f"{parallel.address!r}"
            )
    if ranks > 1 and device not in ("auto", "cpu", "cuda"):
        option = "parallel.dp" if parallel.divides_sequences else "parallel.tp"
        raise ValueError(
            f"{option}: each of {ranks} ranks takes a device of its own; pass --device cuda or "
            f"--device cpu, not {device!r}"
        )


def _check_sequences(parallel: ParallelConfig) -> None:
    """Raise ValueError that names a setting of ranks with sequences of their own."""
    tp, dp = parallel.tp, parallel.dp
    if dp not in (1, 2, 4, MOST_RANKS):
        raise ValueError(f"parallel.dp: 1, 2, 4 or {MOST_RANKS} ranks, not {dp}")
    if parallel.dp_attention and dp == 1:
        raise ValueError(
            "parallel.dp_attention: the number of ranks that divide the sequences is missing; pass "
            f"--dp {tp if tp > 1 else 2}"
        )
    if dp > 1 and not parallel.dp_attention and parallel.ep == 1:
        raise ValueError(
            f"parallel.dp: {dp} ranks can divide sequences and experts; pass --enable-dp-attention for "
            f"it. For {dp} copies of the whole model start {dp} servers (docs/replicas.md)"
        )
    if dp > 1 and tp not in (1, dp):
        raise ValueError(
            f"parallel.tp: with --dp {dp} a rank has all heads, so that --tp is {dp} or left out, not "
            f"{tp}"
        )


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of an engine. Raises ValueError that names a setting that cannot be used."""

    model: ModelConfig = ModelConfig()
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    draft: DraftConfig = DraftConfig()
    device: DeviceConfig = DeviceConfig()
    grammar: GrammarConfig = GrammarConfig()
    disaggregation: DisaggregationConfig = DisaggregationConfig()
    parallel: ParallelConfig = ParallelConfig()

    def __post_init__(self) -> None:
        _check_drafters(self.draft)
        _check_ranges(self)
        _check_cache(self.cache)
        _check_grammar(self.grammar)
        _check_disaggregation(self.disaggregation, shares_prefixes=self.cache.prefix_cache)
        _check_parallel(self.parallel, self.device.device)
        if self.parallel.num_ranks > 1 and self.disaggregation.role != "both":
            option = "--dp" if self.parallel.divides_sequences else "--tp"
            raise ValueError(
                "disaggregation.role: a server of several ranks cannot hand prompts over yet; leave "
                f"out --role, or pass {option} 1"
            )
        if self.parallel.divides_sequences and self.cache.kv_events.is_on:
            raise ValueError(
                "cache.kv_events: ranks that divide sequences have prefix caches of their own, whose "
                "changes are not published yet; leave out --kv-events-config or --dp"
            )
        if self.scheduler.flights not in ("auto", 0, 1):
            raise ValueError(f"scheduler.flights: 'auto', 0 or 1, not {self.scheduler.flights!r}")


def _check_drafters(draft: DraftConfig) -> None:
    """Raise ValueError for drafters that cannot be used together, or that lack a model."""
    names = draft.names
    if unknown := [name for name in names if name not in get_args(DrafterName)]:
        raise ValueError(
            f"draft.drafter: {unknown[0]!r} is unknown; use auto, or one or more of "
            f"{', '.join(get_args(DrafterName))} joined by +"
        )
    if len(set(names)) < len(names) or ("root" in names and len(names) > 1):
        raise ValueError(f"draft.drafter: {draft.drafter!r}: root stands alone, others once")
    if "model" in names and "head" in names:
        raise ValueError("draft.drafter: a draft model and a head cannot be used together")
    if "model" in names and not draft.model:
        raise ValueError("draft.model: drafter 'model' needs a draft model; pass --draft-model")
    if names and draft.model and not {"model", "head"} & set(names):
        raise ValueError(
            "draft.model: is used by drafters 'model' and 'head' alone; pass --drafter model "
            "or --drafter head"
        )


def _check_ranges(config: EngineConfig) -> None:
    """Raise ValueError for a number out of its range."""
    draft, scheduler = config.draft, config.scheduler
    cache, grammar = config.cache, config.grammar
    for name, value, low, high in (
        ("draft.steps", draft.max_steps, 1, 32),
        ("draft.topk", draft.topk, 1, 32),
        ("draft.nodes", _number(draft.nodes), 2, 128),
        ("scheduler.max_num_seqs", _number(scheduler.max_num_seqs), 1, 1024),
        ("scheduler.max_graph_batch", scheduler.max_graph_batch, 0, 1024),
        ("scheduler.max_batch_tokens", _number(scheduler.max_batch_tokens), 16, 65536),
        ("scheduler.max_step_ms", _number(scheduler.max_step_ms), 1, 60000),
        ("cache.num_slots", cache.num_slots, 16, None),
        ("model.max_model_len", config.model.max_model_len, 8, None),
        ("device.num_threads", config.device.num_threads, 1, 1024),
        ("grammar.compile_seconds", grammar.compile_seconds, 0.01, 600),
        ("grammar.cache_bytes", grammar.cache_bytes, 2**20, None),
        ("grammar.num_threads", grammar.num_threads, 1, 64),
        ("grammar.mask_seconds", grammar.mask_seconds, 0.0001, 10),
        ("disaggregation.port", config.disaggregation.port, 0, 65535),
        ("disaggregation.hold_seconds", config.disaggregation.hold_seconds, 0.1, 3600),
        ("disaggregation.timeout_seconds", config.disaggregation.timeout_seconds, 0.1, 3600),
    ):
        in_range = value is None or low <= value <= (math.inf if high is None else high)
        if not in_range:  # NaN is never in range
            limit = f"between {low} and {high}" if high is not None else f"at least {low}"
            raise ValueError(f"{name}: must be {limit}, not {value}")
    if not 0.05 <= cache.memory_fraction <= 0.98:
        raise ValueError(f"cache.memory_fraction: 0.05 to 0.98, not {cache.memory_fraction}")


def _check_cache(cache: CacheConfig) -> None:
    """Raise ValueError for a setting of the cache that cannot be used."""
    if cache.kv_events.is_on and not cache.prefix_cache:
        raise ValueError(
            "cache.kv_events: without a prefix cache there is nothing to publish; leave out one of "
            "--kv-events-config and --no-prefix-cache"
        )
    if cache.dtype not in get_args(CacheDtypeName):
        known = ", ".join(get_args(CacheDtypeName))
        raise ValueError(f"cache.dtype: {cache.dtype!r} is not supported; use one of {known}")


def _check_grammar(grammar: GrammarConfig) -> None:
    """Raise ValueError for a setting of grammars that cannot be used."""
    if grammar.backend not in get_args(GrammarBackend):
        known = ", ".join(get_args(GrammarBackend))
        raise ValueError(f"grammar.backend: one of {known}, not {grammar.backend!r}")
    if grammar.white_space is not None and not grammar.any_white_space:
        raise ValueError(
            "grammar.white_space: any white space is switched off; give one of the two"
        )
    try:
        _ = grammar.spacing
    except ValueError as error:
        raise ValueError(f"grammar.white_space: {error}") from None


def _check_disaggregation(disaggregation: DisaggregationConfig, *, shares_prefixes: bool) -> None:
    """Raise ValueError for a role that cannot be served with these settings."""
    for name, value, known in (
        ("role", disaggregation.role, get_args(Role)),
        ("transport", disaggregation.transport, get_args(KVTransport)),
    ):
        if value not in known:
            raise ValueError(f"disaggregation.{name}: one of {', '.join(known)}, not {value!r}")
    if disaggregation.role == "both":
        return
    if not shares_prefixes:
        raise ValueError(
            f"disaggregation.role: {disaggregation.role!r} keeps prompts in the prefix cache; leave "
            "out --no-prefix-cache"
        )
    if disaggregation.role == "prefill" and disaggregation.host in ("", "0.0.0.0", "::"):
        raise ValueError(
            "disaggregation.host: decode servers are sent this address; name one that they can reach"
        )


DEFAULTS = EngineConfig()


class StartChoice(msgspec.Struct, frozen=True):
    """What was chosen at the start of an engine or a server, for the log.

    reason: the option that decides it, or why this value was found. seconds: what it took to find,
    load or prepare; None if that was not measured.
    """

    name: str
    value: str
    reason: str
    seconds: float | None = None


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a started engine, for the server and the commands.

    max_model_len: most tokens of prompt and answer. exact, exact_reason: result of the self-check.
    choices: what was chosen at the start, in order.
    """

    model: str
    architecture: str
    num_parameters: int
    device: str
    dtype: str
    max_model_len: int
    num_slots: int
    vocab_size: int
    drafter: str
    eos_token_ids: tuple[int, ...]
    exact: bool
    exact_reason: str
    num_flights: int
    max_num_seqs: int = FEWEST_AUTO_SEATS
    """Most sequences that run at once."""
    num_ranks: int = 1
    """The processes that run the model together."""
    grammar_backend: GrammarBackend | None = None
    """The grammar library; None if outputs cannot be constrained."""
    kv_cache_dtype: str = ""
    """The number format of keys and values in the cache."""
    directory: str = ""
    """The directory of the model's tokenizer, chat template and generation config."""
    choices: tuple[StartChoice, ...] = ()
