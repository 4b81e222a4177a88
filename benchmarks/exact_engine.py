"""Compare an engine's answers to the same prompts alone and in different batches.

Promises: the reference is plain decoding, one prompt at a time; drafts come from a drafter that
knows the answers (with some errors, and with other branches) and from a random head. Tokens and
log-probabilities are compared. Used by exact.py.
Does not know: how a row is computed.

Legend: B sequences, W nodes, X texts, C columns (positions), V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import torch

from eyas.config import CacheConfig, EngineConfig, EngineInfo
from eyas.core import Request, SamplingParams, TokenLogprob
from eyas.draft import Drafter, RootDrafter, TreeShape
from eyas.draft.base import roots_alone
from eyas.draft_tree import DraftTree
from eyas.engine.engine import Engine
from eyas.engine.startup.build import assemble, connect
from eyas.engine.startup.exactness_probe import chain_of, random_tree
from eyas.engine.startup.load import Parts
from eyas.runner.batch import Batch
from eyas.runner.device import Device
from eyas.runner.runner import ModelRunner

NUM_PROMPTS = 16
NUM_ANSWERED = 32
LENGTHS = (3, 17, 64, 65, 130, 257, 400, 640)
ERROR = 0.15
"""The probability of an error of the drafter that knows the answers."""


@dataclass
class Answer:
    tokens: list[int]
    logprobs: list[TokenLogprob]
    prompt_logprobs: list[TokenLogprob | None]


class KnowingDrafter(Drafter):
    """Proposes the known next tokens, with errors, on a path of a random tree or as a chain.

    texts: whole texts, with distinct first tokens.
    """

    def __init__(
        self, texts: Sequence[Sequence[int]], width: int, vocab: int, device: torch.device,
        *, is_chain: bool,
    ) -> None:  # fmt: skip
        self.shape = TreeShape(width - 1, 1 if is_chain else 2, width)
        self._vocab, self._is_chain = vocab, is_chain
        self._draw = np.random.default_rng(width)
        longest = max(len(text) for text in texts)
        known_XC = torch.zeros((len(texts), longest + width + 1), dtype=torch.int64)
        which_V = torch.zeros(vocab, dtype=torch.int64)
        for x, text in enumerate(texts):
            known_XC[x, : len(text)] = torch.tensor(text)
            which_V[text[0]] = x
        self._known_XC, self._which_V = known_XC.to(device), which_V.to(device)

    def propose(self, batch: Batch, shape: TreeShape) -> DraftTree:
        width = shape.nodes
        if width == 1 or not batch.num_rows:
            return roots_alone(batch)
        table, device = batch.table, batch.table.device
        parents, path = chain_of(width) if self._is_chain else random_tree(self._draw, width)
        depths = [0] * width
        for node in range(1, width):
            depths[node] = depths[parents[node]] + 1
        wrong = self._draw.random((batch.num_rows, width)) < ERROR
        wrong[:, [node for node in range(width) if node not in path]] = True
        wrong[:, 0] = False
        depths_W = torch.tensor(depths).to(device)
        columns_BW = batch.roots_B.unsqueeze(1) + depths_W
        columns_BW = columns_BW.clamp(max=self._known_XC.shape[1] - 1)
        which_B = self._which_V[table.tokens_AC[batch.seats_B, 0]]
        right_BW = self._known_XC[which_B.unsqueeze(1), columns_BW]
        others_BW = (right_BW + 1 + torch.arange(width, device=device)) % self._vocab
        tokens_BW = torch.where(torch.from_numpy(wrong).to(device), others_BW, right_BW)
        tokens_BW[:, 0] = table.tokens_AC[batch.seats_B, batch.roots_B]
        parents_BW = torch.tensor(parents).to(device).expand(batch.num_rows, -1).contiguous()
        sizes_B = torch.full_like(tokens_BW[:, 0], width)
        return DraftTree(tokens_BW, parents_BW, sizes_B, self._is_chain)


def answer(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    params: Sequence[SamplingParams],
    *,
    together: bool = True,
) -> list[Answer]:
    """Return the answers, generated all at once or one after the other."""
    answers = {str(i): Answer([], [], []) for i in range(len(prompts))}
    requests = [
        Request(id=str(i), prompt_token_ids=list(prompt), params=own)
        for i, (prompt, own) in enumerate(zip(prompts, params, strict=True))
    ]
    for group in [requests] if together else [[request] for request in requests]:
        for request in group:
            engine.add(request)
        while engine.has_work():
            for delta in engine.step():
                if delta.error is not None:
                    raise RuntimeError(delta.error)
                own = answers[delta.request_id]
                own.tokens += delta.token_ids
                own.logprobs += delta.logprobs or []
                own.prompt_logprobs += delta.prompt_logprobs or []
    engine.check()
    if engine.metrics.num_failed_steps:
        raise RuntimeError(f"{engine.metrics.num_failed_steps} steps failed")
    return list(answers.values())


def prompts_of(vocab: int, longest: int) -> list[list[int]]:
    """Return random prompts with distinct first tokens; every second one shares a prefix."""
    draw = np.random.default_rng(7)
    shared = draw.integers(0, vocab, size=longest).tolist()
    found = []
    for i in range(NUM_PROMPTS):
        length = min(LENGTHS[i % len(LENGTHS)] + i // len(LENGTHS), longest)
        own = draw.integers(0, vocab, size=length).tolist()
        if i % 2:
            own[: length // 2] = shared[: length // 2]
        own[0] = i * (vocab // NUM_PROMPTS)
        found.append(own)
    return found


def sampling(i: int, *, logprobs: int | None = None) -> SamplingParams:
    """Return the sampling parameters of a prompt: half are greedy, half sampled, some with filters."""
    return SamplingParams(
        temperature=0.0 if i % 2 else 0.8,
        top_p=0.9 if i % 3 == 0 else 1.0,
        seed=i,
        max_tokens=NUM_ANSWERED,
        ignore_eos=True,
        logprobs=logprobs,
    )


Result = tuple[str, int, int, float, float]
"""Name, number compared, number different, largest difference of a log-probability, seconds."""


def engine_comparisons(parts: Parts, config: EngineConfig, place: Device) -> Iterator[Result]:
    """Yield the results of all comparisons, token by token."""
    cache = CacheConfig(num_slots=NUM_PROMPTS * (max(LENGTHS) + 200))
    first = assemble(msgspec.structs.replace(config, cache=cache), place, parts)
    info, runner, head = first.info, first.runner, first.drafter
    print(f"exact: {info.exact}, {info.exact_reason}")
    prompts = prompts_of(info.vocab_size, min(max(LENGTHS), info.max_model_len - 64))
    plain = [sampling(i, logprobs=0) for i in range(NUM_PROMPTS)]
    started = time.perf_counter()
    expected = answer(_engine(config, runner, RootDrafter(), info), prompts, plain, together=False)
    print(f"{len(prompts)} prompts answered alone, {time.perf_counter() - started:.1f} s")
    texts = [[*p, *a.tokens] for p, a in zip(prompts, expected, strict=True)]
    vocab, device = info.vocab_size, place.device

    def knowing(width: int, *, is_chain: bool = False) -> Drafter:
        return KnowingDrafter(texts, width, vocab, device, is_chain=is_chain)

    few = max(len(text) for text in texts) + 200
    variants: list[tuple[str, Drafter, dict[str, int], int | None]] = [
        ("together", RootDrafter(), {}, None),
        ("together, log-probabilities", RootDrafter(), {}, 0),
        ("chains", knowing(6, is_chain=True), {}, None),
        ("chains, landed at once", knowing(6, is_chain=True), {"flights": 0}, None),
        ("trees", knowing(8), {}, None),
        ("trees, log-probabilities", knowing(8), {}, 0),
        ("large trees, three at a time", knowing(32), {"seqs": 3}, None),
        ("trees, chunks of 100", knowing(8), {"rows": 100}, None),
        ("trees, preempted", knowing(8), {"slots": few * 2, "rows": 512}, None),
        ("chains, preempted", knowing(4, is_chain=True), {"slots": few, "rows": 64}, None),
        ("trees of a random head", head, {}, None),
    ]
    for name, drafter, settings, logprobs in variants:
        started = time.perf_counter()
        engine = _engine(config, runner, drafter, info, **settings)
        params = [sampling(i, logprobs=logprobs) for i in range(NUM_PROMPTS)]
        found = answer(engine, prompts, params)
        if "slots" in settings and not engine.scheduler.num_preemptions:
            raise RuntimeError(f"{name}: nothing was preempted")
        yield _compared(f"engine: {name}", expected, found, time.perf_counter() - started)
        if isinstance(drafter, KnowingDrafter) and not engine.stats().num_accepted_tokens:
            raise RuntimeError(f"{name}: nothing was accepted")
        if name in ("together", "trees"):
            started = time.perf_counter()
            found = answer(engine, prompts, params)
            name = f"engine: {name}, once more"  # with prefix hits
            yield _compared(name, expected, found, time.perf_counter() - started)
    for rows in (64, 100, 512, 2048):
        started = time.perf_counter()
        engine = _engine(config, runner, RootDrafter(), info, rows=rows)
        echo = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, ignore_eos=True)
        echoed = answer(engine, texts, [echo] * len(texts))
        found = [
            Answer(a.tokens, [entry for entry in e.prompt_logprobs[len(p) :] if entry], [])
            for a, e, p in zip(expected, echoed, prompts, strict=True)
        ]
        seconds = time.perf_counter() - started
        yield _compared(f"engine: echo in chunks of {rows}", expected, found, seconds)


def _engine(
    config: EngineConfig,
    runner: ModelRunner,
    drafter: Drafter,
    info: EngineInfo,
    *,
    flights: int = 1,
    seqs: int = NUM_PROMPTS,
    rows: int = 2048,
    slots: int | None = None,
) -> Engine:
    """Return another engine with the same model and cache."""
    scheduler = msgspec.structs.replace(
        config.scheduler, max_num_seqs=seqs, max_batch_tokens=rows, flights=flights
    )
    num_slots = min(slots or info.num_slots, info.num_slots)
    facts = msgspec.structs.replace(info, num_slots=num_slots, num_flights=flights)
    config = msgspec.structs.replace(config, scheduler=scheduler)
    limits = scheduler.limits(on_gpu=runner.model.device.type == "cuda")
    return connect(config, limits, runner, drafter, facts, None)


def _compared(name: str, expected: list[Answer], found: list[Answer], seconds: float) -> Result:
    num, different, largest = 0, 0, 0.0
    for one, other in zip(expected, found, strict=True):
        num += len(one.tokens)
        pairs = zip(one.tokens, other.tokens, strict=False)
        wrong = abs(len(one.tokens) - len(other.tokens)) + sum(a != b for a, b in pairs)
        if not wrong and other.logprobs:
            if len(one.logprobs) != len(other.logprobs):
                raise RuntimeError(f"{name}: {len(other.logprobs)} of {len(one.logprobs)}")
            for a, b in zip(one.logprobs, other.logprobs, strict=True):
                wrong += a.token_id != b.token_id or a.logprob != b.logprob
                largest = max(largest, abs(a.logprob - b.logprob))
        different += wrong
    return name, num, different, largest, seconds
