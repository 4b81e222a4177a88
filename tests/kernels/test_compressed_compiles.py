"""The kernels of compressed attention and of residual streams compile for Hopper in the sizes of
DeepSeek-V4."""

from __future__ import annotations

from typing import Any

from eyas.kernels import attention_entries, entries, indexer, streams
from tests.kernels.hopper import Job, compile_for_hopper
from tests.thorough import drawn

ROW_FIELDS = ("places_4T", "slots_AC", "paths_BWP", "write_slots_T", "slots_T", "positions_T")
SPLITS = {"WINDOW": 128, "WINDOW_SPLITS": 1, "SPLIT": 128, "HAS_SINKS": True, "PDL": True}
HEADS = {"NUM_HEADS": 64, "HEAD_DIM": 512, "INNER": 512}


def job(
    kernel: str,
    pointers: dict[str, str],
    numbers: tuple[str, ...],
    constants: dict[str, Any],
    num_warps: int,
    floats: tuple[str, ...] = (),
    loose: tuple[str, ...] = (),
) -> Job:
    """pointers: type by name. numbers: i32 and divisible by 16; loose: i32 and not."""
    signature = pointers | dict.fromkeys((*numbers, *loose), "i32") | dict.fromkeys(floats, "fp32")
    return Job(f"eyas.kernels.{kernel}", signature, constants, num_warps, 1, numbers)


def rows(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "*i64")


def attention(rate: int, num_chosen: int, is_whole: bool) -> Job:
    return job(
        "attention_entries:attend_entries_kernel",
        {
            **dict.fromkeys(("q_TNH", "slots_SD", "out_TNH"), "*bf16"),
            **dict.fromkeys(("sinks_N", "states_TNZ2", "values_TNZH"), "*fp32"),
            **rows("places_4T", "slots_AC", "paths_BWP"),
            "chosen_TK": "*i32",
        },
        ("q_stride", "places_stride", "slot_stride"),
        HEADS
        | SPLITS
        | {
            "RATE": rate,
            "NUM_CHOSEN": num_chosen,
            "ENTRY": 3072,
            "FIRST": int(not rate),
            "HEADS": 16,
            "KEYS": 32,
            "STAGES": attention_entries.STAGES,
            "IS_WHOLE": is_whole,
            "window_slots": None,
        },
        8,
        ("scale",),
        ("num_splits",),
    )


def test_they_compile_for_hopper_without_spilling() -> None:
    jobs = [
        attention(0, 0, True),
        attention(4, 512, False),
        attention(128, 0, False),
        *drawn([], [attention(4, 512, True)]),
        job(
            "attention_entries:merge_entries_kernel",
            {
                "out_TNH": "*bf16",
                **dict.fromkeys(("sinks_N", "states_TNZ2", "values_TNZH"), "*fp32"),
                **rows("places_4T"),
            },
            (),
            {k: v for k, v in (HEADS | SPLITS).items() if k != "WINDOW"}
            | {"RATE": 4, "NUM_CHOSEN": 512, "HEADS": 4},
            4,
            (),
            ("num_splits",),
        ),
        *[
            job(
                "entries:make_entries_kernel",
                {
                    **rows("places_4T", "write_slots_T", "slots_AC", "paths_BWP"),
                    **dict.fromkeys(
                        ("slots_SD", "weight_H", "index_weight_I", "table_P2H"), "*bf16"
                    ),
                    **dict.fromkeys(("bias_XC", "index_bias_XC"), "*fp32"),
                },
                ("places_stride", "slot_stride"),
                {
                    "HEAD_DIM": 512,
                    "INDEX_DIM": index_dim,
                    "ROTATED": 64,
                    "RATE": rate,
                    "SPAN": span,
                    "BLOCK_H": 512,
                    "BLOCK_I": 128,
                    "BLOCK_L": entries.POSITIONS,
                    "PDL": True,
                },
                8,
                ("epsilon",),
                ("last_angle",),
            )
            for index_dim, rate, span in ((128, 4, 8), (0, 128, 128))
        ],
        job(
            "entries:store_rows_kernel",
            {**dict.fromkeys(("inputs_TX", "slots_SD"), "*bf16"), **rows("slots_T")},
            ("row_stride", "slot_stride"),
            {"BLOCK": entries.BLOCK_INPUTS, "PDL": True},
            4,
            (),
            ("size",),
        ),
        job(
            "indexer:score_entries_kernel",
            {
                **dict.fromkeys(("queries_TJI", "weights_TJ", "slots_SD"), "*bf16"),
                **rows("places_4T", "slots_AC", "paths_BWP"),
                "scores_TE": "*fp32",
            },
            ("places_stride", "query_stride", "head_stride", "weight_stride", "slot_stride"),
            {
                "KEY": 3584,
                "RATE": 4,
                "NUM_CHOSEN": 512,
                "NUM_HEADS": 64,
                "WIDTH": 128,
                "BLOCK_J": 64,
                "BLOCK_I": 128,
                "BLOCK_E": indexer.BLOCK_ENTRIES,
                "PDL": True,
            },
            4,
            ("dot_scale", "weight_scale"),
            ("num_entries",),
        ),
        job(
            "indexer:choose_entries_kernel",
            {"scores_TE": "*fp32", **rows("places_4T"), "chosen_TK": "*i32"},
            (),
            {
                "RATE": 4,
                "NUM_CHOSEN": 512,
                "DIGIT": indexer.DIGIT,
                "BLOCK_E": indexer.BLOCK_SCORES,
                "PDL": True,
            },
            8,
            (),
            ("num_entries",),
        ),
        job(
            "rotate_heads:rotate_heads_kernel",
            {
                **dict.fromkeys(("x_TNH", "weight_H", "table_P2H", "out_TNH"), "*bf16"),
                **rows("positions_T"),
            },
            ("num_heads", "x_stride", "x_head_stride", "out_stride", "out_head_stride"),
            {
                "HEAD_DIM": 512,
                "ROTATED": 64,
                "HAS_NORM": True,
                "HAS_WEIGHT": True,
                "IS_BACKWARDS": False,
                "BLOCK_HEADS": 8,
                "BLOCK_PAIRS": 256,
                "PDL": True,
            },
            4,
            ("epsilon",),
        ),
        *[
            job(
                "rotate_heads:rotate_shared_kernel",
                {
                    **dict.fromkeys(
                        ("q_TX", "kv_TX", "weight_H", "table_P2H", "rotated_TX"), "*bf16"
                    ),
                    **rows("positions_T"),
                },
                ("q_stride", "kv_stride"),
                {
                    "NUM_HEADS": 64,
                    "HEAD_DIM": 512,
                    "NUM_INDEX_HEADS": num_index_heads,
                    "INDEX_DIM": 2 * num_index_heads,
                    "ROTATED": 64,
                    "BLOCK_HEADS": 8,
                    "BLOCK_PAIRS": 256,
                    "BLOCK_INDEX_HEADS": 32,
                    "BLOCK_INDEX_PAIRS": 64,
                    "PDL": True,
                },
                4,
                ("epsilon",),
            )
            for num_index_heads in (0, 64)
        ],
        job(
            "places:node_places_kernel",
            rows("nodes_T", "positions_BW", "roots_B", "seats_B", "places_4T"),
            ("stride",),
            {"IS_TREE": True, "ALL": 1 << 40, "BLOCK": 128, "PDL": True},
            4,
            (),
            ("num_nodes", "num_columns", "limit", "num_rows"),
        ),
        job(
            "streams:weigh_streams_kernel",
            {"streams_TX": "*bf16", "weight_WX": "*fp32", "sums_ZTW": "*fp32"},
            ("width", "row_stride"),
            {
                "RANGE": streams.RANGE,
                "BLOCK_WEIGHTS": streams.BLOCK_WEIGHTS,
                "PDL": True,
            },
            4,
            (),
            ("num_rows", "num_weights", "rows_a_program"),
        ),
        job(
            "streams:sum_streams_kernel",
            {
                **dict.fromkeys(("streams_TX", "norm_weight_D", "out_TD"), "*bf16"),
                **dict.fromkeys(("sums_ZTW", "base_W", "scale_W", "raw_TW"), "*fp32"),
            },
            ("num_parts", "size", "row_stride"),
            {
                "NUM_STREAMS": 4,
                "PARTS": 64,
                "BLOCK_WEIGHTS": streams.BLOCK_WEIGHTS,
                "BLOCK_D": 4096,
                "PDL": True,
            },
            16,
            ("norm_epsilon", "epsilon"),
            ("num_rows", "num_weights"),
        ),
        job(
            "streams:mix_streams_kernel",
            {
                **dict.fromkeys(("streams_TX", "out_TX"), "*bf16"),
                **dict.fromkeys(("raw_TW", "parts_YTD"), "*fp32"),
            },
            ("size", "row_stride", "part_stride", "part_row_stride"),
            {
                "NUM_STREAMS": 4,
                "BLOCK_M": 4,
                "NUM_ITERATIONS": 20,
                "NUM_PARTS": 7,
                "BLOCK_D": streams.BLOCK_COLUMNS,
                "PDL": True,
            },
            4,
            ("epsilon",),
        ),
    ]
    jobs += [
        job(
            "route:route_kernel",
            {
                **dict.fromkeys(("logits_ZTE", "correction_E", "weights_TK"), "*fp32"),
                **dict.fromkeys(("fixed_TK", "experts_TK"), "*i32"),
            },
            ("num_experts", "part_stride", "row_stride"),
            {
                "bias_E": None,
                "NUM_PARTS": 4,
                "NUM_CHOSEN": 6,
                "PADDED": 8,
                "SCORING": "sqrtsoftplus",
                "HAS_BIAS": False,
                "HAS_CORRECTION": not is_fixed,
                "IS_FIXED": is_fixed,
                "NORMALIZES": True,
                "NUM_GROUPS": 1,
                "NUM_CHOSEN_GROUPS": 1,
                "GROUP_SIZE_SCORED": 1,
                "PADDED_GROUPS": 1,
                "NUM_SHARED": 1,
                "PADDED_SHARED": 1,
                "GATES_SHARED": is_fixed,
                "BLOCK": 256,
                "PDL": True,
            },
            4,
            ("scale",),
        )
        for is_fixed in (False, True)
    ]
    assert attention_entries.SPLIT == 128
    for job_, compiled in zip(jobs, compile_for_hopper(*jobs), strict=True):
        print(job_.kernel, compiled)
        assert compiled.num_spilled <= 16, (job_.kernel, compiled)
        assert compiled.shared < 113 * 1024, (job_.kernel, compiled)
