"""Measure long prompts: time to first token, speed, and the delay of other sequences meanwhile.

Prompts are new random tokens in every round and the prefix cache is off, so each is computed in
full. The first rounds are a warm-up and are not counted.

Promises: the number of operations follows from the model's sizes: two per weight of the layers'
products and token, attention over half the square, one logits row; the drafter, norms and other
small operations count as none, and neither does what the last layer leaves out where no drafter reads
it. A gap is the time between two deliveries of the same sequence.
Does not know: sizes of chunks (the scheduler does), how results are shown.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from eyas.core import Delta, Request, SamplingParams
from eyas.engine.engine import Engine
from eyas.models.layer_products import layer_products
from eyas.models.spec import ModelSpec
from eyas_bench.load import percentile
from eyas_bench.together import SLACK, WARM_UPS

PEAK_TFLOPS = 790.0
"""The reference for `share_of_peak`: dense bfloat16 products as measured on one H200, in
TFLOP/s."""
CALM_STEPS = 64
"""The number of steps before a prompt arrives, in each round."""

OnRound = Callable[[int], None]


@dataclass(slots=True)
class Interference:
    """Measured times in seconds.

    calm, during: gaps of the decoding sequences before a prompt arrives and while it is stored.
    first_tokens: time to first token of the prompts that arrived.
    """

    calm: list[float] = field(default_factory=list)
    during: list[float] = field(default_factory=list)
    first_tokens: list[float] = field(default_factory=list)


def operations(spec: ModelSpec, num_tokens: int) -> float:
    """Return the number of floating-point operations to store a prompt and choose a token.

    Of the last layer, if it is one of attention over keys and values, only the heads are computed for
    all rows.
    """
    layers = [layer_products(spec, layer) for layer in range(spec.num_layers)]
    routers, stores = len(spec.expert_layers), spec.attention_stores
    last = spec.num_layers - 1
    if spec.latent is None and spec.hyper is None and spec.state_of(last) is None:
        layers[-1], stores = layers[-1][:1], stores[:-1]
        routers -= spec.experts_of(last) is not None
    numbers = sum(out * into for products in layers for out, into in products)
    numbers += sum(map(math.prod, spec.head_shapes[1:])) * routers
    widths = sum(store.head_dim + store.output_dim for store in stores)
    products = 2 * numbers * num_tokens
    attention = 2 * num_tokens**2 / 2 * spec.num_query_heads * widths
    return float(products + attention + 2 * spec.vocab_size * spec.hidden_size)


def num_chunks(num_tokens: int, chunk: int) -> int:
    """Return the number of steps that store a prompt, `chunk` positions at a time."""
    return max(1, math.ceil(num_tokens / chunk))


def longest(num_tokens: int, prompt_tokens: int, others: int, rows: int, nodes: int) -> int:
    """Return the context length that is needed: for the prompt, and for the other answers until it
    is stored.

    ValueError: `rows` per step are too few for the prompt and `others` trees of `nodes` nodes.
    """
    free = rows - 2 * others * nodes
    if free < 1:
        raise ValueError(
            f"--max-batch-tokens: {rows} rows leave too few for a prompt and {others} drafts of "
            f"{nodes} nodes; give more than {2 * others * nodes}"
        )
    num_steps = CALM_STEPS + 2 * num_chunks(num_tokens, free) + SLACK
    return max(num_tokens, prompt_tokens + nodes * num_steps * min(1, others)) + SLACK


def time_prompts(
    engine: Engine, num_tokens: int, repeats: int, on_round: OnRound = lambda turn: None
) -> list[float]:
    """Return the time to first token of prompts that run alone, in seconds, one for each round."""
    found = []
    for turn in range(1 - WARM_UPS, repeats + 1):
        on_round(turn)
        request = _request(f"prompt-{num_tokens}-{turn}", _tokens(engine, num_tokens, turn), 1)
        num_failed = engine.metrics.num_failed_steps
        begin = time.perf_counter()
        engine.add(request)
        _until_first(engine, request.id, lambda deltas: None)
        seconds = time.perf_counter() - begin
        _drain(engine, num_failed)
        if turn > 0:
            found.append(seconds)
    return found


def interfere(
    engine: Engine,
    num_sequences: int,
    prompt_tokens: int,
    num_tokens: int,
    repeats: int,
    on_round: OnRound = lambda turn: None,
) -> Interference:
    """Measure gaps of `num_sequences` sequences while a prompt of `num_tokens` tokens arrives."""
    found = Interference()
    for turn in range(1 - WARM_UPS, repeats + 1):
        on_round(turn)
        run = _interfered(engine, num_sequences, prompt_tokens, num_tokens, turn)
        if turn > 0:
            found.calm += run.calm
            found.during += run.during
            found.first_tokens += run.first_tokens
    return found


def _interfered(
    engine: Engine, num_sequences: int, prompt_tokens: int, num_tokens: int, turn: int
) -> Interference:
    run = Interference()
    room = engine.info.max_model_len - prompt_tokens
    ids = [f"other-{num_sequences}-{turn}-{i}" for i in range(num_sequences)]
    last: dict[str, float] = {}
    num_failed = engine.metrics.num_failed_steps

    def record(deltas: Sequence[Delta], gaps: list[float] | None) -> None:
        now = time.perf_counter()
        for delta in deltas:
            if delta.request_id not in others:
                continue
            if delta.finish_reason is not None:
                raise RuntimeError(
                    f"an answer ended too soon: {delta.error or delta.finish_reason}"
                )
            if delta.token_ids:
                if gaps is not None and delta.request_id in last:
                    gaps.append(now - last[delta.request_id])
                last[delta.request_id] = now

    others = set(ids)
    try:
        for i, name in enumerate(ids):
            prompt = _tokens(engine, prompt_tokens, 1000 * turn + i)
            engine.add(_request(name, prompt, room))
        while len(last) < num_sequences:
            record(engine.step(), None)
        for _ in range(CALM_STEPS):
            record(engine.step(), run.calm)
        name = f"arrival-{num_sequences}-{turn}"
        request = _request(name, _tokens(engine, num_tokens, -turn - 1000), 1)
        begin = time.perf_counter()
        engine.add(request)
        _until_first(engine, name, lambda deltas: record(deltas, run.during))
        run.first_tokens.append(time.perf_counter() - begin)
    finally:
        for name in ids:
            engine.abort(name)
        _drain(engine, num_failed)
    return run


def summarise_prompts(
    seconds: Sequence[float], spec: ModelSpec, num_tokens: int, chunk: int
) -> dict[str, Any]:
    """Summarise the prompts: the median and the best."""
    typical, best = median(seconds), min(seconds)
    count = operations(spec, num_tokens)
    speed = count / typical / 1e12
    return {
        "prompt_tokens": num_tokens,
        "chunks": num_chunks(num_tokens, chunk),
        "first_token_ms": _ms(typical),
        "best_ms": _ms(best),
        "tokens_per_second": round(num_tokens / typical, 1),
        "tera_operations": round(count / 1e12, 3),
        "tflops": round(speed, 2),
        "best_tflops": round(count / best / 1e12, 2),
        "share_of_peak": round(speed / PEAK_TFLOPS, 4),
        "peak_tflops": PEAK_TFLOPS,
        "runs_ms": [_ms(each) for each in seconds],
    }


def summarise_interference(
    found: Interference, num_sequences: int, prompts: dict[str, Any]
) -> dict[str, Any]:
    """Summarise the gaps, and their bound: a gap before the prompt plus a chunk.

    prompts: from `summarise_prompts`.
    """
    chunk_ms = prompts["first_token_ms"] / prompts["chunks"]
    calm, during = _gaps(found.calm), _gaps(found.during)
    bound = calm["p50"] + chunk_ms
    return {
        "sequences": num_sequences,
        "gap_ms": {"calm": calm, "during": during},
        "chunk_ms": round(chunk_ms, 4),
        "bound_ms": round(bound, 4),
        "p99_over_bound": round(during["p99"] / bound, 4),
        "first_token_ms": _ms(median(found.first_tokens)),
        "first_token_alone_ms": prompts["first_token_ms"],
    }


def _gaps(seconds: Sequence[float]) -> dict[str, float]:
    found = {"num": len(seconds), "max": _ms(max(seconds, default=0.0))}
    for percent in (50, 99):
        found[f"p{percent}"] = _ms(percentile(seconds, percent / 100) or 0.0)
    return found


def _tokens(engine: Engine, count: int, seed: int) -> list[int]:
    draw = random.Random(f"prompt {seed}")
    top = max(2, engine.info.vocab_size - 64)
    return [draw.randrange(1, top) for _ in range(count)]


def _request(name: str, prompt: list[int], max_tokens: int) -> Request:
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    return Request(id=name, prompt_token_ids=prompt, params=params)


def _until_first(engine: Engine, name: str, record: Callable[[Sequence[Delta]], None]) -> None:
    """Step until this request, which has a limit of one token, ends."""
    while True:
        deltas = engine.step()
        record(deltas)
        for delta in deltas:
            if delta.request_id != name or delta.finish_reason is None:
                continue
            if delta.finish_reason != "length":
                raise RuntimeError(f"a measured request failed: {delta.error}")
            return


def _drain(engine: Engine, num_failed: int) -> None:
    while engine.has_work():
        engine.step()
    if engine.metrics.num_failed_steps > num_failed:
        raise RuntimeError("a step failed during the measurement; see the log")


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 4)
