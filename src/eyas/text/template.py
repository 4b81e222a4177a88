"""A model's chat template: converts messages and tools to prompt token ids.

Promises: every control token of the prompt comes from the template, whatever messages, tools and
results contain, because content is encoded as text, separately from the template. In all other cases
the ids equal those of transformers' `apply_chat_template`. Rendering is sandboxed and bounded.
Does not know: HTTP, which fields a request may have, dialects.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from eyas.core import RequestError, field_error
from eyas.text.encodings import packaged_template
from eyas.text.files import read_json_object_if_there
from eyas.text.guard import ContentGuard, ControlTokenPatterns, map_strings
from eyas.text.messages import append_to_content, normalize_messages
from eyas.text.renderers import MAX_TEMPLATE_CHARS, BoundedTemplate
from eyas.text.tokenizer import ControlToken, Tokenizer
from eyas.text.trie import any_of

_NO_TEMPLATE = (
    "messages: this model has no chat template; use /v1/completions (LLM.generate), or give one with "
    "--chat-template (LLM(chat_template=...)) or as chat_template.jinja in the model's directory"
)
_WORD = re.compile(r"[\w-]+")
_NAMED_TEMPLATES_FOLDER = "additional_chat_templates"
_MAX_NAMED_TEMPLATES = 64


class ChatTemplate:
    """The chat template of one model. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer, source: str, tool_source: str | None = None) -> None:
        """source: the Jinja template. tool_source: the template for requests with tools, if it
        differs."""
        self._tokenizer = tokenizer
        self.source = source if tool_source is None else f"{source}\n{tool_source}"
        """The text of both."""
        self._plain = BoundedTemplate(source)
        self._with_tools = BoundedTemplate(tool_source) if tool_source else self._plain
        self._names = frozenset(re.findall(r"\w+", self.source))
        self._patterns = ControlTokenPatterns(token.text for token in tokenizer.control_tokens)
        self._splitter = _Splitter(tokenizer.control_tokens)

    @classmethod
    def from_directory(
        cls, path: str | Path, tokenizer: Tokenizer | None = None, given: str | None = None
    ) -> ChatTemplate | None:
        """Load the template of a model directory; None if the model has no template or no tokenizer.

        given: the text of a template to use instead, for all requests. ValueError if the template
        cannot be compiled.
        """
        directory = Path(path)
        sources = template_sources(directory)
        source = sources.get("default") or next(iter(sources.values()), None)
        tokenizer = tokenizer or Tokenizer.from_directory_if_there(directory)
        if given is not None and tokenizer is not None:
            try:
                return cls(tokenizer, given)
            except ValueError as error:
                raise ValueError(f"chat_template: {error}") from error
        if source is None or tokenizer is None:
            return None
        try:
            return cls(tokenizer, source, sources.get("tool_use"))
        except ValueError as error:
            raise ValueError(f"{directory}: {error}") from error

    def mentions(self, name: str) -> bool:
        """Whether the source of the template contains this name, so that it may read such a
        variable."""
        return name in self._names

    def normalize(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[dict[str, Any]]:
        """Return the messages in the form that the template reads. Idempotent; `render` does it as
        well."""
        uses = self._template_for(tools).uses
        return normalize_messages(messages, uses)

    def render_ids(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> list[int]:
        """Return the prompt token ids of a conversation: `ids_of` of what `render` returns."""
        return self.ids_of(self.render(messages, tools, **options))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> list[str | ControlToken]:
        """Render a conversation to a list of texts and control tokens.

        messages: dicts with role, content (a string, None, or OpenAI's list of text parts) and other
        fields that the template reads. add_generation_prompt: None is True. continue_final_message: end
        the prompt where the content of the last message ends. kwargs: further variables of the
        template. RequestError if the template refuses or fails, or if both ends are asked for.
        """
        if continue_final_message and add_generation_prompt:
            raise field_error(
                "continue_final_message", "cannot go with add_generation_prompt: true"
            )
        chat, end = self.normalize(messages, tools), ""
        if continue_final_message:
            end = str(10**20 + secrets.randbelow(9 * 10**20))
            chat[-1] = append_to_content(chat[-1], end, self._template_for(tools).uses)
        given = {"messages": chat, "tools": list(tools) if tools else None, **kwargs}
        opens = add_generation_prompt is None or add_generation_prompt
        fixed = {**self._tokenizer.special_texts, "add_generation_prompt": opens}
        guard = ContentGuard(self._patterns, _all_strings(given))
        text = self._render(self._guarded(given, guard.break_up), fixed, end)
        pieces = list(self._splitter.split(text))
        audited = self._guarded(given, guard.audit_view)
        if guard.num_changes:
            # The content contains characters that could be part of a control token. Render again with
            # these characters hidden; if the control tokens differ, use this second rendering.
            audit = list(self._splitter.split(self._render(audited, fixed, end)))
            if _control_ids(audit) != _control_ids(pieces):
                pieces = audit
        return [guard.restore(piece) if isinstance(piece, str) else piece for piece in pieces]

    def ids_of(self, pieces: Sequence[str | ControlToken]) -> list[int]:
        """Return the token ids of what `render` returned."""
        ids: list[int] = []
        for piece in pieces:
            if isinstance(piece, ControlToken):
                ids.append(piece.id)
            else:
                ids += self._tokenizer.encode_text(piece, continues=bool(ids))
        return ids

    def _guarded(self, given: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
        """Return the template's variables with `change` applied to the strings in them, except for
        options that have one of the template's own words, which it compares with them."""
        return {
            name: value if self._is_own_word(value) else map_strings(value, change, name)
            for name, value in given.items()
        }

    def _is_own_word(self, value: Any) -> bool:
        if not isinstance(value, str) or self._patterns.contains_token(value):
            return False
        return bool(_WORD.fullmatch(value)) and any(
            f"{quote}{value}{quote}" in self.source for quote in "'\""
        )

    def _render(self, given: dict[str, Any], fixed: dict[str, Any], end: str) -> str:
        text = self._template_for(given["tools"]).render({"documents": None, **fixed, **given})
        if end and end not in text:
            raise field_error(
                "continue_final_message",
                "this model's chat template does not show the last message",
            )
        return text[: text.rindex(end)] if end else text

    def _template_for(self, tools: Sequence[Mapping[str, Any]] | None) -> BoundedTemplate:
        return self._with_tools if tools else self._plain


def template_text(given: str) -> str:
    """Return the text of a template that is given as a file name or as its text.

    `given` is the text if it contains "{" or a line break. ValueError if the file cannot be read, or
    the text is empty or too long. Does not compile the template.
    """
    if "{" in given or "\n" in given:
        text = given
    else:
        try:
            text = _read_template_file(Path(given).expanduser())
        except OSError as error:
            raise ValueError(
                f"chat_template: cannot read {given} ({error.strerror}); give a Jinja file, or the "
                "text of a template (templates have no names here)"
            ) from error
        except UnicodeDecodeError as error:
            raise ValueError(
                f"chat_template: {given} is not UTF-8 text; save it as such"
            ) from error
    if not text.strip():
        raise ValueError("chat_template: is empty; leave it out to use the model's own")
    if len(text) > MAX_TEMPLATE_CHARS:
        raise ValueError(f"chat_template: has more than {MAX_TEMPLATE_CHARS} characters")
    return text


def template_sources(directory: Path) -> dict[str, str]:
    """Return the templates of a model directory by name: "default", and "tool_use" for requests with
    tools.

    Files (chat_template.jinja, and additional_chat_templates/NAME.jinja) take precedence over
    `chat_template` in tokenizer_config.json, and that over the one in chat_template.json, which models
    of images have; either may be a text or hold named templates. A directory without any may have a
    format that is known here (`encodings.packaged_template`).
    """
    sources: dict[str, str] = {}
    for name in ("chat_template.json", "tokenizer_config.json"):
        sources |= _configured(read_json_object_if_there(directory / name).get("chat_template"))
    named_files = sorted((directory / _NAMED_TEMPLATES_FOLDER).glob("*.jinja"))[
        :_MAX_NAMED_TEMPLATES
    ]
    files = {file.stem: file for file in named_files}
    if (file := directory / "chat_template.jinja").is_file():
        files["default"] = file
    sources |= {name: _read_template_file(file) for name, file in files.items()}
    if not sources and (packaged := packaged_template(directory)) is not None:
        sources["default"] = packaged
    return sources


def _configured(value: Any) -> dict[str, str]:
    """Return the templates in the field `chat_template` by name: of a text, of an object, or of a list
    of names and templates."""
    if isinstance(value, list):
        entries = [entry for entry in value if isinstance(entry, dict)]
        value = {str(entry.get("name")): entry.get("template") for entry in entries}
    named = value if isinstance(value, dict) else {"default": value}
    return {str(name): text for name, text in named.items() if isinstance(text, str)}


def _read_template_file(file: Path) -> str:
    """Read a text file, but at most one character more than a template may have."""
    with file.open(encoding="utf-8") as text:
        return text.read(MAX_TEMPLATE_CHARS + 1)


def require_template(template: ChatTemplate | None) -> ChatTemplate:
    """Return the template. RequestError with the remedy if it is None."""
    if template is None:
        raise RequestError(_NO_TEMPLATE, param="messages")
    return template


class _Splitter:
    """Splits rendered text at control tokens. Of several that match it takes the longest."""

    def __init__(self, tokens: Sequence[ControlToken]) -> None:
        self._token_of = {token.text: token for token in tokens}
        self._pattern = re.compile(any_of(self._token_of))

    def split(self, text: str) -> Iterator[str | ControlToken]:
        """Yield texts and control tokens in order, without white space that a token strips beside
        it."""
        begin, strip_next = 0, False
        for match in self._pattern.finditer(text):
            token = self._token_of[match[0]]
            if token.single_word and _is_inside_word(text, *match.span()):
                continue
            piece = text[begin : match.start()]
            piece = piece.lstrip() if strip_next else piece
            piece = piece.rstrip() if token.strips_left else piece
            if piece:
                yield piece
            yield token
            begin, strip_next = match.end(), token.strips_right
        piece = text[begin:].lstrip() if strip_next else text[begin:]
        if piece:
            yield piece


def _is_inside_word(text: str, first: int, last: int) -> bool:
    """Whether a letter, digit or underscore is directly before `first` or at `last`."""
    adjacent = text[first - 1 : first] + text[last : last + 1]
    return any(character.isalnum() or character == "_" for character in adjacent)


def _control_ids(pieces: list[str | ControlToken]) -> list[int]:
    return [piece.id for piece in pieces if isinstance(piece, ControlToken)]


def _all_strings(variables: Mapping[str, Any]) -> list[str]:
    strings: list[str] = []

    def collect(text: str) -> str:
        strings.append(text)
        return text

    for name, value in variables.items():
        map_strings(value, collect, name)
    return strings
