"""lm-eval: generation over both routes, and log-likelihoods through echo and logprobs."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

registry = pytest.importorskip("lm_eval.api.registry")
instance = pytest.importorskip("lm_eval.api.instance")
pytest.importorskip("lm_eval.models")

TOKENIZER = Path(__file__).parents[2] / "src" / "eyas" / "builtin" / "checkpoint"
PAIRS = [
    ("What is the capital of France?", " Paris"),
    ("What is the capital of France?", " Zebras"),
    ("The capital of Peru", " is Lima."),
]


def requests_of(kind: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
    return [
        instance.Instance(request_type=kind, doc={}, arguments=each, idx=index)
        for index, each in enumerate(arguments)
    ]


@pytest.fixture
def completions(base_url: str, model: str) -> Any:
    return registry.get_model("local-completions")(
        model=model,
        base_url=f"{base_url}/completions",
        tokenizer=str(TOKENIZER),
        tokenizer_backend="huggingface",
        num_concurrent=1,
        max_length=1024,
        batch_size=2,
    )


def scored(base_url: str, model: str, prompt: list[int]) -> list[float]:
    """The log-probabilities of a prompt's tokens, asked for without lm-eval."""
    body = {"model": model, "prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 0}
    request = urllib.request.Request(
        f"{base_url}/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["choices"][0]["logprobs"]["token_logprobs"]


def test_loglikelihoods_are_the_servers(completions: Any, base_url: str, model: str) -> None:
    found = completions.loglikelihood(requests_of("loglikelihood", PAIRS), disable_tqdm=True)
    for (context, continuation), (total, is_greedy) in zip(PAIRS, found, strict=True):
        whole, start = (completions.tok_encode(text) for text in (context + continuation, context))
        expected = sum(scored(base_url, model, list(whole))[len(start) :])
        assert total == pytest.approx(expected, abs=1e-3)
        assert is_greedy in (True, False)
    assert found[0][0] > found[1][0], "Paris is likelier than zebras"


def test_rolling_loglikelihoods(completions: Any) -> None:
    texts = [("The capital of France is Paris.",), ("Lima is the capital of Peru.",)]
    found = completions.loglikelihood_rolling(
        requests_of("loglikelihood_rolling", texts), disable_tqdm=True
    )
    assert len(found) == 2 and all(total < 0 for total in found)


STOPS = {"until": ["\n"], "max_gen_toks": 12, "do_sample": False, "temperature": 0}


def test_generation_over_completions(completions: Any) -> None:
    asked = requests_of("generate_until", [("The capital of France", STOPS), ("One, two", STOPS)])
    found = completions.generate_until(asked, disable_tqdm=True)
    assert len(found) == 2 and all(isinstance(text, str) and "\n" not in text for text in found)


def test_generation_over_chats(base_url: str, model: str) -> None:
    chat = registry.get_model("local-chat-completions")(
        model=model, base_url=f"{base_url}/chat/completions", num_concurrent=1, max_length=1024
    )
    question = [{"role": "user", "content": "What is the capital of France?"}]
    rendered = chat.apply_chat_template(question)
    found = chat.generate_until(
        requests_of("generate_until", [(rendered, STOPS)]), disable_tqdm=True
    )
    assert "Paris" in found[0]
