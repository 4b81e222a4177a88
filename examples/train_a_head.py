"""A draft head of your own, trained for a few steps: the same tokens as without it, in fewer steps.

`python examples/train_a_head.py [EPOCHS]`; more epochs over more conversations make a better head.
"""

import sys
import tempfile
from pathlib import Path

from eyas import LLM, SamplingParams
from eyas.train.head import HeadTraining, train_head

MESSAGES = [{"role": "user", "content": "Write the numbers from 0 to 27."}]
PARAMS = SamplingParams(temperature=0, max_tokens=100)


def main(epochs: str = "3") -> None:
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "run"
        training = HeadTraining(
            output=output,
            conversations="builtin:40",  # or a JSONL file; `prompts` are answered by the model
            epochs=float(epochs),
            optimizer="adamw",  # cheap steps on a CPU; muon, the default, needs fewer of them
            batch_tokens=1024,
            ttt_steps=3,
            evaluate=False,
        )
        train_head(training)
        head = str(output / "specforge")
        drafted = LLM(drafter="head", draft_model=head, draft_nodes=8, num_slots=4096)
    plain = LLM(drafter="root", num_slots=4096)
    answers = [llm.chat(MESSAGES, PARAMS)[0] for llm in (plain, drafted)]
    assert answers[0].token_ids == answers[1].token_ids
    for name, answer in zip(("plain", "drafted"), answers, strict=True):
        steps = answer.choices[0].usage.num_steps
        print(f"{name}: {len(answer.token_ids)} tokens in {steps} steps")


if __name__ == "__main__":
    main(*sys.argv[1:2])
