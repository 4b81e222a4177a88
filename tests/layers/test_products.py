"""Which way a product runs: choices by time, ties, what exactness allows, and what outlives a start."""

from __future__ import annotations

import json
import logging
import math
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from eyas.kernels.packed import Layout, PackedWeight
from eyas.kernels.tiles import (
    GROUPED_TILES,
    PERSISTENT_FOLDED_TILES,
    PERSISTENT_TILES,
    staged_tiles_for,
)
from eyas.layers.gemm.autotune_cache import AutotuneCache
from eyas.layers.gemm.products import Products
from eyas.layers.gemm.search import TIE, USUAL, Search, fastest
from eyas.layers.gemm.variants import (
    BUCKETS,
    DEVICE_STEPS,
    LIBRARY,
    GemmVariant,
    Product,
    Role,
    buckets_up_to,
    candidates,
    pad_for_device,
    plan_of,
    row_counts,
)

CPU = torch.device("cpu")
BF16 = torch.bfloat16
ROLES: tuple[Role, ...] = ("plain", "heads", "parts", "gated", "logits")
MACHINE = {"device": "a device", "torch": "2.11"}


class FakeClock:
    """Times by way and rows. The library takes 10, our kernel 20, what is listed another time."""

    def __init__(self, listed: dict[tuple[int, GemmVariant], float] | None = None) -> None:
        self.listed = listed or {}
        self.library, self.own = 10.0, 20.0
        self.asked: list[Product] = []

    def __call__(
        self, product: Product, jobs: Sequence[tuple[int, Sequence[GemmVariant]]]
    ) -> list[list[float]]:
        self.asked.append(product)
        return [[self.time(rows, variant) for variant in variants] for rows, variants in jobs]

    def time(self, rows: int, variant: GemmVariant) -> float:
        usual = self.library if variant == LIBRARY else self.own
        return self.listed.get((rows, variant), usual)


@pytest.fixture
def agreeing(monkeypatch: pytest.MonkeyPatch) -> list[Product]:
    """Products for which the library is said to agree; all until the list is changed."""
    disagreeing: list[Product] = []
    monkeypatch.setattr(Products, "_try", lambda self, product: product not in disagreeing)
    return disagreeing


def product_of(role: Role, num_out: int = 4096, *, bias: bool = False) -> Product:
    return Product(num_out, 4096, BF16, role, bias)


def plans(exact: bool, search: Search | None, max_rows: int = 3072) -> dict[Role, Any]:
    products = Products(exact, CPU, max_rows, search)
    return {role: products.plan(4096, 4096, BF16, role) for role in ROLES}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("library", [True, False])
def test_every_bucket_has_candidates_that_differ(role: Role, library: bool) -> None:
    for dtype in (BF16, torch.float16, torch.float32):
        for bucket in BUCKETS:
            variants = candidates(Product(96, 64, dtype, role), bucket, library=library)
            assert len(set(variants)) == len(variants) >= 2
            place = 0 if bucket > 128 else len(variants) - 1
            assert [i for i, variant in enumerate(variants) if variant == LIBRARY] == [
                place
            ] * library
            assert role == "parts" or not any(variant.folded for variant in variants)


@pytest.mark.parametrize("role", ROLES)
def test_tiles_by_warpgroups_are_candidates_where_they_may_be(role: Role) -> None:
    product = product_of(role)
    for bucket in BUCKETS:
        without = candidates(product, bucket, library=True)
        variants = candidates(product, bucket, library=True, warpgroups=True)
        grouped = tuple(
            variant
            for variant in variants
            if variant.tile is not None and variant.tile.by_warpgroups
        )
        has_some = bucket > 128 if role != "logits" else 128 < bucket <= 256
        assert bool(grouped) == has_some and set(variants) == {*without, *grouped}
        persistent = {variant for variant in grouped if variant.tile.is_persistent}
        assert all(variant.folded == (role == "parts") for variant in persistent)
        assert persistent == (set(grouped) if bucket > 256 else set())
        ours = tuple(variant for variant in without if variant != LIBRARY)
        leads = bucket == 192 or (role == "gated" and bucket > 512)
        if grouped and leads and role in ("parts", "gated"):
            assert variants == (*grouped, *ours, LIBRARY)
        elif grouped and role == "parts":
            assert variants == (LIBRARY, *grouped, *ours)
        elif grouped:
            assert variants == (LIBRARY, *ours, *grouped)
        assert not any(
            variant.tile is not None and variant.tile.by_warpgroups for variant in without
        )
    exact = Product(4096, 4096, torch.float32, role)
    for bucket in BUCKETS:
        expected = candidates(exact, bucket, library=False)
        assert candidates(exact, bucket, library=False, warpgroups=True) == expected


@pytest.mark.parametrize("case", ["agrees", "other bits", "does not compile", "no such device"])
def test_tiles_by_warpgroups_take_part_where_both_sides_add_up_alike(
    agreeing: list[Product], monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    tried: list[Any] = []

    def product(x: torch.Tensor, weight: torch.Tensor, **how: Any) -> torch.Tensor:
        sums = x.float() @ weight.float().T
        if "tile" in how:
            tried.append(how["tile"])
            if case == "does not compile":
                raise RuntimeError("the compiler's words")
            if case == "other bits":
                sums[-1, -1] = sums[-1, -1].nextafter(torch.tensor(math.inf))
        return sums

    monkeypatch.setattr("eyas.kernels.gemm.product", product)
    monkeypatch.setattr(
        "eyas.layers.gemm.products.has_warpgroups", lambda device: case != "no such device"
    )
    found = plans(True, Search(FakeClock(), None))
    variant = found["parts"].variant(192)
    assert variant.tile is not None and variant.tile.by_warpgroups == (case == "agrees")
    lists = (*GROUPED_TILES, *PERSISTENT_TILES, *PERSISTENT_FOLDED_TILES)
    num_tiles = sum(len(tiles) for _, tiles in lists)
    expected = {"agrees": num_tiles, "other bits": 1, "does not compile": 1}
    assert len(tried) == expected.get(case, 0), "once for all products of a type"
    tried.clear()
    plans(True, Search(FakeClock(), None), max_rows=128)
    assert tried == [], "no step has so many rows"


def test_fp8_tiles_by_the_copy_engine_are_tried_whole_divided_and_gated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each once for all products of a type, and on no other packed weight."""
    tried: list[tuple[str, Any]] = []

    def noting(name: str) -> Any:
        def run(x: torch.Tensor, weight: PackedWeight, **how: Any) -> torch.Tensor:
            assert len(weight.scales.unique()) > 1
            if "tile" in how:
                tried.append((name + " divided" * ("num_splits" in how), how["tile"]))
            return x

        return run

    for name in ("product", "gated_product"):
        monkeypatch.setattr(f"eyas.kernels.gemm.{name}", noting(name))
    monkeypatch.setattr("eyas.layers.gemm.products.has_warpgroups", lambda device: True)
    products = Products(True, CPU, 64, Search(FakeClock(), None))
    products.plan(4096, 4096, BF16, "gated", layout=Layout("mxfp4", 1, 32))
    assert not tried
    for role in ("gated", "parts"):
        products.plan(4096, 4096, BF16, role, layout=Layout("fp8", 128, 128))
    staged = [*staged_tiles_for(16), *staged_tiles_for(32)]
    names = ("product", "product divided", "gated_product")
    assert tried == [(name, tile) for name in names for tile in staged]


def test_every_row_count_has_a_way() -> None:
    for max_rows in (1, 16, 17, 100, 3072, 8192):
        buckets = buckets_up_to(max_rows)
        assert buckets[-1] >= max_rows or buckets == BUCKETS
        found = tuple(GemmVariant(None, folded=index % 2 == 1) for index in range(len(buckets)))
        plan = plan_of(found)
        for count in row_counts(max_rows):
            index = sum(bucket < count for bucket in buckets[:-1])
            assert plan.variant(count) == found[index], count
        assert plan.variant(10**9) == found[-1]


def test_row_counts_are_those_that_padding_makes() -> None:
    for max_rows in (64, 100, 3072):
        padded = {pad_for_device(count) for count in range(1, max_rows + 1)}
        assert padded == set(row_counts(max_rows))
    assert [step for _, step in DEVICE_STEPS] == [1, 16, 128]


def test_ways_that_agree_become_one() -> None:
    a, b = candidates(product_of("plain"), 16, library=False)[:2]
    plan = plan_of((a, a, b, b, a))
    assert plan.variants == ((BUCKETS[1], a), (BUCKETS[3], b), (1 << 62, a))


def test_the_usual_way_stays_unless_another_is_clearly_faster() -> None:
    usual, other, third = variants = candidates(product_of("plain"), 16, library=False)[:3]
    assert fastest(variants, (10.0 * USUAL, 10.0, 10.0)) == usual
    assert fastest(variants, (10.0 * USUAL + 0.1, 10.0 * TIE, 10.0)) == other
    assert fastest(variants, (12.0, 11.0, 10.0)) == third
    assert fastest(variants, (math.inf, math.inf, 10.0)) == third
    assert fastest(variants, (math.inf, math.inf, math.inf)) == usual
    assert fastest([usual, other, LIBRARY], (11.0, 10.0, 9.9)) == other
    assert fastest([usual, other, LIBRARY], (11.0, 10.0, 9.0)) == LIBRARY
    assert fastest([LIBRARY, usual, other], (10.5, 10.0, 10.0)) == LIBRARY, "where it is usual"
    assert fastest([LIBRARY, usual, other], (10.7, 10.0, 10.0)) == usual


def test_the_fastest_is_chosen_for_each_bucket(agreeing: list[Product]) -> None:
    for role in ROLES:
        product = product_of(role)
        variants = {rows: candidates(product, rows, library=False) for rows in BUCKETS}
        chosen = {rows: options[index % len(options)] for index, (rows, options) in
                  enumerate(variants.items())}  # fmt: skip
        clock = FakeClock(dict.fromkeys(chosen.items(), 5.0))
        plan = Products(True, CPU, 3072, Search(clock, None)).plan(4096, 4096, BF16, role)
        assert {rows: plan.variant(rows) for rows in BUCKETS} == chosen
        assert plan.variant(3072) == chosen[BUCKETS[-1]]


def test_a_plan_is_made_once(agreeing: list[Product]) -> None:
    clock = FakeClock()
    products = Products(True, CPU, 3072, Search(clock, None))
    first = products.plan(4096, 4096, BF16, "plain", bias=True)
    assert products.plan(4096, 4096, BF16, "plain", bias=True) is first
    products.plan(4096, 4096, BF16, "plain")
    assert clock.asked == [product_of("plain", bias=True), product_of("plain")]


def test_exact_products_use_the_library_only_where_it_agrees(agreeing: list[Product]) -> None:
    found = plans(True, Search(FakeClock(), None))
    for role in ("plain", "gated", "logits"):
        assert [variant for _, variant in found[role].variants] == [LIBRARY]
    agreeing += [product_of(role) for role in ROLES]
    for plan in plans(True, Search(FakeClock(), None)).values():
        assert all(variant != LIBRARY for _, variant in plan.variants)


@pytest.mark.parametrize("exact", [True, False])
def test_parts_keep_their_splits(agreeing: list[Product], exact: bool) -> None:
    plan = plans(exact, Search(FakeClock(), None))["parts"]
    assert all((variant == LIBRARY) is not exact for _, variant in plan.variants)


def test_without_exactness_nobody_asks_whether_the_library_agrees(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(Products, "_try")
    for plan in plans(False, Search(FakeClock(), None)).values():
        assert [variant for _, variant in plan.variants] == [LIBRARY]


def test_agreement_is_tried_once_for_what_is_one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Product] = []
    monkeypatch.setattr(Products, "_try", lambda self, product: bool(tried.append(product)))
    plans(True, Search(FakeClock(), None))
    assert [product.role for product in tried] == ["plain", "logits"], "gated is plain, parts never"


def test_where_nothing_is_measured_the_usual_tiles_run() -> None:
    for role, plan in plans(True, None).items():
        for bucket in BUCKETS:
            variant = plan.variant(bucket)
            assert variant == candidates(product_of(role), bucket, library=False)[0]
            assert variant.tile is not None
            assert variant.folded is (role == "parts" and bucket > 256)


def test_odd_widths_are_the_librarys(agreeing: list[Product]) -> None:
    clock = FakeClock()
    plan = Products(True, CPU, 64, Search(clock, None)).plan(64, 40, BF16, "parts")
    assert plan.variant(1) == plan.variant(4096) == LIBRARY and not clock.asked


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_library_of_another_order_is_found_out(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a torch product for each of the two, and one bit that is another at 17 rows."""
    apply = pytest.importorskip("eyas.layers.gemm.apply")  # it imports triton
    differing = 0

    def plain(
        variant: GemmVariant,
        x_TI: torch.Tensor,
        weight_OI: torch.Tensor,
        bias_O: torch.Tensor | None,
    ) -> torch.Tensor:
        rows_TO = (x_TI.double() @ weight_OI.double().T).float() + (0 if bias_O is None else bias_O)
        if variant == LIBRARY and len(x_TI) == differing:
            rows_TO[-1, -1] = rows_TO[-1, -1].nextafter(torch.tensor(torch.inf))
        return rows_TO

    monkeypatch.setattr(apply, "plain", plain)
    monkeypatch.setattr(apply, "logits", lambda variant, x, w, out: plain(variant, x, w, None))
    for differing in (0, 17, 80):
        products = Products(True, CPU, 80)
        for role, bias in (("plain", False), ("plain", True), ("logits", False)):
            product = Product(24, 32, dtype, role, bias)
            assert products._library_agrees(product) is (differing == 0)
        assert not products._library_agrees(Product(24, 32, dtype, "parts"))


# What outlives a start.


def test_choices_are_kept(agreeing: list[Product], tmp_path: Path) -> None:
    variant = candidates(product_of("parts"), 192, library=False)[3]
    clock = FakeClock({(192, variant): 1.0})
    first = plans(True, Search(clock, AutotuneCache(tmp_path, "products", MACHINE)))
    again = FakeClock()
    search = Search(again, AutotuneCache(tmp_path, "products", MACHINE))
    assert plans(True, search) == first and first["parts"].variant(192) == variant
    assert not again.asked and (search.num_measured, search.num_kept) == (0, len(ROLES))
    assert plans(True, search, max_rows=48) == {
        role: plan_of(tuple(plan.variant(rows) for rows in buckets_up_to(48)))
        for role, plan in first.items()
    }, "fewer rows need fewer buckets"
    assert not again.asked


def test_more_rows_than_were_measured_are_measured(agreeing: list[Product], tmp_path: Path) -> None:
    kept = AutotuneCache(tmp_path, "products", MACHINE)
    plans(True, Search(FakeClock(), kept), max_rows=48)
    clock = FakeClock()
    plans(True, Search(clock, kept), max_rows=3072)
    assert len(clock.asked) == len(ROLES)


def test_what_was_kept_says_nothing_of_agreement(agreeing: list[Product], tmp_path: Path) -> None:
    kept = AutotuneCache(tmp_path, "products", MACHINE)
    plans(True, Search(FakeClock(), kept))
    plans(False, Search(FakeClock(), kept))
    agreeing += [product_of(role) for role in ROLES]
    for plan in plans(True, Search(FakeClock(), kept)).values():
        assert all(variant != LIBRARY for _, variant in plan.variants)


def damaged(path: Path, what: str) -> None:
    content = json.loads(path.read_text())
    entries = content["entries"]
    match what:
        case "empty":
            path.write_text("")
            return
        case "half":
            path.write_text(path.read_text()[:-40])
            return
        case "bytes":
            path.write_bytes(b"\xff\xfe\x00{")
            return
        case "deep":
            path.write_text("[" * 100_000)
            return
        case "list":
            content = [content]
        case "foreign":
            content["machine"]["torch"] = "2.12"
        case "entries":
            content["entries"] = 7
        case "entry":
            content["entries"] = {name: {"16": None} for name in entries}
        case "short":
            content["entries"] = {name: entry[:-1] for name, entry in entries.items()}
        case "strange tile":
            for entry in entries.values():
                entry[2] = [[64, 64, 128, 4, 99, False], False]
        case "library":
            for entry in entries.values():
                entry[2] = [None, False]
        case "not a way":
            for entry in entries.values():
                entry[0] = 12
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    "what",
    ["empty", "half", "bytes", "deep", "list", "foreign", "entries", "entry", "short",
     "strange tile", "library", "not a way"],
)  # fmt: skip
def test_a_file_that_is_not_sound_is_replaced(
    agreeing: list[Product], tmp_path: Path, what: str
) -> None:
    agreeing += [product_of(role) for role in ROLES]
    kept = AutotuneCache(tmp_path, "products", MACHINE)
    expected = plans(True, Search(FakeClock(), kept))
    sound = kept.path.read_text()
    damaged(kept.path, what)
    clock = FakeClock()
    assert plans(True, Search(clock, kept)) == expected
    assert len(clock.asked) == len(ROLES)
    assert json.loads(kept.path.read_text()) == json.loads(sound)


def test_machines_have_files_of_their_own(tmp_path: Path) -> None:
    here = AutotuneCache(tmp_path, "products", MACHINE)
    there = AutotuneCache(tmp_path, "products", MACHINE | {"torch": "2.12"})
    here.add("a", [1])
    there.add("a", [2])
    here.add("b", [3])
    assert here.read() == {"a": [1], "b": [3]} and there.read() == {"a": [2]}
    assert sorted(tmp_path.iterdir()) == sorted((here.path, there.path)), "nothing is left behind"


def test_two_writers_do_not_lose_each_others_entries(tmp_path: Path) -> None:
    one, other = (AutotuneCache(tmp_path / "new" / "folder", "products", MACHINE) for _ in range(2))
    assert one.read() == {}
    one.add("a", [1])
    other.add("b", [2])
    assert one.read() == {"a": [1], "b": [2]}


def test_a_file_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = AutotuneCache(tmp_path, "products", MACHINE)
    kept.add("a", [1])
    seen: list[dict[str, Any]] = []

    def fails(source: str, target: Path) -> None:
        seen.append(json.loads(Path(source).read_text())["entries"])
        raise PermissionError(source)

    monkeypatch.setattr(os, "replace", fails)
    kept.add("b", [2])
    assert seen == [{"a": [1], "b": [2]}], "all of it is written before"
    assert kept.read() == {"a": [1]} and list(tmp_path.iterdir()) == [kept.path]


def test_a_folder_that_cannot_be_written_to_is_no_error(
    agreeing: list[Product], tmp_path: Path
) -> None:
    blocked = tmp_path / "a file"
    blocked.write_text("")
    expected = plans(True, Search(FakeClock(), None))
    assert plans(True, Search(FakeClock(), AutotuneCache(blocked, "products", MACHINE))) == expected
    closed = tmp_path / "closed"
    closed.mkdir()
    closed.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert (
            plans(True, Search(FakeClock(), AutotuneCache(closed, "products", MACHINE))) == expected
        )
    finally:
        closed.chmod(stat.S_IRWXU)


def test_what_could_not_be_measured_is_not_kept(agreeing: list[Product], tmp_path: Path) -> None:
    kept = AutotuneCache(tmp_path, "products", MACHINE)
    clock = FakeClock()
    clock.library = clock.own = math.inf
    found = plans(True, Search(clock, kept))
    assert found["plain"].variant(16) == candidates(product_of("plain"), 16, library=True)[0]
    assert kept.read() == {}


def test_a_report_counts_what_was_searched(
    agreeing: list[Product], caplog: pytest.LogCaptureFixture
) -> None:
    search = Search(FakeClock(), None)
    with caplog.at_level(logging.DEBUG, logger="eyas.layers"):
        products = Products(True, CPU, 64, search)
        products.plan(4096, 4096, BF16, "parts")
        assert any("4096x4096 bfloat16 parts: 64x16x128w4s4" in text for text in caplog.messages)
    assert search.report()[:2] == (1, 0)
    assert search.report() == (0, 0, 0.0), "nothing new to tell"


PACKED = (
    Layout("fp8", 128, 128),
    Layout("fp8", 1, 0),
    Layout("mxfp4", 1, 32),
    Layout("int4", 1, 128, "float16"),
)


def test_packed_weights_have_variants_and_cached_choices_of_their_own() -> None:
    layouts = (None, *PACKED)
    products = [Product(4096, 4096, BF16, "gated", layout=layout) for layout in layouts]
    assert len({str(product) for product in products}) == len(layouts)
    for product in products[1:]:
        assert product.num_bytes < 0.6 * products[0].num_bytes
        for num_rows in (1, 64, 200, 4096):
            for variant in candidates(product, num_rows, library=True, warpgroups=True):
                assert variant.tile is not None and not variant.folded
                assert not variant.tile.by_warpgroups
            plain = candidates(product, num_rows, library=True)
            assert not any(each.tile is None or each.tile.by_copy_engine for each in plain)
            more = candidates(product, num_rows, library=True, warpgroups=True)[len(plain) :]
            is_staged = "fp8" in str(product) and num_rows <= 32
            assert [e.tile for e in more] == list(staged_tiles_for(num_rows) if is_staged else ())


def test_scaled_sums_leave_parts_of_heads_and_packed_ones_are_folded_for_many_rows() -> None:
    for layout in (None, *PACKED):
        for role in ROLES[:4]:
            product = Product(96, 64, BF16, role, layout=layout)
            is_scaled = layout is not None and layout.scales_sums
            is_divided = role == "parts" or (role == "heads" and is_scaled)
            assert product.num_splits == (4 if is_divided else 1)
            for bucket in BUCKETS:
                variants = candidates(product, bucket, library=False)
                folded = [variant.folded for variant in variants]
                assert any(folded) == (is_divided and bucket > 128)
                assert folded[0] == (is_divided and bucket > 256)
