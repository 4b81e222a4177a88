"""Rope tables and rotations equal transformers', for every kind that is supported."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

from eyas.layers.compute import Compute
from eyas.layers.rope import ROPE_KINDS, RopeTable
from eyas.models.config_file import ConfigFile
from eyas.models.rope_fields import UNSCALED_ROPE_KINDS, max_position, read_rope
from eyas.ops.rotate_and_store import rotate

PARAMETERS: list[dict[str, Any]] = [
    {"rope_type": "default", "rope_theta": 10000.0},
    {"rope_type": "default", "rope_theta": 1e6},
    {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    },
    {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 4.0,
        "original_max_position_embeddings": 1024,
    },
    {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 8.0,
        "original_max_position_embeddings": 512,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "truncate": False,
    },
    {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 8.0,
        "original_max_position_embeddings": 512,
        "truncate": None,
    },
    {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 8.0,
        "original_max_position_embeddings": 512,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
    },
    {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 8.0,
        "original_max_position_embeddings": 512,
        "attention_factor": 0.8,
    },
    {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": None,
        "original_max_position_embeddings": 512,
    },
    {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
]


def config_file(tmp_path: Any, **values: Any) -> ConfigFile:
    return ConfigFile(tmp_path / "config.json", {"max_position_embeddings": 4096, **values})


@pytest.mark.parametrize("parameters", PARAMETERS, ids=lambda p: p["rope_type"])
def test_tables_and_rotations_match_transformers(parameters: dict[str, Any], tmp_path: Any) -> None:
    head_dim, count = 64, 4096
    config = LlamaConfig(
        hidden_size=256,
        num_attention_heads=4,
        max_position_embeddings=4096,
        rope_parameters=dict(parameters),
    )
    positions = torch.arange(count)
    q = torch.randn(1, 4, count, head_dim, generator=torch.Generator().manual_seed(0))
    cosine, sine = LlamaRotaryEmbedding(config)(q, positions.unsqueeze(0))
    expected, _ = apply_rotary_pos_emb(q, q, cosine, sine)
    spec = read_rope(config_file(tmp_path, rope_parameters=parameters), head_dim)
    table = RopeTable(spec, count, Compute(torch.float32, torch.device("cpu")))
    ours = table.at(positions).rows()
    assert torch.allclose(ours[0][:, 0], cosine[0], atol=2e-6)
    assert torch.allclose(ours[1][:, 0, 32:], sine[0, :, 32:], atol=2e-6)
    assert torch.allclose(
        rotate(q[0].transpose(0, 1), *ours), expected[0].transpose(0, 1), atol=1e-5
    )


def test_a_table_may_lag_behind_its_positions(tmp_path: Any) -> None:
    spec = read_rope(config_file(tmp_path, rope_parameters=PARAMETERS[0]), 64)
    compute = Compute(torch.bfloat16, torch.device("cpu"))
    positions = torch.arange(50)
    lagging = RopeTable(spec, 50, compute, lag=1).at(positions).rows()
    plain = RopeTable(spec, 50, compute).at((positions - 1).clamp(min=0)).rows()
    assert all(torch.equal(one, other) for one, other in zip(lagging, plain, strict=True))


def test_every_supported_kind_is_compared_above() -> None:
    assert {parameters["rope_type"] for parameters in PARAMETERS} == {
        *ROPE_KINDS,
        *UNSCALED_ROPE_KINDS,
    }


@pytest.mark.parametrize("parameters", PARAMETERS, ids=lambda p: p["rope_type"])
def test_old_and_new_configuration_styles_mean_the_same(
    parameters: dict[str, Any], tmp_path: Any
) -> None:
    scaling = {key: value for key, value in parameters.items() if key != "rope_theta"}
    old = config_file(tmp_path, rope_theta=parameters["rope_theta"], rope_scaling=scaling)
    renamed = {"type" if key == "rope_type" else key: value for key, value in scaling.items()}
    older = config_file(tmp_path, rope_theta=parameters["rope_theta"], rope_scaling=renamed)
    new = config_file(tmp_path, rope_parameters=parameters)
    assert read_rope(new, 64) == read_rope(old, 64) == read_rope(older, 64)


@pytest.mark.parametrize("parameters", PARAMETERS[3:5], ids=lambda p: p["rope_type"])
@pytest.mark.parametrize("is_nested", [False, True])
def test_of_two_original_lengths_that_counts_which_transformers_takes(
    parameters: dict[str, Any], is_nested: bool, tmp_path: Any
) -> None:
    given = {"full_attention": parameters} if is_nested else parameters
    values = {"original_max_position_embeddings": 256, "rope_parameters": given}
    spec = read_rope(config_file(tmp_path, **values), 64)
    config = LlamaConfig(max_position_embeddings=4096, **copy.deepcopy(values))
    config.standardize_rope_params()
    expected = config.rope_parameters["full_attention"] if is_nested else config.rope_parameters
    assert spec.original_max_position == expected["original_max_position_embeddings"]
    assert spec.original_max_position == (
        parameters["original_max_position_embeddings"] if is_nested else 256
    )
    del values["original_max_position_embeddings"]
    named = read_rope(config_file(tmp_path, **values, original_max_position_embeddings=None), 64)
    assert named.original_max_position == parameters["original_max_position_embeddings"]


def test_dynamic_angles_are_served_as_far_as_they_are_plain(tmp_path: Any) -> None:
    config = config_file(tmp_path, rope_scaling={"type": "dynamic", "factor": 2.0})
    assert max_position(config, read_rope(config, 64)) == 4096


@pytest.mark.parametrize("kind", ["longrope", "mrope"])
def test_other_kinds_are_refused_by_name(kind: str, tmp_path: Any) -> None:
    config = config_file(tmp_path, rope_scaling={"rope_type": kind, "factor": 2.0})
    with pytest.raises(ValueError, match=rf"rope_scaling asks for rope type '{kind}'.*yarn"):
        read_rope(config, 64)


def test_partial_rotation_is_refused(tmp_path: Any) -> None:
    with pytest.raises(ValueError, match=r"partial_rotary_factor 0\.5"):
        read_rope(config_file(tmp_path, partial_rotary_factor=0.5), 64)
