"""Matrix products with weights: a row's bits do not depend on how many rows are in the call.

Promises: the weight of a `Linear` may consist of named parts that are filled one by one.
`LogitsHead` returns float32 logits that were never rounded to the model's type. On a CPU weights
are packed once (`pack_weight`), which makes products of few rows several times faster.
Does not know: which row counts are exact on this machine (`row_probe.find_row_order` measures it).

Legend: T rows, I input features, O output features, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from eyas.kernels.ahead import is_collecting
from eyas.kernels.packed import Layout, Weight, by_row
from eyas.layers.compute import Compute
from eyas.layers.gemm.variants import PARTS_SPLITS, splits_of
from eyas.native.products import packed_weight
from eyas.ops.gate import Activation, gate
from eyas.parallel.cut import Cut, Parameter, Rows, held
from eyas.parallel.shard import WHOLE, Shard

if TYPE_CHECKING:
    from eyas.layers.gemm.variants import GemmPlan, GemmVariant, Role

HEAD_BLOCK_BYTES = 128 << 20
"""The largest block in which a float32 head is packed; it limits the memory that packing needs."""


PackedProduct = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]
"""Takes x [T, I] and a bias [O] or None; returns [T, O]."""


def pack_weight(weight_OI: torch.Tensor) -> PackedProduct | None:
    """Return the product with a weight that is packed for this CPU; None if nothing here packs it.

    By our own code where it can be compiled for the type and the processor, in one order for any number
    of rows. Else in oneDNN's blocked layout, whose kernels keep their order over more row counts than
    `F.linear` does.
    """
    return packed_weight(weight_OI) or pack_by_library(weight_OI)


def pack_by_library(weight_OI: torch.Tensor) -> PackedProduct | None:
    """Return the product with a weight in oneDNN's blocked layout; None where it is not available."""
    if weight_OI.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return None
    try:
        blocked = torch.ops.mkldnn._reorder_linear_weight(weight_OI, 2)
        product = partial(_blocked_linear, blocked)
        product(torch.zeros(2, weight_OI.shape[1], dtype=weight_OI.dtype), None)
    except (RuntimeError, AttributeError, NotImplementedError):
        return None
    return product


def _blocked_linear(
    blocked: torch.Tensor, x_TI: torch.Tensor, bias_O: torch.Tensor | None
) -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise.default(x_TI, blocked, bias_O, "none", [], "")


class Linear:
    """A product `x @ weight.T + bias` whose weight has one or more named parts.

    parts: output features by name, in the order of the output columns; `Rows` are those of one rank.
    layout: keep the weight packed like this; only where the row order names products of a device.
    Fill the tensors of `parameters()`, then call `seal()` once before running the layer.
    """

    def __init__(
        self,
        in_features: int,
        parts: Mapping[str, int | Rows],
        compute: Compute,
        *,
        bias: bool = False,
        layout: Layout | None = None,
    ) -> None:
        self._rows = {
            name: Rows(part, ((0, part),)) if isinstance(part, int) else part
            for name, part in parts.items()
        }
        out_features = sum(rows.count for rows in self._rows.values())
        self.shape = (out_features, in_features)
        self._bucket = compute.order.bucket
        self._products = compute.order.products
        assert layout is None or self._products is not None, (
            "products of a CPU take no packed weight"
        )
        empty = torch.empty if layout is None else layout.empty
        self._layout = layout
        self._weight_OI: Weight = empty(
            out_features, in_features, dtype=compute.dtype, device=compute.device
        )
        self._bias_O = compute.empty(out_features) if bias else None
        self._packed: PackedProduct | None = None
        self._plans: dict[Role, GemmPlan] = {}
        if self._products is not None:
            from eyas.layers.gemm import apply

            self._apply = apply
        self._is_sealed = False

    def views(self) -> dict[str, Weight]:
        """Return what is held: "part.weight" and, with a bias, "part.bias"."""
        assert not self._is_sealed, "a sealed layer has no parameters to fill"
        views: dict[str, Weight] = {}
        start = 0
        for name, rows in self._rows.items():
            stop = start + rows.count
            views[f"{name}.weight"] = self._weight_OI[start:stop]
            if self._bias_O is not None:
                views[f"{name}.bias"] = self._bias_O[start:stop]
            start = stop
        return views

    def parameters(self) -> dict[str, Parameter]:
        """Return what a loader fills, under the names of `views`."""
        found: dict[str, Parameter] = {}
        for name, view in self.views().items():
            found[name] = held(view, self._rows[name.rpartition(".")[0]])
        return found

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return `views()` of a layer whose weight is not packed."""
        found = self.views()
        return {name: each for name, each in found.items() if isinstance(each, torch.Tensor)}

    def reorder(self, rows: Sequence[int]) -> None:
        """Let output feature i be the one that is `rows[i]` now; `views` then no longer name them. A
        packed weight has scales of its own for each row."""
        assert not self._is_sealed, "a sealed layer has no parameters to reorder"
        of_rows = by_row(self._weight_OI)
        for each in of_rows if self._bias_O is None else (*of_rows, self._bias_O):
            each.copy_(each[torch.tensor(rows, device=each.device)])

    def seal(self) -> None:
        """Bring the weights into the layout of a CPU's products, if it has one; the plain copy is then
        dropped."""
        assert not self._is_sealed, "seal() is called once"
        if isinstance(self._weight_OI, torch.Tensor):
            self._packed = pack_weight(self._weight_OI)
            if self._packed is not None:
                self._weight_OI = torch.empty(0)
        self._is_sealed = True

    def release(self) -> None:
        """Drop the weights, which the caller has packed."""
        self._weight_OI, self._is_sealed = torch.empty(0), True

    def __call__(self, x_TI: torch.Tensor) -> torch.Tensor:
        """Return [T, O] in x's dtype; the row order must allow T."""
        if self._bucket is not None and x_TI.shape[0] > self._bucket:
            return torch.cat([self(rows) for rows in x_TI.split(self._bucket)])
        if self._packed is not None:
            return self._packed(x_TI, self._bias_O)
        variant = self._variant(x_TI, "plain")
        if variant is None:
            assert isinstance(self._weight_OI, torch.Tensor)
            return F.linear(x_TI, self._weight_OI, self._bias_O)
        return self._apply.plain(variant, x_TI, self._weight_OI, self._bias_O)

    def heads(self, x_TI: torch.Tensor) -> torch.Tensor:
        """Return [T, O] in x's dtype, or float32 parts [Z, T, O], the bias among them, which the caller
        adds in order and rounds to it."""
        variant = self._variant(x_TI, "heads")
        if variant is None:
            return self(x_TI)
        splits = splits_of("heads", self._layout)
        return self._apply.heads(variant, x_TI, self._weight_OI, self._bias_O, splits)

    def parts(self, x_TI: torch.Tensor) -> torch.Tensor:
        """Return parts that the caller adds in order: [T, O] in x's dtype, or float32 [S, T, O]."""
        variant = None if self._bias_O is not None else self._variant(x_TI, "parts")
        if variant is None:
            return self(x_TI)
        return self._apply.parts(variant, x_TI, self._weight_OI, PARTS_SPLITS)

    def pieces(self, x_TI: torch.Tensor, num_pieces: int) -> torch.Tensor:
        """Return sums over equal pieces of the input features, float32 [Z, T, O]; on a device alone."""
        variant = self._variant(x_TI, "parts")
        assert variant is not None and self._bias_O is None
        return self._apply.pieces(variant, x_TI, self._weight_OI, num_pieces)

    def gated(self, x_TI: torch.Tensor, activation: Activation = "silu") -> torch.Tensor:
        """Return [T, O / 2]: the activation of the first half of the outputs times the second."""
        variant = self._variant(x_TI, "gated") if activation == "silu" else None
        if variant is None:
            return gate(self(x_TI), activation)
        return self._apply.gated(variant, x_TI, self._weight_OI, self._bias_O)

    def _variant(self, x_TI: torch.Tensor, role: Role) -> GemmVariant | None:
        """Return the variant for so many rows; None on a CPU."""
        if self._products is None:
            return None
        plan = self._plans.get(role)
        if plan is None:
            bias = self._bias_O is not None
            dtype, layout = self._weight_OI.dtype, self._layout
            plan = self._products.plan(*self.shape, dtype, role, bias=bias, layout=layout)
            if not is_collecting():
                self._plans[role] = plan
        return plan.variant(x_TI.shape[0])


class LogitsHead:
    """The output layer: hidden states to float32 logits.

    On a CPU the weight is stored in float32, since no CPU product takes bfloat16 and returns
    float32. On a GPU it keeps its type, and the product accumulates and writes float32.
    """

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        compute: Compute,
        *,
        shard: Shard = WHOLE,
    ) -> None:
        self.shape = (vocab_size, hidden_size)
        self._group = shard.group
        self._tokens = [replace(shard, rank=rank).part(vocab_size) for rank in range(shard.size)]
        self._rank = shard.rank
        held_tokens = self._tokens[shard.rank].count
        self._bucket = compute.order.bucket
        weight_dtype = torch.float32 if compute.device.type == "cpu" else compute.dtype
        size = torch.empty(0, dtype=weight_dtype).element_size()
        block_rows = max(1, HEAD_BLOCK_BYTES // (size * hidden_size))
        if compute.device.type != "cpu":
            block_rows = held_tokens
        self._blocks = [
            torch.empty(
                min(block_rows, held_tokens - start),
                hidden_size,
                dtype=weight_dtype,
                device=compute.device,
            )
            for start in range(0, held_tokens, block_rows)
        ]
        self._packed: list[PackedProduct | None] = [None] * len(self._blocks)
        self._is_float32 = weight_dtype == torch.float32
        self._products = compute.order.products
        self._plan: GemmPlan | None = None
        self._is_sealed = False

    def views(self) -> list[torch.Tensor]:
        """Return consecutive blocks of the rows that are held."""
        assert not self._is_sealed, "a sealed layer has no parameters to fill"
        return self._blocks

    def parameters(self) -> list[Parameter]:
        """Return what a loader fills: consecutive blocks of rows, or one of which this rank has a
        part."""
        ((first, _),) = self._tokens[self._rank].ranges
        if len(self._tokens) == 1:
            return list(self.views())
        blocks: list[Parameter] = []
        for block in self.views():
            rows = Rows(self.shape[0], ((first, first + len(block)),))
            blocks.append(Cut.of_rows(block, rows))
            first += len(block)
        return blocks

    def fill_from(self, weight_VI: torch.Tensor) -> None:
        """Copy the rows that are held from the weight of all tokens."""
        ((start, _),) = self._tokens[self._rank].ranges
        for block_VI in self.views():
            block_VI.copy_(weight_VI[start : start + len(block_VI)])
            start += len(block_VI)

    def multiply(self, factor: float) -> None:
        """Multiply the weight, and so every logit."""
        for block_VI in self.views():
            block_VI.mul_(factor)

    def seal(self) -> None:
        assert not self._is_sealed, "seal() is called once"
        if self._products is not None:
            from eyas.layers.gemm import apply

            self._apply = apply
            (weight_VI,) = self._blocks
            # Now, because it takes memory that the cache of keys and values will have.
            num_out, num_in = weight_VI.shape
            self._plan = self._products.plan(num_out, num_in, weight_VI.dtype, "logits")
        for index, block_VI in enumerate(self._blocks):
            self._packed[index] = pack_weight(block_VI)
            if self._packed[index] is not None:
                self._blocks[index] = torch.empty(0)
        self._is_sealed = True

    def __call__(self, x_TI: torch.Tensor, out_TV: torch.Tensor | None = None) -> torch.Tensor:
        """Return float32 [T, V]; on other ranks than the first, nothing [0, V].

        The row order must allow T. out_TV: where a device writes the result.
        """
        if self._group is None:
            return self._held(x_TI, out_TV)
        most = max(tokens.count for tokens in self._tokens)
        held_TV = self._held(x_TI, None)
        all_NTV = self._group.gather(F.pad(held_TV, (0, most - held_TV.shape[1])))
        if all_NTV is None:
            return held_TV.new_empty((0, self.shape[0]))
        columns = [held[:, : part.count] for held, part in zip(all_NTV, self._tokens, strict=True)]
        return torch.cat(columns, dim=1, out=out_TV)

    def _held(self, x_TI: torch.Tensor, out_TV: torch.Tensor | None) -> torch.Tensor:
        """Return the logits of the tokens whose rows are held."""
        if self._plan is not None:
            (weight_VI,), variant = self._blocks, self._plan.variant(len(x_TI))
            return self._apply.logits(variant, x_TI, weight_VI, out_TV)
        if self._is_float32:
            x_TI = x_TI.float()
        if self._bucket is not None and x_TI.shape[0] > self._bucket:
            return torch.cat([self._run(rows) for rows in x_TI.split(self._bucket)])
        return self._run(x_TI)

    def _run(self, x_TI: torch.Tensor) -> torch.Tensor:
        columns = [
            self._product(x_TI, block, packed)
            for block, packed in zip(self._blocks, self._packed, strict=True)
        ]
        return columns[0] if len(columns) == 1 else torch.cat(columns, dim=1)

    def _product(
        self, x_TI: torch.Tensor, block: torch.Tensor, packed: PackedProduct | None
    ) -> torch.Tensor:
        if packed is not None:
            return packed(x_TI, None)
        if self._is_float32:
            return F.linear(x_TI, block)
        return torch.mm(x_TI, block.t(), out_dtype=torch.float32)
