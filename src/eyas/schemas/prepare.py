"""The steps of preparing a schema: limits, check, rewriting, endless parts, names.

Promises: results and refusals are cached.
Does not know: what the rewrites are.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from typing import Any, Generic, NamedTuple, TypeVar

from eyas.core import GrammarError, GrammarFault
from eyas.schemas.backend_limits import check_pattern_counts
from eyas.schemas.checking import check_document
from eyas.schemas.context import Context
from eyas.schemas.finite import without_endless
from eyas.schemas.keywords import COUNTS, MAX_COUNT, draft_of
from eyas.schemas.limits import MAX_OUTPUT_DEPTH, check_size, depth_of, fail, read, shortened
from eyas.schemas.name_spelling import with_one_spelling
from eyas.schemas.rewrite import Rewriter

Value = TypeVar("Value")


class LruCache(Generic[Value]):
    """A thread-safe cache, bounded in entries and bytes, that evicts the least recently used entry.

    num_bytes: of all entries. num_hits, num_misses: counts of all look-ups.
    """

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self._max_entries, self._max_bytes = max_entries, max_bytes
        self._entries: OrderedDict[bytes, tuple[Value, int]] = OrderedDict()
        self._lock = threading.Lock()
        self.num_bytes = self.num_hits = self.num_misses = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes) -> Value | None:
        """Return the cached value, or None."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                self.num_misses += 1
                return None
            self.num_hits += 1
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: bytes, value: Value, num_bytes: int) -> None:
        """Cache a value. num_bytes: of key and value; larger values than the bound are not cached."""
        with self._lock:
            if key in self._entries or num_bytes > self._max_bytes:
                return
            self._entries[key] = (value, num_bytes)
            self.num_bytes += num_bytes
            while self.num_bytes > self._max_bytes or len(self._entries) > self._max_entries:
                _, (_, freed) = self._entries.popitem(last=False)
                self.num_bytes -= freed


class _Outcome(NamedTuple):
    """A prepared schema, or with `fault` the message of its refusal."""

    text: str
    fault: GrammarFault | None = None


_SKIP = '. "x-guidance": {"lenient": true} in the schema skips what cannot be enforced'
PREPARED: LruCache[_Outcome] = LruCache(max_entries=1024, max_bytes=32 * 2**20)
"""Cached outcomes by schema, field and leniency; `prepare` depends on nothing else."""


def prepare(schema: dict[str, Any] | bool | str, *, param: str, lenient: bool = False) -> str:
    """Return a user's JSON schema (or its JSON text) as the JSON text that `grammar.Json` takes.

    param: the request's field, for errors. lenient: keywords that cannot be enforced are left out;
    malformed schemas are refused all the same. Raises GrammarError with the path and a remedy: invalid
    (malformed or unsatisfiable), unsupported (cannot be enforced), too_complex (over a limit) or
    timeout.
    """
    if isinstance(schema, str):
        schema = read(schema, param)
    check_size(schema, param)
    if not isinstance(schema, (dict, bool)):
        message = f"a schema is an object or a boolean, not {shortened(schema)}"
        raise fail(param, "#", message, "invalid")
    key = hashlib.sha256(json.dumps([schema, param, lenient]).encode()).digest()
    outcome = PREPARED.get(key)
    if outcome is None:
        try:
            outcome = _Outcome(_prepared(schema, param, lenient))
        except GrammarError as error:
            if error.fault == "timeout":
                raise
            outcome = _Outcome(error.message, error.fault)
        PREPARED.put(key, outcome, len(key) + 4 * len(outcome.text))
    if outcome.fault is not None:
        remedy = _SKIP if outcome.fault == "unsupported" else ""
        raise GrammarError(outcome.text + remedy, outcome.fault, param=param)
    return outcome.text


def _drop_vast_counts(context: Context) -> None:
    """Leave out upper counts, which every output keeps to, and lower ones, of lenient schemas alone."""
    for schema in context.schemas:
        for keyword in COUNTS:
            if schema.get(keyword, 0) > MAX_COUNT:
                del schema[keyword]


def _prepared(schema: dict[str, Any] | bool, param: str, lenient: bool) -> str:
    try:
        context = Context(schema, param, draft_of(schema), lenient)
        check_document(context)
        _drop_vast_counts(context)
        rewritten = Rewriter(context).document(context.root)
        context.check_time()
        rewritten = without_endless(rewritten)
        context.check_time()
        result = with_one_spelling(rewritten, context)
        context.check_time()
        check_pattern_counts(result, context)
    except RecursionError:
        message = (
            f"{param}: the schema is nested too deeply; move parts into $defs, flatten choices"
        )
        raise GrammarError(message, "too_complex", param=param) from None
    if result is False:
        message = "no value satisfies the schema; look for parts that contradict or need themselves"
        raise fail(param, "#", message, "invalid")
    if depth_of(result) > MAX_OUTPUT_DEPTH:
        message = f"{param}: the schema is nested too deeply; move parts into $defs"
        raise GrammarError(message, "too_complex", param=param)
    return json.dumps({} if result is True else result, ensure_ascii=False, separators=(",", ":"))
