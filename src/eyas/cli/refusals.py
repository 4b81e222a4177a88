"""Options that SGLang and vLLM know and that mean nothing here, each with its reason and a remedy.

Promises: what a peer knows and eyas cannot do is refused by name, never passed over; what nobody knows
is left to the command line's own error. Does not know: which options eyas has.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

_ONE_DEVICE = "eyas runs on one device (--device); leave it out"
_GRAMMARS = (
    "choose who enforces grammars with --grammar-backend, white space in JSON with "
    "--whitespace-pattern or --disable-any-whitespace, or leave it out"
)
_PARSERS = "formats are built in: choose with --reasoning-parser and --tool-call-parser"
_KERNELS = "eyas chooses its own kernels and checks at the start that they are exact; leave it out"
_CHUNKS = (
    "prompt chunks and draft trees share the rows of a step; bound them with --max-batch-tokens"
)
_ORDER = "requests are served in the order they came; leave it out"
_SAME_DTYPE = "weights and cache have the number format that --dtype names; leave it out"
_OWN_FILES = (
    "the files that come with the model are used, from its directory or the hub; leave it out"
)
_RECIPE = "is an old form; write --speculative-config '{\"method\": ...}'"

_FLAGS_BY_REASON = {
    "a draft is accepted where it is what the model chooses itself, so there is no threshold or "
    "sampling method to set; leave it out": (
        "--speculative-accept-threshold-single --speculative-accept-threshold-acc "
        "--speculative-use-rejection-sampling --spec-decoding-acceptance-method "
        "--typical-acceptance-sampler-posterior-threshold "
        "--typical-acceptance-sampler-posterior-alpha"
    ),
    "prompt lookup matches 2 to 5 tokens here; leave it out": (
        "--speculative-ngram-min-match-window-size --speculative-ngram-max-match-window-size "
        "--speculative-ngram-min-bfs-breadth --speculative-ngram-max-bfs-breadth "
        "--speculative-ngram-match-type --speculative-ngram-branch-length "
        "--speculative-ngram-capacity --speculative-ngram-max-trie-depth "
        "--speculative-ngram-external-corpus-path --speculative-ngram-external-sam-budget "
        "--speculative-ngram-external-corpus-max-tokens"
    ),
    "the size of a tree is chosen by cost where --draft-nodes is auto; leave it out": (
        "--speculative-adaptive --speculative-adaptive-config --speculative-disable-by-batch-size"
    ),
    "a draft model is read like the model itself; leave it out": (
        "--speculative-draft-model-revision --speculative-draft-load-format "
        "--speculative-draft-model-quantization --speculative-model-quantization "
        "--speculative-max-model-len"
    ),
    "is a kind of drafting that eyas does not have; leave it out": (
        "--speculative-dflash-block-size --speculative-draft-window-size --enable-multi-layer-eagle"
    ),
    _RECIPE: (
        "--speculative-model --num-speculative-tokens --num-lookahead-slots "
        "--ngram-prompt-lookup-max --ngram-prompt-lookup-min"
    ),
    _KERNELS: (
        "--speculative-attention-mode --speculative-draft-attention-backend "
        "--speculative-moe-runner-backend --speculative-moe-a2a-backend --attention-backend "
        "--prefill-attention-backend --decode-attention-backend --sampling-backend "
        "--mm-attention-backend --moe-runner-backend --fp8-gemm-backend --kernel-config "
        "--enable-torch-compile --torch-compile-max-bs --compilation-config --optimization-level "
        "--enforce-eager --disable-cuda-graph --disable-cuda-graph-padding --cuda-graph-max-bs "
        "--cuda-graph-bs --cuda-graph-config --cudagraph-capture-sizes "
        "--max-cudagraph-capture-size --enable-piecewise-cuda-graph --disable-piecewise-cuda-graph "
        "--enable-flashinfer-allreduce-fusion --triton-attention-num-kv-splits"
    ),
    _ONE_DEVICE: (
        "--speculative-draft-tensor-parallel-size --nnodes --node-rank --dist-init-addr --nccl-port "
        "--ep --ep-size --expert-parallel-size --enable-expert-parallel --enable-ep-moe "
        "--enable-dp-attention --enable-dp-lm-head --enable-eplb --moe-a2a-backend "
        "--moe-dense-tp-size --distributed-executor-backend --disable-custom-all-reduce "
        "--load-balance-method --data-parallel-rank --data-parallel-backend "
        "--disaggregation-mode --disaggregation-transfer-backend --kv-transfer-config"
    ),
    "choose a device with --device cuda:N": "--base-gpu-id --gpu-id-step",
    _SAME_DTYPE: (
        "--quantization --quantization-param-path --kv-cache-dtype --torchao-config "
        "--modelopt-quant --calculate-kv-scales"
    ),
    "eyas runs no code that comes with a model; leave it out": "--trust-remote-code --code-revision",
    _OWN_FILES: (
        "--tokenizer --tokenizer-path --tokenizer-mode --tokenizer-revision --skip-tokenizer-init "
        "--chat-template --chat-template-content-format --hf-chat-template-name --response-role "
        "--load-format --model-loader-extra-config --config-format --hf-config-path --hf-overrides "
        "--json-model-override-args --generation-config --override-generation-config "
        "--sampling-defaults --preferred-sampling-params --hf-token"
    ),
    "downloads go where HF_HOME says; set that": "--download-dir",
    _GRAMMARS: "--guided-decoding-backend --structured-outputs-config",
    _PARSERS: (
        "--reasoning-parser-plugin --reasoning-config --enable-reasoning --tool-parser-plugin "
        "--enable-strict-thinking"
    ),
    "eyas calls no tools itself; leave it out": "--tool-server",
    "requests set bias and grammars, not code; leave it out": (
        "--enable-custom-logit-processor --logits-processors"
    ),
    _CHUNKS: (
        "--chunked-prefill-size --max-prefill-tokens --prefill-max-requests "
        "--enable-chunked-prefill --no-enable-chunked-prefill --enable-mixed-chunk "
        "--max-num-partial-prefills --max-long-partial-prefills --long-prefill-token-threshold"
    ),
    _ORDER: (
        "--schedule-policy --scheduling-policy --schedule-conservativeness "
        "--enable-priority-scheduling"
    ),
    "say how far the host runs ahead of the device with --flights": (
        "--disable-overlap-schedule --enable-overlap-schedule --async-scheduling "
        "--no-async-scheduling --num-scheduler-steps --num-continuous-decode-steps"
    ),
    "bound what waits with --max-waiting": "--max-queued-requests",
    "the cache hands out single tokens and stays on the device; leave it out": (
        "--page-size --block-size --swap-space --cpu-offload-gb --kv-offloading-size "
        "--enable-hierarchical-cache --hicache-ratio --hicache-size --radix-eviction-policy "
        "--prefix-caching-hash-algo --num-gpu-blocks-override --kv-cache-memory-bytes"
    ),
    "the same request gives the same tokens always; leave it out": (
        "--enable-deterministic-inference"
    ),
    "a request says its own seed; one is drawn where it does not": "--seed --random-seed",
    "adapters are not supported": (
        "--enable-lora --lora-modules --lora-paths --max-loras --max-loras-per-batch "
        "--max-lora-rank --lora-backend --max-cpu-loras"
    ),
    "eyas reads and writes text alone": (
        "--limit-mm-per-prompt --mm-processor-kwargs --enable-multimodal --allowed-local-media-path "
        "--interleave-mm-strings --skip-mm-profiling"
    ),
    "eyas generates text and does nothing else": (
        "--task --runner --convert --is-embedding --pooler-config"
    ),
    "TLS is for a proxy in front": (
        "--ssl-keyfile --ssl-certfile --ssl-ca-certs --ssl-cert-reqs --ssl-keyfile-password"
    ),
    "name each origin whose pages may use the API with --cors-origin": (
        "--allowed-origins --allowed-methods --allowed-headers --allow-credentials"
    ),
    "is not a matter of this server; leave it to a proxy in front": (
        "--root-path --middleware --api-server-count --enable-request-id-headers"
    ),
    "/metrics is always there; leave it out": (
        "--enable-metrics --enable-metrics-for-all-schedulers --disable-log-stats "
        "--enable-cache-report --enable-prompt-tokens-details"
    ),
    "say how much is logged with --log-level": (
        "--uvicorn-log-level --log-level-http --log-requests --log-requests-level "
        "--disable-log-requests --enable-log-requests --max-log-len --decode-log-interval"
    ),
}
REFUSED_FLAGS = {
    flag: reason for reason, flags in _FLAGS_BY_REASON.items() for flag in flags.split()
}
"""Why a flag of a peer means nothing here."""

REFUSED_KEYS = {
    **dict.fromkeys(("draft_tensor_parallel_size", "tensor_parallel_size"), _ONE_DEVICE),
    **dict.fromkeys(("quantization", "kv_cache_dtype"), _SAME_DTYPE),
    **dict.fromkeys(("attention_backend", "moe_backend", "enforce_eager"), _KERNELS),
    **dict.fromkeys(
        ("max_model_len", "revision", "code_revision", "draft_load_config"),
        "a draft model is read like the model itself; leave it out",
    ),
    **dict.fromkeys(
        ("rejection_sample_method", "draft_sample_method", "acceptance_method"),
        "a draft is accepted where it is what the model chooses itself; leave it out",
    ),
    **dict.fromkeys(
        ("disable_by_batch_size", "num_speculative_tokens_per_batch_size"),
        "is what --draft-nodes auto is for; leave it out",
    ),
}
"""Why a key of vLLM's --speculative-config means nothing here."""


OTHER_SPELLINGS = {
    "-tp": "--tensor-parallel-size",
    "-dp": "--data-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-sc": "--speculative-config",
    "--speculative-algo": "--speculative-algorithm",
    "--speculative-draft-model": "--speculative-draft-model-path",
}
"""What the peers also take for flags that are known here."""


def refuse(arguments: list[str]) -> None:
    """ValueError for the first argument that only a peer can make sense of."""
    for argument in arguments:
        if argument == "--":
            return
        flag = argument.partition("=")[0]
        if reason := REFUSED_FLAGS.get(flag.replace("_", "-")):
            verb = "" if reason == _RECIPE else "means nothing in eyas: "
            raise ValueError(f"{flag}: {verb}{reason}")


class PeersCommand(TyperCommand):
    """A command that peers have too, so that their options may be given to it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        refuse(args)
        return super().parse_args(ctx, [_usual(argument) for argument in args])


def _usual(argument: str) -> str:
    flag, equals, value = argument.partition("=")
    return f"{OTHER_SPELLINGS.get(flag, flag)}{equals}{value}"
