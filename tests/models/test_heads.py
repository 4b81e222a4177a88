"""Draft heads compute what their definition says, at every level of a tree, in every wiring."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from eyas.attention.base import PlannedRows
from eyas.layers.row_order import RowOrder
from eyas.models import Decoder, load_model
from eyas.models.heads import DraftHead, has_supported_mtp, load_head, read_head
from eyas.models.heads.hyper import parameter_shapes

from .dense_attend import DenseCache, RowByRow
from .quantised import CASES, FP8_BLOCKS, Case, fp8, write_quantised
from .tiny_heads import (
    DEFAULT_TAPS,
    NUM_TARGET_LAYERS,
    TARGET_HIDDEN,
    VOCAB,
    Definition,
    TinyHead,
    make_head,
    make_mtp,
    save_target,
    write_mtp,
    write_safeailab,
    write_specforge,
    write_speculators,
)

NUM_CONTEXT = 9
LEVELS = ((0,), (0, 0), (1, 0, 1), (2,))
"""Parents of each level's rows, by their place in the level above; the root's is the last row."""


@pytest.fixture(scope="module")
def target_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def target(target_directory: Path) -> Decoder:
    return load_model(target_directory, dtype="float32")


def load(directory: Path, target: Decoder, target_directory: Path, **options: Any) -> DraftHead:
    return load_head(directory, target, target_directory, dtype="float32", **options)


def target_tensors(directory: Path) -> tuple[torch.Tensor, torch.Tensor]:
    from safetensors.torch import load_file

    tensors = load_file(directory / "model.safetensors")
    embedding = tensors["model.embed_tokens.weight"]
    return embedding, tensors.get("lm_head.weight", embedding)


def random_taps(head: DraftHead, num_rows: int, seed: int = 3) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    size = head.spec.tap_size
    return [torch.randn(num_rows, size, generator=generator) for _ in head.spec.taps]


def run_tree(head: DraftHead, taps: list[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Logits and states of the context rows, then of each level, through `DraftHead`."""
    generator = torch.Generator().manual_seed(4)
    cache = DenseCache(head.spec.stores)
    found = []
    with torch.inference_mode():
        features = head.combine(taps)
        parents = list(range(-1, NUM_CONTEXT - 1))
        level = [NUM_CONTEXT - 1]
        rows = features[:NUM_CONTEXT]
        for step in range(len(LEVELS) + 1):
            tokens = torch.randint(0, VOCAB, (len(parents),), generator=generator)
            attend = cache.extend(parents)
            hidden, states = head.forward(PlannedRows(tokens, attend.positions() + 1, attend), rows)
            found.append((head.logits(hidden), states))
            if step == len(LEVELS):
                break
            first = len(cache.parents)
            picked = LEVELS[step]
            parents = [level[place] for place in picked]
            rows = features[NUM_CONTEXT:] if step == 0 else states[list(picked)]
            level = list(range(first, first + len(picked)))
    return found


def run_definition(
    definition: Definition, taps: list[torch.Tensor]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The same by definition: every level recomputes all rows so far."""
    generator = torch.Generator().manual_seed(4)
    features = definition.combine(taps)
    parents = list(range(-1, NUM_CONTEXT - 1))
    new, level = parents, [NUM_CONTEXT - 1]
    tokens = torch.empty(0, dtype=torch.int64)
    rows = features[:NUM_CONTEXT]
    found = []
    for step in range(len(LEVELS) + 1):
        drawn = torch.randint(0, VOCAB, (len(new),), generator=generator)
        tokens = torch.cat([tokens, drawn])
        seen = torch.eye(len(parents), dtype=torch.bool)
        for row, parent in enumerate(parents):
            if parent >= 0:
                seen[row] |= seen[parent]
        logits, states = definition.rows(tokens, seen.sum(-1), rows, seen)
        found.append((logits[-len(new) :], states[-len(new) :]))
        if step == len(LEVELS):
            break
        picked = LEVELS[step]
        new = [level[place] for place in picked]
        level = list(range(len(parents), len(parents) + len(picked)))
        parents = parents + new
        fed = (
            features[NUM_CONTEXT:] if step == 0 else states[-len(LEVELS[step - 1]) :][list(picked)]
        )
        rows = torch.cat([rows, fed])
    return found


def check(head: DraftHead, definition: Definition) -> None:
    taps = random_taps(head, NUM_CONTEXT + 1)
    found, expected = run_tree(head, taps), run_definition(definition, taps)
    assert len(found) == len(expected) == 1 + len(LEVELS)
    for (logits, states), (expected_logits, expected_states) in zip(found, expected, strict=True):
        assert logits.dtype == torch.float32 and expected_logits.std() > 0.1
        torch.testing.assert_close(logits, expected_logits, rtol=2e-5, atol=2e-5)
        torch.testing.assert_close(states, expected_states, rtol=2e-5, atol=2e-5)


NORMS = [
    {
        "fc_norm": fc_norm,
        "input_norm": input_norm,
        "norm_output": output,
        "norm_before_residual": pre,
    }
    for fc_norm, input_norm in ((False, False), (True, False), (False, True))
    for output in (False, True)
    for pre in (False, True)
]
EXTRAS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two layers": {"layers": 2},
    "bias": {"bias": True, "fc_bias": True},
    "qk_norm": {"qk_norm": True},
    "head_dim": {"head_dim": 24},
    "draft vocabulary": {"draft_vocab": 100},
    "window": {"window": 4},
    "one head group": {"kv_heads": 4},
    "other taps": {"taps": (0, 3, NUM_TARGET_LAYERS)},
    "five taps": {"taps": (1, 2, 3, 5, 8)},
    "narrow": {"hidden": 48},
    "target's embedding": {"embedding": False},
    "everything": {
        "layers": 3,
        "bias": True,
        "fc_bias": True,
        "qk_norm": True,
        "head_dim": 24,
        "draft_vocab": 100,
        "window": 4,
        "taps": (1, 2, 3, 5),
        "hidden": 48,
    },
}

ALL_NORMS = ("plain", "everything")
"""Extras that `make test` combines with all norms; each of the others meets one of them."""


@pytest.mark.parametrize(
    ("norms", "extra"),
    [
        pytest.param(
            *(norms, extra),
            id=" ".join([*(name for name in norms if norms[name]), extra]),
            marks=[] if extra in ALL_NORMS or turn == place else pytest.mark.thorough,
        )
        for turn, norms in enumerate(NORMS)
        for place, extra in enumerate(EXTRAS)
    ],
)
def test_eagle3_computes_its_definition(
    norms: dict[str, bool], extra: str, target: Decoder, target_directory: Path, tmp_path: Path
) -> None:
    tiny = make_head(**norms, **EXTRAS[extra])
    write_speculators(tmp_path, tiny)
    head = load(tmp_path, target, target_directory)
    assert (head.spec.kind, head.spec.taps) == ("eagle3", tiny.taps)
    check(head, Definition(tiny, *target_tensors(target_directory)))


@pytest.mark.parametrize("name", ["gpt-oss", "qwen3 moe"])
def test_eagle3_heads_of_targets_with_experts_compute_their_definition(
    name: str, tmp_path: Path
) -> None:
    """In both published layouts; their layers are Llama's, whatever the target's are."""
    directory = save_target(tmp_path / "target", name)
    target = load_model(directory, dtype="float32")
    tiny = make_head(head_dim=24, draft_vocab=100, taps=(2, NUM_TARGET_LAYERS // 2, 6))
    for write in (write_specforge, write_speculators):
        head = load(write(tmp_path / write.__name__, tiny), target, directory)
        assert (head.spec.experts, head.spec.taps) == (None, tiny.taps)
        check(head, Definition(tiny, *target_tensors(directory)))


@pytest.mark.parametrize(
    "facts",
    [{}, {"fc_bias": True}, {"embedding": False}, {"layers": 2}, {"bias": True}, {"head_dim": 24}],
    ids=str,
)
def test_eagle1_computes_its_definition(
    facts: dict[str, Any], target: Decoder, target_directory: Path, tmp_path: Path
) -> None:
    tiny = make_head(kind="eagle", **facts)
    write_safeailab(tmp_path, tiny)
    head = load(tmp_path, target, target_directory)
    assert (head.spec.kind, head.spec.taps) == ("eagle", (NUM_TARGET_LAYERS + 1,))
    assert head.feature_size == TARGET_HIDDEN
    check(head, Definition(tiny, *target_tensors(target_directory)))


@pytest.mark.parametrize("embedding_first", [False, True], ids=["MiMo", "DeepSeek"])
@pytest.mark.parametrize("family", ["qwen2", "llama2", "qwen3", "llama tied"])
def test_mtp_layers_compute_their_definition(
    family: str, embedding_first: bool, tmp_path: Path
) -> None:
    directory = save_target(tmp_path, family, head_dim=16, num_key_value_heads=2)
    before = load_model(directory, dtype="float32")
    assert not has_supported_mtp(directory)
    tiny = make_mtp(embedding_first=embedding_first, qk_norm=family == "qwen3")
    if family == "qwen2":  # Qwen2 has biases on q, k and v alone
        tiny = make_mtp(embedding_first=embedding_first, bias=True)
        del tiny.tensors["layers.0.self_attn.o_proj.bias"]
    write_mtp(directory, tiny)
    assert has_supported_mtp(directory)
    target = load_model(directory, dtype="float32")
    assert same_model(target, before)
    head = load(directory, target, directory)
    assert (head.spec.kind, head.spec.taps) == ("mtp", (NUM_TARGET_LAYERS + 1,))
    check(head, Definition(tiny, *target_tensors(directory), epsilon=target.spec.norm_epsilon))


def test_an_mtp_layer_with_experts_computes_its_definition(tmp_path: Path) -> None:
    directory = save_target(tmp_path, "glm4 moe", head_dim=16)
    tiny = make_mtp(qk_norm=True, experts=8, rotary_dim=8)
    write_mtp(directory, tiny)
    target = load_model(directory, dtype="float32")
    assert has_supported_mtp(directory)
    head = load(directory, target, directory)
    check(head, Definition(tiny, *target_tensors(directory), epsilon=target.spec.norm_epsilon))


def same_model(one: Decoder, other: Decoder) -> bool:
    tokens = torch.arange(6)

    def answer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return q + v.repeat_interleave(q.shape[1] // v.shape[1], 1)

    with torch.inference_mode():
        attend = RowByRow(one.spec.stores, one.dtype, answer, len(tokens))
        outputs = [model.forward(PlannedRows(tokens, tokens, attend))[0] for model in (one, other)]
    return one.spec == other.spec and torch.equal(*outputs)


def test_the_first_row_of_an_mtp_layer_does_not_see_its_token(tmp_path: Path) -> None:
    directory = save_target(tmp_path, "llama2", head_dim=16, num_key_value_heads=2)
    write_mtp(directory, make_mtp(embedding_first=False))
    target = load_model(directory, dtype="float32")
    head = load(directory, target, directory)
    features = torch.randn(2, TARGET_HIDDEN, generator=torch.Generator().manual_seed(1))
    outputs = []
    for token in (5, 6):
        attend = DenseCache(head.spec.stores).extend([-1, 0])
        with torch.inference_mode():
            rows = PlannedRows(torch.tensor([token, 9]), torch.tensor([1, 2]), attend)
            hidden = head.forward(rows, features)[0]
        outputs.append(hidden)
    assert torch.equal(*outputs)


@pytest.mark.parametrize("order", [RowOrder(2), RowOrder(32, 32)], ids=str)
def test_features_do_not_depend_on_how_many_are_combined(
    order: RowOrder, target: Decoder, target_directory: Path, tmp_path: Path
) -> None:
    write_speculators(tmp_path, make_head(fc_norm=True))
    head = load(tmp_path, target, target_directory, order=order)
    taps = random_taps(head, 40)
    with torch.inference_mode():
        full = head.combine(taps)
        for count in (1, 3, 33):
            assert torch.equal(head.combine([tap[:count] for tap in taps]), full[:count])


def test_rope_is_the_heads_own_never_the_targets(target_directory: Path, tmp_path: Path) -> None:
    directory = save_target(tmp_path / "target", "llama3.1")
    target = load_model(directory, dtype="float32")
    write_safeailab(tmp_path / "head", make_head())
    spec = read_head(tmp_path / "head", target.spec)
    assert (spec.rope.kind, spec.rope.theta) == ("default", 10000.0)
    assert target.spec.rope.kind == "llama3"


def test_facts_follow_from_the_shapes(
    target: Decoder, target_directory: Path, tmp_path: Path
) -> None:
    tiny = make_head(draft_vocab=100, layers=2, fc_norm=True)
    write_speculators(tmp_path, tiny)
    head = load(tmp_path, target, target_directory)
    spec = head.spec
    assert spec.taps == DEFAULT_TAPS and spec.head_shape == (100, TARGET_HIDDEN)
    assert [store.first_position for store in spec.stores] == [1, 1]
    assert (TARGET_HIDDEN, 3 * TARGET_HIDDEN) in spec.linear_shapes
    assert (128, 2 * TARGET_HIDDEN) in spec.linear_shapes
    assert (128, TARGET_HIDDEN) in spec.linear_shapes
    assert head.target_ids_V is not None and torch.equal(head.target_ids_V, tiny.ids)
    floats = [tensor for tensor in tiny.tensors.values() if tensor.is_floating_point()]
    found = parameter_shapes(spec).values()
    assert sum(map(math.prod, found)) == sum(tensor.numel() for tensor in floats)


def test_a_head_of_random_bfloat16_weights_runs(target_directory: Path, tmp_path: Path) -> None:
    target = load_model(target_directory, dtype="bfloat16")
    write_speculators(tmp_path, make_head(draft_vocab=100))
    head = load_head(tmp_path, target, target_directory, dtype="bfloat16", order=RowOrder(2))
    with torch.inference_mode():
        features = head.combine([tap.bfloat16() for tap in random_taps(head, 2)])
        attend = DenseCache(head.spec.stores, torch.bfloat16).extend([-1, 0])
        rows = PlannedRows(torch.tensor([1, 2]), torch.tensor([1, 2]), attend)
        hidden, states = head.forward(rows, features)
        logits = head.logits(hidden)
    assert (logits.dtype, states.dtype, logits.shape) == (torch.float32, torch.bfloat16, (2, 100))


def test_the_tiny_head_is_no_special_case() -> None:
    tiny = TinyHead()
    assert tiny.query_heads * tiny.head_dim == TARGET_HIDDEN and tiny.kv_heads < tiny.query_heads


BLOCKS = Case({**FP8_BLOCKS, "weight_block_size": [32, 48]}, fp8(32, 48, "weight_scale_inv"))


@pytest.mark.parametrize("embedding_first", [False, True], ids=["MiMo", "DeepSeek"])
@pytest.mark.parametrize("case", [BLOCKS, CASES["gptq"]], ids=["fp8", "gptq"])
def test_an_mtp_layer_in_a_quantised_checkpoint_computes_as_its_values_do(
    case: Case, embedding_first: bool, tmp_path: Path
) -> None:
    directory = save_target(tmp_path / "model", head_dim=16, intermediate_size=128)
    write_mtp(directory, make_mtp(embedding_first=embedding_first, kv_heads=4, inner=128))
    plain = write_quantised(directory, case)
    assert has_supported_mtp(directory)
    heads = []
    for path in (directory, plain):
        heads.append(load(path, load_model(path, dtype="float32"), path))
    check_same(*heads)


def test_an_eagle_head_may_be_quantised(
    target: Decoder, target_directory: Path, tmp_path: Path
) -> None:
    directory = write_specforge(tmp_path / "head", make_head(layers=1))
    plain = write_quantised(directory, BLOCKS)
    check_same(*(load(path, target, target_directory) for path in (directory, plain)))


def check_same(found: DraftHead, expected: DraftHead) -> None:
    taps = random_taps(expected, NUM_CONTEXT + 1)
    for one, other in zip(run_tree(found, taps), run_tree(expected, taps), strict=True):
        assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])
