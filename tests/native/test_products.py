"""Products by compiled code: right, with the same bits in any call, and optional."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from eyas.native import build as build_module
from eyas.native import products
from eyas.native.build import Built, build
from eyas.native.products import PackedWeight, compiled, packed_weight

SOURCE = Path(products.__file__).with_name("products.c")
needs_compiler = pytest.mark.skipif(
    compiled().library is None, reason="there is no C compiler, or the processor has no vectors"
)


def packed(weight_OI: torch.Tensor) -> PackedWeight:
    product = packed_weight(weight_OI)
    assert product is not None
    return product


def assert_rows_stand_alone(
    product: PackedWeight, x_TI: torch.Tensor, bias_O: torch.Tensor, whole_TO: torch.Tensor
) -> None:
    """Some of 101 rows have the bits that they have among all."""
    for first, count in (
        (0, 1),
        (100, 1),
        (3, 2),
        (7, 3),
        (9, 4),
        (2, 5),
        (50, 6),
        (8, 16),
        (60, 17),
        (3, 32),
        (30, 33),
        (1, 49),
        (5, 96),
    ):
        rows = slice(first, first + count)
        assert torch.equal(product(x_TI[rows], bias_O), whole_TO[rows]), (first, count)


@needs_compiler
@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    "shape", [(1, 1), (15, 7), (64, 33), (100, 50), (257, 1100), (70, 2049)], ids=str
)
def test_products_agree_with_float64_and_each_row_with_itself(
    shape: tuple[int, int], half: bool
) -> None:
    num_out, num_in = shape
    weight_OI, bias_O = torch.randn(num_out, num_in), torch.randn(num_out)
    if half:
        weight_OI = weight_OI.bfloat16().float()
    x_TI = torch.randn(101, num_in)
    product = packed(weight_OI)
    whole_TO = product(x_TI, bias_O)
    expected = x_TI.double() @ weight_OI.double().T + bias_O.double()
    torch.testing.assert_close(whole_TO.double(), expected, rtol=1e-5, atol=1e-5 * num_in**0.5)
    assert_rows_stand_alone(product, x_TI, bias_O, whole_TO)
    assert torch.equal(product(x_TI, None) + bias_O, whole_TO)


needs_pairs = pytest.mark.skipif(
    not products.is_available(torch.bfloat16, torch.device("cpu")),
    reason="the processor has no products of bfloat16",
)


@needs_pairs
@pytest.mark.parametrize(
    "shape", [(1, 1), (15, 7), (64, 34), (100, 50), (257, 1100), (70, 4098)], ids=str
)
def test_products_of_bfloat16_are_rounded_once_and_do_not_depend_on_other_rows(
    shape: tuple[int, int],
) -> None:
    num_out, num_in = shape
    weight_OI, bias_O = torch.randn(num_out, num_in).bfloat16(), torch.randn(num_out).bfloat16()
    wide_TX = torch.randn(101, num_in + 3).bfloat16()
    x_TI = wide_TX[:, 1 : 1 + num_in]
    product = packed(weight_OI)
    whole_TO = product(x_TI, bias_O)
    assert whole_TO.dtype == torch.bfloat16
    sums = x_TI.double() @ weight_OI.double().T
    expected = sums + bias_O.double()
    error = (whole_TO.double() - expected).abs()
    assert (error <= expected.abs() * 2**-8 + 1e-5 * num_in**0.5).all()
    assert_rows_stand_alone(product, x_TI, bias_O, whole_TO)
    assert torch.equal(product(x_TI.contiguous(), bias_O), whole_TO)
    plain = product(x_TI)
    assert ((plain.double() - sums).abs() <= sums.abs() * 2**-8 + 1e-5 * num_in**0.5).all()


@needs_compiler
def test_weights_of_a_16_bit_checkpoint_take_half_the_memory_and_keep_their_bits() -> None:
    weight_OI = torch.randn(96, 40).bfloat16().float()
    weight_OI[0, :4] = torch.tensor([0.0, -0.0, 1e-39, 3e38]).bfloat16().float()
    halves = packed(weight_OI)
    assert halves.nbytes == 96 * 40 * 2
    exact = weight_OI.clone()
    exact[5, 5] = 1 + 2**-20  # one value that bfloat16 has not
    wide = packed(exact)
    assert wide.nbytes == 96 * 40 * 4
    x_TI = torch.randn(9, 40)
    others = [row for row in range(96) if row != 5]
    assert torch.equal(halves(x_TI)[:, others], wide(x_TI)[:, others])


@needs_compiler
def test_rows_may_stand_apart_and_may_be_none() -> None:
    product = packed(torch.randn(40, 24))
    wide_TX = torch.randn(11, 60)
    assert torch.equal(product(wide_TX[:, 7:31]), product(wide_TX[:, 7:31].contiguous()))
    assert torch.equal(product(wide_TX[:, ::2][:, :24]), product(wide_TX[:, :48:2].contiguous()))
    assert product(wide_TX[:0, :24]).shape == (0, 40)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=needs_pairs)])
@pytest.mark.parametrize("num_in", [24, 64])
def test_infinities_and_nans_stay_in_their_rows(dtype: torch.dtype, num_in: int) -> None:
    product = packed(torch.randn(40, num_in).to(dtype))
    x_TI = torch.randn(8, num_in).to(dtype)
    clean = product(x_TI)
    x_TI[3, 3], x_TI[5, 0] = float("inf"), float("nan")
    found = product(x_TI)
    others = [0, 1, 2, 4, 6, 7]
    assert torch.equal(found[others], clean[others])
    assert not found[3].isfinite().any() and found[5].isnan().all()


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=needs_pairs)])
def test_threads_change_no_bit(dtype: torch.dtype) -> None:
    product = packed(torch.randn(700, 130).to(dtype))
    x_TI = torch.randn(33, 130).to(dtype)
    alone = product(x_TI)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert torch.equal(product(x_TI), alone)
    finally:
        torch.set_num_threads(threads)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A C file that is compiled at once."""
    source = tmp_path / "source" / "small.c"
    source.parent.mkdir()
    source.write_text("int answer(void) { return 42; }\n")
    return source


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "eyas" / "native"


@needs_compiler
def test_a_library_is_compiled_once(cache: Path, small: Path) -> None:
    first, second = build(small), build(small)
    assert first.library is not None and first.reason.startswith("compiled by")
    assert second.library is not None and str(cache) in second.reason
    assert first.library.answer() == second.library.answer() == 42
    assert [file.suffix for file in cache.iterdir()] == [".so"]


@needs_compiler
def test_what_others_could_have_written_is_not_loaded(cache: Path, small: Path) -> None:
    build(small)
    (file,) = cache.iterdir()
    file.chmod(0o666)
    assert build(small).reason.startswith("compiled by")
    assert file.stat().st_mode & 0o022 == 0, "it was replaced"
    cache.chmod(0o777)
    assert build(small).reason.endswith("for this process alone")


@needs_compiler
def test_another_header_is_another_library(tmp_path: Path) -> None:
    copy = Path(shutil.copy(SOURCE, tmp_path))
    names = set()
    for content in (SOURCE.with_name("vectors.h").read_text(), "#error no vectors"):
        (tmp_path / "vectors.h").write_text(content)
        names.add(build_module._fingerprint(copy))
    assert len(names) == 2


@needs_compiler
def test_a_damaged_file_is_replaced(cache: Path, small: Path) -> None:
    cache.mkdir(parents=True, mode=0o700)
    name = f"small-{build_module._fingerprint(small)}.so"
    (cache / name).write_bytes(b"not a library")
    assert build(small).reason.startswith("compiled by")
    assert str(cache) in build(small).reason


def test_without_a_compiler_torch_does_the_work(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", ".")
    assert build(SOURCE) == Built(None, "no C compiler (cc, gcc, clang) is installed")
    assert compiled.__wrapped__() == build(SOURCE)


@needs_compiler
def test_code_that_does_not_compile_is_no_error(cache: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.c"
    broken.write_text("#error no vectors\n")
    built = build(broken)
    assert built.library is None and "no vectors" in built.reason


@needs_compiler
def test_code_that_miscalculates_is_not_used(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = tmp_path / "wrong.c"
    source, right = SOURCE.read_text(), "sum = sum + load_some("
    assert right in source
    wrong.write_text(source.replace(right, "sum = sum - load_some("))
    shutil.copy(SOURCE.with_name("vectors.h"), tmp_path)
    built = build(wrong)
    assert built.library is not None
    monkeypatch.setattr(build_module, "build", lambda source: built)
    refused = compiled.__wrapped__()
    assert refused.library is None and "is wrong" in refused.reason


@needs_compiler
@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(33, 8), (100, 64), (70, 1040), (257, 8800)], ids=str)
def test_a_sum_by_tree_has_the_same_bits_whoever_adds_its_pieces(
    shape: tuple[int, int], half: bool
) -> None:
    num_out, num_in = shape
    weight_OI, x_TI = torch.randn(num_out, num_in), torch.randn(55, num_in)
    if half:
        weight_OI = weight_OI.bfloat16().float()
    whole_TO = packed(weight_OI).by_tree(x_TI, 8)
    exact_TO = (x_TI.double() @ weight_OI.double().T).float()
    torch.testing.assert_close(whole_TO, exact_TO, rtol=1e-4, atol=1e-3)
    for num_ranks in (2, 4, 8):
        width = num_in // num_ranks
        partial = [
            packed(weight_OI[:, start : start + width]).by_tree(
                x_TI[:, start : start + width], 8 // num_ranks
            )
            for start in range(0, num_in, width)
        ]
        while len(partial) > 1:
            partial = [a + b for a, b in zip(partial[::2], partial[1::2], strict=True)]
        assert torch.equal(partial[0], whole_TO)
    for count in (1, 2, 5, 7, 49):
        assert torch.equal(packed(weight_OI).by_tree(x_TI[:count], 8), whole_TO[:count])
