"""From a checkpoint directory to a decoder that is ready to run.

Promises: the configuration and every tensor's name and shape are checked before memory is taken.
Does not know: what the decoder is used for.
"""

from __future__ import annotations

from pathlib import Path

import torch

from eyas.config import DtypeName
from eyas.layers.row_order import RowOrder
from eyas.models.decoder import Decoder
from eyas.models.dtype import resolve_dtype
from eyas.models.registry import family_of, read_spec
from eyas.models.weights import Checkpoint, Progress, fill_parameters


def load_model(
    directory: Path | str,
    *,
    dtype: torch.dtype | DtypeName = "auto",
    device: torch.device | str = "cpu",
    max_model_len: int | None = None,
    order: RowOrder | None = None,
    progress: Progress | None = None,
) -> Decoder:
    """Load the Hugging Face checkpoint in `directory`.

    max_model_len: positions to serve; None is all that the checkpoint was made for. order: the row
    counts the runner will use (from `find_row_order`); None makes no promise about bits.
    progress: called with (tensor name, bytes done, bytes in all) after each tensor.
    ValueError: the checkpoint is unsupported, incomplete or damaged; the text says what to do.
    """
    spec = read_spec(directory)
    if max_model_len is not None and max_model_len > spec.max_position:
        raise ValueError(
            f"max_model_len {max_model_len} is above the {spec.max_position} positions that "
            f"{directory} was made for; lower it"
        )
    checkpoint = Checkpoint.open(directory)
    with torch.no_grad():
        decoder = Decoder(
            spec,
            dtype=resolve_dtype(dtype, device),
            device=device,
            max_model_len=max_model_len,
            order=order,
        )
        names = family_of(spec.architecture).CHECKPOINT_NAMES
        fill_parameters(decoder.parameters(), checkpoint, names, spec.tie_embeddings, progress)
        decoder.seal()
    return decoder
