"""Find a model's files: "builtin", a directory, or a Hugging Face hub name, which is downloaded.

Promises: downloads only configuration, tokenizer, template and safetensors files, and pytorch_model.bin
of a draft head that has no safetensors; every failure is a ValueError with the remedy.
Does not know: what is in the files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from eyas.models.other_kinds import GGUF, GGUF_SUFFIX

HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
HUB_FILE = re.compile(r"(\w[\w.-]*/\w[\w.-]*)/((?:\w[\w.-]*/)*\w[\w.-]*)")
ALLOWED_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt"]
TEMPLATES_FOLDER = "additional_chat_templates"
HEAD_FILES = [*ALLOWED_FILES, "pytorch_model*.bin"]


def patterns_of_other_folders(name: str) -> list[str]:
    """Return hub patterns that match the files in every folder but the top-level folder `name`.

    The hub's patterns have no negation, so they list each way in which a folder's name can differ.
    """
    patterns = [f"?*{name}/*", f"{name}/*/*"]
    for index, letter in enumerate(name):
        tail = name[index + 1 :]
        patterns += [f"*[!{letter}]{tail}/*", f"{tail}/*"]
    return patterns


IGNORED_FILES = [*patterns_of_other_folders(TEMPLATES_FOLDER), "consolidated*", "adapter_*"]
"""Copies of the weights in other formats or for other libraries."""


def locate_model(path_or_name: str, revision: str | None = None, offline: bool = False) -> Path:
    """Return the directory that holds the model; a hub name is downloaded first.

    revision: branch, tag or commit on the hub. offline: use only files that were downloaded before.
    ValueError: there is no such directory or repository, or it cannot be downloaded.
    """
    if path_or_name == "builtin":
        from eyas import builtin

        return Path(builtin.path())
    directory = Path(path_or_name).expanduser()
    if path_or_name and directory.is_dir():
        return directory
    if directory.is_file():
        remedy = GGUF if directory.suffix == GGUF_SUFFIX else "give the directory that holds it"
        raise ValueError(f"{path_or_name} is a file; {remedy}")
    if not HUB_NAME.fullmatch(path_or_name):
        raise ValueError(
            f"model {path_or_name!r} is neither a directory nor a hub name; give 'builtin', an "
            "existing directory, or a Hugging Face name such as Qwen/Qwen3-0.6B"
        )
    return _download(path_or_name, revision, offline)


def locate_head(path_or_name: str, revision: str | None = None, offline: bool = False) -> Path:
    """Return the directory that holds a draft head or model, as `locate_model` does.

    Many heads on the hub are stored as pytorch_model.bin alone; that file is downloaded where there are
    no safetensors.
    """
    directory = locate_model(path_or_name, revision, offline)
    if Path(path_or_name).expanduser().is_dir() or any(directory.glob("*.safetensors")):
        return directory
    return _download(path_or_name, revision, offline, HEAD_FILES)


def locate_file(path_or_name: str, offline: bool = False) -> Path:
    """Return a file's path; `owner/repository/file` names a file on the hub, which is downloaded first.

    A path that is neither is returned unchanged, so that its reader reports the error.
    ValueError: the repository or the file is not on the hub, or it cannot be downloaded.
    """
    file = Path(path_or_name).expanduser()
    named = HUB_FILE.fullmatch(path_or_name)
    if file.exists() or named is None or file.parent.is_dir():
        return file
    repository, name = named.groups()
    downloaded = _download(repository, None, offline, [name], ()) / name
    if not downloaded.is_file():
        raise ValueError(f"{repository!r} has no file {name!r} on the hub; check the spelling")
    return downloaded


def _download(
    name: str,
    revision: str | None,
    offline: bool,
    files: Sequence[str] = ALLOWED_FILES,
    ignored: Sequence[str] = IGNORED_FILES,
) -> Path:
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        return Path(
            snapshot_download(
                name,
                revision=revision,
                allow_patterns=list(files),
                ignore_patterns=list(ignored),
                local_files_only=offline,
            )
        )
    except GatedRepoError as error:
        raise ValueError(
            f"model {name!r} is gated; accept its terms on https://huggingface.co/{name} and log "
            "in with `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise ValueError(
            f"model {name!r} is neither a directory here nor on the Hugging Face hub (or it is "
            "private); check the spelling, or log in with `hf auth login`"
        ) from error
    except RevisionNotFoundError as error:
        raise ValueError(f"model {name!r} has no revision {revision!r} on the hub") from error
    except LocalEntryNotFoundError as error:
        if offline:
            raise ValueError(
                f"model {name!r} was not downloaded before and offline mode is on; download it "
                "once without offline mode, or give a directory"
            ) from error
        raise _unreachable(name) from error
    except (HfHubHTTPError, httpx.HTTPError, ConnectionError) as error:
        raise _unreachable(name) from error
    except OSError as error:
        raise ValueError(
            f"model {name!r} could not be stored ({error}); check the disk and the directory that "
            "HF_HOME names"
        ) from error


def _unreachable(name: str) -> ValueError:
    return ValueError(
        f"model {name!r} is not a directory here, and the Hugging Face hub cannot be reached; check "
        "the network, or give the directory of a downloaded model"
    )
