"""Generate an engine's answers to chat requests, for the evaluation of the built-in model.

Promises: greedy decoding, all requests in one engine; control tokens stay in the text (reasoning
and tool calls are written with them), but the end-of-message token is removed.
Does not know: what the correct answers are.
"""

from __future__ import annotations

from collections.abc import Sequence

from builtin_model.families import ChatRequest
from eyas.builtin import without_end
from eyas.llm import LLM
from eyas_bench.builtin import AnswerFn

MOST_TOKENS = 512


def engine_answers(llm: LLM) -> AnswerFn:
    """Return an answer function for `eyas_bench.builtin.evaluate`."""
    params = llm.default_params(
        temperature=0.0, top_p=1.0, top_k=0, max_tokens=MOST_TOKENS, skip_special_tokens=False
    )

    def answer(requests: Sequence[ChatRequest]) -> list[str]:
        prompts = [
            llm.encode_chat(
                request.messages,
                tools=request.tools or None,
                enable_thinking=request.enable_thinking,
            )
            for request in requests
        ]
        return [without_end(output.text) for output in llm.generate(prompts, params)]

    return answer
