"""Parity: log-probabilities of texts compared with those of transformers in float32.

Promises: the texts are scored by this engine in float32 and by transformers in float32 on the same
device, one after the other, so that one model is in memory at a time. The engine's scores in its own
number format are compared too, without a verdict. If transformers cannot be used as a reference, the
reason is reported.
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
"""Largest allowed difference of log-probabilities in float32."""
NUM_TOP = 20
MOST_TOKENS = 192
"""Most tokens of a text that are scored."""

Scores = list[list[TokenLogprob]]
"""By text and position: log-probabilities of the token there and of the most likely ones."""


class NoReferenceError(Exception):
    """transformers cannot be used as a reference. The message gives the reason."""


@dataclass(slots=True)
class Agreement:
    """The agreement of two implementations.

    num_argmax: positions with the same most likely token. largest, total: of the differences of
    log-probabilities. worst_gap: largest difference, by the reference, between the log-probabilities
    of its most likely token and of the other's.
    """

    num_positions: int = 0
    num_argmax: int = 0
    largest: float = 0.0
    total: float = 0.0
    worst_gap: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the agreement as it is written to a report."""
        return {
            "num_positions": self.num_positions,
            "max_logprob_difference": self.largest,
            "mean_logprob_difference": self.total / max(1, self.num_positions),
            "argmax_agreement": self.num_argmax / max(1, self.num_positions),
            "worst_argmax_gap": self.worst_gap,
        }


def score(llm: LLM, texts: Sequence[list[int]]) -> Scores:
    """Return the log-probabilities of all tokens of the texts but the first of each."""
    num_top = min(NUM_TOP, llm.info.vocab_size)
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=num_top)
    scores: Scores = []
    for text in texts:
        entries = llm.generate(text, params)[0].prompt_logprobs
        assert entries is not None
        scores.append([entry for entry in entries if entry is not None])
    return scores


def cut(text: list[int], max_model_len: int) -> list[int]:
    """Cut a text to the length that can be scored."""
    return text[: min(MOST_TOKENS, max_model_len - 1)]


def check_parity(
    directory: Path,
    texts: Sequence[list[int]],
    device: str,
    own: dict[str, Scores],
) -> dict[str, Any]:
    """Return the parity part of a report.

    own: the engine's scores of the texts, by number format; those in float32 must agree to `TOLERANCE`.
    """
    agreements = {name: Agreement() for name in own}
    try:
        for i, reference_LV in enumerate(_reference(directory, texts, device)):
            for name, scores in own.items():
                _compare(agreements[name], scores[i], reference_LV)
    except NoReferenceError as error:
        return {"status": "skipped", "text": str(error)}
    decisive = agreements["float32"]
    holds = decisive.largest <= TOLERANCE and decisive.worst_gap <= 2 * TOLERANCE
    text = "; ".join(
        f"{name}: log-probabilities differ by up to {one.largest:.1e}, the most likely token is the "
        f"same at {one.num_argmax} of {one.num_positions} positions"
        for name, one in agreements.items()
    )
    return {
        "status": "pass" if holds else "fail",
        "text": text,
        "reference": "transformers, float32",
        "tolerance": TOLERANCE,
        "num_texts": len(texts),
        **{name: agreement.as_dict() for name, agreement in agreements.items()},
    }


def lacks_room(num_parameters: int, device: str) -> str | None:
    """Return why a float32 copy of a model of this size does not fit into memory; None if it does."""
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
    """Free the memory of engines and models that are closed."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _reference(directory: Path, texts: Sequence[list[int]], device: str) -> Iterator[Any]:
    """Yield the log-probabilities [L, V] of each text, computed by transformers."""
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
    silence: list[Callable[[], None]] = [logging.disable_progress_bar, logging.set_verbosity_error]
    for call in silence:
        call()
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
