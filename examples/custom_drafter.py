"""Write a drafter; it cannot change the output. `python examples/custom_drafter.py [MODEL]`"""

import sys
from collections import Counter, defaultdict
from itertools import pairwise

import torch

from eyas import LLM, SamplingParams
from eyas.draft import Drafter, TreeShape, chain, root_tokens
from eyas.draft_tree import DraftTree, Verdict
from eyas.runner.batch import Batch
from eyas.runner.runner import Output


class HabitDrafter(Drafter):
    """Proposes the token that most often followed the last one in what it has seen."""

    shape = TreeShape(steps=3, topk=1, nodes=4)

    def __init__(self) -> None:
        self.followers: dict[int, Counter[int]] = defaultdict(Counter)

    def propose(self, batch: Batch, shape: TreeShape) -> DraftTree:
        rows = root_tokens(batch).tolist()
        for row in rows:
            while len(row) < shape.nodes:
                known = self.followers[row[-1]].most_common(1)
                row.append(known[0][0] if known else row[-1])
        tokens_BW = torch.tensor(rows, dtype=torch.int64).view(len(rows), shape.nodes)
        return chain(tokens_BW, torch.full((len(rows),), shape.nodes))

    def observe(self, batch: Batch, output: Output, verdict: Verdict | None) -> None:
        if verdict is None:  # a step that only stored prompts
            return
        roots, counts = root_tokens(batch), verdict.counts_B.clamp(min=0).tolist()
        said = torch.cat([roots, verdict.tokens_BW], dim=1).tolist()
        for row, count in zip(said, counts, strict=True):
            for first, second in pairwise(row[: count + 1]):
                self.followers[first][second] += 1


def main(model: str = "builtin") -> None:
    messages = [{"role": "user", "content": "Write the numbers from 0 to 27."}]
    params = SamplingParams(temperature=0, max_tokens=100)
    plain = LLM(model, drafter="root").chat(messages, params)[0]
    llm = LLM(model, drafter=HabitDrafter())
    for _ in range(2):
        drafted = llm.chat(messages, params)[0]
        assert drafted.token_ids == plain.token_ids
        steps = drafted.choices[0].usage.num_steps
        assert steps < len(plain.token_ids), "drafts were accepted"
        print(f"{len(drafted.token_ids)} tokens in {steps} steps, the same as plain decoding's")


if __name__ == "__main__":
    main(*sys.argv[1:2])
