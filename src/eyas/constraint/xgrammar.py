"""The second backend: xgrammar, an extra (`eyas[xgrammar]`).

Promises: what the library would ignore in a schema is refused beforehand; control tokens are no text,
and none that the tree does not name is ever legal; compilations run in a process that is killed at the
deadline. Its grammars have no canonical ones, since a compilation takes too long to do it three times.
Does not know: when grammars are compiled, budgets, trees.

Legend: R mask rows, K 32-bit words of a row.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np

from eyas.children import python_command
from eyas.constraint.base import (
    Backend,
    MaskJob,
    State,
    allows,
    along,
    at_paths,
    counted,
    one_by_one,
)
from eyas.constraint.faults import described, named, never_ends, stopping, too_slow
from eyas.constraint.sources import parsed_json
from eyas.constraint.vocabulary import Vocabulary
from eyas.constraint.xgrammar_worker import Answer, Hello, tokenizer_info
from eyas.core import GrammarError, GrammarsUnavailable
from eyas.grammar import (
    SPACING,
    FreeText,
    Json,
    Marker,
    Node,
    OutputSpec,
    Spacing,
    leaves,
    replaced,
)

START_SECONDS = 120.0
NO_PROCESS = (
    "output grammars cannot be compiled now: the system has no process left for it; try again later"
)


class XgrammarBackend(Backend):
    """xgrammar over one vocabulary."""

    name = "xgrammar"

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        num_threads: int = 1,
        deadline_seconds: float = 5.0,
        spacing: Spacing = SPACING,
    ) -> None:
        """deadline_seconds: of one compilation, without waiting for others. spacing: of schemas that do
        not set their own. ValueError where the library is not installed."""
        try:
            import xgrammar
        except ImportError as error:
            raise ValueError(
                "the grammar backend xgrammar is not installed; install eyas[xgrammar] or choose "
                "llguidance"
            ) from error
        self.vocabulary = vocabulary
        self.eos_token_ids = frozenset(vocabulary.eos_token_ids)
        special = vocabulary.special_ids
        hello = Hello(
            tokens=[
                b"\xff" + data if token in special else bytes(data)
                for token, data in enumerate(vocabulary.tokens)
            ],
            vocab_size=vocabulary.vocab_size,
            stop_token_ids=list(vocabulary.eos_token_ids),
            spacing=spacing,
        )
        self._xgrammar = xgrammar
        self._info = tokenizer_info(xgrammar, hello)
        self._compiler = _Compiler(hello, deadline_seconds)
        self._batch = xgrammar.BatchGrammarMatcher(max_threads=max(1, num_threads))
        self.lock = threading.Lock()
        """Matchers are read and copied by one thread at a time."""

    def compile(self, spec: OutputSpec) -> XgrammarGrammar:
        try:
            root = replaced(spec.root, _checked)
            compiled = self._compiled(root)
            grammar = XgrammarGrammar(self, compiled, self._allowed_row(root))
            mask_NK = np.zeros((1, self.vocabulary.num_mask_words), dtype=np.int32)
            self.fill([grammar.start()], mask_NK)
            if not mask_NK.any():
                raise never_ends()
        except GrammarError as error:
            raise named(error, spec.param) from None
        return grammar

    def validate(self, state: State, tokens: Sequence[int]) -> int:
        assert isinstance(state, XgrammarState)
        return state.num_legal(tokens)

    def job(
        self,
        states: Sequence[State],
        mask_RK: np.ndarray,
        rows: Sequence[int] | None = None,
        drafts: Sequence[Sequence[int]] | None = None,
        paths: Sequence[Sequence[int]] | None = None,
    ) -> MaskJob:
        assert mask_RK.dtype == np.int32 and mask_RK.flags.c_contiguous
        assert mask_RK.shape[1] == self.vocabulary.num_mask_words

        def run() -> None:
            first: dict[int, int] = {}
            filled: list[tuple[int, XgrammarState]] = []
            copies: list[tuple[int, int]] = []
            for row, state in along(at_paths(states, paths), rows, drafts):
                assert isinstance(state, XgrammarState)
                if state.matcher is None:
                    continue
                if id(state.matcher) in first:
                    copies.append((row, first[id(state.matcher)]))
                else:
                    first[id(state.matcher)] = row
                    filled.append((row, state))
            if filled:
                matchers = [state.matcher for _, state in filled]
                places = [row for row, _ in filled]
                with self.lock:
                    self._batch.batch_fill_next_token_bitmask(matchers, mask_RK, places)
            for row, state in filled:
                mask_RK[row] &= state.grammar.allowed_K
            for row, source in copies:
                mask_RK[row] = mask_RK[source]

        asked = [()] * len(states) if drafts is None else drafts
        return MaskJob(run, lambda: counted(mask_RK, rows, asked))

    def close(self) -> None:
        """End the compiling process."""
        self._compiler.close()

    def matcher(self, compiled: Any) -> Any:
        """Return a new matcher of a compiled grammar."""
        return self._xgrammar.GrammarMatcher(compiled)

    def _compiled(self, root: Node) -> Any:
        answer = self._compiler.ask(msgspec.json.encode(root))
        if answer.grammar is not None:
            return self._xgrammar.CompiledGrammar.deserialize_json(answer.grammar, self._info)
        words = answer.error or "it failed without a word"
        if answer.fault is not None:
            raise GrammarError(words, answer.fault)
        parts = leaves(root)
        raise described(parts[0] if len(parts) == 1 else None, words)

    def _allowed_row(self, root: Node) -> np.ndarray:
        """Return [K]: every token but padding and control tokens that no marker of the tree names."""
        vocabulary = self.vocabulary
        allowed = np.zeros(vocabulary.num_mask_words * 32, dtype=bool)
        allowed[: len(vocabulary.tokens)] = [bool(data) for data in vocabulary.tokens]
        allowed[list(vocabulary.special_ids - _marker_ids(root))] = False
        allowed[list(vocabulary.eos_token_ids)] = True
        return np.packbits(allowed, bitorder="little").view(np.int32)


class XgrammarGrammar:
    """A compiled grammar. allowed_K: the tokens that may be legal anywhere in it."""

    canonical: Sequence[XgrammarGrammar] = ()
    num_replicas = 1

    def __init__(self, backend: XgrammarBackend, compiled: Any, allowed_K: np.ndarray) -> None:
        self._backend = backend
        self._compiled = compiled
        self.allowed_K = allowed_K
        self.num_bytes = int(compiled.memory_size_bytes) + allowed_K.nbytes
        self._matcher = backend.matcher(compiled)  # no state, which would refer back

    @property
    def backend(self) -> XgrammarBackend:
        return self._backend

    def start(self, *, fresh: bool = False) -> XgrammarState:
        matcher = self._backend.matcher(self._compiled) if fresh else self._matcher
        return XgrammarState(self, matcher)

    def allows(self, token: int) -> bool:
        """Whether the token may be legal anywhere."""
        is_id = 0 <= token < len(self._backend.vocabulary.tokens)
        return is_id and allows(self.allowed_K, token)


class XgrammarState:
    """matcher: None after an end-of-sequence token."""

    __slots__ = ("_grammar", "matcher")

    def __init__(self, grammar: XgrammarGrammar, matcher: Any) -> None:
        self._grammar = grammar
        self.matcher = matcher

    @property
    def grammar(self) -> XgrammarGrammar:
        return self._grammar

    @property
    def num_deviations(self) -> int:
        return 0  # none of its grammars is canonical

    def after(self, token: int) -> XgrammarState | None:
        if self.matcher is None or not self._grammar.allows(token):
            return None
        backend = self._grammar.backend
        with backend.lock:
            if token in backend.eos_token_ids and self.matcher.is_completed():
                return XgrammarState(self._grammar, None)
            matcher = self.matcher.fork()
            if token not in backend.eos_token_ids and matcher.accept_token(token):
                return XgrammarState(self._grammar, matcher)
        return None

    def num_legal(self, tokens: Sequence[int]) -> int:
        """Count the tokens that are legal one after the other, in one copy."""
        if self.matcher is None:
            return 0
        backend, num = self._grammar.backend, 0
        with backend.lock:
            matcher = self.matcher.fork()
            for token in tokens:
                if token in backend.eos_token_ids:
                    return num + (self._grammar.allows(token) and matcher.is_completed())
                if not (self._grammar.allows(token) and matcher.accept_token(token)):
                    break
                num += 1
        return num

    def after_all(self, tokens: Sequence[int]) -> State | None:
        return one_by_one(self, tokens)

    def become(self, tokens: Sequence[int]) -> State | None:
        return self.after_all(tokens)

    def forced(self, limit: int) -> list[int]:
        if self.matcher is None or limit <= 0:
            return []
        backend = self._grammar.backend
        try:
            with backend.lock:
                text = self.matcher.find_jump_forward_string()
        except UnicodeDecodeError:  # what is forced begins or ends inside of a character
            return []
        return backend.vocabulary.encode(text)[:limit] if text else []


class _Compiler:
    """The process that compiles; it is started again after it was killed."""

    def __init__(self, hello: Hello, deadline_seconds: float) -> None:
        self._hello = msgspec.json.encode(hello) + b"\n"
        self._deadline_seconds = deadline_seconds
        self._lock = threading.Lock()
        self._is_closed = False
        self._process: subprocess.Popen[bytes] | None = self._spawn()
        self._is_ready = False

    def ask(self, question: bytes) -> Answer:
        """Send a question and return the answer. GrammarError with fault "timeout" at the deadline.
        GrammarsUnavailable where the system has no process left."""
        with self._lock:
            if self._is_closed:
                raise stopping()
            try:
                self._process = self._process or self._spawn()
            except OSError as error:
                raise GrammarsUnavailable(NO_PROCESS, "timeout") from error
            try:
                if not self._is_ready:
                    self._exchange(self._hello, START_SECONDS)
                    self._is_ready = True
                line = self._exchange(question + b"\n", self._deadline_seconds)
            except TimeoutError:
                self._replace()
                raise too_slow(self._deadline_seconds) from None
            except (OSError, ValueError):  # `close` may close the pipes meanwhile
                self._replace()
                raise GrammarError(
                    "the compiler died of it; make it smaller", "too_complex"
                ) from None
            finally:
                if self._is_closed:  # by another thread, which could not see a new process
                    self._kill()
            return msgspec.json.decode(line, type=Answer)

    def close(self) -> None:
        self._is_closed = True
        self._kill()

    def _spawn(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            python_command("eyas.constraint.xgrammar_worker"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        return process

    def _replace(self) -> None:
        self._kill()
        if not self._is_closed:
            with suppress(OSError):  # else the next question tries again
                self._process = self._spawn()

    def _kill(self) -> None:
        process, self._process, self._is_ready = self._process, None, False
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def _exchange(self, line: bytes, seconds: float) -> bytes:
        """Send a line and return the next line. TimeoutError; OSError where the process ends."""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        unsent, received, deadline = memoryview(line), bytearray(), time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdin, selectors.EVENT_WRITE)
            selector.register(process.stdout, selectors.EVENT_READ)
            while not received.endswith(b"\n"):
                left = deadline - time.monotonic()
                ready = selector.select(left) if left > 0 else []
                if not ready:
                    raise TimeoutError
                for key, _ in ready:
                    if key.fileobj is process.stdin:
                        unsent = unsent[process.stdin.write(unsent) or 0 :]
                        if not unsent:
                            selector.unregister(process.stdin)
                    elif piece := process.stdout.read(1 << 20):
                        received += piece
                    else:
                        raise OSError("the compiling process ended")
        return bytes(received)


def _checked(leaf: Node) -> Node:
    """Return the leaf as the library takes it; refuse what the library would silently ignore."""
    from eyas import schemas

    if not isinstance(leaf, Json):
        return leaf
    schema = json.dumps(schemas.unspelled(parsed_json(leaf.schema, "the schema")))
    if not leaf.lenient:
        schemas.check_ignored(schema)
    return msgspec.structs.replace(leaf, schema=schema)


def _marker_ids(root: Node) -> frozenset[int]:
    markers = [leaf for leaf in leaves(root) if isinstance(leaf, Marker)]
    markers += [
        marker for leaf in leaves(root) if isinstance(leaf, FreeText) for marker in leaf.until
    ]
    return frozenset(marker.token_id for marker in markers if marker.token_id is not None)
