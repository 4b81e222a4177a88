"""Text in, token ids out, and back: tokenizers, detokenizers, chat templates.

Promises: text that a person, a tool or a result brought never becomes a control token; imports
neither torch nor transformers, so that the HTTP process, the engine and the offline API share it.
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
