"""What was chosen at the start of an engine, and why."""

from __future__ import annotations

from pathlib import Path

from eyas.config import (
    CacheConfig,
    DeviceConfig,
    DraftConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
    StartChoice,
)
from eyas.engine.startup.start_choices import by_option, graphs_choice, search_choice
from eyas.llm import LLM
from tests.models.tiny import make_model, save_model


def choices_of(config: EngineConfig) -> dict[str, StartChoice]:
    with LLM(config=config) as llm:
        choices = llm.info.choices
    assert len({choice.name for choice in choices}) == len(choices)
    assert all(choice.value and choice.reason for choice in choices)
    return {choice.name: choice for choice in choices}


def test_what_is_found_has_its_reason_and_what_is_given_its_option(tmp_path: Path) -> None:
    directory = save_model(make_model("qwen3"), tmp_path)
    model = ModelConfig(path=str(directory))
    chosen = choices_of(EngineConfig(model=model, device=DeviceConfig(device="cpu")))
    assert chosen["device"].reason.startswith("--device")
    assert chosen["model"].reason == "--model" and str(directory) in chosen["model"].value
    assert chosen["dtype"].reason.startswith("auto: the processor has")
    assert chosen["drafter"] == StartChoice(
        "drafter",
        "forced",
        "auto: the model brings no draft head; see --draft-model",
        chosen["drafter"].seconds,
    )
    assert chosen["seats"].reason == "auto: on a CPU"
    assert chosen["context"].reason == "the model's context length"
    assert chosen["grammars"] == StartChoice("grammars", "none", "the model has no tokenizer")
    assert chosen["model"].seconds and chosen["exact"].seconds

    given = EngineConfig(
        model=ModelConfig(path=str(directory), dtype="float32", max_model_len=100),
        cache=CacheConfig(num_slots=64),
        draft=DraftConfig(drafter="ngram", nodes=4),
        scheduler=SchedulerConfig(max_num_seqs=2, max_batch_tokens=32),
        device=DeviceConfig(device="cpu", num_threads=1),
    )
    chosen = choices_of(given)
    assert chosen["device"].reason == "--device; --threads"
    assert (chosen["dtype"].value, chosen["dtype"].reason) == ("float32", "--dtype")
    assert (chosen["drafter"].value, chosen["drafter"].reason) == ("ngram", "--drafter")
    assert chosen["draft tree"].value.startswith("up to 4 nodes")
    assert chosen["cache"].reason == "--num-slots" and chosen["cache"].value.startswith("64 tokens")
    assert "what the cache holds" in chosen["context"].reason
    assert chosen["seats"].reason == "--max-num-seqs"
    assert chosen["step"].reason == "--max-batch-tokens"


def test_choices_on_a_device() -> None:
    assert by_option("--x", 1, 1) == "default of --x" and by_option("--x", 2, 1) == "--x"
    assert search_choice((3, 2, 1.5)) == StartChoice(
        "kernels", "the fastest variant of 5 products", "2 are kept from an earlier start", 1.5
    )
    limits = SchedulerConfig().limits(on_gpu=True)
    assert graphs_choice(limits, [4, 2, 1], 0.5).value == "captured for 3 batch sizes up to 4"
    assert graphs_choice(limits, [], 0.0).value == "when needed"
    none = SchedulerConfig(max_graph_batch=0).limits(on_gpu=True)
    assert graphs_choice(none, [], 0.0).value == "none"
