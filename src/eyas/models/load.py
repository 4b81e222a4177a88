"""Load a checkpoint directory into a decoder that is ready to run.

Promises: the configuration and every tensor's name and shape are checked before memory is allocated.
Does not know: what the decoder is used for.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from eyas.cache.store import KVScales
from eyas.config import DtypeName
from eyas.layers.row_order import RowOrder
from eyas.models.checkpoint import Checkpoint, Kept
from eyas.models.decoder import Decoder
from eyas.models.dtype import resolve_dtype
from eyas.models.hyper_decoder import decoder_class
from eyas.models.kv_scales import attention_modules, read_kv_scales
from eyas.models.packing import Storage, decide, num_bytes
from eyas.models.registry import checkpoint_names, ignored_tensors, read_spec
from eyas.models.spec import ModelSpec
from eyas.models.stored_sizes import check_sizes
from eyas.models.weights import (
    Progress,
    fill,
    fused,
    has_own_head,
    stored_names,
    wanted_tensors,
)
from eyas.parallel.cut import Parameter
from eyas.parallel.shard import WHOLE, Shard

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A checkpoint whose configuration and tensor headers were checked; its weights are not loaded yet.

    names: from `weights.stored_names`. wanted: tensor name -> the parameter of `weights.fused` that it
    fills. shapes: the decoder's parameters, on the device "meta". storage: how weights are held where
    kernels run.
    """

    spec: ModelSpec
    checkpoint: Checkpoint
    names: Mapping[str, str]
    wanted: Mapping[str, str]
    shapes: Mapping[str, list[Parameter]]
    storage: Storage

    @classmethod
    def open(cls, directory: Path | str) -> ModelFiles:
        """Read the configuration and the headers of the files. ValueError: as `load_model`."""
        spec = read_spec(directory)
        checkpoint = Checkpoint.open(directory)
        found = checkpoint_names(spec.architecture, checkpoint.tensors)
        names = stored_names(checkpoint, found)
        check_sizes(spec, checkpoint, names)
        if spec.tie_embeddings and has_own_head(checkpoint, names):
            log.warning(
                "%s/config.json sets tie_word_embeddings, but the files hold other weights for "
                "lm_head, which are used",
                directory,
            )
            spec = replace(spec, tie_embeddings=False)
        shapes = meta_parameters(spec)
        wanted = wanted_tensors(
            fused(shapes, names),
            checkpoint,
            names,
            spec.tie_embeddings,
            ignored_tensors(spec.architecture),
        )
        storage = decide(spec, shapes, checkpoint.tensors, wanted, names)
        return cls(spec, checkpoint, names, wanted, shapes, storage)

    @property
    def num_parameters(self) -> int:
        """The number of weights; a tied embedding counts once."""
        return _num_weights(self.shapes)

    def num_bytes(self, dtype: torch.dtype, *, stays_packed: bool, shard: Shard = WHOLE) -> int:
        """Return the bytes of a rank's weights in memory. stays_packed: whether kernels run there."""
        held = self._held(shard)
        layouts = self._storage_of(held).layouts if stays_packed else {}
        return num_bytes(held, dtype, layouts)

    def _held(self, shard: Shard) -> Mapping[str, list[Parameter]]:
        """Return the parameters of a rank's part, on the device "meta"."""
        if shard.is_whole:
            return self.shapes
        return meta_parameters(self.spec, shard)

    def _storage_of(self, held: Mapping[str, list[Parameter]]) -> Storage:
        """Return how a rank's weights are held where kernels run."""
        if held is self.shapes:
            return self.storage
        return decide(self.spec, held, self.checkpoint.tensors, self.wanted, self.names)

    def load(
        self,
        *,
        dtype: torch.dtype | DtypeName = "auto",
        device: torch.device | str = "cpu",
        max_model_len: int | None = None,
        extends: bool = False,
        order: RowOrder | None = None,
        progress: Progress | None = None,
        shard: Shard = WHOLE,
    ) -> Decoder:
        """Load the weights and return the decoder.

        dtype: type of the weights; "auto" as in `resolve_dtype`. max_model_len: context length in
        tokens; None is the checkpoint's. extends: allow more than the checkpoint's context length; a
        draft model may get longer texts, where its drafts are worse but the output is not.
        order: the row counts that the runner uses (from `find_row_order`); with None, bits may depend
        on the number of rows. progress: called after each tensor. shard: the part of the weights that
        is read and held.
        ValueError: `max_model_len` is too large, or a weight is not finite.
        """
        longest = self.spec.max_position
        if max_model_len is not None and max_model_len > longest and not extends:
            raise ValueError(
                f"max_model_len {max_model_len} is above the {longest} positions that "
                f"{self.checkpoint.directory} was made for; lower it"
            )
        dtype = resolve_dtype(dtype, device)
        has_kernels = order is not None and order.products is not None
        storage = self._storage_of(self._held(shard)) if has_kernels else Storage()
        if (stored := self.checkpoint.format) is not None:
            how = storage.description
            if not has_kernels:
                how = "all are dequantised (no kernels here)"
            log.info(
                "weights are stored as %s and computed as %s: %s%s",
                stored.description,
                str(dtype).removeprefix("torch."),
                how,
                f"; not applied: {', '.join(stored.ignored)}" if stored.ignored else "",
            )
        with torch.no_grad():
            decoder = decoder_class(self.spec)(
                self.spec,
                dtype=dtype,
                device=device,
                max_model_len=max_model_len,
                order=order,
                layouts=storage.layouts,
                shard=shard,
            )
            kept = Kept(storage.tensors, dtype, decoder.device)
            # What `parameters` returns would keep the plain copy of each weight that `seal` packs.
            fill(
                fused(decoder.parameters(), self.names),
                self.checkpoint,
                self.wanted,
                progress,
                kept,
            )
            decoder.seal()
        return decoder

    def kv_scales(self) -> tuple[KVScales, ...]:
        """Return the scales of an FP8 cache, of each layer. ValueError: as `read_kv_scales`."""
        stores = self.spec.stores
        modules = attention_modules(self.names, stores)
        return read_kv_scales(self.checkpoint, modules, stores)


def meta_parameters(spec: ModelSpec, shard: Shard = WHOLE) -> Mapping[str, list[Parameter]]:
    """Return the parameters of a model, or of a rank's part of it, on the device "meta".

    ValueError: sizes are beyond those of any tensor.
    """
    try:
        decoder = decoder_class(spec)(
            spec,
            dtype=torch.bfloat16,
            device="meta",
            max_model_len=1,
            shard=replace(shard, group=None),
        )
    except RuntimeError as error:
        raise ValueError(f"the sizes in config.json are not those of a model: {error}") from None
    return decoder.parameters()


def num_parameters(spec: ModelSpec) -> int:
    """Return the number of a model's weights; a tied embedding counts once."""
    return _num_weights(meta_parameters(spec))


def _num_weights(parameters: Mapping[str, list[Parameter]]) -> int:
    """Return the number of floats of whole parameters."""
    tensors = (block for blocks in parameters.values() for block in blocks)
    return sum(
        tensor.numel()
        for tensor in tensors
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
    )


def load_model(
    directory: Path | str,
    *,
    dtype: torch.dtype | DtypeName = "auto",
    device: torch.device | str = "cpu",
    max_model_len: int | None = None,
    order: RowOrder | None = None,
    progress: Progress | None = None,
) -> Decoder:
    """Load the Hugging Face checkpoint in `directory`; the arguments are those of `ModelFiles.load`.

    ValueError: the checkpoint is unsupported, incomplete or damaged; the text says what to do.
    """
    return ModelFiles.open(directory).load(
        dtype=dtype, device=device, max_model_len=max_model_len, order=order, progress=progress
    )


def read_head_weight(directory: Path | str, architecture: str) -> torch.Tensor:
    """Return the weight [V, D] of a checkpoint's own logits head, as stored, on the CPU."""
    checkpoint = Checkpoint.open(directory)
    names = stored_names(checkpoint, checkpoint_names(architecture, checkpoint.tensors))
    return checkpoint.read_tensor(names["head.weight"])
