"""Check that the drafter changes the number of steps, but not the tokens.

`python examples/tokens_identical.py [MODEL]`
"""

import sys
from typing import Any

from eyas import LLM, SamplingParams

PROMPTS = (
    "Repeat exactly: DLK-4711 QRT-0925 MNA-3318 XYZ-7740",
    "Write the numbers from 0 to 27.",
    "Specify a random city.",
)
PARAMS = (
    SamplingParams(temperature=0, max_tokens=48),
    SamplingParams(temperature=0.7, seed=1, max_tokens=48),
    SamplingParams(temperature=1.3, min_p=0.02, frequency_penalty=0.3, seed=2, max_tokens=48),
)


def run(model: str, **drafting: Any) -> tuple[list[list[int]], int]:
    """All token ids, and the steps they took."""
    with LLM(model, **drafting) as llm:
        conversations = [[{"role": "user", "content": p}] for p in PROMPTS for _ in PARAMS]
        outputs = llm.chat(conversations, [params for _ in PROMPTS for params in PARAMS])
    num_steps = sum(output.choices[0].usage.num_steps for output in outputs)
    return [output.token_ids for output in outputs], num_steps


def main(model: str = "builtin") -> None:
    plain, plain_steps = run(model, drafter="root")
    for count in (2, 4, 8):
        drafted, steps = run(model, drafter="ngram", draft_steps=count, draft_nodes=count + 1)
        if drafted != plain:
            sys.exit("tokens differ: this must not happen")
        print(f"{count} drafted tokens a step: same tokens, {plain_steps} -> {steps} steps")


if __name__ == "__main__":
    main(*sys.argv[1:2])
