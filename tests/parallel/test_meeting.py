"""How ranks find each other: at one address, with the same settings, or not at all."""

from __future__ import annotations

import json
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from eyas import builtin
from eyas.config import EngineConfig, ParallelConfig
from eyas.engine.rank_group import _close_in, located, meeting_of
from eyas.models.digest import model_digest
from eyas.parallel.group import FRAME, Group, Meeting, meet
from eyas.parallel.lost import GroupLost
from tests.models.tiny import make_model, save_model

CPU = torch.device("cpu")
SECONDS = 120.0
HOSTS = ("127.0.0.1", "::1") if socket.has_ipv6 and socket.has_dualstack_ipv6() else ("127.0.0.1",)


def place_of(host: str) -> str:
    """A free port of a host, as a place."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listener:
        port = listener.getsockname()[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def together(*meetings: Meeting) -> list[Group | BaseException]:
    """What becomes of ranks that meet at the same time, each in a thread."""
    with ThreadPoolExecutor(len(meetings)) as pool:
        coming = [pool.submit(meet, meeting, CPU) for meeting in meetings]
        return [each.exception() or each.result() for each in coming]


@pytest.mark.parametrize("host", HOSTS)
def test_ranks_meet_at_an_address_and_listen_nowhere_else(host: str) -> None:
    before = listening()
    place = place_of(host)
    groups = together(*(Meeting(rank, 2, place, SECONDS) for rank in range(2)))
    first, second = groups
    assert isinstance(first, Group) and isinstance(second, Group)
    opened = listening() - before
    assert opened and {address for address, _ in opened} == {host}
    message = bytes(range(256)) * (FRAME // 64)
    with ThreadPoolExecutor(2) as pool:
        received = pool.submit(second.receive)
        first.send(message)
        assert received.result() == message
        gathered = [pool.submit(each.all_gather, torch.tensor([each.rank])) for each in groups]
        assert [each.result().flatten().tolist() for each in gathered] == [[0, 1], [0, 1]]


def listening() -> set[tuple[str, int]]:
    """Addresses at which this process listens."""
    found = psutil.Process().net_connections("tcp")
    return {(each.laddr.ip, each.laddr.port) for each in found if each.status == psutil.CONN_LISTEN}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tp": 4, "num_nodes": 4}, "the number of ranks"),
        ({"exact_across_tp": True}, "parallel.exact_across_tp"),
    ],
)
def test_ranks_that_were_started_differently_refuse_each_other(
    changes: dict[str, int], words: str
) -> None:
    place = place_of("127.0.0.1")
    settings = {"tp": 2, "num_nodes": 2, "address": place}
    configs = [
        EngineConfig(parallel=ParallelConfig(**each)) for each in (settings, settings | changes)
    ]
    here = [located(config, builtin.path()) for config in configs]
    ends = together(*(meeting_of(config, rank, place) for rank, config in enumerate(here)))
    for end in ends:
        assert isinstance(end, ValueError)
        assert words in str(end) and "rank 0" in str(end) and "rank 1" in str(end)


@pytest.mark.parametrize("address", ["::1:29500", "[::1]", "host:", "[::1:29500"])
def test_an_address_that_cannot_be_read_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"parallel\.address: HOST:PORT, .* in brackets"):
        EngineConfig(parallel=ParallelConfig(tp=2, num_nodes=2, address=address))


def test_where_the_model_is_stored_is_a_matter_of_each_machine(tmp_path: Path) -> None:
    """But its files are the same."""
    model = make_model("qwen3")
    for name in ("a", "b", "other"):
        save_model(model, tmp_path / name)
    file = tmp_path / "other" / "model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if "q_proj" in name)
    save_file(tensors | {name: tensors[name] * 1.5}, file, {"format": "pt"})
    terms = [
        meeting_of(located(EngineConfig(), tmp_path / name), rank, "h:1").terms
        for rank, name in enumerate(("a", "b", "other"))
    ]
    assert terms[0] == terms[1]
    assert {key for key in terms[0] if terms[0][key] != terms[2][key]} == {"the model's files"}


@pytest.mark.parametrize("change", ["a norm", "rope"])
def test_models_that_look_alike_are_told_apart(change: str, tmp_path: Path) -> None:
    """Of the same names, shapes and sizes."""
    directory = save_model(make_model("qwen3"), tmp_path)
    before = model_digest(directory)
    assert model_digest(directory) == before
    if change == "rope":
        config = json.loads((directory / "config.json").read_text())
        (directory / "config.json").write_text(json.dumps({**config, "rope_theta": 5e5}))
    else:
        tensors = load_file(directory / "model.safetensors")
        name = next(name for name in tensors if name.endswith("norm.weight"))
        tensors[name][len(tensors[name]) // 2] += 1
        save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    assert model_digest(directory) != before


def test_the_files_that_a_model_is_read_from_tell_it_apart(tmp_path: Path) -> None:
    """Those of other programs are in the directory on some machines only."""
    directory = save_model(make_model("qwen3"), tmp_path, max_shard_size="100KB")
    before = model_digest(directory)
    (directory / "consolidated.safetensors").write_bytes(b"no header at all")
    assert model_digest(directory) == before
    last = sorted(directory.glob("model-*.safetensors"))[-1]
    tensors = load_file(last)
    next(iter(tensors.values())).flatten()[0] += 1
    save_file(tensors, last, {"format": "pt"})
    assert model_digest(directory) != before


def test_a_forked_process_closes_nothing_of_its_parents() -> None:
    closed: list[str] = []
    closing = ExitStack()
    closing.callback(closed.append, "closed")
    _close_in(os.getpid() + 1, closing)
    assert closed == []
    _close_in(os.getpid(), closing)
    assert closed == ["closed"]


def test_a_second_first_rank_is_told_that_the_port_is_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        (end,) = together(Meeting(0, 2, place, SECONDS))
    assert isinstance(end, GroupLost)
    assert f"rank 0 of 2 did not meet the others at {place}: Address already in use" in str(end)


class Interrupted:
    """Exchanges during which the user presses Ctrl-C."""

    def broadcast(self, *_: object) -> None:
        raise KeyboardInterrupt


def test_an_interrupted_exchange_is_the_last_one() -> None:
    group = Group(0, 2, Interrupted(), Interrupted())  # pyrefly: ignore[bad-argument-type]
    with pytest.raises(KeyboardInterrupt):
        group.send(b"hello")
    with pytest.raises(GroupLost, match=r"interrupted \(KeyboardInterrupt\)"):
        group.broadcast(torch.zeros(1))
