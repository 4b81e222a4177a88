"""Train a draft head for a few seconds: it gives the same tokens in fewer steps.

`python examples/train_a_head.py [SECONDS]`; a good head takes a few minutes on a GPU.
"""

import sys
import tempfile
from pathlib import Path

from eyas import LLM, SamplingParams
from eyas.train.head import HeadTraining, train_head

MESSAGES = [{"role": "user", "content": "Write the numbers from 0 to 27."}]
PARAMS = SamplingParams(temperature=0, max_tokens=100)


def main(seconds: str = "5") -> None:
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "run"
        training = HeadTraining(
            output=output,
            conversations="builtin:80",  # or a file; with `prompts` the model answers
            train_seconds=float(seconds),
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
