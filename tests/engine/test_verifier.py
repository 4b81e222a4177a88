"""What a token is: the argmax of its row's logits and the noise of its own position, nothing else."""

from __future__ import annotations

import pytest
import torch

from eyas.core import Request, SamplingParams
from eyas.draft import Drafter, NgramDrafter, RootDrafter
from eyas.draft_tree import DraftTree, Verdict
from eyas.engine.verifier import raw_logprobs, verify
from eyas.sampling import gumbel
from tests.laws.cases import walk_text
from tests.laws.drafters import NoiseReader, RandomTrees
from tests.laws.world import VOCAB, Setting, new_engine, run

PROMPT = walk_text(97, 11, [0, 1])


def logits_by_position(
    drafter: Drafter, params: SamplingParams
) -> tuple[dict[tuple[int, int], torch.Tensor], dict[int, list[int]]]:
    """({(choice, position): raw logits of the row that chose}, {choice: output})."""
    logits: dict[tuple[int, int], torch.Tensor] = {}

    def recorded(logits_RV, tree, rows, batch, mask_RK) -> Verdict:  # type: ignore[no-untyped-def]
        verdict = verify(logits_RV, tree, rows, batch, mask_RK)
        owners = list(zip(rows.sampling.sequence_R.tolist(), rows.node_R.tolist(), strict=True))
        for b, source in enumerate(batch.params.sequences):
            root = int(batch.roots_B[b])
            for depth in range(int(verdict.counts_B[b])):
                row = owners.index((b, int(verdict.nodes_BW[b, depth])))
                logits[source.choice, root + depth] = logits_RV[row].clone()
        return verdict

    asked = Request(id="r", prompt_token_ids=PROMPT, params=params)
    answers = run(new_engine(Setting(), drafter, verify=recorded), [asked])
    return logits, {index: answer.token_ids for (_, index), answer in answers.items()}


@pytest.mark.parametrize(
    "drafter",
    [RootDrafter(), NgramDrafter(4, min_match=1), RandomTrees(6, 1), NoiseReader(6)],
    ids=["root", "ngram", "random trees", "noise reader"],
)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_token_is_the_argmax_of_logits_and_the_noise_of_its_position(
    drafter: Drafter, temperature: float
) -> None:
    """After a prompt of L tokens the first choice is made at L - 1; each choice has its own noise."""
    seed = 2**63 + 12345
    params = SamplingParams(temperature=temperature, seed=seed, max_tokens=30, n=3, ignore_eos=True)
    logits, outputs = logits_by_position(drafter, params)
    for choice, output in outputs.items():
        for i, token in enumerate(output):
            position = len(PROMPT) - 1 + i
            scores = logits[choice, position]
            if temperature:
                keys = (
                    torch.tensor([seed - 2**64]),
                    torch.tensor([position]),
                    torch.tensor([choice]),
                )
                scores = scores / temperature + gumbel(*keys, VOCAB)[0]
            assert token == int(scores.argmax())
    assert (len({tuple(o) for o in outputs.values()}) == 3) == (temperature > 0)


def test_logprobs_are_the_raw_models() -> None:
    """Not those of biased, penalised, filtered logits; the likeliest first, ties by id."""
    params = SamplingParams(
        temperature=0.5,
        seed=3,
        max_tokens=20,
        logprobs=4,
        top_k=3,
        frequency_penalty=1.0,
        logit_bias={101: 5.0},
        ignore_eos=True,
    )
    expected: dict[int, torch.Tensor] = {}

    def recorded(logits_RV, tree: DraftTree, rows, batch, mask_RK) -> Verdict:  # type: ignore[no-untyped-def]
        expected[int(batch.roots_B[0])] = logits_RV[0].double().log_softmax(0)
        return verify(logits_RV, tree, rows, batch, mask_RK)

    asked = Request(id="r", prompt_token_ids=PROMPT, params=params)
    answer = run(new_engine(Setting(), verify=recorded), [asked])["r", 0]
    assert [e.token_id for e in answer.logprobs] == answer.token_ids
    for i, entry in enumerate(answer.logprobs):
        want = expected[len(PROMPT) - 1 + i]
        assert entry.logprob == pytest.approx(want[entry.token_id].item(), abs=1e-4)
        best = want.topk(4)
        assert [token for token, _ in entry.top] == best.indices.tolist()
        assert [value for _, value in entry.top] == pytest.approx(best.values.tolist(), abs=1e-4)


def test_prompt_logprobs_are_those_of_the_same_tokens_generated() -> None:
    """An answer given back as part of the prompt has the log-probabilities it was chosen with."""
    params = SamplingParams(temperature=0.8, seed=1, max_tokens=20, logprobs=2, ignore_eos=True)
    answer = run(new_engine(Setting()), [Request(id="r", prompt_token_ids=PROMPT, params=params)])
    chosen = answer["r", 0]
    again = SamplingParams(max_tokens=1, prompt_logprobs=2, seed=0)
    prompt = [*PROMPT, *chosen.token_ids]
    scored = run(new_engine(Setting()), [Request(id="r", prompt_token_ids=prompt, params=again)])
    entries = scored["r", 0].prompt_logprobs
    assert entries is not None and entries[len(PROMPT) :] == chosen.logprobs


@pytest.mark.parametrize("num_top", [1, 3, 20])
def test_the_likeliest_tokens_come_in_order_and_ties_by_id(num_top: int) -> None:
    generator = torch.Generator().manual_seed(num_top)
    logits = torch.randint(-3, 3, (40, 50), generator=generator).float()
    tokens = torch.randint(0, 50, (40,), generator=generator)
    own, ids, values = raw_logprobs(logits, tokens, num_top)
    exact = logits.double().log_softmax(dim=1)
    for row in range(40):
        scores = logits[row].tolist()
        wanted = sorted((-score, token) for token, score in enumerate(scores))[:num_top]
        assert ids[row].tolist() == [token for _, token in wanted]
    assert torch.allclose(values.double(), exact.gather(1, ids), atol=1e-5)
    assert torch.allclose(own.double(), exact.gather(1, tokens.unsqueeze(1)).squeeze(1), atol=1e-5)
