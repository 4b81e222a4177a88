"""Finding a model: directories, the built-in one, hub names, and what is said when it fails."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import huggingface_hub
import pytest
from huggingface_hub import errors
from huggingface_hub.utils import filter_repo_objects

from eyas.models import cpu_has_bfloat16, locate_model, resolve_dtype
from eyas.models.locate import TEMPLATES_FOLDER, locate_file


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Calls of snapshot_download, which then fails with the error the test puts in the list."""
    calls: list[dict[str, Any]] = []

    def download(name: str, **options: Any) -> str:
        calls.append({"name": name, **options})
        error = options["revision"]
        if isinstance(error, Exception):
            raise error
        return "/downloaded"

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return calls


def response(status: int) -> httpx.Response:
    return httpx.Response(status, request=httpx.Request("GET", "https://huggingface.co"))


def test_a_directory_is_itself(tmp_path: Path) -> None:
    assert locate_model(str(tmp_path)) == tmp_path


def test_builtin_is_asked_for_its_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = ModuleType("eyas.builtin")
    module.path = lambda: tmp_path  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "eyas.builtin", module)
    monkeypatch.setattr("eyas.builtin", module, raising=False)
    assert locate_model("builtin") == tmp_path


def test_a_hub_name_is_downloaded_without_code_or_pickles(hub: list[dict[str, Any]]) -> None:
    assert locate_model("Qwen/Qwen3-0.6B", revision="main") == Path("/downloaded")
    (call,) = hub
    assert (call["name"], call["revision"], call["local_files_only"]) == (
        "Qwen/Qwen3-0.6B",
        "main",
        False,
    )
    assert not any(pattern.endswith((".py", ".bin", "*")) for pattern in call["allow_patterns"])
    there = ["config.json", "model-00001-of-00002.safetensors", "tokenizer.json", "modeling.py"]
    again = ["consolidated.safetensors", "fp8/model.safetensors", "adapter_model.safetensors"]
    patterns = {name: call[name] for name in ("allow_patterns", "ignore_patterns")}
    assert list(filter_repo_objects([*there, *again], **patterns)) == there[:3]


def test_of_folders_that_of_further_templates_alone_is_downloaded(
    hub: list[dict[str, Any]],
) -> None:
    locate_model("Qwen/Qwen3-0.6B")
    patterns = {name: hub[0][name] for name in ("allow_patterns", "ignore_patterns")}
    wanted = ["chat_template.jinja", f"{TEMPLATES_FOLDER}/tool_use.jinja"]
    others = ["s", "templates", "fp8", "x" + TEMPLATES_FOLDER, TEMPLATES_FOLDER + "s", "a/b"]
    others += [f"{TEMPLATES_FOLDER}/x", f"x/{TEMPLATES_FOLDER}", TEMPLATES_FOLDER[:-1]]
    unwanted = [f"{folder}/tool_use.jinja" for folder in others]
    assert list(filter_repo_objects([*wanted, *unwanted], **patterns)) == wanted


def test_offline_uses_what_is_there(hub: list[dict[str, Any]]) -> None:
    locate_model("Qwen/Qwen3-0.6B", offline=True)
    assert hub[0]["local_files_only"] is True


@pytest.mark.parametrize("name", ["no-such-directory", "a/b/c", "./missing", "https://x.y/z", ""])
def test_what_is_neither_directory_nor_hub_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="neither a directory nor a hub name; give 'builtin'"):
        locate_model(name)


def test_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.touch()
    with pytest.raises(ValueError, match="is a file; give the directory"):
        locate_model(str(file))


@pytest.mark.parametrize(
    ("error", "offline", "message"),
    [
        (errors.GatedRepoError("", response=response(403)), False, "is gated; accept its terms"),
        (errors.RepositoryNotFoundError("", response=response(404)), False, "check the spelling"),
        (errors.RevisionNotFoundError("", response=response(404)), False, "has no revision"),
        (errors.LocalEntryNotFoundError("x"), True, "was not downloaded before and offline"),
        (errors.LocalEntryNotFoundError("x"), False, "hub cannot be reached; check the network"),
        (errors.OfflineModeIsEnabled("x"), False, "hub cannot be reached"),
        (httpx.ConnectError("refused"), False, "hub cannot be reached"),
        (OSError("no space"), False, "no space"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value)[:12],
)
def test_every_failure_of_the_hub_has_a_remedy(
    error: Any, offline: bool, message: str, hub: list[dict[str, Any]]
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        locate_model("someone/some-model", revision=error, offline=offline)
    assert "someone/some-model" in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("fpu avx512f avx512_bf16 sse", True), ("fpu amx_bf16", True), ("fpu avx512f", False)],
)
def test_processor_flags_decide_on_bfloat16(
    flags: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text(f"processor\t: 0\nflags\t\t: {flags}\nbogomips: 1\n")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert cpu_has_bfloat16(info, {}) is expected
    assert cpu_has_bfloat16(tmp_path / "absent", {}) is False


def test_names_of_number_formats_are_resolved() -> None:
    import torch

    expected = torch.bfloat16 if cpu_has_bfloat16() else torch.float32
    assert resolve_dtype("auto", "cpu") == expected
    assert resolve_dtype("auto", "cuda") == torch.bfloat16
    assert resolve_dtype("float16", "cpu") == torch.float16
    assert resolve_dtype(torch.float32, "cpu") == torch.float32
    with pytest.raises(ValueError, match="dtype 'int4' is unknown; use auto, bfloat16"):
        resolve_dtype("int4", "cpu")  # type: ignore[arg-type]


def test_a_file_on_the_hub_is_downloaded_alone(
    hub: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "freq.pt").write_bytes(b"")
    monkeypatch.setattr(
        huggingface_hub,
        "snapshot_download",
        lambda name, **options: hub.append({"name": name, **options}) or str(tmp_path),
    )
    assert locate_file("thunlp/LLaMA3-FR-Spec/freq.pt", offline=True) == tmp_path / "freq.pt"
    (call,) = hub
    assert (call["name"], call["local_files_only"]) == ("thunlp/LLaMA3-FR-Spec", True)
    assert (call["allow_patterns"], call["ignore_patterns"]) == (["freq.pt"], [])
    with pytest.raises(ValueError, match=r"'thunlp/x' has no file 'other\.pt' on the hub"):
        locate_file("thunlp/x/other.pt")


def test_a_file_that_is_here_is_itself(hub: list[dict[str, Any]], tmp_path: Path) -> None:
    for name in ("ids.pt", str(tmp_path / "ids.pt"), "../a/b.pt", "a/b/../c.pt"):
        assert locate_file(name) == Path(name), "whoever reads it says that it is not there"
    assert hub == []
