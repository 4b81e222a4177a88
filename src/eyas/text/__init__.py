"""Tokenizers, detokenizers and chat templates: text to token ids and back.

Promises: text of a user, a tool or a tool's result never becomes a control token. Imports neither
torch nor transformers, so that the HTTP process, the engine and the offline API can all use it.
Does not know: models, requests, HTTP.
"""

from eyas.text.defaults import sampling_defaults
from eyas.text.detokenizer import Detokenizer
from eyas.text.template import ChatTemplate, template_sources
from eyas.text.tokenizer import Tokenizer, has_tokenizer, require_tokenizer

__all__ = [
    "ChatTemplate",
    "Detokenizer",
    "Tokenizer",
    "has_tokenizer",
    "require_tokenizer",
    "sampling_defaults",
    "template_sources",
]
