"""From settings to an engine: what is wrong is said before any long work is done."""

from __future__ import annotations

import json
import logging
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from eyas import builtin
from eyas.config import CacheConfig, DeviceConfig, DraftConfig, EngineConfig, ModelConfig
from eyas.core import RequestError, SamplingParams
from eyas.draft import RootDrafter
from eyas.engine.startup import load
from eyas.llm import LLM
from eyas.runner import device
from tests.models.quantised import CASES, write_quantised
from tests.models.tiny import make_model, save_model
from tests.models.tiny_heads import make_head, save_target, write_specforge
from tests.text.small_tokenizers import CHATML_TEMPLATE, chatml_spec, write_model_directory


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the model that comes with the package."""
    return Path(shutil.copytree(builtin.path(), tmp_path / "model"))


def change(file: Path, **changes: Any) -> None:
    values = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


def config(model: Path | str, draft: DraftConfig | None = None, **more: Any) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(path=str(model), **more),
        cache=CacheConfig(num_slots=2000),
        draft=draft or DraftConfig(drafter="root"),
    )


@pytest.fixture
def nothing_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither measurements nor weights."""

    def never(*args: object, **options: object) -> None:
        raise AssertionError("too late")

    monkeypatch.setattr(load, "find_order", never)
    monkeypatch.setattr(load.ModelFiles, "load", never)


@pytest.mark.usefixtures("nothing_long")
def test_tensors_that_do_not_fit_are_refused_first(model: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    tensors.pop("model.norm.weight")
    save_file(tensors, model / "model.safetensors")
    with pytest.raises(ValueError, match=r"lacks tensor 'model\.norm\.weight'"):
        LLM(config=config(model))
    with pytest.raises(ValueError, match=r"draft\.model: .* lacks tensor 'model\.norm\.weight'"):
        LLM(config=config("builtin", DraftConfig(drafter="model", model=str(model))))


@pytest.mark.usefixtures("nothing_long")
def test_quantised_weights_that_cannot_be_read_are_refused_first(model: Path) -> None:
    write_quantised(model, CASES["fp8 blocks"])
    tensors = load_file(model / "model.safetensors")
    tensors.pop("model.layers.3.mlp.up_proj.weight_scale_inv")
    save_file(tensors, model / "model.safetensors")
    with pytest.raises(ValueError, match=r"lacks tensor '.*\.3\.mlp\.up_proj\.weight_scale_inv'"):
        LLM(config=config(model))
    change(model / "config.json", quantization_config={"quant_method": "aqlm"})
    with pytest.raises(ValueError, match=r"quantization_config\.quant_method 'aqlm' is not"):
        LLM(config=config(model))


def test_float16_is_a_number_format_of_a_cpu_too(model: Path) -> None:
    question = [{"role": "user", "content": "What is the capital of France?"}]
    with LLM(config=config(model, dtype="float16")) as llm:
        assert llm.info.dtype == "float16"
        answer = llm.chat(question, SamplingParams(temperature=0, max_tokens=16))
    assert "Paris" in answer[0].text


@pytest.mark.usefixtures("nothing_long")
def test_a_model_that_no_memory_holds_is_refused_first(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "memory_bytes", lambda device: 2**20)
    message = r"model\.path: .*model takes 0\.\d GiB as \w+, cpu has 0\.0; take a smaller model"
    with pytest.raises(ValueError, match=message):
        LLM(config=config(model))


@pytest.mark.usefixtures("nothing_long")
def test_a_head_is_no_draft_model(model: Path) -> None:
    draft = DraftConfig(drafter="model", model=str(builtin.head_path()))
    with pytest.raises(ValueError, match=r"draft\.model: .* is a draft head.*--drafter head"):
        LLM(config=config(model, draft))


def test_more_positions_than_can_be_prepared_are_refused(model: Path) -> None:
    change(model / "config.json", max_position_embeddings=10**9)
    with pytest.raises(ValueError, match=r"1000000000 positions are too many.*--max-model-len"):
        LLM(config=config(model))
    with LLM(config=config(model, max_model_len=200)) as llm:
        assert llm.info.max_model_len == 200


@pytest.mark.parametrize("length", [8, 9, 10, 11, 12, 13])
def test_a_model_of_few_positions_starts_and_is_checked(length: int, tmp_path: Path) -> None:
    save_model(make_model("llama2", max_position_embeddings=length), tmp_path)
    with LLM(tmp_path, dtype="float32", drafter="ngram", max_num_seqs=2, num_slots=256) as llm:
        assert llm.info.exact == (length > 8), llm.info.exact_reason
        (output,) = llm.generate([1, 2, 3], SamplingParams(temperature=0, ignore_eos=True))
    assert len(output.token_ids) == length - 3


def test_windows_with_few_slots_start_and_are_checked(tmp_path: Path) -> None:
    save_model(make_model("mistral", sliding_window=1), tmp_path)
    options: dict[str, Any] = {"max_num_seqs": 4, "max_batch_tokens": 16, "num_slots": 220}
    with LLM(tmp_path, dtype="float32", drafter="ngram", **options) as llm:
        assert llm.info.exact, llm.info.exact_reason


def test_a_draft_model_for_short_texts_does_not_shorten_them(model: Path) -> None:
    """It drafts worse behind what it was made for, and that is all."""
    change(model / "config.json", max_position_embeddings=64)
    prompts = ["Repeat this text exactly: seven green boats, seven red boats. " * 6]
    params = SamplingParams(temperature=0, max_tokens=40)
    drafts = DraftConfig(drafter="model", model=str(model), steps=3, topk=1, nodes=4)
    answers = []
    for draft in (None, drafts):
        with LLM(config=config("builtin", draft)) as llm:
            assert llm.info.max_model_len > 1900
            (answer,) = llm.generate(prompts, params)
            answers.append((answer.choices[0].token_ids, len(answer.prompt_token_ids)))
    assert answers[0] == answers[1] and answers[0][1] > 64


def test_the_tokenizer_says_what_ends_a_text_where_the_model_does_not(model: Path) -> None:
    change(model / "generation_config.json", eos_token_id=None)
    change(model / "config.json", eos_token_id=None)
    with LLM(config=config(model)) as llm:
        assert llm.info.eos_token_ids == (llm.tokenizer.eos_id,)


def test_the_tokenizers_end_counts_beside_those_of_the_model(model: Path) -> None:
    """As after a fine-tune whose turns end otherwise than the base model's texts."""
    change(model / "generation_config.json", eos_token_id=5)
    change(model / "config.json", eos_token_id=7)
    with LLM(config=config(model)) as llm:
        end = llm.tokenizer.eos_id
        assert end is not None and llm.info.eos_token_ids == (5, 7, end)
        likely = SamplingParams(temperature=0, max_tokens=8, logit_bias={end: 100.0})
        (output,) = llm.generate(["Once"], likely)
        assert output.choices[0].finish_reason == "stop" and len(output.token_ids) == 1


def test_a_head_that_stands_for_a_model_or_is_missing_says_what_to_do(tmp_path: Path) -> None:
    target = save_target(tmp_path / "target")
    head = write_specforge(tmp_path / "head", make_head())
    with pytest.raises(ValueError, match=r"draft head .*as --model, and this as --draft-model"):
        LLM(str(head))
    with pytest.raises(
        ValueError, match=r"name one with --draft-model, or train one with `eyas train"
    ):
        LLM(str(target), drafter="head")
    tensors = load_file(head / "model.safetensors")
    tensors["fc.weight"] = torch.zeros(64, 100)
    save_file(tensors, head / "model.safetensors")
    with pytest.raises(
        ValueError, match=r"'fc\.weight' takes 100 numbers .*gives 192 \(3 states of 64"
    ):
        LLM(str(target), drafter="head", draft_model=str(head))


def test_a_token_that_the_model_lacks_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = save_model(make_model("llama2"), tmp_path / "model")
    write_model_directory(directory, chatml_spec(), template=CHATML_TEMPLATE)
    with caplog.at_level("WARNING", "eyas"):
        llm = LLM(str(directory), drafter="root", dtype="float32", device="cpu", num_slots=600)
    with llm:
        size = llm.tokenizer.vocab_size
        assert f"tokenizer has {size} tokens and the model 256" in caplog.text
        text = "The capital of France"
        asking = {"prompts": text, "messages": [{"role": "user", "content": text}]}
        for (name, given), ask in zip(asking.items(), (llm.generate, llm.chat), strict=True):
            with pytest.raises(RequestError, match=f"{size} tokens and the model 256") as caught:
                ask(given)
            assert caught.value.param == name
        with pytest.raises(RequestError, match=r"whole numbers from 0 to 255"):
            llm.generate([[size]])
        first = next(i for i in llm.tokenizer.encode_prompt("The capital of") if i > 255)
        with pytest.raises(RequestError, match=re.escape(f"{llm.tokenizer.token_text(first)!r}")):
            llm.generate("The capital of")


def test_a_gpu_without_triton_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(device, "usable", lambda place: False)
    with pytest.raises(ValueError, match="device: kernels need Triton"):
        device.open_device(DeviceConfig(device="cuda"))


def test_a_config_is_given_alone_or_with_a_drafter_of_ones_own() -> None:
    """Keywords beside it would say nothing."""
    with pytest.raises(ValueError, match="config: holds every setting; give it alone"):
        LLM("builtin", drafter="ngram", config=config("builtin"))
    with pytest.raises(ValueError, match="config: holds every setting"):
        LLM(draft_steps=3, drafter=RootDrafter(), config=config("builtin"))
    with LLM(drafter=RootDrafter(), config=config("builtin")) as llm:
        assert llm.info.drafter == "RootDrafter" and llm.info.num_slots == 2000


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({"medusa_num_heads": 3}, "a Medusa head"),
        ({"architectures": ["HydraModel"]}, "a Hydra head"),
        ({"model_type": "mlp_speculator"}, "an MLP speculator"),
    ],
)
def test_heads_of_other_kinds_are_refused_by_name(
    values: dict[str, Any], kind: str, tmp_path: Path
) -> None:
    """Also where they look like a model without weights."""
    (tmp_path / "config.json").write_text(json.dumps(values))
    (tmp_path / "medusa_lm_head.pt" if "Medusa" in kind else tmp_path / "other.pt").touch()
    for drafter in ("auto", "head", "model"):
        with pytest.raises(
            ValueError, match=rf"draft\.model: .* is {kind}, which is not supported"
        ):
            LLM(drafter=drafter, draft_model=str(tmp_path))


def test_a_draft_model_with_other_tokens_is_noted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(builtin.path(), tmp_path, dirs_exist_ok=True)
    for is_other in (False, True):
        if is_other:
            file = tmp_path / "tokenizer.json"
            tokenizer = json.loads(file.read_text())
            vocabulary = tokenizer["model"]["vocab"]
            first, second, *_ = vocabulary
            vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
            file.write_text(json.dumps(tokenizer))
        caplog.clear()
        with (
            caplog.at_level(logging.WARNING, "eyas"),
            LLM(drafter="model", draft_model=str(tmp_path), num_slots=400, max_num_seqs=2),
        ):
            pass
        assert ("is not the target's" in caplog.text) == is_other
