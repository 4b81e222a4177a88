"""Constrained requests to the built-in model, by every drafter and both grammar libraries."""

from __future__ import annotations

from functools import lru_cache

from eyas.config import (
    CacheConfig,
    DraftConfig,
    EngineConfig,
    GrammarConfig,
    SchedulerConfig,
)
from eyas.core import SamplingParams
from eyas.dialect import ToolSpec, Wanted
from eyas.grammar import Node, OutputSpec
from eyas.llm import LLM, EncodedPrompt
from eyas.outputs import GenerationOutput

PLAIN = "root"
DRAFTING = {
    "root": DraftConfig(drafter="root"),
    "forced": DraftConfig(drafter="forced"),
    "ngram": DraftConfig(drafter="ngram", steps=4, nodes=5),
    "short chain": DraftConfig(drafter="head", steps=2, topk=1, nodes=3),
    "chain": DraftConfig(drafter="head", steps=5, topk=1, nodes=6),
    "tree": DraftConfig(drafter="head+forced", steps=5, topk=4, nodes=16),
    "blend": DraftConfig(drafter="ngram+head+forced", steps=4, topk=2, nodes=12),
    "itself": DraftConfig(drafter="model+forced", model="builtin", steps=4, topk=2, nodes=9),
    "auto": DraftConfig(),
}
BACKENDS = ("llguidance", "xgrammar")


@lru_cache(maxsize=12)
def engine(
    drafter: str, backend: str = "llguidance", flights: int = 0, max_num_seqs: int = 6
) -> LLM:
    """The built-in model with a drafter."""
    return LLM(
        config=EngineConfig(
            cache=CacheConfig(num_slots=6000),
            draft=DRAFTING[drafter],
            scheduler=SchedulerConfig(
                flights=flights,
                max_batch_tokens=16 * max_num_seqs,
                max_num_seqs=max_num_seqs,
            ),
            grammar=GrammarConfig(backend=backend, compile_seconds=60),  # type: ignore[arg-type]
        )
    )


def ask(
    llm: LLM,
    question: str,
    wanted: Wanted | Node | OutputSpec,
    *,
    temperature: float = 0.0,
    seed: int = 0,
    max_tokens: int = 160,
    system: str | None = None,
    n: int = 1,
    **template_options: bool,
) -> GenerationOutput:
    """One answer."""
    params = SamplingParams(
        temperature=temperature, seed=seed, max_tokens=max_tokens, logprobs=1, n=n
    )
    asked = asked_for(llm, question, wanted, system=system, **template_options)
    return llm.generate(asked, params)[0]


def asked_for(
    llm: LLM,
    question: str,
    wanted: Wanted | Node | OutputSpec,
    *,
    system: str | None = None,
    **template_options: bool,
) -> EncodedPrompt:
    """A node or a specification is what the whole output must be, without a dialect."""
    messages = [{"role": "user", "content": question}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    if isinstance(wanted, Wanted):
        return llm._encoded_chat(messages, wanted, None, template_options)
    prompt = llm.encode_chat(messages, **template_options)
    spec = wanted if isinstance(wanted, OutputSpec) else OutputSpec(root=wanted)
    return EncodedPrompt(prompt, "prompts", spec)


def told(output: GenerationOutput) -> list[tuple[object, ...]]:
    """Everything of an answer that a drafter must not change."""
    return [
        (c.token_ids, c.text, c.logprobs, c.finish_reason, c.stop_reason, c.error, c.reasoning)
        for c in output.choices
    ]


def weather_tools() -> tuple[ToolSpec, ...]:
    """Two functions."""
    city = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    time = {
        "type": "object",
        "properties": {"timezone": {"type": "string"}},
        "required": ["timezone"],
        "additionalProperties": False,
    }
    return (ToolSpec("get_weather", city, strict=True), ToolSpec("get_time", time, strict=True))
