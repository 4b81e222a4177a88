"""What the HTTP process and the engine process say to each other: typed msgpack, nothing else.

Promises: every message is a tagged struct that is checked when it is read; no pickle, no code.
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
    """Output grammars since the engine started. cache_bytes: that grammars hold, those in use included.
    num_refused: by fault. mask_seconds: that grammar
    libraries took for num_masks rows of masks. num_pruned: drafted tokens that a grammar refused before
    the forward. num_late: drafts that were cut short because a step did not wait for their masks.
    num_replays: automata built anew because a resource limit was hit. can_compile: there are threads
    for it."""

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
    num_replays: int = 0
    can_compile: bool = True


class EngineStats(msgspec.Struct, kw_only=True):
    """Counts since the engine started, and gauges (running, waiting, slots) of this moment.
    num_failed_steps: attempts at a step that raised; a simpler drafter makes the next one."""

    num_running: int = 0
    num_waiting: int = 0
    num_slots: int = 0
    num_free_slots: int = 0
    num_cached_slots: int = 0
    num_steps: int = 0
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_preemptions: int = 0
    num_prefix_hit_tokens: int = 0
    num_prefix_query_tokens: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_failed_steps: int = 0
    drafts: DraftCounts = msgspec.field(default_factory=DraftCounts)
    grammar: GrammarStats = msgspec.field(default_factory=GrammarStats)


GAUGES = {"num_running", "num_waiting", "num_slots", "num_free_slots", "num_cached_slots"} | {
    "num_cached",
    "cache_bytes",
    "can_compile",
}
"""What is not counted since a start: the numbers of this moment."""


def added(earlier: Any, later: Any) -> Any:
    """Counts of an engine and of the one after it, as one; gauges are the later one's."""
    match later:
        case msgspec.Struct():
            names = [name for name in later.__struct_fields__ if name not in GAUGES]
            sums = {name: added(getattr(earlier, name), getattr(later, name)) for name in names}
            return msgspec.structs.replace(later, **sums)
        case dict():
            return {key: earlier.get(key, 0) + later.get(key, 0) for key in {**earlier, **later}}
        case list():
            return [sum(pair) for pair in zip_longest(earlier, later, fillvalue=0)]
        case _:
            return earlier + later


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of the engine process's standard input, as JSON. address: an ipc:// path."""

    config: EngineConfig
    address: str
    log_level: str = "info"
    log_format: LogFormat = "text"


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    request: Request


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    request_id: str


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    pass


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The engine is built; `directory` holds the model's tokenizer and templates."""

    info: EngineInfo


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    """What is done before the engine is ready. done, total: bytes, where there are any to count."""

    stage: str
    done: int = 0
    total: int = 0

    def __str__(self) -> str:
        return f"{self.stage}, {100 * self.done // self.total} %" if self.total else self.stage


class Deltas(msgspec.Struct, frozen=True, tag="deltas"):
    deltas: list[Delta]


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """A submitted request that will have no deltas. overloaded: too many wait; unavailable: what it
    needs is not there now; internal: a fault of ours."""

    request_id: str
    message: str
    param: str | None = None
    refusal: Refusal = "invalid"
    code: str = "invalid_value"


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    """The loop turns. last_step_seconds: how long the last step took."""

    stats: EngineStats
    last_step_seconds: float = 0.0


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The engine process ends; `reason` is fit to be shown."""

    reason: str


Command = Submit | Abort | Shutdown
Reply = Loading | Ready | Deltas | Refused | Heartbeat | Failed

encode = msgspec.msgpack.Encoder().encode
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode
encode_setup = msgspec.json.Encoder().encode
decode_setup = msgspec.json.Decoder(Setup).decode
