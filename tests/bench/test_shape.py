"""Engines around named shapes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel

from eyas.cli.options import engine_config
from eyas.config import DeviceConfig, DraftConfig, EngineConfig
from eyas.engine.startup.build import assemble
from eyas.models import num_parameters
from eyas.runner.device import open_device
from eyas.schemas import prepare
from eyas_bench.load import Arrival
from eyas_bench.serve_load import EngineLoad
from eyas_bench.shape import about, decide, dummy_engine, dummy_parts
from eyas_bench.shapes import SHAPES, NamedShape, find_shape

TINY = SHAPES["tiny"]


def config(drafter: str = "head", **more: object) -> EngineConfig:
    given = {"draft_steps": 3, "draft_topk": 2, "draft_nodes": 6, "max_model_len": 200} | more
    return engine_config(
        model="tiny", drafter=drafter, device="cpu", threads=1, max_num_seqs=2, **given
    )


def write_tokenizer(directory: Path, num_added: int = 1) -> Path:
    """Bytes, an end of text, and other tokens that nobody needs."""
    alphabet = sorted(ByteLevel.alphabet())
    added = ["<end>", *(f"<extra {i}>" for i in range(num_added - 1))]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": 256 + i,
                "content": text,
                "special": True,
                "normalized": False,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
            }
            for i, text in enumerate(added)
        ],
        "pre_tokenizer": level,
        "decoder": level,
        "model": {
            "type": "BPE",
            "vocab": {letter: i for i, letter in enumerate(alphabet)},
            "merges": [],
        },
    }
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    return directory


@pytest.mark.parametrize("name", ["tiny", "tiny-latent", "tiny-compressed"])
def test_an_engine_of_a_shape_says_what_it_is(name: str) -> None:
    engine = dummy_engine(name, config())
    found = about(engine, name)
    assert found["weights"] == "dummy"
    assert found["parameters"] == num_parameters(find_shape(name).model)
    assert found["max_model_len"] == 200 and found["device"] == "cpu"
    assert engine.info.drafter == "head" and engine.info.grammar_backend is None
    assert engine.info.model == f"{name}, dummy weights" and engine.info.directory == ""
    assert engine.info.exact, engine.info.exact_reason
    engine.check()
    engine.shutdown()


@pytest.mark.parametrize("drafter", ["auto", "ngram+head", "root", "forced"])
def test_whoever_needs_no_other_model_may_draft(drafter: str) -> None:
    drafting = decide(TINY, DraftConfig(drafter=drafter, nodes=6))
    assert (drafting.head is TINY.head) == (drafter in ("auto", "ngram+head"))
    assert not drafting.is_adaptive
    assert decide(TINY, DraftConfig()).is_adaptive


@pytest.mark.parametrize(
    "draft",
    [
        DraftConfig(drafter="model", model="x"),
        DraftConfig(drafter="head", model="x"),
        DraftConfig(drafter="head", token_map="x"),
    ],
)
def test_files_for_a_shape_are_refused(draft: DraftConfig) -> None:
    with pytest.raises(ValueError, match=r"draft\.(drafter|token_map): .* named shape"):
        decide(TINY, draft)


def test_schemas_hold_with_a_tokenizer_of_elsewhere(tmp_path: Path) -> None:
    chosen = config(dtype="float32")
    place = open_device(chosen.device)
    directory = write_tokenizer(tmp_path)
    parts = dummy_parts(TINY, chosen, place, tokenizer_directory=directory)
    assert parts.eos_token_ids == (256,) and parts.dtype is torch.float32
    engine = assemble(chosen, place, parts)
    schema = prepare({"enum": ["yes", "no"]}, param="schema")
    arrivals = [Arrival(i, 0.0, [1 + i, 2], 16, schema if i % 2 else None) for i in range(4)]
    outcomes, _ = EngineLoad(engine, arrivals, 0.0, None).run()
    assert [one.error for one in outcomes] == [None] * 4
    assert all(one.num_tokens in (4, 5, 6) for one in outcomes[1::2]), "a string and the end"
    assert all(one.num_tokens == 16 for one in outcomes[::2])
    engine.check()
    engine.shutdown()


def test_a_tokenizer_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    place = open_device(DeviceConfig(device="cpu"))
    with pytest.raises(ValueError, match=r"tokenizer: .* holds no tokenizer\.json"):
        dummy_parts(TINY, config(), place, tokenizer_directory=tmp_path)
    write_tokenizer(tmp_path, num_added=300)
    with pytest.raises(ValueError, match="has 556 tokens, the shape tiny 512; give one that fits"):
        dummy_parts(TINY, config(), place, tokenizer_directory=tmp_path)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=lambda shape: shape.name)
def test_angles_are_as_wide_as_the_heads_that_are_turned(shape: NamedShape) -> None:
    model = shape.model
    width = model.head_dim if model.latent is None else model.latent.rotated_dim
    if model.compressed:  # the last dimensions of heads and of the indexer's are turned
        assert model.window_rope is not None
        width = model.window_rope.head_dim
        assert width <= min(dim for each in model.compressed if (dim := each.index_dim))
    assert model.rope.head_dim == width and model.rope.num_rotated <= width
