"""From logits to the next token, row by row: one sampler for every token of every request."""

from eyas.sampling.choose import choose
from eyas.sampling.noise import gumbel
from eyas.sampling.params import BatchParams, RowSource
from eyas.sampling.process import process
from eyas.sampling.sample import sample

__all__ = ["BatchParams", "RowSource", "choose", "gumbel", "process", "sample"]
