"""The same log-probabilities as transformers: another implementation of the model, in float32.

Promises: texts are scored by this engine in float32 and by transformers in float32, on the same device,
one after the other, so that only one model is in memory; what the engine's own number format makes of
them is told beside it. Where transformers cannot serve as a reference, the reason is told.
Does not know: drafters.

Legend: L positions of a text but the last, V vocabulary.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.core import SamplingParams, TokenLogprob
from eyas.llm import LLM

TOLERANCE = 1e-3
"""Largest difference of log-probabilities in float32."""
NUM_TOP = 20
MOST_TOKENS = 192
"""Of a text."""

Scores = list[list[TokenLogprob]]
"""By text and position: the token that stands there, and the most likely ones."""


class NoReferenceError(Exception):
    """transformers cannot say; the text tells why."""


@dataclass(slots=True)
class Agreement:
    """How two implementations agree. worst_gap: the most by which the reference prefers its own most
    likely token to the other's."""

    num_positions: int = 0
    num_argmax: int = 0
    largest: float = 0.0
    total: float = 0.0
    worst_gap: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        return {
            "num_positions": self.num_positions,
            "max_logprob_difference": self.largest,
            "mean_logprob_difference": self.total / max(1, self.num_positions),
            "argmax_agreement": self.num_argmax / max(1, self.num_positions),
            "worst_argmax_gap": self.worst_gap,
        }


def score(llm: LLM, texts: Sequence[list[int]]) -> Scores:
    """What the engine says of every token of the texts but the first of each."""
    num_top = min(NUM_TOP, llm.info.vocab_size)
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=num_top)
    scores: Scores = []
    for text in texts:
        found = llm.generate(text, params)[0].prompt_logprobs
        assert found is not None
        scores.append([entry for entry in found if entry is not None])
    return scores


def cut(text: list[int], max_model_len: int) -> list[int]:
    """A text of a length that can be scored."""
    return text[: min(MOST_TOKENS, max_model_len - 1)]


def check_parity(
    directory: Path,
    texts: Sequence[list[int]],
    device: str,
    own: dict[str, Scores],
    decides: str,
) -> dict[str, Any]:
    """The part of a report. own: scores of the same texts by number format; `decides` is the one that
    must agree to the tolerance."""
    found = {name: Agreement() for name in own}
    try:
        for i, reference_LV in enumerate(_reference(directory, texts, device)):
            for name, scores in own.items():
                _compare(found[name], scores[i], reference_LV)
    except NoReferenceError as error:
        return {"status": "skipped", "text": str(error)}
    decisive = found[decides]
    holds = decisive.largest <= TOLERANCE and decisive.worst_gap <= 2 * TOLERANCE
    text = "; ".join(
        f"{name}: log-probabilities differ by up to {each.largest:.1e}, the most likely token is the "
        f"same at {each.num_argmax} of {each.num_positions} positions"
        for name, each in found.items()
    )
    return {
        "status": "pass" if holds else "fail",
        "text": text,
        "reference": "transformers, float32",
        "tolerance": TOLERANCE,
        "num_texts": len(texts),
        **{name: each.as_dict() for name, each in found.items()},
    }


def lacks_room(num_parameters: int, device: str) -> str | None:
    """Why a float32 copy of a model of this size would not fit; None where it does."""
    import psutil
    import torch

    needed = int(4.4 * num_parameters)
    free = psutil.virtual_memory().available
    if device.startswith("cuda"):
        free = torch.cuda.mem_get_info(torch.device(device))[0]
    if needed <= free:
        return None
    return (
        f"float32 needs about {needed / 2**30:.0f} GiB of memory, and {free / 2**30:.0f} are free"
    )


def free_memory() -> None:
    """Give back what closed engines and models held."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _reference(directory: Path, texts: Sequence[list[int]], device: str) -> Iterator[Any]:
    """Log-probabilities [L, V] of each text by transformers."""
    import torch

    model = _load(directory, device)
    for text in texts:
        with torch.inference_mode():
            try:
                logits_1LV = model(torch.tensor([text], device=device)).logits
            except torch.OutOfMemoryError as error:
                raise NoReferenceError("transformers ran out of memory in float32") from error
        yield logits_1LV[0, :-1].float().log_softmax(dim=1).cpu()


def _load(directory: Path, device: str) -> Any:
    import torch

    try:
        from transformers import AutoConfig, AutoModelForCausalLM
        from transformers.utils import logging
    except ImportError as error:
        raise NoReferenceError(
            "transformers is not installed; pip install 'eyas[compare]' for this part"
        ) from error
    quiet: list[Callable[[], None]] = [logging.disable_progress_bar, logging.set_verbosity_error]
    for each in quiet:
        each()
    try:
        AutoConfig.from_pretrained(directory, trust_remote_code=False)
    except (ValueError, KeyError, OSError) as error:
        raise NoReferenceError(f"transformers does not know this model: {_line(error)}") from error
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            directory,
            dtype=torch.float32,
            attn_implementation="eager",
            trust_remote_code=False,
        )
        return loaded.to(device).eval()
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise NoReferenceError("the model does not fit into memory in float32") from error
    except (ValueError, KeyError, OSError, ImportError, RuntimeError) as error:
        raise NoReferenceError(f"transformers cannot load this model: {_line(error)}") from error


def _compare(agreement: Agreement, entries: list[TokenLogprob], reference_LV: Any) -> None:
    assert len(entries) == len(reference_LV)
    for entry, row_V in zip(entries, reference_LV, strict=True):
        pairs = [(entry.token_id, entry.logprob), *entry.top]
        largest = max(abs(row_V[token].item() - logprob) for token, logprob in pairs)
        best = entry.top[0][0]
        gap = row_V.max().item() - row_V[best].item()
        agreement.num_positions += 1
        agreement.num_argmax += gap == 0.0
        agreement.largest = max(agreement.largest, largest)
        agreement.total += largest
        agreement.worst_gap = max(agreement.worst_gap, gap)


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
