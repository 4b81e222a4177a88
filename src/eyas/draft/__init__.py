"""Drafters: who proposes the tree of a step. None of them can change the output."""

from eyas.draft.base import Drafter
from eyas.draft.model import ModelDrafter
from eyas.draft.ngram import NgramDrafter
from eyas.draft.root import RootDrafter

__all__ = ["Drafter", "ModelDrafter", "NgramDrafter", "RootDrafter"]
