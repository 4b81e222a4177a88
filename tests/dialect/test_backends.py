"""The grammar library accepts what a dialect's grammar does, with a real vocabulary."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from random import Random

import pytest

from eyas.constraint import Vocabulary, build_backend
from eyas.constraint.base import Backend, State
from eyas.dialect.base import Wanted
from eyas.text import Tokenizer
from tests.gaps import GAPS, TOO_MUCH
from tests.thorough import drawn

from .cases import CASES, FAMILIES, Case
from .recognise import accepts, example
from .streams import FIRST_CONTROL
from .test_transcripts import TRANSCRIPTS, Transcript, case_of

NUM_EXAMPLES = drawn(2, 3)


@lru_cache(maxsize=2)
def model(with_markers: bool) -> tuple[Tokenizer, Backend]:
    """The built-in tokenizer, with every family's markers as control tokens or with none."""
    spec = json.loads((files("eyas.builtin") / "checkpoint" / "tokenizer.json").read_text())
    kept = [t for t in spec["added_tokens"] if "|" in t["content"]]
    texts = {"<t>", *(m for f in FAMILIES.values() for m in f.markers)}
    size = 1 + max(t["id"] for t in spec["added_tokens"])
    added = [
        {**kept[0], "id": size + i, "content": text, "special": False}
        for i, text in enumerate(sorted(texts))
        if with_markers or text == "<t>"
    ]
    tokenizer = Tokenizer({**spec, "added_tokens": [*kept, *added]})
    end = tokenizer.control_id("<|im_end|>")
    assert end is not None
    vocabulary = Vocabulary.of(tokenizer, tokenizer.vocab_size, [end])
    return tokenizer, build_backend("llguidance", vocabulary)


def real_ids(case: Case, tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """The same stream in the real tokenizer's tokens."""
    result: list[int] = []
    text = ""
    for token in [*ids, None]:
        if token is not None and token < FIRST_CONTROL:
            text += chr(token)
            continue
        result += tokenizer.encode_text(text, continues=True)
        text = ""
        if token is not None:
            found = tokenizer.control_id(case.tokenizer.decode([token], False))
            assert found is not None
            result.append(found)
    return result


def takes(backend: Backend, case: Case, tokenizer: Tokenizer, ids: Sequence[int]) -> bool:
    prompt = real_ids(case, tokenizer, case.prompt_token_ids)
    spec = case.family.dialect(tokenizer).output(case.wanted, prompt)
    assert spec is not None
    state: State | None = backend.compile(spec).start()
    end = tokenizer.control_id("<|im_end|>")
    assert end is not None
    for token in [*real_ids(case, tokenizer, ids), end]:
        assert state is not None
        state = state.after(token)
        if state is None:
            return False
    return True


def constrained(kind: str) -> list[Transcript]:
    found = []
    for entry in TRANSCRIPTS:
        case = case_of(entry, kind)
        if entry.wanted != Wanted() and case.is_told_by_tokens:
            found.append(entry)
    return found


@pytest.mark.parametrize("kind", ["shown", "text"])
def test_transcripts_are_taken(kind: str) -> None:
    tokenizer, backend = model(kind == "shown")
    for entry in constrained(kind):
        case = case_of(entry, kind)
        ids = case.tokenizer.tokens(entry.output)
        spec = case.dialect.output(case.wanted, case.prompt_token_ids)
        assert spec is not None
        assert takes(backend, case, tokenizer, ids) is accepts(spec.root, ids), entry


@pytest.mark.parametrize("kind", ["shown", "text"])
def test_examples_of_every_grammar_are_taken(kind: str) -> None:
    tokenizer, backend = model(kind == "shown")
    count = 0
    for case in (case for case in CASES if f", {kind}," in case.name):
        spec = case.dialect.output(case.wanted, case.prompt_token_ids)
        for seed in range(NUM_EXAMPLES if spec else 0):
            assert spec is not None
            ids = example(spec.root, case.tokenizer, case.pieces, Random(seed))
            if "\\u" in case.tokenizer.stream(ids).text:
                continue  # the library spells characters in one way only
            assert takes(backend, case, tokenizer, ids), (case.name, seed)
            count += 1
    assert count > 100


@pytest.mark.parametrize("kind", ["shown", "text"])
def test_white_space_in_calls_is_bounded(kind: str) -> None:
    """Arguments take any gap that JSON may have, and none that is larger."""
    tokenizer, backend = model(kind == "shown")
    seen = set()
    for case in (case for case in CASES if f", {kind}," in case.name):
        spec = case.dialect.output(case.wanted, case.prompt_token_ids)
        if spec is None or case.wanted.choice != "required" or case.family.name in seen:
            continue
        for seed in range(20):
            ids = example(spec.root, case.tokenizer, case.pieces, Random(seed))
            text = "".join(chr(i) if i < FIRST_CONTROL else "\0" for i in ids)
            found = re.search(r'\{(\s*)"city":', text)
            if found is None or "\\u" in text or not takes(backend, case, tokenizer, ids):
                continue
            seen.add(case.family.name)
            for gap in (*GAPS, *TOO_MUCH):
                other = [*ids[: found.start(1)], *map(ord, gap), *ids[found.end(1) :]]
                assert takes(backend, case, tokenizer, other) == (gap in GAPS), (case.name, gap)
            break
    assert len(seen) >= 5
