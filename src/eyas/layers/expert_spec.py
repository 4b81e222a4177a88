"""The facts of a mixture of experts.

Does not know: how experts are computed.
"""

from __future__ import annotations

from dataclasses import dataclass

from eyas.ops.route import Routing


@dataclass(frozen=True, slots=True)
class ExpertSpec:
    """The facts of a mixture of experts.

    num_experts: experts to choose from. intermediate_size: of each of them. router_bias: added to the
    router's logits. has_correction: there is a bias that is added to scores for the choice alone. bias:
    of the experts' products. shared_size: feed-forward size of the expert that every row uses; 0 is
    none. has_shared_gate: its result is multiplied by the sigmoid of a product of its own.
    is_alternating: as in `GatedMlp`, of the experts that are chosen. num_tokens: of the table that
    names each token's experts, which scores then only weigh (DeepSeek-V4's first layers); 0 is none.
    """

    num_experts: int
    intermediate_size: int
    routing: Routing
    router_bias: bool = False
    has_correction: bool = False
    bias: bool = False
    shared_size: int = 0
    has_shared_gate: bool = False
    is_alternating: bool = False
    num_tokens: int = 0

    def __post_init__(self) -> None:
        routing = self.routing
        assert self.num_experts % routing.num_groups == 0
        choosable = self.num_experts // routing.num_groups * routing.num_chosen_groups
        assert 0 < routing.num_chosen <= choosable

    @property
    def num_scores(self) -> int:
        """The number of logits of the router: of all experts, and of the shared expert's gate."""
        return self.num_experts + self.has_shared_gate
