"""Which steps are captured as CUDA graphs at start-up; others are once they have occurred often.

Does not know: how a step is captured.
"""

from __future__ import annotations

from eyas.engine.launch import Launcher
from eyas.runner.graphs import CaptureLimits
from eyas.runner.step_inputs import bucket_of, length_of

CAPTURED_LENGTHS = (512, 1024, 2048)
"""Upper bounds of sequence lengths whose steps are captured at start-up."""

CAPTURED_PROMPT_ROWS = (384, 192, 120, 60)
"""Rows of the prompts, stored at once, whose steps are captured at start-up."""

MOST_CAPTURED = 64
"""Sequences of the largest step that is captured at start-up."""


def run_common_steps(
    launcher: Launcher, limits: CaptureLimits, width: int, max_model_len: int
) -> list[int]:
    """Run common steps with trees of this width, which captures their CUDA graphs, and return the batch
    sizes; others are captured once they have occurred often. limits: of the captures."""
    sizes, lengths = captured_sizes(limits.num_seqs), captured_lengths(max_model_len)
    for length in lengths:
        for num in sizes:
            for temperature in (0.0, 1.0):
                launcher.run_padding(num, width, length, temperature)
    if limits.prompt_rows and max_model_len > max(CAPTURED_PROMPT_ROWS):
        for num_rows in CAPTURED_PROMPT_ROWS:
            for temperature in (0.0, 1.0):
                launcher.run_padding(1, width, lengths[-1], temperature, num_rows)
    return sizes


def captured_lengths(max_model_len: int) -> list[int]:
    """Return the lengths of sequences whose steps are captured at start-up, longest first."""
    lengths = {length_of(min(length, max_model_len)) for length in CAPTURED_LENGTHS}
    return sorted(lengths, reverse=True)


def captured_sizes(most: int) -> list[int]:
    """Return the batch sizes whose steps are captured at start-up, of those of up to `most` sequences,
    largest first. Larger ones are captured once they have occurred often: the start stays short."""
    most = min(most, MOST_CAPTURED)
    return sorted({bucket_of(num) for num in range(1, most + 1)}, reverse=True)
