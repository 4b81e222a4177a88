"""The bytes of a model's tokens, read from the decoder of its tokenizer.json.

Promises: `TokenByteDecoder.of(token)` returns the exact bytes of a model token. A text is the
concatenation of the bytes of its tokens (for some SentencePiece models, without one leading space).
Supports byte-level BPE, SentencePiece BPE with and without byte fallback, and tokenizers without a
decoder, whose texts are their tokens with a space between each two.
Does not know: control tokens, streams.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_level_alphabet() -> dict[str, int]:
    """Return the byte of each printable character that byte-level BPE uses (defined by GPT-2)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(plain)]
    alphabet = {chr(byte): byte for byte in plain}
    alphabet.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return alphabet


_ALPHABET = _byte_level_alphabet()


def flatten_components(component: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    """Return a component of a tokenizer.json as a flat list: the members of a `Sequence`, or the
    component itself; empty for None."""
    if not component:
        return []
    if component.get("type") == "Sequence":
        return [part for child in component.get(key, []) for part in flatten_components(child, key)]
    return [component]


@dataclass(frozen=True, slots=True)
class TokenByteDecoder:
    """A converter of model tokens to bytes.

    is_byte_level: each character stands for a byte. Otherwise `space` stands for a space.
    has_byte_tokens: tokens such as <0x0A> stand for bytes.
    num_leading_spaces: how many spaces the decoder removes from the front of a whole text.
    puts_spaces: a space precedes every token, and none stands for one.
    """

    is_byte_level: bool
    space: str
    has_byte_tokens: bool
    num_leading_spaces: int
    puts_spaces: bool = False

    @classmethod
    def from_spec(cls, spec: dict[str, Any]) -> TokenByteDecoder:
        """Create the decoder of a parsed tokenizer.json. ValueError if its kind is not supported."""
        decoders = flatten_components(spec.get("decoder"), "decoders")
        kinds = [decoder.get("type") for decoder in decoders]
        if "ByteLevel" in kinds or (
            not kinds
            and any(
                part.get("type") == "ByteLevel"
                for part in flatten_components(spec.get("pre_tokenizer"), "pretokenizers")
            )
        ):
            return cls(True, "", False, 0)
        if not kinds:
            return cls(False, "", False, 1, puts_spaces=True)
        known = {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}
        if not set(kinds) <= known:
            raise ValueError(
                f"the decoder {kinds} is of a kind that eyas does not read; "
                "byte-level and SentencePiece (metaspace) tokenizers are supported"
            )
        space, num_leading_spaces = "\u2581", 0
        for decoder in decoders:
            if decoder["type"] == "Strip" and decoder.get("content") == " ":
                num_leading_spaces = int(decoder.get("start", 0))
            elif decoder["type"] == "Metaspace":
                space = decoder.get("replacement", space)
                scheme = decoder.get("prepend_scheme")
                prepends = (
                    decoder.get("add_prefix_space", True) if scheme is None else scheme != "never"
                )
                num_leading_spaces = 1 if prepends else 0
        return cls(False, space, "ByteFallback" in kinds, num_leading_spaces)

    def is_byte_token(self, token: str) -> bool:
        """Whether the token stands for a byte. Some files list these among the added tokens."""
        return self.has_byte_tokens and _BYTE_TOKEN.fullmatch(token) is not None

    def of(self, token: str) -> bytes:
        """Return the bytes of a model token. Not for added tokens, whose text is their content."""
        if self.is_byte_level:
            try:
                return bytes([_ALPHABET[character] for character in token])
            except KeyError:
                return token.encode("utf-8", "replace")
        if self.has_byte_tokens and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        if self.puts_spaces:
            return f" {token}".encode("utf-8", "replace")
        return token.replace(self.space, " ").encode("utf-8", "replace")
