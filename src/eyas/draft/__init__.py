"""Drafters: they propose the draft trees of a step. No drafter can change the output."""

from eyas.draft.adaptive import AdaptiveDrafter
from eyas.draft.base import (
    Drafter,
    DrafterWrapper,
    StepReport,
    TreeShape,
    chain,
    root_tokens,
    roots_alone,
)
from eyas.draft.blend import BlendDrafter
from eyas.draft.checked import CheckedDrafter
from eyas.draft.forced import ForcedDrafter
from eyas.draft.network import HeadNetwork, ModelNetwork
from eyas.draft.ngram import NgramDrafter
from eyas.draft.root import RootDrafter
from eyas.draft.tree import TreeDrafter

__all__ = [
    "AdaptiveDrafter",
    "BlendDrafter",
    "CheckedDrafter",
    "Drafter",
    "DrafterWrapper",
    "ForcedDrafter",
    "HeadNetwork",
    "ModelNetwork",
    "NgramDrafter",
    "RootDrafter",
    "StepReport",
    "TreeDrafter",
    "TreeShape",
    "chain",
    "root_tokens",
    "roots_alone",
]
