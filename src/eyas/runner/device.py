"""The device that the settings ask for, and its memory.

Promises: "auto" is resolved; the returned device exists and can run the model.
Does not know: models beyond the bytes they need.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import psutil
import torch

from eyas.config import DeviceConfig, StartChoice
from eyas.kernels import usable
from eyas.kernels.ahead import settle_cache_keys

_CPU_CACHE_BYTES = 2 * 2**30


@dataclass(frozen=True, slots=True)
class Device:
    """An opened device.

    exact: kernels that keep a row's bits are chosen even where others are faster. choice: for the log.
    """

    device: torch.device
    choice: StartChoice
    exact: bool = True

    @property
    def is_gpu(self) -> bool:
        return self.device.type == "cuda"


def open_device(config: DeviceConfig, num_ranks: int = 1, number: int | None = None) -> Device:
    """Return the device that `config` asks for. Raises ValueError if it does not exist.

    num_ranks: how many processes divide this machine's cores. number: of the GPU, where the settings
    leave it open.
    """
    name, reason = config.device, "--device"
    if name == "auto":
        has_cuda = torch.cuda.is_available()
        name = "cuda" if has_cuda else "cpu"
        reason = f"auto: there is {'a' if has_cuda else 'no'} CUDA device"
    if number is not None and name == "cuda":
        needed = max(num_ranks, number + 1)
        if torch.cuda.is_available() and torch.cuda.device_count() < needed:
            raise ValueError(
                f"parallel.tp: its ranks need {needed} GPUs, and this machine has "
                f"{torch.cuda.device_count()}; lower --tp or --dp, or pass --device cpu"
            )
        name = f"cuda:{number}"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device: {name!r} is unknown; use auto, cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("device: no CUDA device is available here; use --device cpu")
    if device.type == "cuda" and not usable(device):
        raise ValueError(
            "device: kernels need Triton, which is not installed here; install the package triton, or "
            "use --device cpu"
        )
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device: {name!r} is not supported; use auto, cpu or cuda")
    if device.type == "cpu":
        cores = psutil.cpu_count(logical=False) or 1
        torch.set_num_threads(config.num_threads or max(1, (cores - 1) // num_ranks))
        reason += "; --threads" if config.num_threads else f"; {cores} physical cores, minus one"
        if num_ranks > 1 and not config.num_threads:
            reason += f", for {num_ranks} ranks"
        value = f"cpu, threads: {torch.get_num_threads()}"
        return Device(device, StartChoice("device", value, reason))
    device = torch.device(
        "cuda", torch.cuda.current_device() if device.index is None else device.index
    )
    if device.index >= torch.cuda.device_count():
        raise ValueError(
            f"device: {name!r} does not exist; this machine has {torch.cuda.device_count()}"
        )
    torch.cuda.set_device(device)
    settle_cache_keys()
    properties = torch.cuda.get_device_properties(device)
    value = f"{device}, {properties.name}, {properties.total_memory / 2**30:.0f} GiB"
    choice = StartChoice("device", value, reason)
    return Device(device, choice, config.exact)


def selected(device: torch.device) -> AbstractContextManager[object]:
    """Make this device the current one, which is a setting of each thread."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def cache_budget(device: torch.device, memory_fraction: float, state_bytes: int = 0) -> int:
    """Return the bytes for keys and values, once the weights are loaded.

    state_bytes: of states per sequence, which come out of the same memory.
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return max(0, int(total * memory_fraction) - (total - free) - state_bytes)
    available = psutil.virtual_memory().available
    return max(0, min(_CPU_CACHE_BYTES, int(available * memory_fraction) - state_bytes))


def memory_bytes(device: torch.device) -> int:
    """Return the device's memory in bytes, whether in use or not."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    return psutil.virtual_memory().total
