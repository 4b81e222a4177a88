"""What rank 0 tells the others of graphs, and what it does when one of them cannot capture a pass."""

from __future__ import annotations

import pytest
import torch

from eyas.attention.base import AttentionLayout
from eyas.parallel.lost import GroupLost
from eyas.runner.leader import Leader
from eyas.runner.rank_messages import (
    DropMessage,
    EndMessage,
    ForwardMessage,
    Message,
    ReplayMessage,
    decode,
)
from eyas.runner.rows import ForwardRows


class Recorder:
    """A group of two ranks. captures: whether the other one can."""

    def __init__(self, *, captures: bool = True) -> None:
        self.messages: list[Message] = []
        self.reason: str | None = None
        self.is_lost = False
        self._captures = captures

    def send(self, message: bytes) -> None:
        self.messages.append(decode(message))

    def broadcast(self, x: torch.Tensor) -> None:
        pass

    def least(self, value: int) -> int:
        return min(value, int(self._captures))

    def give_up(self, reason: str) -> None:
        self.reason = reason


class CapturedStage:
    """A captured stage of rank 0."""

    is_destroyed = False

    def destroy(self) -> None:
        self.is_destroyed = True


def leader_of(group: Recorder) -> Leader:
    return Leader(group)  # pyrefly: ignore[bad-argument-type]


def rows() -> ForwardRows:
    one = torch.ones(1, dtype=torch.int64)
    return ForwardRows(
        tokens_T=one,
        positions_T=one,
        write_slots_T=one,
        layout=AttentionLayout(torch.ones((1, 4), dtype=torch.int64), one - 1, 1),
        logits_rows_R=None,
    )


def test_graphs_have_numbers_and_are_dropped_before_the_next_replay() -> None:
    group = Recorder()
    leader = leader_of(group)
    with leader.forward(rows()):
        pass
    for _ in range(2):
        with leader.capturing() as captured, leader.forward(rows()):
            pass
    assert captured.number == 1
    with leader.capturing() as nothing:
        pass
    assert nothing.number is None
    held = [CapturedStage(), CapturedStage()]
    for number, stage in enumerate(held):
        leader.own(stage, number)
    del stage, held[0]
    for _ in range(2):
        with leader.replaying(1):
            pass
    passes, rest = group.messages[:3], group.messages[3:]
    found = [each.capture for each in passes if isinstance(each, ForwardMessage)]
    assert found == [None, 0, 1]
    assert rest == [DropMessage([0]), ReplayMessage(1), ReplayMessage(1)]


@pytest.mark.parametrize("is_lost", [False, True])
def test_captured_stages_are_destroyed_before_the_exchanges_that_they_contain(
    is_lost: bool,
) -> None:
    group = Recorder()
    group.is_lost = is_lost
    leader = leader_of(group)
    stage = CapturedStage()
    leader.own(stage, 0)
    leader.end()
    assert stage.is_destroyed
    assert group.messages == ([] if is_lost else [EndMessage()])


class End:
    """The event at the end of a replay."""

    def __init__(self, *, has_ended: bool) -> None:
        self._has_ended = has_ended

    def query(self) -> bool:
        return self._has_ended


def test_a_replay_that_does_not_end_is_a_loss() -> None:
    leader = leader_of(Recorder())
    leader._launched += [(0.0, End(has_ended=True)), (0.0, End(has_ended=False))]  # pyrefly: ignore
    leader.check_replays(1e9)
    with pytest.raises(GroupLost, match=r"has not ended in 0\.5 seconds"):
        leader.check_replays(0.5)


def test_a_pass_that_another_rank_cannot_capture_is_an_error_and_no_loss() -> None:
    group = Recorder(captures=False)
    leader = leader_of(group)
    refused = pytest.raises(RuntimeError, match="another rank cannot capture it")
    with refused, leader.capturing(), leader.forward(rows()):
        pass
    assert group.reason is None


def test_a_pass_that_fails_while_it_is_captured_is_no_loss_either() -> None:
    group = Recorder()
    leader = leader_of(group)
    with pytest.raises(ZeroDivisionError), leader.capturing(), leader.forward(rows()):
        raise ZeroDivisionError
    assert group.reason is None
    with pytest.raises(ZeroDivisionError), leader.forward(rows()):
        raise ZeroDivisionError
    assert group.reason is not None
