"""Training data and loop: roles of tokens, packing, the model's function, going on after a stop."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import Qwen3Config, Qwen3ForCausalLM

from builtin_model.data import ANSWER, Marker, make_shard
from builtin_model.model import BuiltinModel, BuiltinShape, dense_attend
from builtin_model.template import render
from builtin_model.training import BuiltinTraining, train_builtin
from eyas import builtin

TOKENIZER_FILE = builtin.path() / "tokenizer.json"
TOKENIZER = Tokenizer.from_file(str(TOKENIZER_FILE))
TINY = BuiltinShape(width=32, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=16, ffn_width=64)


def asked_text(messages: list[dict[str, str]]) -> str:
    """The tokens of a conversation that the model has to write, as text."""
    text = render(messages)
    tokens = np.array(TOKENIZER.encode(text, add_special_tokens=False).ids, dtype=np.uint16)
    roles = Marker(TOKENIZER).roles(tokens)
    return TOKENIZER.decode(tokens[roles == ANSWER].tolist(), skip_special_tokens=False)


def test_reasoning_is_written_by_the_model_but_its_absence_is_not() -> None:
    user = {"role": "user", "content": "2+2?"}
    with_reasoning = {"role": "assistant", "content": "4", "reasoning_content": "2+2=4."}
    assert asked_text([user, with_reasoning]) == "<think>\n2+2=4.\n</think>\n\n4<|im_end|>"
    assert asked_text([user, {"role": "assistant", "content": "4"}]) == "4<|im_end|>"


def test_first_token_of_an_earlier_answer_is_not_asked() -> None:
    user = {"role": "user", "content": "Hi"}
    answer = {"role": "assistant", "content": "red, blue"}
    assert asked_text([user, answer, user, answer]) == ", blue<|im_end|>red, blue<|im_end|>"


def test_shards_are_fixed_by_their_index_and_whole() -> None:
    marker = Marker(TOKENIZER)
    first = make_shard(TOKENIZER, marker, "s", 3, 2048, 1024)
    again = make_shard(TOKENIZER, marker, "s", 3, 2048, 1024)
    other = make_shard(TOKENIZER, marker, "s", 4, 2048, 1024)
    assert np.array_equal(first.tokens, again.tokens)
    assert not np.array_equal(first.tokens, other.tokens)
    assert first.lengths.sum() == len(first.tokens) == 2048
    starts = np.cumsum(first.lengths) - first.lengths
    assert (first.tokens[starts[:-1]] == TOKENIZER.token_to_id("<|im_start|>")).all()


def test_packed_logits_equal_those_of_transformers() -> None:
    torch.manual_seed(0)
    model = BuiltinModel(TINY)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    hidden = ("architectures", "model_type", "torch_dtype")
    config = Qwen3Config(**{k: v for k, v in TINY.config().items() if k not in hidden})
    theirs = Qwen3ForCausalLM(config).float().eval()
    missing = theirs.load_state_dict(model.state_dict(), strict=False)
    assert missing.missing_keys == ["lm_head.weight"]
    theirs.tie_weights()
    first, second = torch.randint(0, 4096, (9,)), torch.randint(0, 4096, (14,))
    positions = torch.cat((torch.arange(9), torch.arange(14)))
    bounds = torch.tensor([0, 9, 23, 23], dtype=torch.int32)
    with torch.no_grad():
        packed = model.logits(torch.cat((first, second)), positions, bounds, dense_attend)
        torch.testing.assert_close(packed[:9], theirs(first[None]).logits[0], atol=2e-4, rtol=0)
        torch.testing.assert_close(packed[9:], theirs(second[None]).logits[0], atol=2e-4, rtol=0)


def test_training_goes_on_after_a_stop_and_exports(tmp_path: Path) -> None:
    def config(output: Path, stop_after: float) -> BuiltinTraining:
        return BuiltinTraining(
            output=output,
            steps=3,
            batch_tokens=1024,
            shard_tokens=512,
            workers=1,
            device="cpu",
            compile=False,
            stop_after=stop_after,
            log_every=1,
            shape=BuiltinShape(
                width=32,
                num_layers=1,
                num_heads=2,
                num_kv_heads=1,
                head_dim=16,
                ffn_width=64,
                longest=512,
            ),
        )

    stopped = tmp_path / "stopped"
    train_builtin(config(stopped, 1e-9))
    assert (stopped / "state.pt").exists()
    train_builtin(config(stopped, float("inf")))
    straight = train_builtin(config(tmp_path / "straight", float("inf")))
    assert not (stopped / "state.pt").exists()
    first = load_file(stopped / "model.safetensors")
    second = load_file(straight / "model.safetensors")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_batch_must_be_made_of_whole_shards(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="multiple"):
        train_builtin(BuiltinTraining(output=tmp_path, batch_tokens=1000, shard_tokens=512))
