"""The clock of products, with a device that is none: what runs, between what, what a median is of."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

timing = pytest.importorskip("eyas.layers.gemm.timing")  # it imports triton

from eyas.layers.gemm import apply  # noqa: E402
from eyas.layers.gemm.variants import LIBRARY, GemmVariant, Product, Role, candidates  # noqa: E402

CPU = torch.device("cpu")


class FakeDevice:
    """Kernels take the milliseconds in `cost`; the events of a graph's replay see them pass."""

    def __init__(self) -> None:
        self.now = 0.0
        self.cost: dict[object, float] = {}
        self.broken: set[GemmVariant] = set()
        self.ran: list[tuple[Any, ...]] = []
        self.recording: list[tuple[Any, ...]] | None = None
        self.is_capturing = False
        self.num_freed = 0
        self.drift = 0.0

    def launch(self, kernel: object, *details: Any) -> None:
        entry = (kernel, *details)
        (self.ran if self.recording is None else self.recording).append(entry)

    def graph(self) -> Any:
        return FakeGraph(self)

    def event(self, **_options: Any) -> Any:
        return FakeEvent(self)


class FakeGraph:
    def __init__(self, device: FakeDevice) -> None:
        self.device = device
        self.launches: list[tuple[Any, ...]] = []

    def capture_begin(self, pool: object, capture_error_mode: str) -> None:
        assert pool == "the pool" and capture_error_mode == "thread_local"
        self.device.recording = self.launches

    def capture_end(self) -> None:
        self.device.recording = None

    def replay(self) -> None:
        for kernel, *_ in self.launches:
            self.device.now += self.device.cost.get(kernel, 0.0) * (1 + self.device.drift)
        self.device.drift += 0.001


class FakeEvent:
    def __init__(self, device: FakeDevice) -> None:
        self.device = device
        self.time = 0.0

    def record(self) -> None:
        self.time = self.device.now

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other: FakeEvent) -> float:
        return other.time - self.time


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDevice]:
    device = FakeDevice()

    def empty_cache() -> None:
        device.num_freed += 1

    def run(name: str) -> Any:
        def kernel(
            variant: GemmVariant, x_TI: torch.Tensor, weight_OI: torch.Tensor, *rest: Any
        ) -> Any:
            if variant in device.broken:
                raise RuntimeError("out of resources")
            assert x_TI.is_contiguous() and weight_OI.is_contiguous()
            device.launch(variant, name, len(x_TI), weight_OI.data_ptr(), *rest)
            return x_TI.new_zeros(len(x_TI), len(weight_OI))

        return kernel

    @contextmanager
    def stream(_stream: object) -> Iterator[None]:
        yield

    for name in ("plain", "parts", "gated", "logits"):
        monkeypatch.setattr(apply, name, run(name))

    def norm(x_TI: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
        device.launch("norm")
        return x_TI

    monkeypatch.setattr(timing, "norm", norm)
    monkeypatch.setattr(timing, "add_norm", lambda *rest, **options: device.launch("add_norm"))
    for name, value in (
        ("device", lambda _device: nullcontext()),
        ("is_current_stream_capturing", lambda: device.is_capturing),
        ("Stream", object),
        ("stream", stream),
        ("CUDAGraph", device.graph),
        ("Event", device.event),
        ("graph_pool_handle", lambda: "the pool"),
        ("synchronize", lambda: None),
        ("empty_cache", empty_cache),
    ):
        monkeypatch.setattr(torch.cuda, name, value)
    yield device


def product_of(role: Role, *, bias: bool = False) -> Product:
    return Product(64, 48, torch.float32, role, bias)


@pytest.mark.parametrize("role", ["plain", "parts", "gated", "logits"])
def test_medians_of_each_way_at_each_row_count(fake: FakeDevice, role: Role) -> None:
    product = product_of(role)
    variants = candidates(product, 16, library=True)
    fake.cost = {variant: (1 + index) / 1000 for index, variant in enumerate(variants)}
    fake.cost |= {"norm": 0.5 / 1000, "add_norm": 0.5 / 1000}
    jobs = [(16, variants), (64, variants[::-1])]
    first, second = timing.DeviceClock(CPU)(product, jobs)
    for times, expected in ((first, range(len(variants))), (second, range(len(variants))[::-1])):
        assert times == pytest.approx([index + 1.5 for index in expected], rel=0.2)
        assert sorted(times) == (times if expected[0] == 0 else times[::-1])
    assert fake.num_freed == 1


def test_weights_take_turns_and_neighbours_stand_between(
    fake: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured: list[list[tuple[Any, ...]]] = []
    begin = FakeGraph.capture_begin

    def noted(self: FakeGraph, **options: Any) -> None:
        captured.append(self.launches)
        begin(self, **options)

    monkeypatch.setattr(FakeGraph, "capture_begin", noted)
    timing.DeviceClock(CPU)(product_of("plain", bias=True), [(16, [LIBRARY])])
    timing.DeviceClock(CPU)(product_of("parts"), [(600, [LIBRARY])])
    few, many = captured
    assert [kernel for kernel, *_ in few] == ["norm", LIBRARY] * timing.MOST_CALLS
    weights = [entry[3] for entry in few if entry[0] == LIBRARY]
    assert len(set(weights)) == timing.MOST_CALLS
    assert all(torch.equal(entry[4], torch.zeros(64)) for entry in few if entry[0] == LIBRARY)
    assert [kernel for kernel, *_ in many] == [LIBRARY, "add_norm"] * 2


def test_large_weights_need_no_turns(fake: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "WEIGHT_BYTES", 64 * 48 * 4)
    timing.DeviceClock(CPU)(product_of("logits"), [(16, [LIBRARY])])
    assert sum(kernel == LIBRARY for kernel, *_ in fake.ran) == 1, "to warm up; two are captured"


def test_a_way_that_cannot_run_takes_forever(fake: FakeDevice) -> None:
    product = product_of("plain")
    variants = candidates(product, 16, library=True)
    fake.broken = {variants[1]}
    fake.cost = dict.fromkeys(variants, 0.001)
    (times,) = timing.DeviceClock(CPU)(product, [(16, variants)])
    assert [math.isinf(each) for each in times] == [False, True, False]


def test_want_of_memory_is_no_failure(fake: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_sizes: int, **_options: Any) -> torch.Tensor:
        raise torch.cuda.OutOfMemoryError

    monkeypatch.setattr(torch, "empty", fails)
    assert timing.DeviceClock(CPU)(product_of("plain"), [(16, [LIBRARY])]) == [[math.inf]]
    assert fake.num_freed == 1


def test_nothing_is_measured_while_a_graph_is_captured(fake: FakeDevice) -> None:
    fake.is_capturing = True
    with pytest.raises(AssertionError, match="measured before"):
        timing.DeviceClock(CPU)(product_of("plain"), [(16, [LIBRARY])])


def test_a_capture_that_runs_out_of_memory_is_ended(
    fake: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that is left capturing would refuse all that comes after."""
    product = product_of("plain")
    launch = FakeDevice.launch

    def full(device: FakeDevice, kernel: object, *details: Any) -> None:
        if device.recording is not None:
            raise torch.cuda.OutOfMemoryError("full")
        launch(device, kernel, *details)

    monkeypatch.setattr(FakeDevice, "launch", full)
    variants = candidates(product, 16, library=True)
    assert timing.DeviceClock(CPU)(product, [(16, variants)]) == [[math.inf] * len(variants)]
    assert fake.recording is None
