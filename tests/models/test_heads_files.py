"""Draft heads in files: three formats are one head; every refusal names the thing and the remedy."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file

from eyas.attention.base import PlannedRows
from eyas.layers.rope import RopeSpec
from eyas.models import Decoder, load_model
from eyas.models.heads import (
    DraftHead,
    HeadSpec,
    has_supported_mtp,
    is_head,
    load_head,
    locate_head,
    read_facts,
    read_head,
    save_head,
)
from eyas.models.heads.hyper import parameter_shapes

from .dense_attend import DenseCache
from .tiny_heads import (
    NUM_TARGET_LAYERS,
    TARGET_HIDDEN,
    VOCAB,
    TinyHead,
    make_head,
    make_mtp,
    save_target,
    write_mtp,
    write_safeailab,
    write_specforge,
    write_speculators,
)


@pytest.fixture(scope="module")
def target_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def target(target_directory: Path) -> Decoder:
    return load_model(target_directory, dtype="float32")


@pytest.fixture
def load(target: Decoder, target_directory: Path) -> Callable[..., DraftHead]:
    def load_one(directory: Path, **options: Any) -> DraftHead:
        return load_head(directory, target, target_directory, dtype="float32", **options)

    return load_one


def change_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    values = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in values.items() if value != "absent"}))


def change_tensors(directory: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


def outputs(head: DraftHead) -> torch.Tensor:
    """Logits of six rows and of one more level."""
    generator = torch.Generator().manual_seed(3)
    taps = [torch.randn(6, TARGET_HIDDEN, generator=generator) for _ in head.spec.taps]
    cache = DenseCache(head.spec.stores)
    with torch.inference_mode():
        attend = cache.extend(range(-1, 5))
        tokens = torch.arange(20, 26)
        rows = PlannedRows(tokens, attend.positions() + 1, attend)
        hidden, states = head.forward(rows, head.combine(taps))
        attend = cache.extend([5])
        last_row = PlannedRows(tokens[:1], attend.positions() + 1, attend)
        last = head.forward(last_row, states[-1:])[0]
        return head.logits(torch.cat([hidden, last]))


PLAIN = {"draft_vocab": 100}
NORMED = {"fc_norm": True, "norm_output": True, "taps": (1, 3, 6)}


def test_three_formats_hold_the_same_head(tmp_path: Path, load: Callable[..., DraftHead]) -> None:
    tiny = make_head(**PLAIN)
    heads = [
        load(write_safeailab(tmp_path / "safeailab", tiny)),
        load(write_safeailab(tmp_path / "pickle", tiny, is_pickle=True)),
        load(write_specforge(tmp_path / "specforge", tiny)),
        load(write_speculators(tmp_path / "speculators", tiny)),
    ]
    expected = outputs(heads[0])
    for head in heads:
        assert head.spec == heads[0].spec
        assert torch.equal(outputs(head), expected)
        assert head.target_ids_V is not None and torch.equal(head.target_ids_V, tiny.ids)


def test_eagle_3_1_and_its_old_names_hold_the_same_head(
    tmp_path: Path, load: Callable[..., DraftHead]
) -> None:
    tiny = make_head(**NORMED)
    heads = [
        load(write_specforge(tmp_path / "new", tiny)),
        load(write_specforge(tmp_path / "old", tiny, uses_old_names=True)),
        load(write_speculators(tmp_path / "speculators", tiny)),
    ]
    for head in heads:
        assert head.spec == heads[0].spec and head.spec.taps == (1, 3, 6)
        assert head.spec.fc_norm and head.spec.norm_output
        assert torch.equal(outputs(head), outputs(heads[0]))


def test_an_eagle1_head_is_read_from_safetensors_and_from_a_pickle(
    tmp_path: Path, load: Callable[..., DraftHead]
) -> None:
    tiny = make_head(kind="eagle", fc_bias=True)
    one = load(write_safeailab(tmp_path / "one", tiny))
    other = load(write_safeailab(tmp_path / "other", tiny, is_pickle=True))
    assert one.spec == other.spec and one.spec.kind == "eagle" and one.spec.fc_bias
    assert torch.equal(outputs(one), outputs(other))


def test_the_facts_of_a_head_need_no_target(tmp_path: Path, load: Callable[..., DraftHead]) -> None:
    for kind, options in (("eagle3", PLAIN), ("eagle", {"kind": "eagle", "fc_bias": True})):
        head = write_safeailab(tmp_path / kind, make_head(**options), is_pickle=kind == "eagle")
        facts, spec = read_facts(head), load(head).spec
        assert facts.kind == spec.kind == kind
        assert facts.num_parameters == sum(map(math.prod, parameter_shapes(spec).values()))
        for name in ("num_layers", "hidden_size", "target_hidden_size"):
            assert getattr(facts, name) == getattr(spec, name), name
        assert (facts.vocab_size, facts.draft_vocab_size) == (VOCAB, spec.draft_vocab_size)


def test_a_pickle_older_than_mapped_files_is_read(
    tmp_path: Path, load: Callable[..., DraftHead]
) -> None:
    tiny = make_head()
    new = write_safeailab(tmp_path / "new", tiny, is_pickle=True)
    old = write_safeailab(tmp_path / "old", tiny, is_pickle=True)
    torch.save(tiny.tensors, old / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert torch.equal(outputs(load(old)), outputs(load(new)))


class Runs:
    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, ("raise SystemExit('must never run')",))


@pytest.mark.parametrize("content", ["code", "no tensors", "garbage"])
def test_a_pickle_that_holds_more_than_tensors_is_never_run(
    content: str, tmp_path: Path, target: Decoder
) -> None:
    write_safeailab(tmp_path, make_head(), is_pickle=True)
    file = tmp_path / "pytorch_model.bin"
    if content == "code":
        torch.save({"fc.weight": Runs()}, file)
    elif content == "no tensors":
        torch.save({"fc.weight": [1, 2]}, file)
    else:
        file.write_bytes(b"\x00garbage")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin (is damaged, or|must hold tensors)"):
        read_head(tmp_path, target.spec)


def test_names_may_begin_with_model(tmp_path: Path, load: Callable[..., DraftHead]) -> None:
    tiny = make_head()
    plain, prefixed = (write_specforge(tmp_path / name, tiny) for name in ("plain", "prefixed"))

    def prefix(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if name != "lm_head.weight"]:
            tensors[f"model.{name}"] = tensors.pop(name)

    change_tensors(prefixed, prefix)
    assert torch.equal(outputs(load(prefixed)), outputs(load(plain)))


@pytest.mark.parametrize("flag", ["fc_norm", "norm_before_fc"])
def test_where_the_configuration_is_silent_the_tensors_decide(
    flag: str, tmp_path: Path, load: Callable[..., DraftHead]
) -> None:
    facts = {"fc_norm": flag == "fc_norm", "input_norm": flag != "fc_norm", "qk_norm": True}
    tiny = make_head(**facts, bias=True, fc_bias=True, layers=2)
    said = write_speculators(tmp_path / "said", tiny)
    silent = write_speculators(tmp_path / "silent", tiny)
    layer = json.loads((silent / "config.json").read_text())["transformer_layer_config"]
    for name in ("num_hidden_layers", "attention_bias"):
        del layer[name]
    change_config(silent, transformer_layer_config=layer, **{flag: "absent"})
    one, other = load(said), load(silent)
    assert one.spec == other.spec and torch.equal(outputs(one), outputs(other))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("format", ["safeailab", "specforge", "speculators"])
def test_a_saved_head_is_read_back_exactly(
    format: Any,  # noqa: A002
    dtype: torch.dtype,
    tmp_path: Path,
    load: Callable[..., DraftHead],
) -> None:
    tiny = make_head(**PLAIN)
    head = load(write_speculators(tmp_path / "head", tiny))
    spec = replace(head.spec, calibration={0.6: 0.75, 1.0: 0.5})
    save_head(tmp_path / "saved", spec, canonical(tiny), format=format, dtype=dtype)
    again = load(tmp_path / "saved")
    assert again.spec == spec and again.spec.calibration == {0.6: 0.75, 1.0: 0.5}
    assert torch.equal(outputs(again), outputs(head))
    assert is_head(tmp_path / "saved")
    stored = load_file(tmp_path / "saved" / "model.safetensors")
    assert stored["fc.weight"].dtype == dtype
    layer = "layers.0" if format == "speculators" else "midlayer"
    assert f"{layer}.hidden_norm.weight" in stored and f"{layer}.input_layernorm.weight" in stored
    assert torch.equal(stored["d2t"], tiny.tensors["d2t"])
    assert torch.equal(stored["t2d"], tiny.tensors["t2d"])


ROPES = [
    RopeSpec("default", 5e5, 16),
    RopeSpec("linear", 1e4, 16, 4.0),
    RopeSpec("llama3", 5e5, 16, 8.0, 64, low_freq_factor=1.0, high_freq_factor=4.0),
    RopeSpec("yarn", 1e4, 16, 4.0, 512, beta_fast=30.0, truncate=False, attention_factor=1.1),
]


@pytest.mark.parametrize("rope", ROPES, ids=lambda rope: rope.kind)
@pytest.mark.parametrize("format", ["specforge", "speculators"])
def test_every_fact_survives_being_saved(
    format: Any,  # noqa: A002
    rope: RopeSpec,
    tmp_path: Path,
    target: Decoder,
    load: Callable[..., DraftHead],
) -> None:
    facts: dict[str, Any] = {**NORMED, "window": 8, "head_dim": 16, "hidden": 48}
    if format == "speculators":
        facts |= {"norm_before_residual": True, "layers": 2, "qk_norm": True, "bias": True}
    tiny = make_head(**facts)
    spec = load(write_speculators(tmp_path / "head", tiny)).spec
    spec = replace(spec, rope=rope, max_position=2048)
    save_head(tmp_path / "saved", spec, canonical(tiny), format=format)
    assert read_head(tmp_path / "saved", target.spec) == spec


def test_default_layers_are_not_named_where_engines_count_them_differently(
    tmp_path: Path, target: Decoder, load: Callable[..., DraftHead]
) -> None:
    for taps, named in (((2, 4, 5), None), ((1, 3, 6), [0, 2, 5])):
        tiny = make_head(taps=taps)
        spec = load(write_speculators(tmp_path / "head", tiny)).spec
        save_head(tmp_path / "saved", spec, canonical(tiny), format="specforge")
        inner = json.loads((tmp_path / "saved" / "config.json").read_text())["eagle_config"]
        assert inner.get("eagle_aux_hidden_state_layer_ids") == named
        assert read_head(tmp_path / "saved", target.spec).taps == taps


def test_an_eagle1_head_is_saved_as_eagle_and_sglang_read_it(
    tmp_path: Path, load: Callable[..., DraftHead]
) -> None:
    tiny = make_head(kind="eagle", fc_bias=True)
    head = load(write_safeailab(tmp_path / "head", tiny))
    for format in ("safeailab", "specforge"):  # noqa: A001
        save_head(tmp_path / format, head.spec, canonical(tiny), format=format)
        again = load(tmp_path / format)
        assert again.spec == head.spec and torch.equal(outputs(again), outputs(head))
        assert set(load_file(tmp_path / format / "model.safetensors")) == set(tiny.tensors)


GAPS: dict[str, tuple[str, dict[str, Any]]] = {
    "norm_output": ("safeailab", {"norm_output": True}),
    "fc_norm": ("safeailab", {"fc_norm": True}),
    "layers to read of its own": ("safeailab", {"taps": (1, 3, 6)}),
    "windows": ("safeailab", {"window": 8}),
    "norm_before_residual": ("specforge", {"norm_before_residual": True}),
    "qk_norm": ("specforge", {"qk_norm": True}),
    "more than one layer": ("specforge", {"layers": 2}),
    "biases in q, k and v": ("specforge", {"bias": True}),
    "a bias in fc": ("speculators", {"fc_bias": True}),
    "the layout of EAGLE-1": ("speculators", {"kind": "eagle"}),
}


@pytest.mark.parametrize("gap", GAPS)
def test_a_head_that_a_format_cannot_hold_is_not_written_in_it(
    gap: str, tmp_path: Path, load: Callable[..., DraftHead]
) -> None:
    format, facts = GAPS[gap]  # noqa: A001
    tiny = make_head(**facts)
    write = write_safeailab if tiny.kind == "eagle" else write_speculators
    spec = load(write(tmp_path / "head", tiny)).spec
    with pytest.raises(ValueError, match=rf"{format}' cannot hold a head with .*{gap}"):
        save_head(tmp_path / "saved", spec, canonical(tiny), format=format)  # type: ignore[arg-type]
    assert not (tmp_path / "saved").exists()


def test_an_unknown_format_is_refused(tmp_path: Path, load: Callable[..., DraftHead]) -> None:
    spec = load(write_speculators(tmp_path, make_head())).spec
    with pytest.raises(ValueError, match=r"format 'gguf' is unknown; use safeailab, specforge"):
        save_head(tmp_path, spec, {}, format="gguf")  # type: ignore[arg-type]


def canonical(tiny: TinyHead) -> dict[str, torch.Tensor]:
    """The head's tensors by `DraftHead`'s names, renamed by hand."""
    parts = {
        "self_attn.q_norm": "attention.q_norm",
        "self_attn.k_norm": "attention.k_norm",
        "post_attention_layernorm": "mlp_norm",
        "input_layernorm": "attention_norm",
        "embed_tokens": "embedding",
        "lm_head": "head",
        **{f"self_attn.{part}_proj": f"attention.{part}" for part in "qkvo"},
        **{f"mlp.{part}_proj": f"mlp.{part}" for part in ("gate", "up", "down")},
    }
    found = {}
    for name, tensor in tiny.tensors.items():
        if tiny.kind == "eagle3":
            name = name.replace("layers.0.input_layernorm", "embedding_norm")
            name = name.replace("layers.0.hidden_norm", "feature_norm")
        for old, new in parts.items():
            name = name.replace(old, new)
        if name != "t2d":
            found[name] = tensor
    return found


def test_parameters_have_the_shapes_of_the_files(tmp_path: Path, target: Decoder) -> None:
    tiny = make_head(**NORMED, draft_vocab=100, layers=2, bias=True, qk_norm=True, fc_bias=True)
    spec = read_head(write_speculators(tmp_path, tiny), target.spec)
    shapes = {name: tuple(tensor.shape) for name, tensor in canonical(tiny).items()}
    assert shapes.pop("d2t") == (100,) and shapes == parameter_shapes(spec)


CONFIG_CASES: dict[str, tuple[dict[str, Any], str]] = {
    "hidden size": (
        {"target_hidden_size": 128},
        "reads hidden states of size 128, the model's have 64; it is a head of another model",
    ),
    "vocabulary": (
        {"vocab_size": 512},
        "made for a vocabulary of 512 tokens, the model has 256; it is a head of another model",
    ),
    "layers beyond the target's": (
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 15, 28]}},
        "states after 2, 16, 29 layers, but the model has 8; it is a head of another model",
    ),
    "another number of layers": (
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2]}},
        "names 2 layers, but fc takes 3 states",
    ),
    "senseless layers": (
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ["a"]}},
        "must be a list of layer numbers",
    ),
    "shape": ({"intermediate_size": 80}, r"has shape \[72, 64\], expected \[80, 64\]"),
    "sizes of no tensor": (
        {"hidden_size": 2**31 - 1, "intermediate_size": 2**31 - 1, "target_hidden_size": 64},
        "the sizes in the head's config.json are not those of a head",
    ),
    "draft vocabulary": ({"draft_vocab_size": 90}, r"has shape \[100, 64\], expected \[90, 64\]"),
    "a norm that is missing": ({"fc_norm": True}, r"lacks tensors 'fc_norm\.0\.weight'"),
    "two norms": ({"fc_norm": True, "norm_before_fc": True}, "exclude each other"),
    "last layer only": (
        {"eagle_config": {"use_aux_hidden_state": False}},
        "use_aux_hidden_state False is not supported",
    ),
    "DFlash": ({"architectures": ["DFlashDraftModel"]}, "DFlashDraftModel is not supported"),
    "quantised": (
        {"quantization_config": {"quant_method": "hqq"}},
        r"quantization_config\.quant_method 'hqq' is not supported",
    ),
    "activation": ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
    "query heads": ({"num_key_value_heads": 3}, "num_key_value_heads must divide 4"),
    "calibration": ({"eyas": {"noise_beta": {"warm": 1}}}, "'warm' is no temperature"),
    "P-EAGLE": ({"speculators_model_type": "peagle"}, r"P-EAGLE \(parallel drafting\) is not"),
    "dspark": ({"speculators_model_type": "dspark"}, "DSpark is not supported"),
    "newer": ({"speculators_model_type": "eagle9"}, "'eagle9' is not supported"),
}


@pytest.mark.parametrize("case", CONFIG_CASES)
def test_a_head_that_does_not_fit_is_refused(case: str, tmp_path: Path, target: Decoder) -> None:
    changes, message = CONFIG_CASES[case]
    write_specforge(tmp_path, make_head(**PLAIN))
    change_config(tmp_path, **changes)
    assert is_head(tmp_path)
    with pytest.raises(ValueError, match=message):
        read_head(tmp_path, target.spec)


def add(name: str, *shape: int) -> Callable[[dict[str, torch.Tensor]], Any]:
    return lambda tensors: tensors.update({name: torch.ones(shape)})


TENSOR_CASES: dict[str, tuple[Callable[[dict[str, torch.Tensor]], Any], str]] = {
    "P-EAGLE": (add("mask_hidden", 1, 192), r"mask_hidden': P-EAGLE \(parallel drafting\) is not"),
    "experts": (
        add("midlayer.mlp.experts.0.up_proj.weight", 2),
        "a mixture-of-experts layer is not",
    ),
    "SGLang's further layers": (
        add("layers.1.hidden_norm.weight", 64),
        r"hidden_norm \(SGLang's rule\) are not supported",
    ),
    "quantised": (
        add("midlayer.mlp.up_proj.weight_scale", 1),
        "a quantised layer that config.json's quantization_config does not describe is not",
    ),
    "unknown": (add("surprise.weight", 2), r"'surprise\.weight', which a head of its config\.json"),
    "twice": (add("layers.0.hidden_norm.weight", 64), "which name the same parameter"),
    "missing": (
        lambda tensors: tensors.pop("fc.weight"),
        r"lacks tensor 'fc\.weight'; the head is",
    ),
    "not EAGLE-3": (
        lambda tensors: tensors.pop("midlayer.hidden_norm.weight"),
        r"lacks tensor 'hidden_norm\.weight' of an EAGLE-3 head",
    ),
    "integers": (
        lambda tensors: tensors.update({"fc.weight": tensors["fc.weight"].char()}),
        r"'fc\.weight' is stored as I8",
    ),
}


@pytest.mark.parametrize("case", TENSOR_CASES)
def test_tensors_that_no_head_here_has_are_refused(
    case: str, tmp_path: Path, target: Decoder
) -> None:
    change, message = TENSOR_CASES[case]
    write_specforge(tmp_path, make_head(**PLAIN))
    change_tensors(tmp_path, change)
    with pytest.raises(ValueError, match=message):
        read_head(tmp_path, target.spec)


def ids_to_offsets(tensors: dict[str, torch.Tensor]) -> None:
    tensors["d2t"] = tensors["d2t"] + torch.arange(100)


def swap(tensors: dict[str, torch.Tensor]) -> None:
    ids = tensors["d2t"] + torch.arange(100)
    ids[[3, 4]] = ids[[4, 3]]
    tensors["d2t"] = ids - torch.arange(100)


MAP_CASES: dict[str, tuple[Callable[[dict[str, torch.Tensor]], Any], str]] = {
    "missing": (lambda tensors: tensors.pop("d2t"), r"lacks tensor 'd2t', the ids of its 100"),
    "ids in place of offsets": (ids_to_offsets, "leads outside of the 256 tokens"),
    "order": (swap, "does not give ascending token ids"),
    "shape": (
        lambda tensors: tensors.update(d2t=tensors["d2t"][:50].clone()),
        r"must hold 100 whole numbers \(draft_vocab_size\), not torch\.int64 of shape \[50\]",
    ),
    "disagreement": (lambda tensors: tensors["t2d"].logical_not_(), "name different tokens"),
}


@pytest.mark.parametrize("case", MAP_CASES)
def test_a_vocabulary_map_that_makes_no_sense_is_refused(
    case: str, tmp_path: Path, load: Callable[..., DraftHead]
) -> None:
    change, message = MAP_CASES[case]
    write_specforge(tmp_path, make_head(**PLAIN))
    change_tensors(tmp_path, change)
    with pytest.raises(ValueError, match=message):
        load(tmp_path)


def test_a_head_of_qwen3_layers_needs_their_norms(tmp_path: Path, target: Decoder) -> None:
    write_speculators(tmp_path, make_head(qk_norm=True))
    change_tensors(tmp_path, lambda held: held.pop("layers.0.self_attn.q_norm.weight"))
    with pytest.raises(ValueError, match=r"lacks tensor 'layers\.0\.self_attn\.q_norm\.weight'"):
        read_head(tmp_path, target.spec)


def test_a_narrow_head_needs_its_own_embedding(tmp_path: Path, target: Decoder) -> None:
    write_speculators(tmp_path, make_head(hidden=48, embedding=False))
    with pytest.raises(ValueError, match=r"lacks tensor 'embed_tokens\.weight', and the model's"):
        read_head(tmp_path, target.spec)


def test_a_head_without_output_layer_takes_the_targets_rows(
    tmp_path: Path, target: Decoder, target_directory: Path, load: Callable[..., DraftHead]
) -> None:
    rows = load_file(target_directory / "model.safetensors")["lm_head.weight"]
    for name, draft_vocab in (("all", VOCAB), ("some", 100)):
        tiny = make_head(draft_vocab=draft_vocab)
        tiny.tensors["lm_head.weight"] = rows[tiny.ids].clone()
        expected = outputs(load(write_specforge(tmp_path / name, tiny)))
        change_tensors(tmp_path / name, lambda tensors: tensors.pop("lm_head.weight"))
        assert torch.equal(outputs(load(tmp_path / name)), expected)


@pytest.mark.parametrize("kind", ["json", "pt", "tensor"])
@pytest.mark.parametrize("family", ["llama2", "llama tied", "granite", "granite tied with biases"])
def test_a_token_map_cuts_the_output_layer(kind: str, family: str, tmp_path: Path) -> None:
    directory = save_target(tmp_path / "target", family)
    target = load_model(directory, dtype="float32")
    write_safeailab(tmp_path / "head", make_head(kind="eagle"))
    ids = [200, 3, 77, 5, 128]
    file = tmp_path / ("map.json" if kind == "json" else "map.pt")
    if kind == "json":
        file.write_text(json.dumps(ids))
    else:
        torch.save(ids if kind == "pt" else torch.tensor(ids), file)
    whole = load_head(tmp_path / "head", target, directory, dtype="float32")
    cut = load_head(tmp_path / "head", target, directory, dtype="float32", token_map=file)
    assert cut.spec.head_shape == (5, TARGET_HIDDEN) and whole.target_ids_V is None
    assert cut.target_ids_V is not None and cut.target_ids_V.tolist() == sorted(ids)
    assert (
        read_head(tmp_path / "head", target.spec, target_directory=directory, token_map=file)
        == cut.spec
    )
    torch.testing.assert_close(outputs(cut), outputs(whole)[:, sorted(ids)])


TOKEN_MAPS = {
    "[1, 2, 256]": "names token 256, but the model has 256 tokens; it is a map for another model",
    "[1, -1]": "names token -1",
    "[1, 2, 1]": "names a token twice",
    "[]": "must hold a list of token ids, and at least one",
    "[1.5]": "must hold a list of token ids",
    "[true]": "must hold a list of token ids",
    '{"a": 1}': "must hold a list of token ids",
    "[1": "cannot be read as JSON",
}


@pytest.mark.parametrize("text", TOKEN_MAPS)
def test_a_token_map_that_makes_no_sense_is_refused(
    text: str, tmp_path: Path, target: Decoder, target_directory: Path
) -> None:
    write_safeailab(tmp_path, make_head(kind="eagle"))
    (tmp_path / "map.json").write_text(text)
    with pytest.raises(ValueError, match=TOKEN_MAPS[text]):
        read_head(
            tmp_path,
            target.spec,
            target_directory=target_directory,
            token_map=tmp_path / "map.json",
        )


def test_a_token_map_is_looked_for_bounded_and_never_run(
    tmp_path: Path, target: Decoder, target_directory: Path
) -> None:
    write_safeailab(tmp_path, make_head(kind="eagle"))

    def read(name: str) -> HeadSpec:
        return read_head(
            tmp_path, target.spec, target_directory=target_directory, token_map=tmp_path / name
        )

    with pytest.raises(ValueError, match=r"nothing\.pt does not exist"):
        read("nothing.pt")
    torch.save([Runs()], tmp_path / "code.pt")
    with pytest.raises(ValueError, match="holds more than tensors, which is never run; take a"):
        read("code.pt")
    with (tmp_path / "big.pt").open("wb") as file:
        file.truncate(65 << 20)
    with pytest.raises(ValueError, match="is larger than 64 MiB"):
        read("big.pt")


def test_a_token_map_is_refused_beside_a_heads_own_vocabulary(
    tmp_path: Path, target: Decoder, target_directory: Path
) -> None:
    write_specforge(tmp_path, make_head(**PLAIN))
    (tmp_path / "map.json").write_text("[1, 2]")
    with pytest.raises(
        ValueError, match=r"draft vocabulary of its own \(100 tokens\); a token map"
    ):
        read_head(tmp_path, target.spec, token_map=tmp_path / "map.json")


def test_heads_are_told_from_models(
    tmp_path: Path, target: Decoder, target_directory: Path
) -> None:
    assert not is_head(target_directory) and not has_supported_mtp(target_directory)
    for kind in ("eagle", "eagle3"):
        assert is_head(write_safeailab(tmp_path / kind, make_head(kind=kind)))
    with pytest.raises(ValueError, match="is a whole model without an MTP layer, not a draft head"):
        read_head(target_directory, target.spec)
    with pytest.raises(ValueError, match=r"has no config\.json"):
        is_head(tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mtp.fc.weight", r"lacks tensors 'mtp\.layers\.0\.input_layernorm\.weight'"),
        (
            f"model.layers.{NUM_TARGET_LAYERS}.self_attn.kv_a_proj_with_mqa.weight",
            "lacks tensors",
        ),
    ],
)
def test_mtp_layers_that_cannot_run_leave_the_model_usable(
    name: str, message: str, tmp_path: Path
) -> None:
    directory = save_target(tmp_path)
    tensors = {name: torch.ones(2, 2)}
    if "layers" in name:
        tensors[f"model.layers.{NUM_TARGET_LAYERS}.eh_proj.weight"] = torch.ones(2, 2)
    change_tensors(directory, lambda held: held.update(tensors))
    target = load_model(directory, dtype="float32")
    assert not has_supported_mtp(directory)
    with pytest.raises(ValueError, match=message):
        read_head(directory, target.spec)


def test_mimo_is_a_qwen2_that_brings_its_head_along(tmp_path: Path) -> None:
    directory = save_target(tmp_path, "qwen2", head_dim=16)
    plain = load_model(directory, dtype="float32")
    tiny = make_mtp(embedding_first=False, bias=True)
    del tiny.tensors["layers.0.self_attn.o_proj.bias"]
    write_mtp(directory, tiny)
    change_config(directory, architectures=["MiMoForCausalLM"], model_type="mimo")
    target = load_model(directory, dtype="float32")
    assert target.spec == replace(plain.spec, architecture="MiMoForCausalLM")
    assert has_supported_mtp(directory) and not is_head(directory)
    spec = read_head(directory, target.spec)
    assert not spec.embedding_first and spec.norm_output and spec.zero_first_embedding
    assert spec.qkv_bias and not spec.output_bias and not spec.own_head


def test_an_mtp_layer_with_other_tensors_is_refused(tmp_path: Path) -> None:
    directory = save_target(tmp_path, "llama2", head_dim=16, num_key_value_heads=2)
    write_mtp(directory, make_mtp(embedding_first=False))
    target = load_model(directory, dtype="float32")
    change_tensors(directory, add("model.mtp_layers.0.gate.weight", 2))
    with pytest.raises(
        ValueError, match=r"'model\.mtp_layers\.0\.gate\.weight', which an MTP layer"
    ):
        read_head(directory, target.spec)
    change_tensors(
        directory,
        lambda held: (
            held.pop("model.mtp_layers.0.gate.weight"),
            held.pop("model.mtp_layers.0.final_layernorm.weight"),
        ),
    )
    with pytest.raises(ValueError, match=r"lacks tensor 'model\.mtp_layers\.0\.final_layernorm"):
        read_head(directory, target.spec)


def test_a_head_on_the_hub_may_be_a_pickle_and_a_model_may_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[list[str]] = []

    def download(name: str, **options: Any) -> str:
        calls.append(options["allow_patterns"])
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert locate_head("yuhuili/EAGLE-head", revision="main") == tmp_path
    assert ["pytorch_model*.bin" in patterns for patterns in calls] == [False, True]
    (tmp_path / "model.safetensors").touch()
    assert locate_head("yuhuili/EAGLE-head") == tmp_path
    assert locate_head(str(tmp_path)) == tmp_path
    assert ["pytorch_model*.bin" in patterns for patterns in calls] == [False, True, False]


def test_a_model_that_is_a_pickle_stays_refused(tmp_path: Path) -> None:
    directory = save_target(tmp_path)
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    torch.save(tensors, directory / "pytorch_model.bin")
    with pytest.raises(
        ValueError, match=r"only pytorch_model\.bin, a pickle, which is never opened"
    ):
        load_model(directory)


def test_a_head_runs_in_its_targets_number_format(target_directory: Path, tmp_path: Path) -> None:
    target = load_model(target_directory, dtype="bfloat16")
    write_speculators(tmp_path, make_head())
    assert load_head(tmp_path, target, target_directory).dtype == torch.bfloat16
