"""Prefill-decode disaggregation: prompts that one server computes and another one continues.

A prefill server holds the slots of a computed prompt (`offers`); a decode server reads what they hold
into slots of its own (`imports`) and shares them as a prefix of its cache. Then the request runs like
any other whose prompt is in the cache up to its last token.
"""

from eyas.engine.disaggregation.engine import DisaggregatedEngine

__all__ = ["DisaggregatedEngine"]
