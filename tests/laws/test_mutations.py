"""The laws have teeth: each listed mutation makes its named test fail."""

from __future__ import annotations

import subprocess

import pytest

from tests import forked
from tests.laws.anchors import AnchorError, replace
from tests.laws.mutations import MUTATIONS, ROOT, misplaced
from tests.thorough import drawn


def test_every_mutation_finds_its_place_in_the_code() -> None:
    assert misplaced() == []
    assert len({m.name for m in MUTATIONS}) == len(MUTATIONS) >= 12
    assert all(m.old != m.new for m in MUTATIONS)


@pytest.mark.slow
def test_every_mutation_fails_its_test() -> None:
    """As the package is, `make test` runs their tests itself."""
    command = [*forked.command("tests.laws.mutations"), "0", "1", *drawn(["alone"], [])]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]


SOURCE = '''
def total(values):
    """The sum."""
    kept = [value for value in values if value > 0]
    return sum(kept)

class Counter:
    if True:
        def add(self, value):
            self.total = self.total + value  # a comment
            self.count += 1
            return self.total
'''


@pytest.mark.parametrize(
    ("function", "old", "new", "expected"),
    [
        ("total", "value > 0", "value >= 0", "if value >= 0]"),
        ("total", "sum(\n  kept\n)", "sum(kept, 1)", "return sum(kept, 1)"),
        ("Counter.add", "self.total+value", "value", "self.total = value\n"),
        ("Counter.add", "self.count += 1", "self.count += 2", "self.count += 2\n"),
        (
            "Counter.add",
            "self.count += 1\nreturn self.total",
            "return self.total\nself.count += 1",
            "return self.total\n            self.count += 1",
        ),
        ("Counter", "self.total + value", "value", "self.total = value\n"),
    ],
)
def test_syntax_is_replaced_however_it_is_laid_out(
    function: str, old: str, new: str, expected: str
) -> None:
    assert expected in replace(SOURCE, function, old, new)


@pytest.mark.parametrize(
    ("function", "old", "new", "message"),
    [
        ("total", "value < 0", "value", "0 times"),
        ("total", "value", "0", "2 times"),
        ("add", "self.count += 1", "pass", "0 times"),
        ("Counter.add", "self.total", "0", "2 times"),
        ("Counter.add", "self.total + value", "self.total + other", "does not know"),
    ],
)
def test_a_piece_that_is_not_there_once_is_refused(
    function: str, old: str, new: str, message: str
) -> None:
    with pytest.raises(AnchorError, match=message):
        replace(SOURCE, function, old, new)
