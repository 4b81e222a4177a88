"""A quantised checkpoint behind `eyas serve` answers as the checkpoint of its values does."""

from __future__ import annotations

import shutil
from pathlib import Path

import openai

from eyas import LLM, SamplingParams
from tests.models.quantised import CASES, write_quantised
from tests.server.conftest import CHECKPOINT, NEEDS_CHECKPOINT, serving

USER = [{"role": "user", "content": "What is the capital of France?"}]

pytestmark = NEEDS_CHECKPOINT


def test_an_fp8_checkpoint_is_served(tmp_path: Path) -> None:
    directory = shutil.copytree(CHECKPOINT.parent, tmp_path / "model")
    plain = write_quantised(directory, CASES["fp8 blocks"])
    with LLM(str(plain)) as llm:
        expected = llm.chat(USER, SamplingParams(temperature=0, max_tokens=24))[0].text
    with (
        serving("--model", str(directory)) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as api,
    ):
        name = api.models.list().data[0].id
        answer = api.chat.completions.create(
            model=name, messages=USER, temperature=0, max_tokens=24
        )
    assert expected and answer.choices[0].message.content == expected
