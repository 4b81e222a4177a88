"""Drafters: they propose the draft trees of a step. No drafter can change the output."""

from eyas.draft.adaptive import AdaptiveDrafter
from eyas.draft.base import Drafter, DrafterWrapper, StepReport, TreeShape
from eyas.draft.blend import BlendDrafter
from eyas.draft.forced import ForcedDrafter
from eyas.draft.network import HeadNetwork, ModelNetwork
from eyas.draft.ngram import NgramDrafter
from eyas.draft.root import RootDrafter
from eyas.draft.tree import TreeDrafter

__all__ = [
    "AdaptiveDrafter",
    "BlendDrafter",
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
]
