"""Settings that all tests share.

torch computes with one thread, because several threads are slow on a busy machine. Without a CUDA
device kernels run in triton's interpreter, which must be chosen before triton is imported (xgrammar
imports it).
"""

from __future__ import annotations

import gc
import inspect
import logging
import os
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from typing import Any

import httpx
import pytest
import torch
from httpx._transports import default as _transports
from hypothesis import settings

from eyas.kernels import ahead
from tests.thorough import PROFILE

# The default timeout of httpx is five seconds; answers may take longer on a busy machine.
_PATIENCE = inspect.signature(httpx.get).parameters["timeout"].default
for _phase in ("connect", "read", "write", "pool"):
    setattr(_PATIENCE, _phase, 300.0)

# Each client, and so each httpx.get, reads the machine's certificates: 30 ms that no test needs twice.
_transports.create_ssl_context = cache(_transports.create_ssl_context)

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    if find_spec("triton") is not None:
        from tests.interpreter import make_quick

        make_quick()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--thorough", action="store_true", help="run all cases of the laws (make laws)"
    )


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("PYTEST_XDIST_WORKER"):
        ahead.MOST_PROCESSES = 1  # workers share the cores
    settings.register_profile(PROFILE)
    if config.getoption("thorough"):
        settings.load_profile(PROFILE)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("thorough"):
        left_out = [item for item in items if item.get_closest_marker("thorough")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("thorough")]
    # A worker that begins with one of these is not the last to end.
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish() -> None:
    """The garbage collector need not look at modules and thousands of tests again and again, nor so
    often at what is new. pytest listens to the root logger and to all that do not propagate, of which
    torch has dozens, and would attach itself to them six times a test."""
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("torch") and isinstance(logger, logging.Logger):
            logger.propagate = True
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


SAFE_PATH = "PYTHONSAFEPATH"
_SAFE_PATH_AT_FIRST = os.environ.get(SAFE_PATH)


@pytest.fixture(autouse=True)
def _safe_path_is_left_as_it_was() -> Iterator[None]:
    """Restore PYTHONSAFEPATH after each test. Commands set it for their child processes, but scripts
    that other tests run would not find their modules with it."""

    def restore() -> None:
        if _SAFE_PATH_AT_FIRST is None:
            os.environ.pop(SAFE_PATH, None)
        else:
            os.environ[SAFE_PATH] = _SAFE_PATH_AT_FIRST

    restore()
    yield
    restore()


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    logging.getLogger("eyas").setLevel(logging.CRITICAL)
    yield


@pytest.fixture(scope="session", autouse=True)
def _row_orders_are_measured_once() -> Iterator[None]:
    """Measure the row order of each set of shapes once. It depends on the machine alone, so engines of
    the same shapes share it; the tests of the measurement call it directly."""
    from eyas.engine.startup import load

    find = load.find_row_order

    @cache
    def found(num_threads: int, shapes: Any, heads: Any, *others: Any) -> Any:
        return find(shapes, *others, heads=heads)

    def find_once(shapes: Any, *others: Any, heads: Any) -> Any:
        return found(torch.get_num_threads(), tuple(shapes), tuple(heads), *others)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(load, "find_row_order", find_once)
        yield


@pytest.fixture(scope="session", autouse=True)
def _engines_of_one_kind_are_checked_once() -> Iterator[None]:
    """Run the self-check of an engine's start once for each model and size of cache on a CPU. It finds
    the same again, as long as nothing is patched; the tests of the check call it directly."""
    from eyas.engine.startup import build

    check = build.check_exactness
    passed: dict[Any, Any] = {}

    def check_once(runner: Any, report: Any, *sizes: int, **options: Any) -> Any:
        if report.order.products is not None or runner.leader is not None or not report.exact:
            return check(runner, report, *sizes, **options)
        model, kv = runner.model, runner.backend.kv
        kind = (model.spec, model.dtype, report, sizes, kv.stored_dtype, kv.windows is None)
        if kind not in passed:
            found = check(runner, report, *sizes, **options)
            if not found.exact:
                return found
            passed[kind] = found
        return passed[kind]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(build, "check_exactness", check_once)
        yield


@pytest.fixture(scope="session", autouse=True)
def _passes_are_timed_once() -> Iterator[None]:
    """Time each number of rows once instead of three times where an engine with an adaptive drafter is
    built, and on a CPU those of one model and kind of network for all its engines.

    What is measured chooses the shape of drafts and no token. Ranks and sequence states take part in
    every measurement.
    """
    from eyas.draft import costs
    from eyas.engine.startup import step_costs

    of_target, of_network = step_costs._target_costs, step_costs._network_costs
    measured: dict[Any, costs.Costs] = {}

    def target_costs(runner: Any, *sizes: Any) -> costs.Costs:
        model = runner.model
        is_alone = runner.leader is None and runner.backend.kv.states is None
        if model.device.type != "cpu" or not is_alone:
            return of_target(runner, *sizes)
        kind = (model.spec, model.dtype, sizes)
        if kind not in measured:
            measured[kind] = of_target(runner, *sizes)
        return measured[kind]

    def network_costs(network: Any, device: torch.device, *sizes: Any) -> costs.Costs:
        if device.type != "cpu":
            return of_network(network, device, *sizes)
        kind = (type(network), sizes)
        if kind not in measured:
            measured[kind] = of_network(network, device, *sizes)
        return measured[kind]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(costs, "REPEATS", 1)
        patched.setattr(step_costs, "_target_costs", target_costs)
        patched.setattr(step_costs, "_network_costs", network_costs)
        yield


@pytest.fixture(scope="session", autouse=True)
def _command_lines_are_built_once() -> Iterator[None]:
    """Make the commands with their hundreds of options once instead of for each line that is read. They
    depend on the code alone."""
    from typer import main

    build = main.get_command

    @cache
    def built(app: main.Typer, markup_mode: Any) -> Any:
        return build(app)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(main, "get_command", lambda app: built(app, app.rich_markup_mode))
        yield


@pytest.fixture(params=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """Each type in which this processor computes exactly."""
    chosen: torch.dtype = getattr(torch, request.param)
    from eyas.models import cpu_has_bfloat16

    if chosen is torch.bfloat16 and not cpu_has_bfloat16():
        pytest.skip("this processor has no bfloat16")
    return chosen
