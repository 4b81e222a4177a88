"""Measure the same checkpoint with transformers' generate, as a contestant of `eyas bench decode`.

Promises: the same directory, dtype, device and number of threads as the engine it is compared with;
greedy; prompts of different lengths are padded on the left. Does not know: eyas's engine.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from eyas.verify.contestants import Job, Measurement


class TransformersContestant:
    """`AutoModelForCausalLM.generate` with its default (dynamic) cache and SDPA attention."""

    name = "transformers"

    def __init__(self, directory: Path, dtype: str, device: str) -> None:
        try:
            import torch
            from transformers import AutoModelForCausalLM, GenerationConfig
            from transformers.utils import logging
        except ImportError as error:
            raise ValueError(
                "--compare: transformers is not installed; run pip install 'eyas[compare]'"
            ) from error
        logging.disable_progress_bar()
        loaded: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype))
        self._model = loaded.to(device).eval()
        eos = self._model.generation_config.eos_token_id
        self._eos = [eos] if isinstance(eos, int) else list(eos or [])
        self._make_config = GenerationConfig
        self._device = device

    def run(self, job: Job) -> Measurement:
        """Call generate once for each batch."""
        if job.temperature:
            raise ValueError("--compare: transformers draws other noise; use temperature 0")
        run = Measurement()
        for prompts in job.batches():
            self._run_batch(prompts, job, run)
        return run

    def _run_batch(self, prompts: list[list[int]], job: Job, run: Measurement) -> None:
        import torch

        longest = max(len(prompt) for prompt in prompts)
        pad = self._eos[0] if self._eos else 0
        started = time.perf_counter()
        ids = torch.tensor([[pad] * (longest - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
        config = self._make_config(
            do_sample=False,
            max_new_tokens=job.max_tokens,
            eos_token_id=(self._eos or None) if job.stops_at_eos else None,
            pad_token_id=pad,
            bos_token_id=None,
        )
        self._model.generation_config = config
        with torch.inference_mode():
            output = self._model.generate(
                input_ids=ids.to(self._device),
                attention_mask=mask.to(self._device),
                generation_config=config,
            )
        written = output[:, longest:].tolist()
        run.seconds += time.perf_counter() - started
        run.token_ids += [self._until_eos(row) if job.stops_at_eos else row for row in written]

    def _until_eos(self, row: list[int]) -> list[int]:
        """Return the tokens up to and including the first end token; the rest is padding."""
        ends = [i for i, token in enumerate(row) if token in self._eos]
        return row[: ends[0] + 1] if ends else row
