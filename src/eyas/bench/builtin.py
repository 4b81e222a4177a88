"""How well the built-in model answers: exact-answer rates on conversations it has not seen.

Promises that the examples come from the held-out split, whose made-up words and listed names never
occur in training, and that a rate is the share of answers that pass their example's check. Does not
know how answers are made: any function from chat requests to texts can be judged.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eyas import builtin
from eyas.builtin.families import FAMILIES, ChatRequest, Example, draw_example

AnswerFn = Callable[[Sequence[ChatRequest]], Sequence[str]]
"""Chat requests in, answers out, in the same order. An answer may start with its reasoning; tool
calls are written as the model writes them, in <tool_call> markers."""


@dataclass(frozen=True)
class Miss:
    """A wrong answer: its family, the last message, the right answer and the one given."""

    family: str
    asked: str
    expected: str
    answered: str


@dataclass(frozen=True)
class BuiltinReport:
    """Exact-answer rates: by family, with and without thinking, overall; and some misses."""

    overall: float
    families: dict[str, float]
    thinking: float
    plain: float
    num_examples: int
    misses: tuple[Miss, ...]

    def table(self) -> str:
        """The rates as a markdown table."""
        rows = [f"| {family} | {100 * rate:.1f} % |" for family, rate in self.families.items()]
        rows.append(f"| **overall** | **{100 * self.overall:.1f} %** |")
        return "\n".join(("| family | exact answers |", "|---|---|", *rows))


def heldout_examples(num_per_family: int, seed: str) -> list[Example]:
    """The evaluation set of a seed: as many examples of every family."""
    return [
        draw_example(family, f"{seed}/{index}", "heldout")
        for family in FAMILIES
        for index in range(num_per_family)
    ]


def evaluate(answer_fn: AnswerFn, num_per_family: int = 100, seed: str = "0") -> BuiltinReport:
    """Judges the answers to held-out requests; raises ValueError when some are missing."""
    examples = heldout_examples(num_per_family, seed)
    answers = answer_fn([example.request for example in examples])
    if len(answers) != len(examples):
        raise ValueError(f"{len(examples)} requests, but {len(answers)} answers")
    right = [e.check.accepts(answer) for e, answer in zip(examples, answers, strict=True)]
    families = {
        family: _rate([ok for e, ok in zip(examples, right, strict=True) if e.family == family])
        for family in FAMILIES
    }
    thinking = [ok for e, ok in zip(examples, right, strict=True) if e.enable_thinking]
    plain = [ok for e, ok in zip(examples, right, strict=True) if not e.enable_thinking]
    misses = tuple(
        Miss(e.family, str(e.messages[-2]["content"]), e.reference(), answer)
        for e, answer, ok in zip(examples, answers, right, strict=True)
        if not ok
    )
    return BuiltinReport(
        _rate(right), families, _rate(thinking), _rate(plain), len(examples), misses
    )


def _rate(outcomes: Sequence[bool]) -> float:
    return sum(outcomes) / max(1, len(outcomes))


def transformers_answers(
    checkpoint: Path, *, device: str = "cpu", batch_size: int = 64, longest: int = 512
) -> AnswerFn:
    """Greedy answers of a checkpoint through transformers, without any constraint."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint, padding_side="left")
    loaded: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16)
    model = loaded.to(device).eval()

    def prompt(request: ChatRequest) -> str:
        return tokenizer.apply_chat_template(
            list(request.messages),
            tools=list(request.tools) or None,
            add_generation_prompt=True,
            enable_thinking=request.enable_thinking,
            tokenize=False,
        )

    def answer(requests: Sequence[ChatRequest]) -> list[str]:
        prompts = [prompt(request) for request in requests]
        answers = [""] * len(prompts)
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            inputs = tokenizer(
                [prompts[index] for index in chosen],
                return_tensors="pt",
                padding=True,
                add_special_tokens=False,
                return_token_type_ids=False,
            ).to(device)
            with torch.inference_mode():
                output = model.generate(
                    **inputs, max_new_tokens=longest, do_sample=False, temperature=None, top_p=None
                )
            written = output[:, inputs["input_ids"].shape[1] :]
            texts = tokenizer.batch_decode(written, skip_special_tokens=False)
            for index, text in zip(chosen, texts, strict=True):
                answers[index] = text.split("<|im_end|>")[0].split("<|endoftext|>")[0]
        return answers

    return answer


def main() -> None:
    """Prints the exact-answer rates of a checkpoint."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--checkpoint", type=Path, default=builtin.path())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--num-per-family", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    answer_fn = transformers_answers(
        arguments.checkpoint, device=arguments.device, batch_size=arguments.batch_size
    )
    report = evaluate(answer_fn, arguments.num_per_family, arguments.seed)
    print(report.table())
    print(f"thinking {100 * report.thinking:.1f} %, without {100 * report.plain:.1f} %")
    if arguments.json:
        arguments.json.write_text(json.dumps(asdict(report), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
