"""Read a YAML file of options; its keys are option names without the leading dashes.

Promises: only plain data of limited size is read; an error names the file and the line.
Does not know: which options exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONFIG = "--config"
MAX_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class OptionsFile:
    """The content of a file of options. options: values by name, as written in the file."""

    path: str
    options: dict[str, Any]

    @classmethod
    def read(cls, path: str) -> OptionsFile:
        """Read the file. ValueError: it cannot be read, or is not a mapping of names in YAML."""
        return cls(path, _parse(path, _read_text(path)))


def _read_text(path: str) -> str:
    try:
        with Path(path).expanduser().open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{CONFIG}: cannot read {path} ({error.strerror})") from error
    if len(data) > MAX_BYTES:
        raise ValueError(
            f"{CONFIG}: {path} has more than {MAX_BYTES} bytes; is it a file of options?"
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{CONFIG}: {path} is not UTF-8 text; save it as such") from error


def _parse(path: str, text: str) -> dict[str, Any]:
    import yaml

    class Loader(yaml.SafeLoader):
        """Refuses references, with which a small file can expand to a large one, and repeated keys."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                mark = self.peek_event().start_mark
                raise yaml.MarkedYAMLError(
                    problem="references (*) are not supported", problem_mark=mark
                )
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen: set[Any] = set()
            for key_node, _ in node.value:
                key = key_node.value
                if not isinstance(key, str) or key in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"the key {key!r} is repeated, or is not a name",
                        problem_mark=key_node.start_mark,
                    )
                seen.add(key)
            return super().construct_mapping(node, deep)

    try:
        loader = Loader(text)
        try:
            value = loader.get_single_data()
        finally:
            loader.dispose()
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        problem = " ".join(str(error).split()) or "it is nested too deeply"
        raise ValueError(f"{CONFIG}: {path} is not valid YAML ({problem})") from error
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ValueError(
            f"{CONFIG}: {path} must have names of options as keys, such as 'port: 8000'"
        )
    return value
