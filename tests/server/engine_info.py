"""What a fake engine says of itself. Its process imports this, and nothing of the server."""

from __future__ import annotations

from pathlib import Path

from eyas.config import EngineInfo


def engine_info(
    directory: Path | str, vocab_size: int = 500, max_model_len: int = 512
) -> EngineInfo:
    return EngineInfo(
        model="tiny",
        architecture="FakeForCausalLM",
        num_parameters=1000,
        device="cpu",
        dtype="float32",
        max_model_len=max_model_len,
        num_slots=4096,
        vocab_size=vocab_size,
        drafter="root",
        eos_token_ids=(0,),
        exact=True,
        exact_reason="a fake",
        num_flights=0,
        directory=str(directory),
    )
