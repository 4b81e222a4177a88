"""A model's chat template: messages and tools in, prompt token ids out.

Promises: control tokens of the ids are the template's own, whatever the messages, tools and results
spell: content is encoded as text, apart from the template. Ids otherwise equal what transformers'
`apply_chat_template` gives. Rendering is sandboxed and bounded.
Does not know: HTTP, which fields a request may have, dialects.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from eyas.core import RequestError
from eyas.text.files import read_json_object_if_there
from eyas.text.guard import Guard, TokenPatterns, map_strings
from eyas.text.messages import normal_message, with_end
from eyas.text.renderers import MAX_TEMPLATE_CHARS, BoundedTemplate
from eyas.text.tokenizer import ControlToken, Tokenizer
from eyas.text.trie import any_of

_NO_TEMPLATE = (
    "messages: this model has no chat template; use /v1/completions (LLM.generate), or put a "
    "chat_template.jinja into its directory"
)
_FURTHER = "additional_chat_templates"
_MAX_FURTHER = 64


class ChatTemplate:
    """The chat template of one model; safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer, source: str, tool_source: str | None = None) -> None:
        """source: jinja. tool_source: another template, for requests with tools."""
        self._tokenizer = tokenizer
        self.source = source
        self._plain = BoundedTemplate(source)
        self._with_tools = BoundedTemplate(tool_source) if tool_source else self._plain
        self._words = frozenset(re.findall(r"\w+", f"{source} {tool_source or ''}"))
        self._patterns = TokenPatterns(token.text for token in tokenizer.control_tokens)
        self._splitter = _Splitter(tokenizer.control_tokens)

    @classmethod
    def from_directory(
        cls, path: str | Path, tokenizer: Tokenizer | None = None, given: str | None = None
    ) -> ChatTemplate | None:
        """The template of a model directory, as `template_sources` has it; None if the model has none,
        or no tokenizer. ValueError for one that cannot be compiled.

        given: the text of another template, for all requests.
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
        """Whether the template reads a variable of this name (a cheap test of its source)."""
        return name in self._words

    def normal(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[dict[str, Any]]:
        """The messages as the template reads them; `render` does this too, and twice is once."""
        uses = self._chosen(tools).uses
        return [normal_message(message, uses, place) for place, message in enumerate(messages)]

    def render_ids(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> list[int]:
        """Prompt ids of a conversation, all of it: `render`, and then `ids_of`."""
        return self.ids_of(self.render(messages, tools, **options))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> list[str | ControlToken]:
        """A conversation as text and control tokens in turn. RequestError if the template cannot or
        will not render it.

        messages: role, content (a string, None, or OpenAI's list of text parts), and whatever else
        the template reads. continue_final_message: end where the last message's content ends.
        kwargs: more variables for the template.
        """
        chat, end = self.normal(messages, tools), ""
        if continue_final_message:
            end = str(10**20 + secrets.randbelow(9 * 10**20))
            chat[-1] = with_end(chat[-1], end, self._chosen(tools).uses)
        given = {"messages": chat, "tools": list(tools) if tools else None, **kwargs}
        fixed = {**self._tokenizer.special_texts, "add_generation_prompt": add_generation_prompt}
        guard = Guard(self._patterns, _strings_of(given))
        text = self._render(map_strings(given, guard.break_up), fixed, end)
        pieces = list(self._splitter.split(text))
        audited = map_strings(given, guard.audit_view)
        if guard.num_changes:
            # The content holds something that might read as part of a marker: render once more with
            # such characters hidden. If the markers differ, the safe rendering is the prompt.
            audit = list(self._splitter.split(self._render(audited, fixed, end)))
            if _controls_of(audit) != _controls_of(pieces):
                pieces = audit
        return [guard.restore(piece) if isinstance(piece, str) else piece for piece in pieces]

    def ids_of(self, pieces: Sequence[str | ControlToken]) -> list[int]:
        """Token ids of what `render` gave."""
        ids: list[int] = []
        for piece in pieces:
            if isinstance(piece, ControlToken):
                ids.append(piece.id)
            else:
                ids += self._tokenizer.encode_text(piece, continues=bool(ids))
        return ids

    def _render(self, given: dict[str, Any], fixed: dict[str, Any], end: str) -> str:
        text = self._chosen(given["tools"]).render({"documents": None, **fixed, **given})
        if end and end not in text:
            raise RequestError(
                "continue_final_message: this model's chat template does not show the last message",
                param="continue_final_message",
            )
        return text[: text.rindex(end)] if end else text

    def _chosen(self, tools: Sequence[Mapping[str, Any]] | None) -> BoundedTemplate:
        return self._with_tools if tools else self._plain


def template_text(given: str) -> str:
    """The text of a template that is given as a file, or as itself if it has a brace or a line's end.
    ValueError for what is neither, or cannot be read; whether it can be compiled is seen later."""
    if "{" in given or "\n" in given:
        text = given
    else:
        try:
            text = _head_of(Path(given).expanduser())
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
    """The templates of a model directory by name: "default", and "tool_use" for requests with tools.

    Files come first (chat_template.jinja, and additional_chat_templates for the other names), then
    `chat_template` of tokenizer_config.json, which may be a list of named ones.
    """
    found = read_json_object_if_there(directory / "tokenizer_config.json").get("chat_template")
    entries = found if isinstance(found, list) else [{"name": "default", "template": found}]
    sources: dict[str, str] = {
        str(entry.get("name")): entry["template"]
        for entry in entries
        if isinstance(entry, dict) and isinstance(entry.get("template"), str)
    }
    further = sorted((directory / _FURTHER).glob("*.jinja"))[:_MAX_FURTHER]
    files = {file.stem: file for file in further}
    if (file := directory / "chat_template.jinja").is_file():
        files["default"] = file
    return {**sources, **{name: _head_of(file) for name, file in files.items()}}


def _head_of(file: Path) -> str:
    """No more of a text file than shows that it is too long."""
    with file.open(encoding="utf-8") as text:
        return text.read(MAX_TEMPLATE_CHARS + 1)


def require_template(template: ChatTemplate | None) -> ChatTemplate:
    """The template, or a RequestError that says what to do without one."""
    if template is None:
        raise RequestError(_NO_TEMPLATE, param="messages")
    return template


class _Splitter:
    """Cuts rendered text at control tokens, as a tokenizer does: the longest of those that fit."""

    def __init__(self, tokens: Sequence[ControlToken]) -> None:
        self._token_of = {token.text: token for token in tokens}
        self._pattern = re.compile(any_of(self._token_of))

    def split(self, text: str) -> Iterator[str | ControlToken]:
        """Text and control tokens in turn; white space that a token owns is left out."""
        begin, strips = 0, False
        for match in self._pattern.finditer(text):
            token = self._token_of[match[0]]
            if token.single_word and _touches_a_word(text, *match.span()):
                continue
            piece = text[begin : match.start()]
            piece = piece.lstrip() if strips else piece
            piece = piece.rstrip() if token.strips_left else piece
            if piece:
                yield piece
            yield token
            begin, strips = match.end(), token.strips_right
        piece = text[begin:].lstrip() if strips else text[begin:]
        if piece:
            yield piece


def _touches_a_word(text: str, first: int, last: int) -> bool:
    beside = text[first - 1 : first] + text[last : last + 1]
    return any(character.isalnum() or character == "_" for character in beside)


def _controls_of(pieces: list[str | ControlToken]) -> list[int]:
    return [piece.id for piece in pieces if isinstance(piece, ControlToken)]


def _strings_of(value: Any) -> list[str]:
    found: list[str] = []

    def note(text: str) -> str:
        found.append(text)
        return text

    map_strings(value, note)
    return found
