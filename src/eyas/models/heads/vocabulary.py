"""Read the tokens that a head can propose: from `d2t` of its checkpoint, or from a token map file.

Promises: ascending target ids without repeats, in range; no code of a file is run.
Does not know: the head's weights.

Legend: V ids of the draft vocabulary.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from eyas.models.checkpoint import Checkpoint, read_tensor_pickle
from eyas.models.heads.spec import HeadSpec

MAX_TOKEN_MAP_BYTES = 64 << 20


def read_draft_ids(
    spec: HeadSpec, checkpoint: Checkpoint, d2t: str | None, t2d: str | None
) -> torch.Tensor | None:
    """Return the target's token id of each draft id, int64 [V]; None where the vocabularies are equal.

    d2t, t2d: names of these tensors in the checkpoint; None where it has none. d2t[j] is an offset: the
    target id of draft id j is j + d2t[j]. t2d[i] says whether target id i has a draft id.
    ValueError: d2t is missing or invalid, or t2d does not agree with it.
    """
    if d2t is None:
        if spec.draft_vocab_size != spec.vocab_size:
            raise ValueError(
                f"{checkpoint.directory} lacks tensor 'd2t', the ids of its "
                f"{spec.draft_vocab_size} draft tokens; the head is incomplete: download it again"
            )
        return None
    names = [name for name in (d2t, t2d) if name]
    maps = dict(checkpoint.read_tensors(names))
    offsets_V = maps[d2t]
    if offsets_V.shape != (spec.draft_vocab_size,) or offsets_V.is_floating_point():
        raise ValueError(
            f"{checkpoint.directory}: tensor {d2t!r} must hold {spec.draft_vocab_size} whole numbers "
            f"(draft_vocab_size), not {offsets_V.dtype} of shape {list(offsets_V.shape)}"
        )
    ids_V = offsets_V.long() + torch.arange(spec.draft_vocab_size)
    if int(ids_V.min()) < 0 or int(ids_V.max()) >= spec.vocab_size:
        raise ValueError(
            f"{checkpoint.directory}: tensor {d2t!r} leads outside of the {spec.vocab_size} tokens "
            "of the model; it must hold offsets (token id minus draft id)"
        )
    if not bool((ids_V[1:] > ids_V[:-1]).all()):
        raise ValueError(
            f"{checkpoint.directory}: tensor {d2t!r} does not give ascending token ids; it must hold "
            "offsets (token id minus draft id)"
        )
    if t2d:
        mask_V = torch.zeros(spec.vocab_size, dtype=torch.bool)
        mask_V[ids_V] = True
        if maps[t2d].shape != mask_V.shape or not torch.equal(maps[t2d].bool(), mask_V):
            raise ValueError(
                f"{checkpoint.directory}: tensors {d2t!r} and {t2d!r} name different tokens; the "
                "head is damaged"
            )
    return None if spec.draft_vocab_size == spec.vocab_size else ids_V


def read_token_map(file: Path | str, vocab_size: int) -> torch.Tensor:
    """Return the token ids of a token map, ascending, int64 [V] (FR-Spec: Zhao et al., 2502.14856).

    file: a JSON list of ids, or a .pt file that holds a list or a tensor of them.
    ValueError: the file cannot be read, or an id is invalid, repeated or not below `vocab_size`.
    """
    file = Path(file)
    if not file.is_file():
        raise ValueError(
            f"token map {file} does not exist; give a .pt or .json file with token ids"
        )
    if file.stat().st_size > MAX_TOKEN_MAP_BYTES:
        raise ValueError(f"token map {file} is larger than {MAX_TOKEN_MAP_BYTES >> 20} MiB")
    if file.suffix == ".json":
        try:
            ids = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ValueError(f"token map {file} cannot be read as JSON ({error})") from error
    else:
        ids = read_tensor_pickle(file)
    if isinstance(ids, torch.Tensor):
        ids = ids.flatten().tolist()
    if not isinstance(ids, list) or not ids or not all(type(token) is int for token in ids):
        raise ValueError(f"token map {file} must hold a list of token ids, and at least one")
    if outside := [token for token in ids if not 0 <= token < vocab_size]:
        raise ValueError(
            f"token map {file} names token {outside[0]}, but the model has {vocab_size} tokens; it "
            "is a map for another model"
        )
    if len(set(ids)) < len(ids):
        raise ValueError(f"token map {file} names a token twice")
    return torch.tensor(sorted(ids), dtype=torch.int64)
