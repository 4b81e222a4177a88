"""Where a model's files are: "builtin", a directory, or a Hugging Face hub name to download.

Promises: only configuration, tokenizer, template and safetensors files are fetched, and for a draft
head that has no safetensors its pytorch_model.bin; each way it can fail is a ValueError with the
remedy. Does not know: what is in the files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
HUB_FILE = re.compile(r"(\w[\w.-]*/\w[\w.-]*)/((?:\w[\w.-]*/)*\w[\w.-]*)")
ALLOWED_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt"]
TEMPLATES_FOLDER = "additional_chat_templates"
HEAD_FILES = [*ALLOWED_FILES, "pytorch_model*.bin"]


def every_folder_but(name: str) -> list[str]:
    """Patterns, as the hub takes them, of what lies in any folder but this one at the top."""
    patterns = [f"?*{name}/*", f"{name}/*/*"]
    for place, letter in enumerate(name):
        tail = name[place + 1 :]
        patterns += [f"*[!{letter}]{tail}/*", f"{tail}/*"]
    return patterns


IGNORED_FILES = [*every_folder_but(TEMPLATES_FOLDER), "consolidated*", "adapter_*"]
"""The same weights once more, in another form or for other libraries."""


def locate_model(path_or_name: str, revision: str | None = None, offline: bool = False) -> Path:
    """The directory that holds the model, downloaded first if it is a hub name.

    revision: branch, tag or commit on the hub. offline: use what was downloaded before.
    """
    if path_or_name == "builtin":
        from eyas import builtin

        return Path(builtin.path())
    directory = Path(path_or_name).expanduser()
    if path_or_name and directory.is_dir():
        return directory
    if directory.is_file():
        raise ValueError(f"{path_or_name} is a file; give the directory that holds it")
    if not HUB_NAME.fullmatch(path_or_name):
        raise ValueError(
            f"model {path_or_name!r} is no directory and no hub name; give 'builtin', an existing "
            "directory, or a Hugging Face name such as Qwen/Qwen3-0.6B"
        )
    return _download(path_or_name, revision, offline)


def locate_head(path_or_name: str, revision: str | None = None, offline: bool = False) -> Path:
    """As `locate_model`, for what may be a draft head: many of those are stored as
    pytorch_model.bin alone."""
    directory = locate_model(path_or_name, revision, offline)
    if Path(path_or_name).expanduser().is_dir() or any(directory.glob("*.safetensors")):
        return directory
    return _download(path_or_name, revision, offline, HEAD_FILES)


def locate_file(path_or_name: str, offline: bool = False) -> Path:
    """A file, or one of a repository on the hub as `owner/repository/file`, which is downloaded first.
    What is neither stays as it is, for whoever reads it to say so."""
    file = Path(path_or_name).expanduser()
    named = HUB_FILE.fullmatch(path_or_name)
    if file.exists() or named is None or file.parent.is_dir():
        return file
    repository, rest = named.groups()
    found = _download(repository, None, offline, [rest], ()) / rest
    if not found.is_file():
        raise ValueError(f"{repository!r} has no file {rest!r} on the hub; check the spelling")
    return found


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
        f"model {name!r} is no directory here, and the Hugging Face hub cannot be reached; check "
        "the network, or give the directory of a downloaded model"
    )
