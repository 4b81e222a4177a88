"""A cache of FP8, from the option to the stored bytes: its scales, its size, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from eyas import builtin
from eyas.cache.store import KVScales
from eyas.core import SamplingParams
from eyas.engine.startup import memory
from eyas.llm import LLM
from eyas.models import ModelFiles
from tests.models.tiny import make_model, save_model

QUICK = {"device": "cpu", "num_threads": 1, "max_model_len": 200, "dtype": "float32"}
PROMPT = "Write a JSON object that describes a small town."
PARAMS = SamplingParams(temperature=0, max_tokens=24, logprobs=1)


def write_scales(directory: Path, scales: dict[str, Any]) -> Path:
    """Add tensors of these names to a checkpoint; {} stands for the number of each layer."""
    path = directory / "model.safetensors"
    tensors = load_file(path)
    num_layers = 1 + max(int(name.split(".")[2]) for name in tensors if ".layers." in name)
    for name, scale in scales.items():
        for layer in range(num_layers):
            tensors[name.format(layer)] = torch.as_tensor(scale)
    save_file(tensors, path)
    return directory


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the model that comes with the package."""
    return Path(shutil.copytree(builtin.path(), tmp_path / "model"))


def kv_of(engine: Any) -> Any:
    return engine.runner.backend.kv


def test_scales_of_the_checkpoint_are_used_and_drafts_change_no_token(model: Path) -> None:
    attention = "model.layers.{}.self_attn."
    write_scales(model, {f"{attention}k_scale": 0.05, f"{attention}v_scale": [0.01]})
    found = []
    for drafting in ({"drafter": "root"}, {"drafter": "head", "draft_model": "builtin"}):
        with LLM(str(model), kv_cache_dtype="fp8", num_slots=600, **drafting, **QUICK) as llm:
            assert llm.info.kv_cache_dtype == "fp8_e4m3" and llm.info.exact
            kv = kv_of(llm.engine)
            assert kv.layers[0].dtype == torch.float8_e4m3fn
            for scales in kv.scales:
                assert (scales.key, scales.value) == pytest.approx((0.05, 0.01))
            for network in llm.engine.drafter.networks:
                drafts = network._backend.kv
                assert drafts.layers[0].dtype == torch.float8_e4m3fn
                assert set(drafts.scales) == {KVScales()}
            (answer,) = llm.generate(PROMPT, PARAMS)
            stored = kv.layers[0].float()
            assert stored.isfinite().all() and stored.abs().max() > 8
            found.append((answer.token_ids, answer.choices[0].logprobs))
    assert found[0] == found[1]
    with LLM(str(model), num_slots=600, drafter="root", **QUICK) as llm:
        (plain,) = llm.generate(PROMPT, PARAMS)
    # the first token's prefix is the prompt, which the cache holds with an error of a few per cent
    first, exact = found[0][1][0], plain.choices[0].logprobs[0]
    assert first.logprob != exact.logprob
    assert first.logprob == pytest.approx(exact.logprob, abs=0.5)


def test_a_byte_holds_more_tokens_in_the_same_memory(
    monkeypatch: pytest.MonkeyPatch, model: Path
) -> None:
    monkeypatch.setattr(memory, "cache_budget", lambda *args: 5 << 20)
    found = {}
    for name in ("auto", "float32", "fp8_e4m3"):
        with LLM(str(model), kv_cache_dtype=name, drafter="root", **QUICK) as llm:
            found[name] = llm.info.num_slots
    assert found["auto"] == found["float32"]
    assert found["fp8_e4m3"] == pytest.approx(4 * found["auto"], rel=0.1)


NAMES = [
    ("model.layers.{}.self_attn.k_scale", "model.layers.{}.self_attn.v_scale"),
    ("model.layers.{}.self_attn.attn.k_scale", "model.layers.{}.self_attn.attn.v_scale"),
    ("model.layers.{}.self_attn.k_proj.k_scale", "model.layers.{}.self_attn.v_proj.v_scale"),
    ("model.layers.{}.self_attn.qkv_proj.k_scale", "model.layers.{}.self_attn.qkv_proj.v_scale"),
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(make_model("llama2"), tmp_path_factory.mktemp("tiny"))


def copied(tiny: Path, tmp_path: Path, scales: dict[str, Any]) -> ModelFiles:
    directory = Path(shutil.copytree(tiny, tmp_path / "copy"))
    return ModelFiles.open(write_scales(directory, scales))


@pytest.mark.parametrize("names", NAMES, ids=lambda names: names[0])
def test_scales_have_many_names(tiny: Path, tmp_path: Path, names: tuple[str, str]) -> None:
    key, value = names
    files = copied(tiny, tmp_path, {key: 0.5, value: 0.25})
    assert files.kv_scales() == (KVScales(0.5, 0.25),) * files.spec.num_layers


def test_one_scale_may_serve_both_and_none_is_one(tiny: Path, tmp_path: Path) -> None:
    files = ModelFiles.open(tiny)
    assert files.kv_scales() == (KVScales(),) * files.spec.num_layers
    files = copied(tiny, tmp_path, {"model.layers.{}.self_attn.kv_scale": 0.5})
    assert set(files.kv_scales()) == {KVScales(0.5, 0.5)}


@pytest.mark.parametrize(
    ("scales", "words"),
    [
        ({NAMES[0][0]: 0.5}, ["lacks tensor 'model.layers.0.self_attn.v_scale'", "auto"]),
        ({NAMES[0][0]: [0.5, 0.5], NAMES[0][1]: 0.5}, ["has shape [2]", "k_scale", "auto"]),
        ({NAMES[0][0]: float("nan"), NAMES[0][1]: 0.5}, ["holds nan", "k_scale", "auto"]),
        ({NAMES[0][0]: 0.5, NAMES[0][1]: 0.0}, ["holds 0.0", "v_scale", "auto"]),
        (
            {name.format(0): 0.5 for name in NAMES[0]},
            ["lacks tensor 'model.layers.1.self_attn.k_scale'"],
        ),
    ],
    ids=["no value", "per head", "no number", "zero", "one layer"],
)
def test_scales_that_cannot_be_used_are_refused_by_name(
    tiny: Path, tmp_path: Path, scales: dict[str, Any], words: list[str]
) -> None:
    files = copied(tiny, tmp_path, scales)
    with pytest.raises(ValueError, match="scale") as caught:
        files.kv_scales()
    for word in words:
        assert word in str(caught.value), caught.value


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fp8_e5m2", ["cache.dtype: 'fp8_e5m2' is not supported", "fp8_e4m3"]),
        ("bf16", ["cache.dtype: bfloat16", "float32", "--kv-cache-dtype auto", "--dtype bfloat16"]),
    ],
)
def test_formats_that_cannot_be_used_are_refused(name: str, words: list[str]) -> None:
    with pytest.raises(ValueError, match="dtype") as caught:
        LLM(kv_cache_dtype=name, **QUICK)
    for word in words:
        assert word in str(caught.value), caught.value
