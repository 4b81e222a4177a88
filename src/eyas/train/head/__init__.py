"""Train an EAGLE-3 or EAGLE-3.1 draft head from prompts, and write it in the layouts of each
engine.

Promises: `train_head` starts or resumes a training; an error in the settings is a ValueError before
work starts. Does not know: how a head is served.
"""

from eyas.train.head.config import HeadTraining
from eyas.train.head.demo import demo_settings
from eyas.train.head.progress import Progress
from eyas.train.head.run import train_head
from eyas.train.head.summary import summary

__all__ = ["HeadTraining", "Progress", "demo_settings", "summary", "train_head"]
