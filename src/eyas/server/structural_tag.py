"""Structural tags: formats of tags and free text that SGLang, vLLM and xgrammar share.

Promises: both written forms, the one with structures and triggers and the one with a tree of formats,
become nodes of `eyas.grammar`; a format or an option that they cannot say is refused by its name.
Does not know: which field held it, dialects, backends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from eyas.core import GrammarError, GrammarFault
from eyas.grammar import Choice, Concat, FreeText, Node, Regex, Repeat
from eyas.schemas import grammar_source
from eyas.server.free_text import FreeTexts, Spelling, ends_open, joined, one_of
from eyas.server.json_text import json_object
from eyas.server.sources import schema_node

MAX_DEPTH = 32
MAX_FORMATS = 4096
MAX_REPEATS = 100_000


def structural_tag(value: Any, spelling: Spelling, param: str) -> Node:
    """The node of a structural tag, given as an object or as JSON text. GrammarError says what is wrong
    with it."""
    if isinstance(value, str):
        value = json_object(value, param)
    is_older = isinstance(value, dict) and "structures" in value
    reader = _Reader(spelling, param, "structures" if is_older else "tags")
    if not isinstance(value, dict):
        raise reader.refusal(param, "must be an object, or an object's JSON text")
    if value.get("type", "structural_tag") != "structural_tag":
        raise reader.refusal(f"{param}.type", "must be 'structural_tag'")
    fields = {name: item for name, item in value.items() if name != "type"}
    if set(fields) == {"format"}:
        return reader.read(fields["format"], f"{param}.format", 0)
    if set(fields) == {"structures", "triggers"}:
        tags = [
            reader.legacy_tag(item, f"{param}.structures[{place}]")
            for place, item in enumerate(reader.list_of(fields, "structures", param))
        ]
        return reader.read(
            {"triggers": fields["triggers"], "tags": tags}, param, 0, "triggered_tags"
        )
    raise reader.refusal(param, "takes either format, or structures and triggers, and nothing else")


class _Reader:
    """tags: what the user calls them."""

    def __init__(self, spelling: Spelling, param: str, tags: str) -> None:
        self._spelling = spelling
        self._tags = tags
        self._free = FreeTexts(spelling, param)
        self._param = param
        self._num_formats = 0

    def refusal(self, path: str, what: str, fault: GrammarFault = "invalid") -> GrammarError:
        return GrammarError(f"{path[:200]}: {what}", fault, param=self._param)

    def read(self, value: Any, path: str, depth: int, kind: str | None = None) -> Node:
        """One format. kind: its type, where the object does not say it."""
        self._num_formats += 1
        if depth > MAX_DEPTH or self._num_formats > MAX_FORMATS:
            limits = f"more than {MAX_FORMATS} formats, or {MAX_DEPTH} inside each other"
            raise self.refusal(self._param, f"has {limits}; make it smaller", "too_complex")
        if not isinstance(value, dict):
            raise self.refusal(path, "must be an object")
        fields = dict(value)
        name = kind or fields.pop("type", None)
        read = _FORMATS.get(name) if isinstance(name, str) else None
        if read is None:
            raise self.refusal(
                f"{path}.type", f"{str(name)[:64]!r} is not supported", "unsupported"
            )
        node = read(self, fields, path, depth + 1)
        if fields:
            option = sorted(map(str, fields))[0][:64]
            raise self.refusal(f"{path}.{option}", f"is not supported in {name}", "unsupported")
        return node

    def legacy_tag(self, value: Any, path: str) -> dict[str, Any]:
        if not isinstance(value, dict) or set(value) != {"begin", "schema", "end"}:
            raise self.refusal(path, "must have begin, schema and end, and nothing else")
        schema = value["schema"]
        content = {"type": "json_schema", "json_schema": schema}
        return {"begin": value["begin"], "content": content, "end": value["end"]}

    def list_of(self, fields: dict[str, Any], name: str, path: str) -> list[Any]:
        items = fields.pop(name, None)
        if not isinstance(items, list) or not items:
            raise self.refusal(f"{path}.{name}", "must be a list that is not empty")
        return items

    def _text(self, fields: dict[str, Any], name: str, path: str) -> str:
        text = fields.pop(name, None)
        if not isinstance(text, str):
            raise self.refusal(f"{path}.{name}", "must be a string")
        return text

    def _texts(self, fields: dict[str, Any], name: str, path: str) -> list[str]:
        texts = self.list_of(fields, name, path)
        if not all(isinstance(text, str) and text for text in texts):
            raise self.refusal(f"{path}.{name}", "must be strings that are not empty")
        return list(dict.fromkeys(texts))

    def _flag(self, fields: dict[str, Any], name: str, path: str) -> bool:
        value = fields.pop(name, None)
        if value is not None and not isinstance(value, bool):
            raise self.refusal(f"{path}.{name}", "must be true or false")
        return bool(value)

    def _leave_out(self, fields: dict[str, Any], **harmless: Any) -> None:
        """Options that say what is so anyhow."""
        for name, value in harmless.items():
            if name in fields and fields[name] in (value, None):
                del fields[name]

    def _const_string(self, fields: dict[str, Any], path: str, depth: int) -> Node:
        return joined(self._spelling.pieces(self._text(fields, "value", path)))

    def _json_schema(self, fields: dict[str, Any], path: str, depth: int) -> Node:
        self._leave_out(fields, style="json", any_order=False, max_whitespace_cnt=None, excludes=[])
        schema = fields.pop("json_schema", None)
        if schema is True:
            schema = {}
        return schema_node(schema, self._param)

    def _regex(self, fields: dict[str, Any], path: str, depth: int) -> Node:
        return Regex(self._text(fields, "pattern", path))

    def _grammar(self, fields: dict[str, Any], path: str, depth: int) -> Node:
        return grammar_source(self._text(fields, "grammar", path), self._param)

    def _any_text(self, fields: dict[str, Any], path: str, depth: int) -> Node:
        self._leave_out(fields, max_tokens=None, max_chars=None, excludes=[])
        without = self._texts(fields, "excludes", path) if "excludes" in fields else []
        return FreeText(without=tuple(self._free.marker(text) for text in without))

    def _sequence(self, fields: dict[str, Any], path: str, depth: int) -> Node:
        items = self.list_of(fields, "elements", path)
        parts: list[Node] = []
        for place, item in enumerate(items):
            at = f"{path}.elements[{place}]"
            node = self.read(item, at, depth)
            if parts and ends_open(parts[-1]):
                # Any text ends where a constant begins; nothing else tells where it ends.
                if not isinstance(item, dict) or item.get("type") != "const_string":
                    raise self._free.refusal(at)
                parts[-1] = self._free.closed(parts[-1], [item["value"]], at)
            else:
                parts.append(node)
        return joined(parts)

    def _or(self, fields: dict[str, Any], path: str, depth: int) -> Node:
        items = self.list_of(fields, "elements", path)
        options = [
            self.read(item, f"{path}.elements[{place}]", depth) for place, item in enumerate(items)
        ]
        return one_of(options)

    def _repeat_of(
        self, fields: dict[str, Any], path: str, depth: int, least: int, most: int | None
    ) -> Node:
        part = self.read(fields.pop("content", None), f"{path}.content", depth)
        if ends_open(part) and most != 1:
            raise self._free.refusal(path)
        return Repeat(part, least, most)

    def _optional(self, fields: dict[str, Any], path: str, depth: int) -> Node:
        return self._repeat_of(fields, path, depth, 0, 1)

    def _plus(self, fields: dict[str, Any], path: str, depth: int) -> Node:
        return self._repeat_of(fields, path, depth, 1, None)

    def _star(self, fields: dict[str, Any], path: str, depth: int) -> Node:
        return self._repeat_of(fields, path, depth, 0, None)

    def _repeat(self, fields: dict[str, Any], path: str, depth: int) -> Node:
        least, most = fields.pop("min", None), fields.pop("max", None)
        if type(least) is not int or type(most) is not int or not 0 <= least <= MAX_REPEATS:
            raise self.refusal(path, f"min and max must be whole numbers from 0 to {MAX_REPEATS}")
        if most != -1 and not max(1, least) <= most <= MAX_REPEATS:
            raise self.refusal(f"{path}.max", f"must be -1, or from max(1, min) to {MAX_REPEATS}")
        return self._repeat_of(fields, path, depth, least, None if most == -1 else most)

    def _tag(self, fields: dict[str, Any], path: str, depth: int) -> Node:
        return self._tag_after(fields, path, depth, "")

    def _tag_after(self, fields: dict[str, Any], path: str, depth: int, trigger: str) -> Node:
        """The rest of a tag whose begin starts with `trigger`, after that."""
        begin = self._text(fields, "begin", path)[len(trigger) :]
        content = self.read(fields.pop("content", None), f"{path}.content", depth)
        if isinstance(fields.get("end"), str):
            ends = [fields.pop("end")]
        else:
            ends = self._texts(fields, "end", path)
        if ends_open(content) and ends != [""]:
            content = self._free.closed(content, ends, path)
        else:
            content = joined(
                [content, one_of([joined(self._spelling.pieces(end)) for end in ends])]
            )
        return joined([*self._spelling.pieces(begin), content])

    def _triggered_tags(self, fields: dict[str, Any], path: str, depth: int) -> Node:
        triggers = self._texts(fields, "triggers", path)
        at_least_one = self._flag(fields, "at_least_one", path)
        stop_after_first = self._flag(fields, "stop_after_first", path)
        self._leave_out(fields, excludes=[])
        excluded = self._texts(fields, "excludes", path) if "excludes" in fields else []
        without = tuple(self._free.marker(text) for text in excluded)
        tags_of: dict[str, list[Node]] = {trigger: [] for trigger in triggers}
        for place, tag in enumerate(self.list_of(fields, "tags", path)):
            at = f"{path}.{self._tags}[{place}]"
            tag = self._tag_fields(tag, at)
            begin = self._text(dict(tag), "begin", at)
            fitting = [trigger for trigger in triggers if begin.startswith(trigger)]
            if len(fitting) != 1:
                raise self.refusal(f"{at}.begin", "must start with exactly one of the triggers")
            node = self._tag_after(tag, at, depth + 1, fitting[0])
            if tag:
                raise self.refusal(
                    f"{at}.{sorted(map(str, tag))[0][:64]}", "is not supported in tag"
                )
            if ends_open(node):
                raise self._free.refusal(at)
            tags_of[fitting[0]].append(node)
        options_of = {trigger: one_of(tags) for trigger, tags in tags_of.items() if tags}
        dispatch = self._free.until(options_of, without, path)
        leads = {self._free.lead(trigger, path)[0]: None for trigger in triggers}
        tail = FreeText(without=(*leads, *without))
        if stop_after_first:
            return dispatch if at_least_one else Choice((dispatch, tail))
        return Concat((Repeat(dispatch, int(at_least_one)), tail))

    def _tags_with_separator(self, fields: dict[str, Any], path: str, depth: int) -> Node:
        at_least_one = self._flag(fields, "at_least_one", path)
        stop_after_first = self._flag(fields, "stop_after_first", path)
        separator = self._spelling.pieces(self._text(fields, "separator", path))
        tags = []
        for place, tag in enumerate(self.list_of(fields, "tags", path)):
            at = f"{path}.{self._tags}[{place}]"
            tags.append(self.read(self._tag_fields(tag, at), at, depth, "tag"))
        one = one_of(tags)
        if ends_open(one):
            raise self._free.refusal(path)
        if not stop_after_first:
            one = Concat((one, Repeat(joined([*separator, one]))))
        return one if at_least_one else Repeat(one, 0, 1)

    def _tag_fields(self, tag: Any, path: str) -> dict[str, Any]:
        if not isinstance(tag, dict) or tag.get("type", "tag") != "tag":
            raise self.refusal(path, "must be a tag: an object with begin, content and end")
        return {name: item for name, item in tag.items() if name != "type"}


_FORMATS: dict[str, Callable[[_Reader, dict[str, Any], str, int], Node]] = {
    "const_string": _Reader._const_string,
    "json_schema": _Reader._json_schema,
    "regex": _Reader._regex,
    "grammar": _Reader._grammar,
    "any_text": _Reader._any_text,
    "sequence": _Reader._sequence,
    "or": _Reader._or,
    "optional": _Reader._optional,
    "plus": _Reader._plus,
    "star": _Reader._star,
    "repeat": _Reader._repeat,
    "tag": _Reader._tag,
    "triggered_tags": _Reader._triggered_tags,
    "tags_with_separator": _Reader._tags_with_separator,
}
