"""Structural tags: formats of tags and free text that SGLang, vLLM and xgrammar share.

Promises: both forms, the older one with structures and triggers and the newer one with a tree of
formats, become nodes of `eyas.grammar`. A format or option that nodes cannot express is refused by
name.
Does not know: which field holds the tag, dialects, backends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from eyas.core import GrammarError, GrammarFault
from eyas.grammar import Choice, Concat, FreeText, Marker, Node, Regex, Repeat
from eyas.schemas import grammar_source
from eyas.server.constraints.free_text import (
    ControlTokenSplitter,
    FreeTextBuilder,
    choice_of,
    concat,
    has_open_end,
)
from eyas.server.constraints.json_schema import schema_node
from eyas.server.http.json_text import json_object

MAX_DEPTH = 32
MAX_FORMATS = 4096
MAX_REPEATS = 100_000


def structural_tag(value: Any, splitter: ControlTokenSplitter, param: str) -> Node:
    """Return the grammar node of a structural tag, given as an object or as JSON text.

    param: the request's field, for errors. GrammarError names the index and the problem.
    """
    if isinstance(value, str):
        value = json_object(value, param)
    is_legacy = isinstance(value, dict) and "structures" in value
    reader = _FormatReader(splitter, param, "structures" if is_legacy else "tags")
    if not isinstance(value, dict):
        raise reader.error_at(param, "must be an object, or an object's JSON text")
    if value.get("type", "structural_tag") != "structural_tag":
        raise reader.error_at(f"{param}.type", "must be 'structural_tag'")
    fields = {name: item for name, item in value.items() if name != "type"}
    if set(fields) == {"format"}:
        return reader.read(fields["format"], f"{param}.format", 0)
    if set(fields) == {"structures", "triggers"}:
        tags = [
            reader.legacy_tag(item, f"{param}.structures[{index}]")
            for index, item in enumerate(reader.list_of(fields, "structures", param))
        ]
        return reader.read(
            {"triggers": fields["triggers"], "tags": tags}, param, 0, "triggered_tags"
        )
    raise reader.error_at(
        param, "takes either format, or structures and triggers, and nothing else"
    )


class _FormatReader:
    """Converts the formats of one structural tag to nodes. tags: the field in which the user lists
    tags."""

    def __init__(self, splitter: ControlTokenSplitter, param: str, tags: str) -> None:
        self._splitter = splitter
        self._tags = tags
        self._free_text = FreeTextBuilder(splitter, param)
        self._param = param
        self._num_formats = 0

    def error_at(self, path: str, what: str, fault: GrammarFault = "invalid") -> GrammarError:
        return GrammarError(f"{path[:200]}: {what}", fault, param=self._param)

    def read(self, value: Any, path: str, depth: int, kind: str | None = None) -> Node:
        """Return the node of one format. kind: its type, if the object has no field `type`."""
        self._num_formats += 1
        if depth > MAX_DEPTH or self._num_formats > MAX_FORMATS:
            limits = f"more than {MAX_FORMATS} formats, or {MAX_DEPTH} inside each other"
            raise self.error_at(self._param, f"has {limits}; make it smaller", "too_complex")
        if not isinstance(value, dict):
            raise self.error_at(path, "must be an object")
        fields = dict(value)
        name = kind or fields.pop("type", None)
        read = _FORMATS.get(name) if isinstance(name, str) else None
        if name is None:
            raise self.error_at(f"{path}.type", f"is required; use one of {', '.join(_FORMATS)}")
        if read is None:
            raise self.error_at(
                f"{path}.type", f"{str(name)[:64]!r} is not supported", "unsupported"
            )
        node = read(self, fields, path, depth + 1)
        self._refuse_options(fields, path, name)
        return node

    def _refuse_options(self, left: dict[str, Any], path: str, kind: str) -> None:
        """Raise GrammarError if a format of this type has options that were not read."""
        if left:
            option = min(map(str, left))[:64]
            raise self.error_at(f"{path}.{option}", f"is not supported in {kind}", "unsupported")

    def legacy_tag(self, value: Any, path: str) -> dict[str, Any]:
        if not isinstance(value, dict) or set(value) != {"begin", "schema", "end"}:
            raise self.error_at(path, "must have begin, schema and end, and nothing else")
        schema = value["schema"]
        content = {"type": "json_schema", "json_schema": schema}
        return {"begin": value["begin"], "content": content, "end": value["end"]}

    def list_of(self, fields: dict[str, Any], name: str, path: str) -> list[Any]:
        items = fields.pop(name, None)
        if not isinstance(items, list) or not items:
            raise self.error_at(f"{path}.{name}", "must be a list that is not empty")
        return items

    def _text(self, fields: dict[str, Any], name: str, path: str) -> str:
        text = fields.pop(name, None)
        if not isinstance(text, str):
            raise self.error_at(f"{path}.{name}", "must be a string")
        return text

    def _texts(self, fields: dict[str, Any], name: str, path: str) -> list[str]:
        texts = self.list_of(fields, name, path)
        if not all(isinstance(text, str) and text for text in texts):
            raise self.error_at(f"{path}.{name}", "must be strings that are not empty")
        return list(dict.fromkeys(texts))

    def _flag(self, fields: dict[str, Any], name: str, path: str) -> bool:
        value = fields.pop(name, None)
        if value is not None and not isinstance(value, bool):
            raise self.error_at(f"{path}.{name}", "must be true or false")
        return bool(value)

    def _drop_ineffective(self, fields: dict[str, Any], **ineffective: Any) -> None:
        """Remove options whose values have no effect."""
        for name, value in ineffective.items():
            if name in fields and fields[name] in (value, None):
                del fields[name]

    def _const_string(self, fields: dict[str, Any], path: str, depth: int) -> Node:
        return concat(self._splitter.split(self._text(fields, "value", path)))

    def _json_schema(self, fields: dict[str, Any], path: str, depth: int) -> Node:
        self._drop_ineffective(
            fields, style="json", any_order=False, max_whitespace_cnt=None, excludes=[]
        )
        schema = fields.pop("json_schema", None)
        if schema is True:
            schema = {}
        return schema_node(schema, self._param)

    def _regex(self, fields: dict[str, Any], path: str, depth: int) -> Node:
        return Regex(self._text(fields, "pattern", path))

    def _grammar(self, fields: dict[str, Any], path: str, depth: int) -> Node:
        return grammar_source(self._text(fields, "grammar", path), self._param)

    def _excluded(self, fields: dict[str, Any], path: str) -> tuple[Marker, ...]:
        self._drop_ineffective(fields, excludes=[])
        texts = self._texts(fields, "excludes", path) if "excludes" in fields else []
        return tuple(map(self._free_text.marker, texts))

    def _any_text(self, fields: dict[str, Any], path: str, depth: int) -> Node:
        self._drop_ineffective(fields, max_tokens=None, max_chars=None)
        return FreeText(without=self._excluded(fields, path))

    def _sequence(self, fields: dict[str, Any], path: str, depth: int) -> Node:
        items = self.list_of(fields, "elements", path)
        parts: list[Node] = []
        for index, item in enumerate(items):
            at = f"{path}.elements[{index}]"
            node = self.read(item, at, depth)
            if parts and has_open_end(parts[-1]):
                # Free text ends where a constant begins. No other format can end it.
                if not isinstance(item, dict) or item.get("type") != "const_string":
                    raise self._free_text.no_end_error(at)
                parts[-1] = self._free_text.with_end(parts[-1], [item["value"]], at)
            else:
                parts.append(node)
        return concat(parts)

    def _or(self, fields: dict[str, Any], path: str, depth: int) -> Node:
        items = self.list_of(fields, "elements", path)
        options = [
            self.read(item, f"{path}.elements[{index}]", depth) for index, item in enumerate(items)
        ]
        return choice_of(options)

    def _repeat_of(
        self, fields: dict[str, Any], path: str, depth: int, minimum: int, maximum: int | None
    ) -> Node:
        part = self.read(fields.pop("content", None), f"{path}.content", depth)
        if has_open_end(part) and maximum != 1:
            raise self._free_text.no_end_error(path)
        return Repeat(part, minimum, maximum)

    def _repeat(self, fields: dict[str, Any], path: str, depth: int) -> Node:
        minimum, maximum = fields.pop("min", None), fields.pop("max", None)
        if type(minimum) is not int or type(maximum) is not int or not 0 <= minimum <= MAX_REPEATS:
            raise self.error_at(path, f"min and max must be whole numbers from 0 to {MAX_REPEATS}")
        if maximum != -1 and not max(1, minimum) <= maximum <= MAX_REPEATS:
            raise self.error_at(f"{path}.max", f"must be -1, or from max(1, min) to {MAX_REPEATS}")
        return self._repeat_of(fields, path, depth, minimum, None if maximum == -1 else maximum)

    def _tag(self, fields: dict[str, Any], path: str, depth: int) -> Node:
        return self._tag_after(fields, path, depth, "")

    def _tag_after(self, fields: dict[str, Any], path: str, depth: int, trigger: str) -> Node:
        """Return the node of a tag without the leading `trigger` of its begin."""
        begin = self._text(fields, "begin", path)[len(trigger) :]
        content = self.read(fields.pop("content", None), f"{path}.content", depth)
        if isinstance(fields.get("end"), str):
            ends = [fields.pop("end")]
        else:
            ends = self._texts(fields, "end", path)
        if ends != [""]:
            content = self._free_text.ended(content, ends, path)
        return concat([*self._splitter.split(begin), content])

    def _triggered_tags(self, fields: dict[str, Any], path: str, depth: int) -> Node:
        triggers = self._texts(fields, "triggers", path)
        at_least_one = self._flag(fields, "at_least_one", path)
        stop_after_first = self._flag(fields, "stop_after_first", path)
        without = self._excluded(fields, path)
        tags_of: dict[str, list[Node]] = {trigger: [] for trigger in triggers}
        for at, tag in self._tags_in(fields, path):
            begin = self._text(dict(tag), "begin", at)
            matching = [trigger for trigger in triggers if begin.startswith(trigger)]
            if len(matching) != 1:
                raise self.error_at(f"{at}.begin", "must start with exactly one of the triggers")
            node = self._tag_after(tag, at, depth + 1, matching[0])
            self._refuse_options(tag, at, "tag")
            if has_open_end(node):
                raise self._free_text.no_end_error(at)
            tags_of[matching[0]].append(node)
        options_of = {trigger: choice_of(tags) for trigger, tags in tags_of.items() if tags}
        dispatch = self._free_text.up_to(options_of, without, path)
        boundaries = {self._free_text.boundary(trigger, path)[0]: None for trigger in triggers}
        tail = FreeText(without=(*boundaries, *without))
        if stop_after_first:
            return dispatch if at_least_one else Choice((dispatch, tail))
        return Concat((Repeat(dispatch, int(at_least_one)), tail))

    def _tags_with_separator(self, fields: dict[str, Any], path: str, depth: int) -> Node:
        at_least_one = self._flag(fields, "at_least_one", path)
        stop_after_first = self._flag(fields, "stop_after_first", path)
        separator = self._splitter.split(self._text(fields, "separator", path))
        tags = self._tags_in(fields, path)
        tag_choice = choice_of([self.read(tag, at, depth, "tag") for at, tag in tags])
        if has_open_end(tag_choice):
            raise self._free_text.no_end_error(path)
        if not stop_after_first:
            tag_choice = Concat((tag_choice, Repeat(concat([*separator, tag_choice]))))
        return tag_choice if at_least_one else Repeat(tag_choice, 0, 1)

    def _tags_in(self, fields: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the path and the fields of each of the tags that a format lists."""
        for index, tag in enumerate(self.list_of(fields, "tags", path)):
            at = f"{path}.{self._tags}[{index}]"
            if not isinstance(tag, dict) or tag.get("type", "tag") != "tag":
                raise self.error_at(at, "must be a tag: an object with begin, content and end")
            yield at, {name: item for name, item in tag.items() if name != "type"}


_FORMATS: dict[str, Callable[[_FormatReader, dict[str, Any], str, int], Node]] = {
    "const_string": _FormatReader._const_string,
    "json_schema": _FormatReader._json_schema,
    "regex": _FormatReader._regex,
    "grammar": _FormatReader._grammar,
    "any_text": _FormatReader._any_text,
    "sequence": _FormatReader._sequence,
    "or": _FormatReader._or,
    "optional": partial(_FormatReader._repeat_of, minimum=0, maximum=1),
    "plus": partial(_FormatReader._repeat_of, minimum=1, maximum=None),
    "star": partial(_FormatReader._repeat_of, minimum=0, maximum=None),
    "repeat": _FormatReader._repeat,
    "tag": _FormatReader._tag,
    "triggered_tags": _FormatReader._triggered_tags,
    "tags_with_separator": _FormatReader._tags_with_separator,
}
