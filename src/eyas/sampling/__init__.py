"""From logits to the next token, row by row: one sampler for every token of every request."""

from eyas.ops.noise import gumbel
from eyas.sampling.params import BatchParams, SequenceParams
from eyas.sampling.process import process
from eyas.sampling.sample import sample

__all__ = ["BatchParams", "SequenceParams", "gumbel", "process", "sample"]
