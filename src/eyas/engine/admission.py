"""Admission of a request: checks before any work is done for it, and the sequences of its choices.

Promises: a RequestError names the field and the remedy.
Does not know: other requests.
"""

from __future__ import annotations

import secrets

from eyas.config import EngineInfo
from eyas.constraint import Grammar
from eyas.constraint.automaton import Automaton
from eyas.core import Request, RequestError, SamplingParams, check_min_tokens
from eyas.engine.sequence import Sequence
from eyas.engine.stops import StopChecker, TextSink
from eyas.text import Detokenizer, Tokenizer
from eyas.text.tokenizer import NO_TOKENIZER


def check_request(request: Request, info: EngineInfo, tokenizer: Tokenizer | None) -> None:
    """Raise RequestError if an engine with this model can never serve the request."""
    prompt, params = request.prompt_token_ids, request.params
    if not prompt:
        raise RequestError("prompt: is empty; give at least one token", param="prompt")
    if len(prompt) + (params.max_tokens != 0) > info.max_model_len:
        raise RequestError(
            f"prompt: has {len(prompt)} tokens, but this model's context holds "
            f"{info.max_model_len} and at least one is needed for the answer; shorten the prompt",
            param="prompt",
            code="context_length_exceeded",
        )
    check_min_tokens(len(prompt), params, info.max_model_len)
    if unknown := [i for i in prompt if not (type(i) is int and 0 <= i < info.vocab_size)]:
        raise RequestError(_unknown_id_message(unknown[0], info, tokenizer), param="prompt")
    for name, ids in (
        ("logit_bias", params.logit_bias),
        ("stop_token_ids", params.stop_token_ids),
    ):
        for i in ids:
            if i >= info.vocab_size:
                raise RequestError(
                    f"{name}: token ids must be below the vocabulary size {info.vocab_size}, not {i}",
                    param=name,
                )
    if request.max_draft_nodes is not None and request.max_draft_nodes < 1:
        raise RequestError(
            "max_draft_nodes: must be at least 1, the root of the tree, which decodes plainly",
            param="max_draft_nodes",
        )
    if params.stop and tokenizer is None:
        raise RequestError(
            f"stop: {NO_TOKENIZER}; token ids that end an answer go into stop_token_ids",
            param="stop",
        )
    if request.offers_kv or request.kv_handle is not None:
        raise RequestError(
            "kv_transfer_params: is for servers that were started with --role prefill or --role decode",
            param="kv_transfer_params",
            code="kv_handle_invalid",
        )
    if request.output is not None and params.ignore_eos:
        raise RequestError(
            "ignore_eos: cannot go with a constrained output, whose grammar says where it ends",
            param="ignore_eos",
        )


def new_sequences(
    request: Request,
    grammar: Grammar | None,
    info: EngineInfo,
    tokenizer: Tokenizer | None,
    first_order: int,
) -> list[Sequence]:
    """Return the sequences of a request's choices. grammar: of its output; None if that is free.
    first_order: the age of the first sequence."""
    params, prompt = request.params, request.prompt_token_ids
    seed = params.seed if params.seed is not None else secrets.randbits(53)
    num_output = info.max_model_len - len(prompt)
    if params.max_tokens is not None:
        num_output = min(num_output, params.max_tokens)
    num_output = max(1, num_output)  # of max_tokens = 0 the one token that is chosen is dropped
    automaton = None
    if grammar is not None:
        assert request.output is not None
        token_bytes = () if tokenizer is None else (tokenizer.token_bytes,)
        automaton = Automaton(grammar, request.output.budget, *token_bytes)
    marked_ids: frozenset[int] = frozenset()
    if request.with_marks and tokenizer is not None:
        marked_ids = tokenizer.control_ids
    sequences: list[Sequence] = []
    for index in range(params.n):
        sink = _new_sink(params, tokenizer)
        sequence = Sequence(
            request=request,
            index=index,
            order=first_order + index,
            seed=seed,
            tokens=list(prompt),
            num_prompt_tokens=len(prompt),
            max_length=len(prompt) + num_output,
            stops=StopChecker(params, frozenset(info.eos_token_ids), num_output, sink, marked_ids),
            automaton=automaton.fork() if automaton is not None and index else automaton,
            leader=sequences[0] if sequences else None,
        )
        sequence.usage.num_prompt_tokens = len(prompt)
        sequences.append(sequence)
    return sequences


def _new_sink(params: SamplingParams, tokenizer: Tokenizer | None) -> TextSink | None:
    if tokenizer is None:
        return None
    return Detokenizer(tokenizer, params.skip_special_tokens, continues=True)


def _unknown_id_message(token_id: object, info: EngineInfo, tokenizer: Tokenizer | None) -> str:
    """Return the error text for a prompt token id that the model does not have."""
    num_known = 0 if tokenizer is None else tokenizer.vocab_size
    if tokenizer and type(token_id) is int and info.vocab_size <= token_id < num_known:
        text = tokenizer.token_bytes(token_id).decode("utf-8", "replace")
        return (
            f"prompt: the tokenizer has {num_known} tokens and the model {info.vocab_size}, "
            f"to which {text!r} ({token_id}) does not belong; leave it out, or take the tokenizer that "
            "the model was trained with"
        )
    most = info.vocab_size - 1
    return f"prompt: token ids must be whole numbers from 0 to {most}, not {token_id!r}"
