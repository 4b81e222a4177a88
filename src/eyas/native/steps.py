"""What a step does beside its models, on a CPU: rows of trees, levels and tails of drafts, walks.

Promises: what the torch bodies in `eyas.ops` return, entry by entry, but for logarithms, whose last
bits may differ. A call takes some microseconds, where each of the torch operations takes that long.
Does not know: models, drafters.

Legend: B sequences, W nodes of a tree, R rows, A seats, C columns (positions), P rows of a tail or
draft tokens of a path, Q nodes of a level, J children of a node, E candidates of a level, X entries
of a pool or of a report, L key columns, U candidates, V vocabulary.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Protocol

import torch

from eyas.native.build import Built, ask, call, load

_SIZE, _POINTER, _INT, _WIDE = ctypes.c_ssize_t, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64


class Sequences(Protocol):
    """`ops.table.TableSequences`."""

    @property
    def tokens_AC(self) -> torch.Tensor: ...
    @property
    def slots_AC(self) -> torch.Tensor: ...
    @property
    def seats_B(self) -> torch.Tensor: ...
    @property
    def roots_B(self) -> torch.Tensor: ...
    @property
    def node_slots_BW(self) -> torch.Tensor: ...
    @property
    def last_position(self) -> int: ...


class _Sequences(ctypes.Structure):
    """`struct sequences` of steps.c. owners: the tensors that it points to."""

    owners: object

    _fields_ = (
        *((name, _POINTER) for name in ("tokens", "slots")),
        *((name, _SIZE) for name in ("tokens_stride", "slots_stride")),
        *((name, _POINTER) for name in ("seats", "roots", "node_slots")),
        *((name, _SIZE) for name in ("node_slots_stride", "num")),
        ("last_position", _WIDE),
    )


def _struct(of: Sequences) -> _Sequences:
    tokens_AC, slots_AC, node_slots_BW = of.tokens_AC, of.slots_AC, of.node_slots_BW
    assert tokens_AC.stride(1) == slots_AC.stride(1) == 1
    assert node_slots_BW.stride(1) == 1 or node_slots_BW.shape[1] == 1
    assert of.seats_B.is_contiguous() and of.roots_B.is_contiguous()
    struct = _Sequences(
        tokens_AC.data_ptr(),
        slots_AC.data_ptr(),
        tokens_AC.stride(0),
        slots_AC.stride(0),
        of.seats_B.data_ptr(),
        of.roots_B.data_ptr(),
        node_slots_BW.data_ptr(),
        node_slots_BW.stride(0),
        len(of.seats_B),
        of.last_position,
    )
    struct.owners = (tokens_AC, slots_AC, of.seats_B, of.roots_B, node_slots_BW)
    return struct


def _numbers(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.int64)


def _rows(values_BW: torch.Tensor) -> torch.Tensor:
    """Return the grid with contiguous rows."""
    is_plain = values_BW.stride(1) == 1 or values_BW.shape[1] == 1
    return values_BW if is_plain else values_BW.contiguous()


def _logits(logits_RV: torch.Tensor) -> torch.Tensor:
    assert logits_RV.dtype == torch.float32
    return _rows(logits_RV)


class _Keys(ctypes.Structure):
    """`struct keys` of steps.c. owners: the tensors that it points to."""

    owners: object

    _fields_ = tuple((name, _POINTER) for name in ("seeds", "positions", "choices"))


Keys = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Seeds, positions and choices [R] of noise."""


def _keys(keys: Keys) -> _Keys:
    assert all(each.is_contiguous() and each.dtype == torch.int64 for each in keys)
    struct = _Keys(*(each.data_ptr() for each in keys))
    struct.owners = keys
    return struct


class CompiledSteps:
    """The functions of the compiled `steps.c`. Tensors are int64, scores and logits float32."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def node_rows(
        self,
        sequences: Sequences,
        tokens_BW: torch.Tensor,
        parents_BW: torch.Tensor | None,
        sizes_B: torch.Tensor,
    ) -> tuple[tuple[torch.Tensor, ...], torch.Tensor, torch.Tensor]:
        """Return token, position, position of the rotary table, slot, sequence, node and number [R] of
        each row, and the rows and slots [B, W] of nodes. parents_BW: None for chains."""
        num, width = tokens_BW.shape
        rows_7R, grid_BW, slots_BW = (
            _numbers(7, num * width),
            _numbers(num, width),
            _numbers(num, width),
        )
        tokens_BW, sizes_B, depths_W = _rows(tokens_BW), sizes_B.contiguous(), _numbers(width)
        parents_BW = None if parents_BW is None else _rows(parents_BW)
        num_rows = ask(
            "eyas::node_rows",
            self._library.eyas_node_rows,
            _struct(sequences),
            tokens_BW,
            tokens_BW.stride(0),
            parents_BW,
            0 if parents_BW is None else parents_BW.stride(0),
            sizes_B,
            width,
            depths_W,
            rows_7R,
            grid_BW,
            slots_BW,
        )
        return rows_7R[:, :num_rows].unbind(0), grid_BW, slots_BW

    def tail_rows(
        self,
        sequences: Sequences,
        made_A: torch.Tensor,
        drafts_B: torch.Tensor | None,
        longest: int,
        null_slot: int,
    ) -> tuple[Sequence[torch.Tensor], torch.Tensor, torch.Tensor, Sequence[torch.Tensor]]:
        """Return token, position, written slot and slot before [R] of each row; the rows and their
        slots [B, P]; and first position, root's row, root's token and number [B] of each sequence."""
        num = len(sequences.seats_B)
        rows_4R, of_sequences_4B = _numbers(4, num * longest), _numbers(4, num)
        grid_BP, slots_BP = _numbers(num, longest), _numbers(num, longest)
        num_rows = ask(
            "eyas::tail_rows",
            self._library.eyas_tail_rows,
            _struct(sequences),
            made_A,
            drafts_B,
            longest,
            null_slot,
            rows_4R,
            grid_BP,
            slots_BP,
            of_sequences_4B,
        )
        return rows_4R[:, :num_rows].unbind(0), grid_BP, slots_BP, of_sequences_4B.unbind(0)

    def level_rows(
        self,
        sequences: Sequences,
        paths_BQP: torch.Tensor,
        above_BQ: torch.Tensor,
        parents_BW: torch.Tensor | None,
        first_scratch: int,
        per_seat: int,
    ) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor] | None]:
        """Return the fields of `ops.level_rows.LevelRows` and, for trees, of `InnerNodes`."""
        num, topk, depth = paths_BQP.shape
        rows_6R = _numbers(6, num * topk)
        grids = None if topk == 1 else _numbers(3, num, 1 + depth * topk)
        paths_BQP, above_BQ = paths_BQP.contiguous(), above_BQ.contiguous()
        parents_BW = None if parents_BW is None else parents_BW.contiguous()
        call(
            "eyas::level_rows",
            self._library.eyas_level_rows,
            _struct(sequences),
            paths_BQP,
            above_BQ,
            parents_BW,
            topk,
            depth,
            first_scratch,
            per_seat,
            rows_6R,
            grids,
        )
        return rows_6R.unbind(0), None if grids is None else grids.unbind(0)

    def add_level(
        self,
        tokens_BQJ: torch.Tensor,
        scores_BQJ: torch.Tensor,
        frontier: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        pool: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        start: int,
        keep: int,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return places, scores, paths and parents of the next frontier. frontier: the first three of
        the one above. pool: tokens, scores and parents [B, X], contiguous."""
        num, width, children = tokens_BQJ.shape
        places_BQ, above_BQ, paths_BQP = (each.contiguous() for each in frontier)
        tokens_BQJ, scores_BQJ = tokens_BQJ.contiguous(), scores_BQJ.contiguous()
        assert all(each.is_contiguous() for each in pool) and keep <= width * children
        depth = paths_BQP.shape[2]
        next_places_BQ, parents_BQ = _numbers(num, keep), _numbers(num, keep)
        next_scores_BQ, next_paths_BQP = torch.empty(num, keep), _numbers(num, keep, depth + 1)
        scratch_E = torch.empty(width * children)
        call(
            "eyas::add_level",
            self._library.eyas_add_level,
            *(tokens_BQJ, scores_BQJ, num, width, children),
            *(places_BQ, above_BQ, paths_BQP, depth),
            *pool,
            *(pool[0].shape[1], start, keep),
            *(next_places_BQ, next_scores_BQ, next_paths_BQP),
            *(parents_BQ, scratch_E),
        )
        return next_places_BQ, next_scores_BQ, next_paths_BQP, parents_BQ

    def keep_best(
        self,
        roots_B1: torch.Tensor,
        pool: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        size: int,
        nodes: int,
        *,
        is_chain: bool,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return tokens, parents [B, W], sizes [B] and scores [B, W] of trees. pool: as in `add_level`.
        The parents of chains are rows of one."""
        num, width = len(roots_B1), 1 + min(nodes - 1, size)
        assert all(each.is_contiguous() for each in pool) and roots_B1.is_contiguous()
        tokens_BW, sizes_B, scores_BW = _numbers(num, width), _numbers(num), torch.empty(num, width)
        parents_BW = _numbers(num, width)
        if is_chain:
            parents_BW = torch.arange(-1, width - 1).expand(num, -1)
        kept_X = _numbers(size)
        call(
            "eyas::keep_best",
            self._library.eyas_keep_best,
            *(roots_B1, num),
            *pool,
            *(pool[0].shape[1], size, width, is_chain),
            *(tokens_BW, parents_BW, sizes_B),
            *(scores_BW, kept_X),
        )
        return tokens_BW, parents_BW, sizes_B, scores_BW

    def top_tokens(
        self, logits_RU: torch.Tensor, target_ids_U: torch.Tensor | None, num_children: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return target ids and log-probabilities [R, J], best first."""
        logits_RU = _logits(logits_RU)
        num, size = logits_RU.shape
        ids_RJ, scores_RJ = _numbers(num, num_children), torch.empty(num, num_children)
        assert num_children <= size and (target_ids_U is None or target_ids_U.is_contiguous())
        call(
            "eyas::top_tokens",
            self._library.eyas_top_tokens,
            *(logits_RU, logits_RU.stride(0), num, size, target_ids_U),
            *(num_children, ids_RJ, scores_RJ),
        )
        return ids_RJ, scores_RJ

    def top_tokens_with_noise(
        self,
        logits_RU: torch.Tensor,
        target_ids_U: torch.Tensor | None,
        keys: Keys,
        temperature_R: torch.Tensor,
        beta_R: torch.Tensor | None,
        num_children: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Do the same at temperatures, with the noise of the ids where they are above 0. beta_R: None
        ranks without noise."""
        logits_RU = _logits(logits_RU)
        num, size = logits_RU.shape
        ids_RJ, scores_RJ = _numbers(num, num_children), torch.empty(num, num_children)
        scratch_U = torch.empty(size)
        assert num_children <= size and (target_ids_U is None or target_ids_U.is_contiguous())
        of_rows = [temperature_R] if beta_R is None else [temperature_R, beta_R]
        assert all(each.is_contiguous() and each.dtype == torch.float32 for each in of_rows)
        call(
            "eyas::top_tokens",
            self._library.eyas_top_tokens_with_noise,
            *(logits_RU, logits_RU.stride(0), num, size, target_ids_U),
            *(_keys(keys), temperature_R, beta_R, num_children),
            *(ids_RJ, scores_RJ, scratch_U),
        )
        return ids_RJ, scores_RJ

    def best(self, logits_RV: torch.Tensor) -> torch.Tensor:
        """Return the id [R] of the largest logit; -1 if it is infinite, or a logit is no number."""
        logits_RV = _logits(logits_RV)
        best_R = _numbers(len(logits_RV))
        call(
            "eyas::best",
            self._library.eyas_best,
            *(logits_RV, logits_RV.stride(0), *logits_RV.shape, None, None, 0.0, best_R),
        )
        return best_R

    def gumbel(self, keys: Keys, ids_RK: torch.Tensor) -> torch.Tensor:
        """Return the noise [R, K] of some ids."""
        ids_RK = ids_RK.contiguous()
        noise_RK = torch.empty(ids_RK.shape)
        call(
            "eyas::gumbel",
            self._library.eyas_gumbel,
            *(_keys(keys), *ids_RK.shape[:1], ids_RK, ids_RK.shape[1]),
            noise_RK,
        )
        return noise_RK

    def all_gumbel(self, keys: Keys, vocab_size: int) -> torch.Tensor:
        """Return the noise [R, V] of all ids."""
        noise_RV = torch.empty(len(keys[0]), vocab_size)
        call(
            "eyas::gumbel",
            self._library.eyas_gumbel,
            *(_keys(keys), len(keys[0]), None, vocab_size, noise_RV),
        )
        return noise_RV

    def best_with_noise(
        self,
        logits_RV: torch.Tensor,
        keys: Keys,
        temperature_R: torch.Tensor,
        span: float,
    ) -> torch.Tensor:
        """Return the id [R] of the largest sum of a logit and, where the temperature is above 0, its
        noise; -1 as `best`. span: a logit that is further below the largest one cannot win."""
        assert temperature_R.is_contiguous() and temperature_R.dtype == torch.float32
        logits_RV = _logits(logits_RV)
        best_R = _numbers(len(logits_RV))
        call(
            "eyas::best",
            self._library.eyas_best,
            *(logits_RV, logits_RV.stride(0), *logits_RV.shape, _keys(keys)),
            *(temperature_R, span),
            best_R,
        )
        return best_R

    def walk(
        self,
        chosen_BW: torch.Tensor,
        tokens_BW: torch.Tensor,
        parents_BW: torch.Tensor | None,
        sizes_B: torch.Tensor,
    ) -> torch.Tensor:
        """Return the report [B, 2 * W + 1]. parents_BW: None for chains."""
        num, width = chosen_BW.shape
        chosen_BW, tokens_BW, sizes_B = (
            chosen_BW.contiguous(),
            _rows(tokens_BW),
            sizes_B.contiguous(),
        )
        parents_BW = None if parents_BW is None else _rows(parents_BW)
        report_BX = _numbers(num, 2 * width + 1)
        call(
            "eyas::walk",
            self._library.eyas_walk,
            *(chosen_BW, num, width, tokens_BW, tokens_BW.stride(0)),
            *(parents_BW, 0 if parents_BW is None else parents_BW.stride(0)),
            *(sizes_B, report_BX),
        )
        return report_BX

    def advance(
        self,
        sequences: Sequences,
        report_BX: torch.Tensor,
        lengths_A: torch.Tensor,
        *,
        is_chain: bool,
        padding_seat: int,
    ) -> None:
        """Append each verdict in place, as `ops.advance`."""
        assert report_BX.is_contiguous() and lengths_A.is_contiguous()
        call(
            "eyas::advance",
            self._library.eyas_advance,
            *(_struct(sequences), report_BX, report_BX.shape[1] // 2),
            *(lengths_A, is_chain, padding_seat),
        )

    def chain_lanes(
        self,
        slots_AC: torch.Tensor,
        seats_B: torch.Tensor,
        roots_B: torch.Tensor,
        rows_BW: torch.Tensor,
        num_positions: int,
        num_columns: int,
        null_slot: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the slots of keys [B, L] and the positions [B, W] of chains.

        num_positions: that a sequence may have; num_columns: L.
        """
        num, width = rows_BW.shape
        slots_BL, positions_BW = _numbers(num, num_columns), _numbers(num, width)
        columns = min(num_positions, num_columns, slots_AC.shape[1])
        assert slots_AC.stride(1) == 1 and rows_BW.is_contiguous()
        assert seats_B.is_contiguous() and roots_B.is_contiguous()
        call(
            "eyas::chain_lanes",
            self._library.eyas_chain_lanes,
            *(slots_AC, slots_AC.stride(0), seats_B, roots_B),
            *(rows_BW, num, width, columns, num_columns, null_slot),
            *(slots_BL, positions_BW),
        )
        return slots_BL, positions_BW

    def tree_lanes(
        self,
        slots_AC: torch.Tensor,
        seats_B: torch.Tensor,
        roots_B: torch.Tensor,
        rows_BW: torch.Tensor,
        node_slots_BW: torch.Tensor,
        parents_BW: torch.Tensor,
        num_positions: int,
        num_columns: int,
        null_slot: int,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the slots of keys [R, L], and position and row [R, 1] of each node of trees that has a
        row. The numbers: as for `chain_lanes`."""
        num, width = rows_BW.shape
        assert slots_AC.stride(1) == 1 and rows_BW.is_contiguous()
        assert seats_B.is_contiguous() and roots_B.is_contiguous()
        count = self._library.eyas_count_rows
        num_rows = ask("eyas::count_rows", count, rows_BW, num * width)
        slots_RL = _numbers(num_rows, num_columns)
        positions_R1, lane_rows_R1 = _numbers(num_rows, 1), _numbers(num_rows, 1)
        columns = min(num_positions, num_columns, slots_AC.shape[1])
        node_slots_BW, parents_BW = _rows(node_slots_BW), _rows(parents_BW)
        call(
            "eyas::tree_lanes",
            self._library.eyas_tree_lanes,
            *(slots_AC, slots_AC.stride(0), seats_B, roots_B, rows_BW),
            *(node_slots_BW, node_slots_BW.stride(0), parents_BW, parents_BW.stride(0)),
            *(num, width, columns, num_columns, null_slot),
            *(slots_RL, positions_R1, lane_rows_R1),
        )
        return slots_RL, positions_R1, lane_rows_R1


@cache
def compiled() -> Built:
    """Return the compiled library, or the reason why there is none."""
    return load(Path(__file__).with_name("steps.c"), "rows of steps", _declare, _is_right)


_ARGUMENTS: dict[str, tuple[object, ...]] = {
    "node_rows": (
        *(ctypes.POINTER(_Sequences), _POINTER, _SIZE, _POINTER, _SIZE, _POINTER, _SIZE),
        *(_POINTER, _POINTER, _POINTER, _POINTER),
    ),
    "tail_rows": (
        *(ctypes.POINTER(_Sequences), _POINTER, _POINTER, _SIZE, _WIDE),
        *(_POINTER, _POINTER, _POINTER, _POINTER),
    ),
    "level_rows": (
        *(ctypes.POINTER(_Sequences), _POINTER, _POINTER, _POINTER, _SIZE, _SIZE, _WIDE, _WIDE),
        *(_POINTER, _POINTER),
    ),
    "add_level": (
        *(_POINTER, _POINTER, _SIZE, _SIZE, _SIZE, _POINTER, _POINTER, _POINTER, _SIZE),
        *(_POINTER, _POINTER, _POINTER, _SIZE, _SIZE, _SIZE),
        *(_POINTER, _POINTER, _POINTER, _POINTER, _POINTER),
    ),
    "keep_best": (
        *(_POINTER, _SIZE, _POINTER, _POINTER, _POINTER, _SIZE, _SIZE, _SIZE, _INT),
        *(_POINTER, _POINTER, _POINTER, _POINTER, _POINTER),
    ),
    "top_tokens": (_POINTER, _SIZE, _SIZE, _SIZE, _POINTER, _SIZE, _POINTER, _POINTER),
    "top_tokens_with_noise": (
        *(_POINTER, _SIZE, _SIZE, _SIZE, _POINTER, ctypes.POINTER(_Keys), _POINTER, _POINTER),
        *(_SIZE, _POINTER, _POINTER, _POINTER),
    ),
    "gumbel": (ctypes.POINTER(_Keys), _SIZE, _POINTER, _SIZE, _POINTER),
    "best": (
        *(_POINTER, _SIZE, _SIZE, _SIZE, ctypes.POINTER(_Keys), _POINTER, ctypes.c_float),
        _POINTER,
    ),
    "walk": (*(_POINTER, _SIZE, _SIZE, _POINTER, _SIZE, _POINTER, _SIZE, _POINTER, _POINTER),),
    "advance": (ctypes.POINTER(_Sequences), _POINTER, _SIZE, _POINTER, _INT, _WIDE),
    "count_rows": (_POINTER, _SIZE),
    "tree_lanes": (
        *(_POINTER, _SIZE, _POINTER, _POINTER, _POINTER, _POINTER, _SIZE, _POINTER, _SIZE),
        *(_SIZE, _SIZE, _SIZE, _SIZE, _WIDE, _POINTER, _POINTER, _POINTER),
    ),
    "chain_lanes": (
        *(_POINTER, _SIZE, _POINTER, _POINTER, _POINTER, _SIZE, _SIZE, _SIZE, _SIZE, _WIDE),
        *(_POINTER, _POINTER),
    ),
}


PHILOX_OF_ZEROS = (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
"""The words of Philox4x32-10 for a counter and a key of zeros (Random123's test suite)."""
_COUNTING = ("node_rows", "tail_rows", "count_rows")
"""Functions that return a number of rows."""


def _declare(library: ctypes.CDLL) -> None:
    for name, arguments in _ARGUMENTS.items():
        function = getattr(library, f"eyas_{name}")
        function.restype = _SIZE if name in _COUNTING else None
        function.argtypes = arguments


def _is_right(library: ctypes.CDLL) -> bool:
    """Whether small cases come out right."""
    steps = CompiledSteps(library)
    logits_RV = torch.tensor([[0.0, 3.0, 1.0], [5.0, 5.0, float("nan")]])
    ids_RJ, scores_RJ = steps.top_tokens(logits_RV[:1], None, 2)
    chosen_BW = torch.tensor([[1, 2, 0]])
    report_BX = steps.walk(chosen_BW, torch.tensor([[7, 1, 4]]), None, torch.tensor([3]))
    expected_RJ = logits_RV[:1].log_softmax(1).topk(2).values
    zero_1 = torch.zeros(1, dtype=torch.int64)
    noise_14 = steps.all_gumbel((zero_1, zero_1, zero_1), 4)
    uniform_14 = (torch.tensor([PHILOX_OF_ZEROS], dtype=torch.float64) + 0.5) * 2.0**-32
    return (
        steps.best(logits_RV).tolist() == [1, -1]
        and ids_RJ.tolist() == [[1, 2]]
        and torch.allclose(scores_RJ, expected_RJ, atol=1e-5)
        and report_BX.tolist() == [[1, 2, 0, 0, 1, 2, 2]]
        and torch.allclose(noise_14.double(), -(-(-uniform_14).log1p()).log(), atol=1e-4)
    )


@cache
def compiled_steps(device: torch.device) -> CompiledSteps | None:
    """Return the compiled functions; None where the work on this device is torch's."""
    if device.type != "cpu" or (library := compiled().library) is None:
        return None
    return CompiledSteps(library)
