"""The options of SGLang and vLLM that are other names of options of eyas.

Does not know: what they mean (`eyas.peers` does). Options without effect and unsupported options are
not here: `eyas.cli.command_line` removes them before.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import typer

from eyas.peers.translate import (
    DEFAULT_NODES,
    DEFAULT_STEPS,
    DEFAULT_TOPK,
    SETTING,
    option_of,
)

PANEL = "Options of SGLang and vLLM"


def _option(*names: str, help: str, **more: Any) -> Any:  # noqa: A002
    return typer.Option(*names, help=help, rich_help_panel=PANEL, show_default=False, **more)


def _other_name(engine: str, name: str, rest: str = "") -> Any:
    """Return an option that is another name of one of eyas. rest: of the help text."""
    return _option(option_of(name), help=f"{engine}: {option_of(SETTING[name])}{rest}.")


_sglang, _vllm = partial(_other_name, "SGLang"), partial(_other_name, "vLLM")


@dataclass(frozen=True, kw_only=True)
class PeerOptions:
    """Options of SGLang and vLLM; None where one is not given."""

    model_argument: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="Same as --model.", show_default=False),
    ] = None
    model_path: Annotated[str | None, _sglang("model_path")] = None
    speculative_algorithm: Annotated[
        str | None,
        _option(
            "--speculative-algorithm",
            help="SGLang: --drafter; EAGLE, EAGLE3 and NEXTN are head, STANDALONE is model, NGRAM is "
            "ngram.",
            metavar="<name>",
        ),
    ] = None
    speculative_draft_model_path: Annotated[
        str | None,
        _option("--speculative-draft-model-path", help="SGLang: --draft-model."),
    ] = None
    speculative_num_steps: Annotated[
        int | None,
        _option(
            "--speculative-num-steps",
            help=f"SGLang: --draft-steps; {DEFAULT_STEPS} if only other sizes are given.",
        ),
    ] = None
    speculative_eagle_topk: Annotated[
        int | None,
        _option(
            "--speculative-eagle-topk",
            help=f"SGLang: --draft-topk; {DEFAULT_TOPK} if only other sizes are given.",
        ),
    ] = None
    speculative_num_draft_tokens: Annotated[
        int | None,
        _option(
            "--speculative-num-draft-tokens",
            help=f"SGLang: --draft-nodes; {DEFAULT_NODES} if only other sizes are given; a chain "
            "always has one node more than steps.",
        ),
    ] = None
    speculative_token_map: Annotated[
        str | None, _option("--speculative-token-map", help="SGLang: --draft-token-map.")
    ] = None
    speculative_config: Annotated[
        str | None,
        _option(
            "--speculative-config",
            metavar="<json>",
            help='vLLM: {"method": "eagle3", "model": ..., "num_speculative_tokens": ...} with method '
            "eagle, eagle3, mtp, draft_model or ngram; drafts a chain of num_speculative_tokens "
            "tokens.",
        ),
    ] = None
    context_length: Annotated[int | None, _sglang("context_length")] = None
    mem_fraction_static: Annotated[float | None, _sglang("mem_fraction_static")] = None
    gpu_memory_utilization: Annotated[float | None, _vllm("gpu_memory_utilization")] = None
    max_running_requests: Annotated[int | None, _sglang("max_running_requests")] = None
    max_total_tokens: Annotated[int | None, _sglang("max_total_tokens")] = None
    max_num_batched_tokens: Annotated[int | None, _vllm("max_num_batched_tokens")] = None
    disable_radix_cache: Annotated[bool | None, _sglang("disable_radix_cache")] = None
    enable_prefix_caching: Annotated[
        bool | None,
        _option(
            "--enable-prefix-caching", help="vLLM: the default; --no-prefix-cache disables it."
        ),
    ] = None
    no_enable_prefix_caching: Annotated[bool | None, _vllm("no_enable_prefix_caching")] = None
    constrained_json_whitespace_pattern: Annotated[
        str | None, _sglang("constrained_json_whitespace_pattern")
    ] = None
    constrained_json_disable_any_whitespace: Annotated[
        bool | None, _sglang("constrained_json_disable_any_whitespace")
    ] = None
    chunked_prefill_size: Annotated[
        int | None, _sglang("chunked_prefill_size", ", which includes draft trees")
    ] = None
    max_queued_requests: Annotated[int | None, _sglang("max_queued_requests")] = None
    shutdown_timeout: Annotated[float | None, _vllm("shutdown_timeout")] = None
    cuda_graph_max_bs: Annotated[int | None, _sglang("cuda_graph_max_bs")] = None
    disable_cuda_graph: Annotated[bool | None, _sglang("disable_cuda_graph", " 0")] = None
    enforce_eager: Annotated[bool | None, _vllm("enforce_eager", " 0")] = None
    disable_overlap_schedule: Annotated[bool | None, _sglang("disable_overlap_schedule", " 0")] = (
        None
    )
    no_async_scheduling: Annotated[bool | None, _vllm("no_async_scheduling", " 0")] = None
    enable_expert_parallel: Annotated[
        bool | None,
        _option("--enable-expert-parallel", help="vLLM: --ep with the number of --tp or --dp."),
    ] = None
    enable_deterministic_inference: Annotated[
        bool | None, _sglang("enable_deterministic_inference")
    ] = None
