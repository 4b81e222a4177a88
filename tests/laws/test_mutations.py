"""The laws have teeth: each listed slip of one line makes its named test fail."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.laws.mutations import MUTATIONS, ROOT, misplaced

NUM_SHARES = 2


def test_every_slip_stands_in_the_code_exactly_once() -> None:
    assert misplaced() == []
    assert len({m.name for m in MUTATIONS}) == len(MUTATIONS) >= 12
    assert all(m.old != m.new for m in MUTATIONS)


@pytest.mark.parametrize("share", range(NUM_SHARES))
def test_every_slip_is_noticed(share: int) -> None:
    command = [sys.executable, "-m", "tests.laws.mutations", str(share), str(NUM_SHARES)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
