"""What users may import does not change by accident."""

from __future__ import annotations

import inspect
import subprocess
import sys

import eyas

PUBLIC = {
    "LLM",
    "Choice",
    "Delta",
    "GenerationOutput",
    "Grammar",
    "GrammarError",
    "JsonSchema",
    "OutputIncomplete",
    "OutputSpec",
    "PartialOutput",
    "Regex",
    "Request",
    "RequestError",
    "SamplingParams",
    "TokenLogprob",
    "ToolCall",
    "Usage",
}
LLM_METHODS = {
    "chat",
    "close",
    "default_params",
    "encode_chat",
    "prepare_chat",
    "generate",
    "stream",
    "stream_chat",
}
SAMPLING_FIELDS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "seed",
    "n",
    "max_tokens",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "logprobs",
    "prompt_logprobs",
)


def test_public_names() -> None:
    assert set(eyas.__all__) == PUBLIC
    assert all(getattr(eyas, name) is not None for name in PUBLIC)


def test_methods_of_the_offline_api() -> None:
    methods = inspect.getmembers(eyas.LLM, inspect.isfunction)
    assert {name for name, _ in methods if not name.startswith("_")} == LLM_METHODS


def test_sampling_fields() -> None:
    assert eyas.SamplingParams.__struct_fields__ == SAMPLING_FIELDS


def test_importing_eyas_imports_no_torch() -> None:
    script = "import sys, eyas, eyas.config, eyas.wire, eyas.text; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
