"""Fields of config.json that are absent or null mean what they mean to transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from eyas.models import read_spec
from tests.models.test_published_files import ABSENT, change_config
from tests.models.tiny import make_model, save_model

BARE_ROPES = {kind: {"rope_type": "default"} for kind in ("full_attention", "sliding_attention")}


def changed(family: str, changes: dict[str, Any], directory: Path) -> Path:
    """A tiny checkpoint with a changed config.json."""
    save_model(make_model(family), directory)
    change_config(directory, changes)
    return directory


@pytest.mark.parametrize(
    ("family", "change", "same"),
    [
        ("deepseek v3", {"rope_interleave": None}, {"rope_interleave": False}),
        ("deepseek v3", {"rope_interleave": ABSENT}, {"rope_interleave": True}),
        ("youtu", {"rope_interleave": None}, {"rope_interleave": False}),
        ("hyperclovax", {"use_post_norm": None}, {"use_post_norm": False}),
        (
            "gpt-oss",
            {"layer_types": None},
            {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        ),
    ],
)
def test_a_field_without_a_value_is_another(
    family: str, change: dict[str, Any], same: dict[str, Any], tmp_path: Path
) -> None:
    found = read_spec(changed(family, change, tmp_path / "changed"))
    assert found == read_spec(changed(family, same, tmp_path / "same"))


@pytest.mark.parametrize(
    ("family", "ropes"),
    [
        ("helium", {"rope_type": "default"}),
        ("helium", ABSENT),
        ("gemma3", BARE_ROPES),
        ("olmo3", BARE_ROPES),
    ],
)
def test_a_rope_without_a_base_has_the_family_s(family: str, ropes: Any, tmp_path: Path) -> None:
    change = {"rope_parameters": ropes, "rope_theta": ABSENT}
    directory = changed(family, change, tmp_path)
    expected = AutoConfig.from_pretrained(directory).rope_parameters
    spec = read_spec(directory)
    if spec.window_rope is None:
        assert spec.rope.theta == expected["rope_theta"]
    else:
        assert spec.rope.theta == expected["full_attention"]["rope_theta"]
        assert spec.window_rope.theta == expected["sliding_attention"]["rope_theta"]
