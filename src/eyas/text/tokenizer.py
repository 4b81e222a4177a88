"""The tokenizer of a model: text to ids that are never control tokens, and ids back to text.

Promises: `encode_text` and `encode_prompt` never produce a control token, whatever the text is, but for
the unknown token, which stands for characters that the vocabulary lacks. `decode` concatenates the
bytes of the tokens, so its text is exact. Control tokens are the added tokens that are special or look
like a marker (`<...>`, `[...]`) and stand for no byte.
Does not know: chat templates, requests. Reads only tokenizer.json and its JSON configuration: no
pickled vocabulary, no code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import tokenizers

from eyas.core import RequestError
from eyas.text.files import read_json_object, read_json_object_if_there
from eyas.text.token_bytes import TokenByteDecoder, flatten_components

_USUAL_CHARS = 8
"""Characters per token that few texts exceed on average."""
_SLICE_CHARS = 16_384
_FILE = "tokenizer.json"
_OTHER_FILES = ("tokenizer.model", "tekken.json", "tiktoken.model", "vocab.json")
"""Vocabularies in formats that are not read."""
NO_TOKENIZER = (
    "this model has no tokenizer; give token ids for prompts, or put its tokenizer.json into its "
    "directory (save_pretrained of transformers' AutoTokenizer writes it)"
)
_LOOKS_LIKE_MARKER = re.compile(r"<.+>|\[.+\]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ControlToken:
    """A token that only a chat template, or a caller who passes token ids, can produce.

    strips_left, strips_right: adjacent white space is removed. single_word: matches only where no
    letter or digit is adjacent. is_special: left out of decoded text.
    """

    id: int
    text: str
    is_special: bool
    strips_left: bool
    strips_right: bool
    single_word: bool


class Tokenizer:
    """The tokenizer of a model. Thread-safe."""

    def __init__(self, spec: dict[str, Any], config: dict[str, Any] | None = None) -> None:
        """spec: a parsed tokenizer.json. config: a parsed tokenizer_config.json, if any."""
        config = config or {}
        self._byte_decoder = TokenByteDecoder.from_spec(spec)
        added = [
            token
            for token in _added_tokens(spec, config)
            if not self._byte_decoder.is_byte_token(token["content"])
        ]
        self.control_tokens: tuple[ControlToken, ...] = tuple(
            ControlToken(
                id=token["id"],
                text=token["content"],
                is_special=bool(token.get("special")),
                strips_left=bool(token.get("lstrip")),
                strips_right=bool(token.get("rstrip")),
                single_word=bool(token.get("single_word")),
            )
            for token in added
            if token.get("special") or _LOOKS_LIKE_MARKER.fullmatch(token["content"])
        )
        self.control_ids: frozenset[int] = frozenset(token.id for token in self.control_tokens)
        self.special_ids: frozenset[int] = frozenset(
            token.id for token in self.control_tokens if token.is_special
        )
        self._added_text = {token["id"]: token["content"] for token in added}
        self._bytes_of_id: dict[int, bytes] = {}
        self._plain = _plain_tokenizer(spec, added, self.control_ids)
        self._continuing = self._plain
        if _prepends_to_first_only(spec):
            self._continuing = _plain_tokenizer(
                _without_prefix_space(spec), added, self.control_ids
            )
        self._id_of_added = {text: token_id for token_id, text in self._added_text.items()}
        self.special_texts: dict[str, str | list[str]] = _special_texts(config)
        """The texts of bos_token, eos_token and so on, by name, as variables of chat templates."""
        self.bos_id = self._id_of_special("bos_token")
        self.eos_id = self._id_of_special("eos_token")
        unknown = {_unknown_id(spec)} - {self.bos_id, self.eos_id}
        self._never_text = self.control_ids - unknown
        """Control tokens that no text is encoded to. The unknown token stands for characters that the
        vocabulary lacks."""
        self._prompt_prefix = _prompt_prefix(spec)
        self.vocab_size = 1 + max(
            self._plain.get_vocab_size(with_added_tokens=True) - 1, *self._added_text, -1, -1
        )
        """One more than the largest token id."""
        self._longest_token = max(_longest_token(spec), *map(len, self._added_text.values()), 1, 1)

    @classmethod
    def from_directory(cls, path: str | Path) -> Tokenizer:
        """Load tokenizer.json, with what tokenizer_config.json and special_tokens_map.json add.

        ValueError names the file and the problem.
        """
        directory = Path(path)
        file = directory / _FILE
        if not file.is_file():
            found = [name for name in _OTHER_FILES if (directory / name).is_file()]
            raise ValueError(
                f"{directory}: has {f'{found[0]}, but ' if found else ''}no tokenizer.json; eyas reads "
                "fast tokenizers only. Convert the model's tokenizer with transformers first: "
                f"AutoTokenizer.from_pretrained({str(directory)!r}).save_pretrained(...)"
            )
        spec = read_json_object(file)
        config = read_json_object_if_there(directory / "tokenizer_config.json")
        named = read_json_object_if_there(directory / "special_tokens_map.json")
        # If both files name a token, the newer format takes precedence, as in transformers.
        is_older = "added_tokens_decoder" not in config
        config = {**config, **named} if is_older else {**named, **config}
        try:
            return cls(spec, config)
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from error
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{file}: is not a tokenizer file ({type(error).__name__}: {error}); "
                "download the model again"
            ) from error

    @classmethod
    def from_directory_if_there(cls, path: str | Path) -> Tokenizer | None:
        """Load the tokenizer, or return None if the directory has none in any format. ValueError: as
        `from_directory`, also for a tokenizer in another format than tokenizer.json."""
        return cls.from_directory(path) if has_tokenizer(path) else None

    def encode_text(self, text: str, *, continues: bool = False) -> list[int]:
        """Return the token ids of plain text, without control tokens.

        continues: the text follows other text, so a tokenizer that adds a space before the first word
        of a prompt does not add one.
        """
        if not text:
            return []
        return self._encode(without_lone_surrogates(text), continues)

    def encode_prompt(self, text: str) -> list[int]:
        """Return the token ids of a raw prompt: those of its plain text, after the model's prefix
        (such as BOS)."""
        return [*self._prompt_prefix, *self.encode_text(text)]

    def min_num_tokens(self, text: str, limit: int = 0) -> int:
        """Return a lower bound of the number of tokens of `text`. Cheap, to refuse texts that are too
        long.

        limit: the number of tokens above which the text is refused. If the text has many characters
        for that number, its slices are tokenized one by one until the bound is reached. Slicing changes
        a few of a slice's hundreds of tokens, so the bound is half of what is counted.
        """
        fewest = len(text) // self._longest_token
        if fewest >= limit or len(text) <= _USUAL_CHARS * limit:
            return fewest
        num_tokens = 0
        for begin in range(0, len(text), _SLICE_CHARS):
            num_tokens += len(self.encode_text(text[begin : begin + _SLICE_CHARS], continues=True))
            if num_tokens >= 2 * limit:
                return num_tokens // 2
        return fewest

    def decode(
        self, ids: Iterable[int], skip_special: bool = True, *, continues: bool = False
    ) -> str:
        """Return the text of token ids. Bytes that are not valid UTF-8 become U+FFFD.

        skip_special: leave out special tokens. continues: the text follows other text, so a leading
        space that the tokenizer adds at a word boundary is kept.
        """
        skipped = self.special_ids if skip_special else frozenset()
        data = b"".join(self.token_bytes(token) for token in ids if token not in skipped)
        if not continues:
            data = data[self.num_leading_spaces_of(data) :]
        return data.decode("utf-8", "replace")

    def num_leading_spaces_of(self, data: bytes) -> int:
        """Return how many spaces `decode` removes from the front of a text that starts with `data`."""
        limit = self._byte_decoder.num_leading_spaces
        return len(data[:limit]) - len(data[:limit].lstrip(b" "))

    @property
    def num_leading_spaces(self) -> int:
        """The maximum number of spaces that `decode` removes from the front of a text."""
        return self._byte_decoder.num_leading_spaces

    @property
    def puts_spaces(self) -> bool:
        """Whether a space precedes every token, so that few output formats can be spelled."""
        return self._byte_decoder.puts_spaces

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token. Empty for an id without a token."""
        data = self._bytes_of_id.get(token_id)
        if data is None:
            data = self._bytes_of_id[token_id] = self._read_bytes(token_id)
        return data

    def token_text(self, token_id: int) -> str:
        """Return the text of a single token. Bytes of an incomplete character become U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def control_id(self, text: str) -> int | None:
        """Return the id of the control token with this text, or None if there is none."""
        token_id = self._id_of_added.get(text)
        return token_id if token_id in self.control_ids else None

    def _read_bytes(self, token_id: int) -> bytes:
        if token_id in self._added_text:
            return self._added_text[token_id].encode("utf-8", "replace")
        token = self._plain.id_to_token(token_id) if 0 <= token_id < 2**32 else None
        return b"" if token is None else self._byte_decoder.of(token)

    def _encode(self, text: str, continues: bool) -> list[int]:
        plain = self._continuing if continues else self._plain
        # A batch of one text: only the batched calls release the GIL.
        ids = plain.encode_batch_fast([text], add_special_tokens=False)[0].ids
        if self._never_text.isdisjoint(ids):
            return ids
        return self._encode_without_control_tokens(text, continues)

    def _encode_without_control_tokens(self, text: str, continues: bool) -> list[int]:
        """Encode a text that the tokenizer would encode to control tokens, split inside each of
        them."""
        plain = self._continuing if continues else self._plain
        encoding = plain.encode_batch([text], add_special_tokens=False)[0]
        pieces, begin = [], 0
        for token_id, (first, last) in zip(encoding.ids, encoding.offsets, strict=True):
            if token_id not in self._never_text or first < begin:
                continue
            # A control token of one character cannot be written as text: leave it out.
            pieces.append(text[begin : first + 1 if last - first > 1 else first])
            begin = first + 1
        pieces.append(text[begin:])
        if pieces == [text]:
            return [token for token in encoding.ids if token not in self._never_text]
        ids: list[int] = []
        for piece in pieces:
            if piece:
                ids += self._encode(piece, continues or bool(ids))
        return ids

    def _id_of_special(self, name: str) -> int | None:
        text = self.special_texts.get(name)
        if not isinstance(text, str):
            return None
        added_id = self._id_of_added.get(text)
        return self._plain.token_to_id(text) if added_id is None else added_id


def has_tokenizer(directory: str | Path) -> bool:
    """Whether the directory has a tokenizer, in whatever format."""
    return any((Path(directory) / name).is_file() for name in (_FILE, *_OTHER_FILES))


def require_tokenizer(tokenizer: Tokenizer | None, param: str | None = None) -> Tokenizer:
    """Return the tokenizer. RequestError with the remedy if it is None. param: the field that needs
    it."""
    if tokenizer is None:
        raise RequestError(f"{param}: {NO_TOKENIZER}" if param else NO_TOKENIZER, param=param)
    return tokenizer


def _added_tokens(spec: dict[str, Any], config: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the added tokens of both files. tokenizer_config.json may add some, or mark some as
    special."""
    added = {int(token["id"]): dict(token) for token in spec.get("added_tokens") or []}
    for key, token in (config.get("added_tokens_decoder") or {}).items():
        entry = added.setdefault(int(key), {**token, "id": int(key)})
        if entry["content"] == token["content"] and token.get("special"):
            entry["special"] = True
    return [added[token_id] for token_id in sorted(added)]


def _plain_tokenizer(
    spec: dict[str, Any], added: list[dict[str, Any]], control_ids: frozenset[int]
) -> tokenizers.Tokenizer:
    """Return a tokenizer that encodes the text of control tokens as plain text."""
    defaults = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    marked = [
        {**defaults, **token, "special": token["id"] in control_ids or bool(token.get("special"))}
        for token in added
    ]
    changed = {
        **spec,
        "added_tokens": marked,
        "post_processor": None,
        "truncation": None,
        "padding": None,
    }
    try:
        plain = tokenizers.Tokenizer.from_str(msgspec.json.encode(changed).decode())
    except Exception as error:  # the library raises Exception itself for what it cannot read
        raise ValueError(f"cannot be read as a tokenizer ({error}); download it again") from error
    plain.encode_special_tokens = True
    return plain


def _unknown_id(spec: dict[str, Any]) -> int | None:
    """Return the id that the model gives to characters that its vocabulary lacks; None if there is
    none."""
    model = spec.get("model") or {}
    vocab, text = model.get("vocab"), model.get("unk_token")
    if isinstance(vocab, dict) and isinstance(text, str):
        return vocab.get(text)
    return model.get("unk_id")


def _metaspaces(spec: dict[str, Any]) -> list[dict[str, Any]]:
    parts = flatten_components(spec.get("pre_tokenizer"), "pretokenizers")
    return [part for part in parts if part.get("type") == "Metaspace"]


def _prepends_to_first_only(spec: dict[str, Any]) -> bool:
    return any(part.get("prepend_scheme") == "first" for part in _metaspaces(spec))


def _without_prefix_space(spec: dict[str, Any]) -> dict[str, Any]:
    changed = msgspec.json.decode(msgspec.json.encode(spec))
    for part in _metaspaces(changed):
        part["prepend_scheme"] = "never"
    return changed


def _longest_token(spec: dict[str, Any]) -> int:
    vocab = (spec.get("model") or {}).get("vocab") or ()
    tokens = vocab if isinstance(vocab, dict) else (entry[0] for entry in vocab)
    return max(map(len, tokens), default=1)


def _special_texts(config: dict[str, Any]) -> dict[str, str | list[str]]:
    """Return the texts of the fields NAME_token, and of the model's own extra_special_tokens."""
    named = {name: value for name, value in config.items() if name.endswith("_token")}
    if isinstance(extra := config.get("extra_special_tokens"), dict):
        named |= extra
    texts: dict[str, str | list[str]] = {}
    for name, value in named.items():
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            texts[name] = text
    return texts


def _prompt_prefix(spec: dict[str, Any]) -> list[int]:
    """Return the ids that the post-processor puts before a single text."""
    prefix: list[int] = []
    for part in flatten_components(spec.get("post_processor"), "processors"):
        if part.get("type") == "TemplateProcessing":
            for item in part.get("single", []):
                if "SpecialToken" not in item:
                    break
                prefix += part["special_tokens"][item["SpecialToken"]["id"]]["ids"]
        elif part.get("type") in ("BertProcessing", "RobertaProcessing"):
            prefix.append(part["cls"][1])
    return prefix


def without_lone_surrogates(text: str) -> str:
    """Replace lone surrogates by U+FFFD: JSON can contain them, UTF-8 cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
