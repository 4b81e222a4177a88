"""The messages between the HTTP process and the engine process, encoded with msgpack.

Promises: each message is a tagged struct whose types are checked when it is decoded. No pickle.
Does not know: sockets, HTTP, how an engine works.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any, Literal

import msgspec

from eyas.config import EngineConfig, EngineInfo
from eyas.core import Delta, DraftCounts, Request
from eyas.logs import LogFormat

Refusal = Literal["invalid", "overloaded", "unavailable", "internal"]


class GrammarStats(msgspec.Struct, kw_only=True):
    """Counts of output grammars since the engine started.

    num_compiled, num_hits: grammars compiled, and found in the cache. num_refused: by fault.
    num_cached, cache_bytes: grammars in memory now, and their bytes, those in use included.
    num_masks, mask_seconds: rows of masks, and the time that the grammar library took for them.
    num_pruned: drafted tokens that a grammar refused. num_late: drafts of which nodes were not used
    because their masks were not ready in time. num_left_out: drafted tokens whose masks were not begun
    because the forward had ended. num_replays: automata that were rebuilt because a
    resource limit was hit. can_compile: whether threads can be started to compile.
    """

    num_compiled: int = 0
    num_hits: int = 0
    num_refused: dict[str, int] = msgspec.field(default_factory=dict)
    compile_seconds: float = 0.0
    num_cached: int = 0
    cache_bytes: int = 0
    num_masks: int = 0
    mask_seconds: float = 0.0
    num_pruned: int = 0
    num_late: int = 0
    num_left_out: int = 0
    num_replays: int = 0
    can_compile: bool = True


class NodeCounts(msgspec.Struct, kw_only=True):
    """Counts of the nodes of draft trees, by the drafter that proposed them and by depth: entry i of a
    list counts nodes i + 1 levels below the root.

    proposed: all, those that a grammar refused included. accepted: the model chose them. illegal: a
    grammar refused them, or a node above them. The model chose another token in the place of the
    others, or of a node above them.
    """

    proposed: dict[str, list[int]] = msgspec.field(default_factory=dict)
    accepted: dict[str, list[int]] = msgspec.field(default_factory=dict)
    illegal: dict[str, list[int]] = msgspec.field(default_factory=dict)


class EngineStats(msgspec.Struct, kw_only=True):
    """Counts since the engine started, and gauges (`GAUGES`) of this moment.

    num_asked_tokens: of the prompts of requests; num_prompt_tokens: of prompts that were computed.
    num_failed_steps: attempts to run a step that raised; the next attempt runs without a draft.
    num_held_prompts: prompts that are held for decode servers, or being read from prefill servers.
    """

    num_running: int = 0
    num_waiting: int = 0
    num_slots: int = 0
    num_free_slots: int = 0
    num_cached_slots: int = 0
    num_held_prompts: int = 0
    num_steps: int = 0
    num_asked_tokens: int = 0
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_preemptions: int = 0
    num_prefix_hit_tokens: int = 0
    num_prefix_query_tokens: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_failed_steps: int = 0
    drafts: DraftCounts = msgspec.field(default_factory=DraftCounts)
    nodes: NodeCounts = msgspec.field(default_factory=NodeCounts)
    grammar: GrammarStats = msgspec.field(default_factory=GrammarStats)

    @property
    def num_used_slots(self) -> int:
        """The number of cache slots that running choices use."""
        return self.num_slots - self.num_free_slots - self.num_cached_slots

    @property
    def cache_usage(self) -> float:
        """The share of the cache slots that running choices use."""
        return self.num_used_slots / max(1, self.num_slots)

    @property
    def prefix_hit_rate(self) -> float:
        """The share of the prompts' tokens that were found in the cache."""
        return self.num_prefix_hit_tokens / max(1, self.num_prefix_query_tokens)


GAUGES = {"num_running", "num_waiting", "num_slots", "num_free_slots", "num_cached_slots"} | {
    "num_held_prompts",
    "num_cached",
    "cache_bytes",
    "can_compile",
}
"""The fields that hold the value of this moment instead of a count since the start."""


def added(earlier: Any, later: Any) -> Any:
    """Add the counts of an engine and of the engine that replaced it. Gauges are those of `later`."""
    match later:
        case msgspec.Struct():
            names = [name for name in later.__struct_fields__ if name not in GAUGES]
            sums = {name: added(getattr(earlier, name), getattr(later, name)) for name in names}
            return msgspec.structs.replace(later, **sums)
        case dict():
            both = {key: added(earlier[key], later[key]) for key in earlier.keys() & later.keys()}
            return {**earlier, **later, **both}
        case list():
            return [sum(pair) for pair in zip_longest(earlier, later, fillvalue=0)]
        case _:
            return earlier + later


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of the engine process's standard input, as JSON. address: of the socket
    (ipc://)."""

    config: EngineConfig
    address: str
    log_level: str = "info"
    log_format: LogFormat = "text"


class RankSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of the standard input of a process of another rank than 0, as JSON. local_rank:
    its number on its machine. place: where the ranks meet (`eyas.parallel.group.Meeting`)."""

    config: EngineConfig
    rank: int
    local_rank: int
    place: str
    log_level: str = "info"
    log_format: LogFormat = "text"


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """Add a request."""

    request: Request


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """End a request."""

    request_id: str


class ForgetPrefixes(msgspec.Struct, frozen=True, tag="forget_prefixes"):
    """Evict the cached prefixes that no running request uses."""


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """End the engine process."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The engine is built. `info.directory` holds the model's tokenizer and templates."""

    info: EngineInfo


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    """A stage of starting the engine. done, total: bytes; 0 if the stage has none to count."""

    stage: str
    done: int = 0
    total: int = 0

    def __str__(self) -> str:
        return f"{self.stage}, {100 * self.done // self.total} %" if self.total else self.stage


class Deltas(msgspec.Struct, frozen=True, tag="deltas"):
    """The deltas of one step."""

    deltas: list[Delta]


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """A submitted request was refused, and has no deltas.

    refusal: invalid (the request is at fault), overloaded (too many requests wait), unavailable (a
    resource it needs is missing now), internal (an error of the engine).
    """

    request_id: str
    message: str
    param: str | None = None
    refusal: Refusal = "invalid"
    code: str = "invalid_value"


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    """The engine's loop is running. last_step_seconds: wall time of the last step."""

    stats: EngineStats
    last_step_seconds: float = 0.0


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The engine process ends. reason: a text for users."""

    reason: str


Command = Submit | Abort | ForgetPrefixes | Shutdown
Reply = Loading | Ready | Deltas | Refused | Heartbeat | Failed

encode = msgspec.msgpack.Encoder().encode
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode
encode_setup = msgspec.json.Encoder().encode
decode_setup = msgspec.json.Decoder(Setup).decode
decode_rank_setup = msgspec.json.Decoder(RankSetup).decode
