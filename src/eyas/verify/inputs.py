"""The prompts of a measurement as token ids: from a file, from the shared tasks, or random.

Promises: a prompt that the model cannot take raises a ValueError that names it and the remedy. The
prompts are the same on every machine.
Does not know: how files are read, what the prompts are for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eyas.llm import LLM
from eyas.verify.prompts import TASKS, Task, random_prompts

_RANDOM_LENGTHS = (24, 7, 61, 40, 3, 33, 90, 15)


@dataclass(frozen=True, slots=True)
class Inputs:
    """Prompts as token ids. source: where they come from, in words."""

    source: str
    token_ids: list[list[int]]


def from_entries(llm: LLM, entries: Sequence[Mapping[str, Any]]) -> Inputs:
    """Encode the entries of a file: {"prompt": text or token ids}, or {"messages": ...}."""
    prompts = [_encoded(llm, entry, i) for i, entry in enumerate(entries, start=1)]
    has_ids = any(not isinstance(entry.get("prompt", ""), str) for entry in entries)
    return Inputs("token ids of a file" if has_ids else "prompts of a file", prompts)


def from_tasks(llm: LLM, num_prompts: int, *, tasks: Sequence[Task] = TASKS) -> Inputs:
    """Encode the first `num_prompts` shared tasks: as conversations if the model has a chat template,
    else as plain texts. Without a tokenizer, return random token ids of different lengths."""
    if not llm.has_tokenizer:
        longest = llm.info.max_model_len // 2
        drawn = random_prompts(num_prompts, max(_RANDOM_LENGTHS), llm.info.vocab_size)
        lengths = [min(longest, _RANDOM_LENGTHS[i % 8]) for i in range(num_prompts)]
        cut = [prompt[:length] for prompt, length in zip(drawn, lengths, strict=True)]
        return Inputs("random token ids (the model has no tokenizer)", cut)
    chosen = tasks[:num_prompts]
    if not has_template(llm):
        texts = [str(task.messages[-1]["content"]) for task in chosen]
        return Inputs(
            "plain texts (the model has no chat template)",
            [llm.tokenizer.encode_prompt(text) for text in texts],
        )
    return Inputs(
        "conversations",
        [
            llm.encode_chat(task.messages, tools=task.tools or None, enable_thinking=task.thinks)
            for task in chosen
        ],
    )


def has_template(llm: LLM) -> bool:
    """Whether the model has a tokenizer and a chat template."""
    try:
        return bool(llm.encode_chat([{"role": "user", "content": "a"}]))
    except ValueError:
        return False


def check_lengths(inputs: Inputs, llm: LLM, max_tokens: int) -> None:
    """Raise ValueError if a prompt and its answer do not fit into the context."""
    max_prompt, vocab_size = llm.info.max_model_len - max_tokens, llm.info.vocab_size
    for i, prompt in enumerate(inputs.token_ids, start=1):
        if len(prompt) > max_prompt:
            raise ValueError(
                f"prompt {i} has {len(prompt)} tokens; with {max_tokens} of an answer it does not fit "
                f"into the {llm.info.max_model_len} of this model's context; give a shorter one, or "
                "a smaller --max-tokens"
            )
        if not prompt or not all(type(t) is int and 0 <= t < vocab_size for t in prompt):
            raise ValueError(
                f"prompt {i}: needs at least one token id, all whole numbers from 0 to "
                f"{vocab_size - 1}"
            )


def _encoded(llm: LLM, entry: Mapping[str, Any], number: int) -> list[int]:
    prompt = entry.get("prompt")
    if isinstance(prompt, list):
        return prompt
    if not llm.has_tokenizer:
        raise ValueError(
            f"--prompts-file: prompt {number} is text, but the model has no tokenizer; give token "
            'ids: {"prompt": [1, 2, 3]}'
        )
    if isinstance(prompt, str):
        return llm.tokenizer.encode_prompt(prompt)
    if "messages" not in entry:
        raise ValueError(f"--prompts-file: prompt {number} must be a text or a list of token ids")
    return llm.encode_chat(entry["messages"], tools=entry.get("tools"))
