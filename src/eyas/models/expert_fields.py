"""Read the fields of config.json that describe experts.

Promises: numbers that do not fit each other are a ValueError that names the field.
Does not know: families (each passes the names of its fields).
"""

from __future__ import annotations

from typing import Any

from eyas.layers.expert_spec import ExpertSpec
from eyas.models.config_file import ConfigFile
from eyas.ops.route import Routing


def read_experts(
    config: ConfigFile,
    *,
    number: str,
    size: str,
    routing: dict[str, Any],
    **facts: Any,
) -> ExpertSpec:
    """Return the experts of a family's layers.

    number, size: the fields of the number of experts and of their feed-forward size. routing: further
    arguments of `Routing`. facts: further arguments of `ExpertSpec`.
    ValueError: a field is missing or invalid, or asks for more experts than there are.
    """
    num_experts = config.count(number)
    num_chosen = config.count("num_experts_per_tok")
    found = Routing(num_chosen, **routing)
    if num_experts % found.num_groups:
        raise config.error("n_group", f"{found.num_groups} must divide {num_experts} experts")
    group_size = num_experts // found.num_groups
    if found.num_chosen_groups > found.num_groups:
        raise config.error(
            "topk_group", f"{found.num_chosen_groups} is more than the {found.num_groups} groups"
        )
    if found.num_groups > 1 and found.group_size_scored > group_size:
        raise config.error("n_group", f"{found.num_groups} leaves {group_size} experts a group")
    if num_chosen > group_size * found.num_chosen_groups:
        raise config.error(
            "num_experts_per_tok",
            f"{num_chosen} is more than the {group_size * found.num_chosen_groups} experts that can be "
            f"chosen ({number})",
        )
    return ExpertSpec(num_experts, config.count(size), found, **facts)


def read_corrected_experts(config: ConfigFile) -> ExpertSpec:
    """Return the experts of GLM-4.5 and DeepSeek-V3: chosen in groups by sigmoid scores with a
    correction, beside one that all rows share.

    config: with the family's defaults. ValueError: as `read_experts`.
    """
    return read_experts(
        config,
        number="n_routed_experts",
        size="moe_intermediate_size",
        routing={
            "scoring": "sigmoid",
            "normalizes": config.flag("norm_topk_prob", True),
            "scale": config.number("routed_scaling_factor", 1.0),
            "num_groups": config.count("n_group", 1),
            "num_chosen_groups": config.count("topk_group", 1),
            "group_size_scored": 2,
        },
        has_correction=True,
        shared_size=shared_size(config),
    )


def shared_size(config: ConfigFile) -> int:
    """Return the feed-forward size of what all rows share; 0 where `n_shared_experts` is 0 or null."""
    return config.index("n_shared_experts", 0) * config.count("moe_intermediate_size")


def layers_after(config: ConfigFile, num_layers: int) -> frozenset[int]:
    """Return the layers that follow the first `first_k_dense_replace` ones."""
    return frozenset(range(config.index("first_k_dense_replace", 0), num_layers))
