"""Load a draft head from a directory, for a target model.

Promises: `read_head` refuses a head that does not fit its target before memory is allocated; a head
without an embedding or output layer shares the target's.
Does not know: trees, sampling, what the head is used for.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from eyas.cache.store import KVScales
from eyas.config import DtypeName
from eyas.layers.row_order import RowOrder
from eyas.models.checkpoint import Checkpoint
from eyas.models.config_file import ConfigFile
from eyas.models.decoder import Decoder
from eyas.models.dtype import resolve_dtype
from eyas.models.heads.hyper import head_class, parameter_shapes
from eyas.models.heads.mtp import find_layout, mtp_files, read_mtp
from eyas.models.heads.names import stored_names
from eyas.models.heads.network import DraftHead
from eyas.models.heads.read import parameter_files, read_eagle
from eyas.models.heads.spec import HeadSpec
from eyas.models.heads.vocabulary import read_draft_ids, read_token_map
from eyas.models.kv_scales import first_product, module_of, read_kv_scales
from eyas.models.load import read_head_weight
from eyas.models.registry import describes_head, read_spec
from eyas.models.spec import ModelSpec
from eyas.models.weights import Progress, fill, fused, parameter_pattern


def is_head(directory: Path | str) -> bool:
    """Whether `directory` holds a draft head, supported or not, and not a model.

    ValueError: it holds no readable checkpoint.
    """
    if describes_head(ConfigFile.of_model(directory)):
        return True
    tensors = Checkpoint.open(directory, opens_pickles=True).tensors
    return "fc.weight" in stored_names(tensors, Path(directory))


def has_supported_mtp(directory: Path | str) -> bool:
    """Whether the model in `directory` has an MTP layer that is supported."""
    directory = Path(directory)
    target = read_spec(directory)
    checkpoint = Checkpoint.open(directory)
    layout = find_layout(checkpoint, target.num_layers)
    if layout is None:
        return False
    try:
        read_mtp(checkpoint, layout, target)
    except ValueError:
        return False
    return True


def has_mtp_layers(directory: Path | str, target: ModelSpec) -> bool:
    """Whether the model's files hold MTP layers, supported or not."""
    return find_layout(Checkpoint.open(directory), target.num_layers) is not None


def read_head(
    directory: Path | str,
    target: ModelSpec,
    *,
    target_directory: Path | str | None = None,
    token_map: Path | str | None = None,
) -> HeadSpec:
    """Read the facts of the head in `directory`: an EAGLE head, or a model with an MTP layer.

    target_directory: of the target model; needed where the draft vocabulary is smaller than the
    target's and the head has no output layer, since rows of the target's output layer are used.
    token_map: file of the token ids that the head may propose, as in `read_token_map`.
    ValueError: this is no head, it is not supported, or it does not fit its target; the text says why.
    """
    directory = Path(directory)
    if is_head(directory):
        spec = read_eagle(directory, target)
    else:
        checkpoint = Checkpoint.open(directory)
        layout = find_layout(checkpoint, target.num_layers)
        if layout is None:
            raise ValueError(
                f"{directory} is a whole model without an MTP layer, not a draft head; use it as a "
                "draft model, or give the directory of a head"
            )
        spec = read_mtp(checkpoint, layout, target)
    if token_map is not None:
        if spec.draft_vocab_size != spec.vocab_size:
            raise ValueError(
                f"{directory} has a draft vocabulary of its own ({spec.draft_vocab_size} tokens); a "
                "token map is for heads without one"
            )
        ids_V = read_token_map(token_map, spec.vocab_size)
        spec = replace(spec, draft_vocab_size=len(ids_V), own_head=False)
    if not spec.own_head and spec.draft_vocab_size != spec.vocab_size and not target_directory:
        raise ValueError(f"{directory} needs the model's output layer; give the model's directory")
    return spec


def load_head(
    directory: Path | str,
    target: Decoder,
    target_directory: Path | str,
    *,
    dtype: torch.dtype | DtypeName | None = None,
    device: torch.device | str | None = None,
    max_model_len: int | None = None,
    order: RowOrder | None = None,
    token_map: Path | str | None = None,
    progress: Progress | None = None,
) -> DraftHead:
    """Load the head in `directory` for a target that is already loaded.

    dtype, device, max_model_len, order: default to the target's. token_map: file of the token ids that
    a head without a draft vocabulary may propose. progress: called after each tensor.
    ValueError: as `read_head`.
    """
    directory = Path(directory)
    device = device or target.device
    spec = read_head(directory, target.spec, target_directory=target_directory, token_map=token_map)
    checkpoint = Checkpoint.open(directory, opens_pickles=True)
    files, ids_V = _files(spec, checkpoint, target.spec), None
    if spec.kind != "mtp":
        stored = stored_names(checkpoint.tensors, directory)
        as_stored = spec if token_map is None else replace(spec, draft_vocab_size=spec.vocab_size)
        ids_V = read_draft_ids(as_stored, checkpoint, stored.get("d2t"), stored.get("t2d"))
    if token_map is not None:
        ids_V = read_token_map(token_map, spec.vocab_size)
    shares_head = not spec.own_head and ids_V is None and target.shard.size == 1
    with torch.no_grad():
        head = head_class(spec)(
            spec,
            dtype=resolve_dtype(dtype or target.dtype, device),
            device=device,
            max_model_len=max_model_len or target.max_model_len,
            order=order or target.order,
            embedding=None if spec.own_embedding else target.embedding,
            head=target.head if shares_head else None,
            target_ids_V=ids_V,
        )
        stored_patterns = {parameter_pattern(name)[0]: file for name, file in files.items()}
        parameters = fused(head.parameters(), stored_patterns)
        blocks = None if spec.own_head else parameters.pop("head.weight", None)
        if blocks is not None:
            blocks = [block for block in blocks if isinstance(block, torch.Tensor)]
            ids = torch.arange(spec.vocab_size) if ids_V is None else ids_V
            _fill_from_target(blocks, ids, target, Path(target_directory))
        fill(parameters, checkpoint, {n: p for p, n in files.items() if p in parameters}, progress)
        del parameters, blocks  # they would keep the plain copy of each weight that `seal` packs
        head.seal()
    return head


def read_head_kv_scales(
    directory: Path | str, spec: HeadSpec, target: ModelSpec
) -> tuple[KVScales, ...]:
    """Return the scales of an FP8 cache, of each layer of a head. ValueError: as `read_kv_scales`."""
    checkpoint = Checkpoint.open(directory, opens_pickles=True)
    files = _files(spec, checkpoint, target)
    modules = [
        module_of(files[first_product(files, f"layers.{layer}.")])
        for layer in range(spec.num_layers)
    ]
    return read_kv_scales(checkpoint, modules, spec.stores)


def _files(spec: HeadSpec, checkpoint: Checkpoint, target: ModelSpec) -> dict[str, str]:
    """Return the tensor name of each parameter of a head."""
    if spec.kind == "mtp":
        layout = find_layout(checkpoint, spec.num_target_layers)
        assert layout is not None
        return mtp_files(spec, layout, target, checkpoint)
    return parameter_files(
        parameter_shapes(spec), stored_names(checkpoint.tensors, checkpoint.directory)
    )


def _fill_from_target(
    blocks: list[torch.Tensor], ids_V: torch.Tensor, target: Decoder, target_directory: Path
) -> None:
    """Copy the rows of these token ids from the target's output layer, scaled as its logits are."""
    if target.spec.tie_embeddings:
        rows_VD = target.embedding.weight_VD
        ids_V = ids_V.to(rows_VD.device)
    else:
        rows_VD = read_head_weight(target_directory, target.spec.architecture)
    start = 0
    for block_VD in blocks:
        stop = start + block_VD.shape[0]
        block_VD.copy_(rows_VD[ids_V[start:stop]]).mul_(target.spec.logits_scale)
        start = stop
