"""The offline API: a model in this process that answers prompts."""

from eyas.llm.arguments import EncodedPrompt
from eyas.llm.llm import LLM

__all__ = ["LLM", "EncodedPrompt"]
