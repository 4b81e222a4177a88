"""The options that SGLang and vLLM have for what ours do, as the command line takes them.

Does not know: what they mean; `eyas.peers` does. Options of theirs that change nothing, or cannot be
had, are not here: `eyas.cli.reading` takes them from the command line before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from eyas.peers.translate import DEFAULT_NODES, DEFAULT_STEPS, DEFAULT_TOPK

PANEL = "Names that SGLang and vLLM use"


def _option(*names: str, says: str, **more: Any) -> Any:
    return typer.Option(*names, help=says, rich_help_panel=PANEL, show_default=False, **more)


@dataclass(frozen=True, kw_only=True)
class PeerOptions:
    """Options in the peers' words; what is not given is None."""

    model_argument: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="The same as --model.", show_default=False),
    ] = None
    model_path: Annotated[str | None, _option("--model-path", says="SGLang: --model.")] = None
    speculative_algorithm: Annotated[
        str | None,
        _option(
            "--speculative-algorithm",
            says="SGLang: EAGLE, EAGLE3 and NEXTN are --drafter head, STANDALONE is model, NGRAM is "
            "ngram.",
            metavar="<name>",
        ),
    ] = None
    speculative_draft_model_path: Annotated[
        str | None,
        _option("--speculative-draft-model-path", says="SGLang: --draft-model."),
    ] = None
    speculative_num_steps: Annotated[
        int | None,
        _option(
            "--speculative-num-steps",
            says=f"SGLang: --draft-steps; {DEFAULT_STEPS} where only other sizes are given.",
        ),
    ] = None
    speculative_eagle_topk: Annotated[
        int | None,
        _option(
            "--speculative-eagle-topk",
            says=f"SGLang: --draft-topk; {DEFAULT_TOPK} where only other sizes are given.",
        ),
    ] = None
    speculative_num_draft_tokens: Annotated[
        int | None,
        _option(
            "--speculative-num-draft-tokens",
            says=f"SGLang: --draft-nodes; {DEFAULT_NODES} where only other sizes are given; a chain "
            "always has its steps and the root.",
        ),
    ] = None
    speculative_token_map: Annotated[
        str | None, _option("--speculative-token-map", says="SGLang: --draft-token-map.")
    ] = None
    speculative_config: Annotated[
        str | None,
        _option(
            "--speculative-config",
            metavar="<json>",
            says='vLLM: {"method": "eagle3", "model": ..., "num_speculative_tokens": ...} with method '
            "eagle, eagle3, mtp, draft_model or ngram; drafts a chain of so many tokens.",
        ),
    ] = None
    context_length: Annotated[
        int | None, _option("--context-length", says="SGLang: --max-model-len.")
    ] = None
    mem_fraction_static: Annotated[
        float | None, _option("--mem-fraction-static", says="SGLang: --memory-fraction.")
    ] = None
    gpu_memory_utilization: Annotated[
        float | None, _option("--gpu-memory-utilization", says="vLLM: --memory-fraction.")
    ] = None
    max_running_requests: Annotated[
        int | None, _option("--max-running-requests", says="SGLang: --max-num-seqs.")
    ] = None
    max_total_tokens: Annotated[
        int | None, _option("--max-total-tokens", says="SGLang: --num-slots.")
    ] = None
    max_num_batched_tokens: Annotated[
        int | None, _option("--max-num-batched-tokens", says="vLLM: --max-batch-tokens.")
    ] = None
    disable_radix_cache: Annotated[
        bool | None, _option("--disable-radix-cache", says="SGLang: --no-prefix-cache.")
    ] = None
    enable_prefix_caching: Annotated[
        bool | None, _option("--enable-prefix-caching", says="vLLM: not --no-prefix-cache.")
    ] = None
    no_enable_prefix_caching: Annotated[
        bool | None, _option("--no-enable-prefix-caching", says="vLLM: --no-prefix-cache.")
    ] = None
    constrained_json_whitespace_pattern: Annotated[
        str | None,
        _option("--constrained-json-whitespace-pattern", says="SGLang: --whitespace-pattern."),
    ] = None
    constrained_json_disable_any_whitespace: Annotated[
        bool | None,
        _option(
            "--constrained-json-disable-any-whitespace", says="SGLang: --disable-any-whitespace."
        ),
    ] = None
    chunked_prefill_size: Annotated[
        int | None,
        _option(
            "--chunked-prefill-size",
            says="SGLang: --max-batch-tokens, which drafts are part of too.",
        ),
    ] = None
    max_queued_requests: Annotated[
        int | None, _option("--max-queued-requests", says="SGLang: --max-waiting.")
    ] = None
    shutdown_timeout: Annotated[
        float | None, _option("--shutdown-timeout", says="vLLM: --drain-timeout.")
    ] = None
    cuda_graph_max_bs: Annotated[
        int | None, _option("--cuda-graph-max-bs", says="SGLang: --max-graph-batch.")
    ] = None
    disable_cuda_graph: Annotated[
        bool | None, _option("--disable-cuda-graph", says="SGLang: --max-graph-batch 0.")
    ] = None
    enforce_eager: Annotated[
        bool | None, _option("--enforce-eager", says="vLLM: --max-graph-batch 0.")
    ] = None
    disable_overlap_schedule: Annotated[
        bool | None, _option("--disable-overlap-schedule", says="SGLang: --flights 0.")
    ] = None
    no_async_scheduling: Annotated[
        bool | None, _option("--no-async-scheduling", says="vLLM: --flights 0.")
    ] = None
    enable_deterministic_inference: Annotated[
        bool | None, _option("--enable-deterministic-inference", says="SGLang: --exact.")
    ] = None
