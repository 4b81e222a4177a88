"""Training of draft heads: prompts in, an EAGLE-3.1 head in three file formats out.

Promises: `train_head` runs or resumes a whole training; everything that can be wrong with its
settings is a ValueError before work starts. Does not know: how a head is served.
"""

from eyas.train.head.config import HeadTraining
from eyas.train.head.run import train_head

__all__ = ["HeadTraining", "train_head"]
