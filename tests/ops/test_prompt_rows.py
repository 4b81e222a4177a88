"""Prompt chunks as rows and as tiles: made on a device, they are those that the host makes."""

from __future__ import annotations

import random

import pytest
import torch

from eyas.kernels.attention_prefill import cut
from eyas.ops.prompt_rows import prompt_rows, tiles_of_chunks

NUM_SEATS, NUM_COLUMNS = 6, 400


def draw_chunks(draw: random.Random) -> tuple[list[tuple[int, int, int]], int]:
    """Chunks (row, start, count) in order, some of them without rows at the end; and their rows."""
    runs, row = [], 0
    for _ in range(draw.randrange(1, 5)):
        count = draw.choice((1, 2, 7, 31, 32, 33, 64, 100))
        runs.append((row, draw.randrange(NUM_COLUMNS - count), count))
        row += count
    runs += [(row, 0, 0)] * draw.randrange(4)
    return runs, row


@pytest.mark.parametrize("seed", range(30))
def test_rows_are_those_of_the_table(seed: int) -> None:
    draw = random.Random(seed)
    runs, num_rows = draw_chunks(draw)
    seats = [draw.randrange(NUM_SEATS) for _ in runs]
    tokens_AC = torch.randint(1000, (NUM_SEATS, NUM_COLUMNS))
    slots_AC = torch.randint(1000, (NUM_SEATS, NUM_COLUMNS))
    found = prompt_rows(torch.tensor(seats), torch.tensor(runs), num_rows, tokens_AC, slots_AC)
    expected = [
        (tokens_AC[seat, position], position, slots_AC[seat, position])
        for seat, (_, start, count) in zip(seats, runs, strict=True)
        for position in range(start, start + count)
    ]
    assert list(zip(*(column.tolist() for column in found), strict=True)) == [
        (int(token), position, int(slot)) for token, position, slot in expected
    ]


@pytest.mark.parametrize("seed", range(30))
def test_tiles_are_those_of_the_host_and_empty_ones(seed: int) -> None:
    draw = random.Random(seed)
    runs, num_rows = draw_chunks(draw)
    first_row, first_sequence, height = draw.randrange(20), draw.randrange(5), 32
    tiles_X4 = tiles_of_chunks(torch.tensor(runs), first_row, num_rows, first_sequence, height)
    on_host = [
        (first_sequence + number, first_row + row, start, count)
        for number, (row, start, count) in enumerate(runs)
    ]
    found = tiles_X4.tolist()
    assert sorted(tile for tile in found if tile[3]) == sorted(cut(on_host, height).tolist())
    assert [tile[2] for tile in found] == sorted((tile[2] for tile in found), reverse=True)
    for sequence, row, position, count in found:
        assert count or position == 0
        assert first_sequence <= sequence < first_sequence + len(runs)
        assert first_row <= row < first_row + num_rows
