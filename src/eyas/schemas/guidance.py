"""The options under `x-guidance` at the root of a schema, which llguidance's clients send.

Promises: each option takes effect, is accepted because the behaviour it permits is never needed, or is
refused by name. Only `lenient` relaxes the schema; the output is always JSON.
Does not know: any keyword of JSON Schema.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from eyas.grammar import Json
from eyas.schemas.limits import fail, read, shortened
from eyas.schemas.prepare import prepare
from eyas.white_space import WHITE_SPACE, read_separator, read_white_space

KEY = "x-guidance"
_PLACE = f"#/{KEY}"
_SIGNS = {"item_separator": ",", "key_separator": ":"}
_ESCAPES = 'nrbtf\\"u'
"""llguidance's default, the only accepted value: escapes are the same for all schemas."""


def json_node(schema: dict[str, Any] | bool | str, *, param: str, lenient: bool = False) -> Json:
    """Return the node of a user's schema (or its JSON text), prepared, with the options at its root.

    param, lenient and errors are those of `prepare`; the option `lenient` of the schema counts too.
    """
    if isinstance(schema, str) and KEY in schema:
        schema = read(schema, param)
    if not isinstance(schema, dict) or KEY not in schema:
        return Json(prepare(schema, param=param, lenient=lenient), lenient=lenient)
    options = _Options(schema[KEY], param)
    spacing = options.spacing()
    lenient = options.is_lenient() or lenient
    options.check_rest()
    rest = {name: value for name, value in schema.items() if name != KEY}
    return Json(prepare(rest, param=param, lenient=lenient), lenient=lenient, **spacing)


class _Options:
    """The options, and those not read yet. An option with the value null counts as absent."""

    def __init__(self, value: Any, param: str) -> None:
        if not isinstance(value, dict):
            raise fail(param, _PLACE, f"must be an object, not {shortened(value)}", "invalid")
        self._param = param
        self._left = {name: option for name, option in value.items() if option is not None}

    def spacing(self) -> dict[str, Any]:
        """Return the keyword arguments of `Json` for white space and separators."""
        separators = tuple(
            self._read(name, lambda text, sign=sign: read_separator(text, sign), sign)
            for name, sign in _SIGNS.items()
        )
        pattern = self._read("whitespace_pattern", _optional, None)
        is_free = self._flag("whitespace_flexible")
        is_plain = separators == tuple(_SIGNS.values())
        if pattern is None and is_free is None and is_plain:
            return {}
        white_space = WHITE_SPACE if pattern is None else pattern
        if pattern is None and is_free is False:
            white_space = ""
        return {"separators": None if is_plain else separators, "white_space": white_space}

    def is_lenient(self) -> bool:
        return self._flag("lenient") is True

    def check_rest(self) -> None:
        """Refuse options that are not read yet. coerce_one_of permits treating oneOf as anyOf, which is
        never done: oneOf is enforced or refused."""
        self._flag("coerce_one_of")
        if self._flag("json_allow_general_unicode_escapes"):
            raise self._refusal(
                "json_allow_general_unicode_escapes",
                "is not supported: characters stand for themselves; leave it out",
            )
        if self._left.get("json_allowed_escapes") == _ESCAPES:
            del self._left["json_allowed_escapes"]
        for name in sorted(map(str, self._left)):
            raise self._refusal(name, "is not supported; leave it out")

    def _flag(self, name: str) -> bool | None:
        value = self._left.pop(name, None)
        if value is not None and not isinstance(value, bool):
            raise self._fail(name, f"must be true or false, not {shortened(value)}", "invalid")
        return value

    def _read(self, name: str, read: Callable[[str], str], default: Any) -> Any:
        value = self._left.pop(name, None)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self._fail(name, f"must be a string, not {shortened(value)}", "invalid")
        try:
            return read(value)
        except ValueError as error:
            raise self._fail(name, str(error), "invalid") from None

    def _refusal(self, name: str, message: str) -> Exception:
        return self._fail(name, message, "unsupported")

    def _fail(self, name: str, message: str, fault: Any) -> Exception:
        return fail(self._param, f"{_PLACE}/{name[:64]}", message, fault)


def _optional(pattern: str) -> str:
    """Return the pattern made optional, as llguidance defines the option."""
    white_space = read_white_space(pattern)
    if white_space.is_optional:
        return white_space.pattern
    return f"(?:{white_space.pattern}){{0,1}}"
