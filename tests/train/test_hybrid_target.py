"""The states of a target with delta nets, in training and from transformers."""

from __future__ import annotations

from pathlib import Path

import torch

from eyas.layers.row_order import RowOrder
from eyas.models import load_model
from eyas.train.head.target import Target
from tests.models.tiny import make_model, save_model, tokens


def test_padded_texts_have_the_states_of_each_text_alone(tmp_path: Path) -> None:
    model = make_model("qwen3.5")
    decoder = load_model(save_model(model, tmp_path), dtype="float32", order=RowOrder(2))
    texts = [tokens(21, seed=1), tokens(14, seed=2), tokens(2, seed=3)]
    tokens_BL = torch.zeros(3, 22, dtype=torch.int64)
    for row, text in zip(tokens_BL, texts, strict=True):
        row[: len(text)] = torch.tensor(text)
    tapped, final = Target(decoder, tmp_path, (2,)).states(tokens_BL)
    for number, text in enumerate(texts):
        rows = slice(22 * number, 22 * number + len(text))
        with torch.no_grad():
            output = model(torch.tensor([text]), output_hidden_states=True)
            found = decoder.logits(torch.nn.functional.pad(final[rows], (0, 0, 0, len(text) % 2)))
        assert (tapped[rows] - output.hidden_states[2][0]).abs().max() <= 2e-5
        assert (found[: len(text)] - output.logits[0]).abs().max() <= 2e-5
