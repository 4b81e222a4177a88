"""The offline API: a model in this process that answers prompts."""

from eyas.llm.llm import LLM, EncodedPrompt

__all__ = ["LLM", "EncodedPrompt"]
