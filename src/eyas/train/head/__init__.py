"""Training of draft heads: prompts in, an EAGLE-3 or EAGLE-3.1 head out, in the layouts engines read.

Promises: `train_head` runs or resumes a whole training; everything that can be wrong with its
settings is a ValueError before work starts. Does not know: how a head is served.
"""

from eyas.train.head.config import HeadTraining
from eyas.train.head.demo import demo_settings
from eyas.train.head.progress import Progress
from eyas.train.head.run import train_head
from eyas.train.head.summary import summary

__all__ = ["HeadTraining", "Progress", "demo_settings", "summary", "train_head"]
