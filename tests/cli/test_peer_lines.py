"""Whole command lines of SGLang and vLLM, from their documentation and from users."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from eyas.config import (
    CacheConfig,
    DraftConfig,
    EngineConfig,
    EngineInfo,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
)
from eyas.core import SamplingParams
from eyas.llm import LLM
from tests.cli.conftest import Line
from tests.cli.lines import Outcome, running
from tests.models.tiny import make_model, save_model
from tests.models.tiny_heads import (
    make_head,
    make_mtp,
    save_target,
    write_mtp,
    write_safeailab,
    write_speculators,
)
from tests.models.tiny_v4 import save_v4

CHAIN = "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
CHAIN_OF_3 = DraftConfig(drafter="head", steps=3, topk=1, nodes=4)


@dataclass(frozen=True)
class Case:
    """A line with {model} and {draft} for what the peers' has there. config: of the line, on one rank.
    model: the tiny model of its architecture. parsers: of reasoning and of tool calls."""

    line: str
    config: EngineConfig
    model: str = "llama2"
    parsers: tuple[str | None, str | None] = (None, None)

    @property
    def num_ranks(self) -> int:
        """The ranks that the line asks for."""
        found = re.search(r"(?:--tp|--tensor-parallel-size) (\d)", self.line)
        return 1 if found is None else int(found[1])


def settings(
    draft: DraftConfig, memory: float = 0.85, *, max_model_len: int | None = None, **scheduler: int
) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(path="MODEL", max_model_len=max_model_len),
        draft=draft,
        cache=CacheConfig(memory_fraction=memory),
        scheduler=SchedulerConfig(**scheduler),
    )


def head(nodes: int, token_map: str | None = None) -> DraftConfig:
    return DraftConfig(
        drafter="head", model="DRAFT", steps=5, topk=8, nodes=nodes, token_map=token_map
    )


DOCS = (
    "--speculative-draft-model-path {draft} --speculative-num-steps 5 --speculative-eagle-topk 8 "
    "--speculative-num-draft-tokens"
)
CASES = {
    "GLM-4.5": Case(
        "--model {model} --tp 8 --tool-call-parser glm45 --reasoning-parser glm45 "
        f"--speculative-algorithm EAGLE {CHAIN} --mem-fraction-static 0.9 --enable-metrics "
        "--disable-shared-experts-fusion",
        settings(CHAIN_OF_3, 0.9),
        "glm4 moe",
        ("glm45", "glm45"),
    ),
    "DeepSeek-V4-Flash": Case(
        "--model-path {model} --trust-remote-code --tp 4 --moe-runner-backend flashinfer_mxfp4 "
        f"--speculative-algo EAGLE {CHAIN} --chunked-prefill-size 4096 --disable-flashinfer-autotune "
        "--reasoning-parser deepseek-v4 --tool-call-parser deepseekv4 --host 0.0.0.0 --port 30000",
        settings(CHAIN_OF_3, max_batch_tokens=4096),
        "deepseek v4",
        ("deepseek-v4", "deepseekv4"),
    ),
    "Llama-2 with EAGLE": Case(
        f"--model {{model}} --speculative-algorithm EAGLE {DOCS} 64 --mem-fraction 0.6 "
        "--enable-torch-compile --torch-compile-max-bs 2 --cuda-graph-max-bs 2",
        settings(head(64), 0.6, max_graph_batch=2),
    ),
    "Llama-3.1 with EAGLE-3": Case(
        f"--model {{model}} --speculative-algorithm EAGLE3 {DOCS} 32 --mem-fraction 0.6 "
        "--cuda-graph-max-bs 2 --dtype float16 --port 30000 --log-level warning",
        msgspec.structs.replace(
            settings(head(32), 0.6, max_graph_batch=2),
            model=ModelConfig(path="MODEL", dtype="float16"),
        ),
    ),
    "Llama-3 with FR-Spec": Case(
        f"--model {{model}} --speculative-algorithm EAGLE {DOCS} 64 "
        "--speculative-token-map thunlp/LLaMA3-Instruct-8B-FR-Spec/freq_32768.pt "
        "--mem-fraction 0.7 --cuda-graph-max-bs 2 --dtype float16",
        msgspec.structs.replace(
            settings(
                head(64, "thunlp/LLaMA3-Instruct-8B-FR-Spec/freq_32768.pt"), 0.7, max_graph_batch=2
            ),
            model=ModelConfig(path="MODEL", dtype="float16"),
        ),
    ),
    "MiMo-7B": Case(
        "--model-path {model} --host 0.0.0.0 --trust-remote-code --speculative-algorithm EAGLE "
        "--speculative-num-steps 1 --speculative-eagle-topk 1 --speculative-num-draft-tokens 2 "
        "--mem-fraction 0.5",
        settings(DraftConfig(drafter="head", steps=1, topk=1, nodes=2), 0.5),
    ),
    "Qwen3 drafts for itself": Case(
        "{model} --max-model-len 40960 --reasoning-parser qwen3 --speculative-config "
        """'{"method":"draft_model","model":"{model}","num_speculative_tokens":5}'""",
        settings(
            DraftConfig(drafter="model", model="MODEL", steps=5, topk=1, nodes=6),
            max_model_len=40960,
        ),
        parsers=("qwen3", None),
    ),
    "gpt-oss": Case(
        "{model} --tensor-parallel-size 2 --reasoning-parser openai_gptoss --max-model-len 131072 "
        "--enable-prefix-caching --enable-auto-tool-choice --tool-call-parser openai "
        """--speculative-config '{"model":"{draft}","num_speculative_tokens":3,"method":"eagle3","""
        """"draft_tensor_parallel_size":1}'""",
        settings(
            DraftConfig(drafter="head", model="DRAFT", steps=3, topk=1, nodes=4),
            max_model_len=131072,
        ),
        "gpt-oss",
        ("openai_gptoss", "openai"),
    ),
}
ON_ONE_DEVICE = {"--tp 8": "--tp 1", "--tp 4": "--tp 1", "-parallel-size 2": "-parallel-size 1"}


def arguments(case: Case, model: str = "MODEL", draft: str = "DRAFT") -> list[str]:
    return shlex.split(case.line.replace("{model}", model).replace("{draft}", draft))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_line_means_the_same_on_one_device(line: Line, case: Case) -> None:
    """Its translation too."""
    several = line(*arguments(case)).config
    assert several == msgspec.structs.replace(
        case.config, parallel=ParallelConfig(tp=case.num_ranks)
    )
    text = case.line
    for asked, one in ON_ONE_DEVICE.items():
        text = text.replace(asked, one)
    found = line(*arguments(Case(text, case.config)))
    assert found.config == case.config, found.errors
    assert (found.options.reasoning_parser, found.options.tool_call_parser) == case.parsers
    again = line(*found.translated)
    assert again.config == case.config and again.notes == ()
    assert msgspec.structs.replace(found.options, notes=()) == again.options


def test_what_a_line_cannot_have_is_told_at_once_with_what_remains(
    line: Line, tmp_path: Path
) -> None:
    case = CASES["GLM-4.5"]
    save_model(make_model(case.model, max_position_embeddings=131072), tmp_path)
    found = line(*arguments(case, model=str(tmp_path)), "--pipeline-parallel-size", "2")
    assert found.config is None
    said = "\n".join(found.errors)
    assert "--pipeline-parallel-size 2" in said and "one copy of a model" in said, said
    assert not any(each.startswith("  ") for each in found.errors), "one alone is not listed"
    assert found.errors[-1].startswith("command without them: eyas serve ")
    model = msgspec.structs.replace(case.config.model, path=str(tmp_path))
    expected = msgspec.structs.replace(
        case.config, model=model, parallel=ParallelConfig(tp=case.num_ranks)
    )
    assert line(*found.translated).config == expected


def answer_of(line: list[str], *notes: str) -> None:
    with running([*line, "--port", "0"]) as (client, log):
        body = {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 8, "temperature": 0}}
        answer = client.post("/generate", json=body).json()
        assert len(answer["output_ids"]) == 8 or answer["meta_info"]["finish_reason"], answer
        for words in notes:
            assert any(words in each for each in log), "".join(log)


def test_the_line_of_llama_2_serves(tmp_path: Path) -> None:
    model = save_model(make_model("llama2", num_hidden_layers=8), tmp_path / "model")
    draft = write_safeailab(tmp_path / "draft", make_head(kind="eagle"))
    answer_of(
        arguments(CASES["Llama-2 with EAGLE"], str(model), str(draft)),
        "--enable-torch-compile: has no effect",
        "--torch-compile-max-bs 2: has no effect",
        "equivalent command: eyas serve --model",
        "drafter head",
    )


def loads(found: Outcome, *notes: str) -> EngineInfo:
    """Load what would be served, with fewer slots, and let it answer."""
    assert found.config is not None, found.errors
    for words in notes:
        assert any(words in each for each in found.notes), found.notes
    cache = msgspec.structs.replace(found.config.cache, num_slots=2048)
    model = msgspec.structs.replace(found.config.model, max_model_len=128)
    with LLM(config=msgspec.structs.replace(found.config, cache=cache, model=model)) as llm:
        (answer,) = llm.generate([[5, 6, 7]], SamplingParams(temperature=0, max_tokens=8))
        assert len(answer.token_ids) == 8 or answer.choices[0].finish_reason == "stop"
        return llm.info


def test_the_line_of_qwen3_loads(line: Line, tmp_path: Path) -> None:
    made = make_model("qwen3", max_position_embeddings=40960)
    model = save_model(made, tmp_path / "model")
    found = line(*arguments(CASES["Qwen3 drafts for itself"], str(model)))
    assert found.config is not None and found.config.model.max_model_len == 40960
    assert loads(found).drafter == "model"


def on_one_device(name: str, model: Path, draft: Path | None = None) -> list[str]:
    text = CASES[name].line
    for asked, one in ON_ONE_DEVICE.items():
        text = text.replace(asked, one)
    return arguments(Case(text, CASES[name].config), str(model), str(draft))


def test_the_line_of_glm_4_5_loads_with_its_mtp_layer(line: Line, tmp_path: Path) -> None:
    model = save_target(tmp_path, "glm4 moe", head_dim=16)
    write_mtp(model, make_mtp(qk_norm=True, experts=8, rotary_dim=8))
    found = line(*on_one_device("GLM-4.5", model))
    assert loads(found, "--enable-metrics: has no effect").drafter == "head"


def test_the_line_of_deepseek_v4_loads_with_its_mtp_layer(line: Line, tmp_path: Path) -> None:
    save_v4(tmp_path)
    asked = on_one_device("DeepSeek-V4-Flash", tmp_path)
    assert "--speculative-num-draft-tokens" in asked and "--tp" in asked
    assert loads(line(*asked)).drafter == "head"


def test_the_line_of_gpt_oss_loads_with_a_head(line: Line, tmp_path: Path) -> None:
    model = save_target(tmp_path / "model", "gpt-oss", max_position_embeddings=131072)
    draft = write_speculators(tmp_path / "draft", make_head())
    found = line(*on_one_device("gpt-oss", model, draft))
    assert found.config is not None and found.config.model.max_model_len == 131072
    assert loads(found).drafter == "head"
