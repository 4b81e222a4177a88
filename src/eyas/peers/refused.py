"""Options of SGLang and vLLM that eyas does not support, each with the reason and a remedy.

Promises: an unsupported option is refused by name, never ignored; unknown options are left to the
caller. Does not know: which options eyas has.
"""

from __future__ import annotations

from collections.abc import Sequence


class Refused(ValueError):
    """All options that are unsupported or invalid, in one error.

    reasons: one text for each. instead: the command line of eyas without them; "" where there is none.
    """

    def __init__(self, reasons: Sequence[str], instead: str = "") -> None:
        super().__init__("; ".join(reasons))
        self.reasons = tuple(reasons)
        self.instead = instead


_ONE_DEVICE = "eyas divides one copy of a model, by --tp, --ep and --dp alone; leave it out"
_DRAFT_DEVICE = "drafts are made on one device; leave it out"
_GRAMMARS = (
    "set the grammar library with --grammar-backend, white space in JSON with "
    "--whitespace-pattern or --disable-any-whitespace, or leave it out"
)
_PARSERS = "formats are built in: choose with --reasoning-parser and --tool-call-parser"
_GRAPHS = "limit the captured steps with --max-graph-batch"
_CHUNKS = (
    "prompt chunks and draft trees share the tokens of a step; limit them with --max-batch-tokens"
)
_ORDER = "requests are served in order of arrival; leave it out"
_OWN_FORMAT = "weights are read in the format that their config.json names; leave it out"
_KV_SCALES = "scales of an FP8 cache are read from the checkpoint; leave it out"
_OWN_FILES = "the model's own files are used, from its directory or the hub; leave it out"
_DRAFT_FILES = "a draft model is loaded like the model itself; leave it out"
_OLD_FORM = "is an old form; write --speculative-config '{\"method\": ...}'"

_FLAGS_BY_REASON = {
    "a draft token is accepted if the model chooses the same token, so there is no threshold or "
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
    "with --draft-nodes auto the size of a tree is chosen by cost; leave it out": (
        "--speculative-adaptive --speculative-adaptive-config --speculative-disable-by-batch-size"
    ),
    _DRAFT_FILES: (
        "--speculative-draft-model-revision --speculative-draft-load-format "
        "--speculative-draft-model-quantization --speculative-model-quantization "
        "--speculative-max-model-len"
    ),
    "eyas does not have this kind of drafting; leave it out": (
        "--speculative-dflash-block-size --speculative-draft-window-size --enable-multi-layer-eagle"
    ),
    _OLD_FORM: (
        "--speculative-model --num-speculative-tokens --num-lookahead-slots "
        "--ngram-prompt-lookup-max --ngram-prompt-lookup-min"
    ),
    _GRAPHS: (
        "--cuda-graph-bs --cuda-graph-config --cudagraph-capture-sizes --max-cudagraph-capture-size"
    ),
    _ONE_DEVICE: (
        "--pipeline-parallel-size --speculative-draft-tensor-parallel-size "
        "--api-server-count --enable-ep-moe --enable-dp-lm-head --enable-eplb "
        "--moe-a2a-backend --moe-dense-tp-size --data-parallel-rank --data-parallel-backend "
        "--decode-context-parallel-size --prefill-context-parallel-size"
    ),
    "start one server with --role prefill and one with --role decode (docs/disaggregation.md)": (
        "--disaggregation-mode --disaggregation-transfer-backend --disaggregation-ib-device "
        "--kv-transfer-config"
    ),
    "choose a device with --device cuda:N": "--base-gpu-id --gpu-id-step",
    _OWN_FORMAT: "--quantization --torchao-config --modelopt-quant",
    _KV_SCALES: "--quantization-param-path --calculate-kv-scales",
    "eyas runs no code of a checkpoint; leave it out": "--code-revision",
    _OWN_FILES: (
        "--tokenizer --tokenizer-path --tokenizer-mode --tokenizer-revision --skip-tokenizer-init "
        "--chat-template-content-format --hf-chat-template-name --response-role --load-format "
        "--model-loader-extra-config --model-impl --config-format --hf-config-path --hf-overrides "
        "--json-model-override-args --generation-config --override-generation-config "
        "--sampling-defaults --preferred-sampling-params --hf-token"
    ),
    "set the environment variable HF_HOME to the directory for downloads": "--download-dir",
    _GRAMMARS: "--guided-decoding-backend --structured-outputs-config",
    _PARSERS: (
        "--reasoning-parser-plugin --reasoning-config --tool-parser-plugin --enable-strict-thinking"
    ),
    "eyas calls no tools itself; leave it out": "--tool-server",
    "requests can set logit bias and grammars, but not code; leave it out": (
        "--enable-custom-logit-processor --logits-processors"
    ),
    _CHUNKS: (
        "--prefill-max-requests --no-enable-chunked-prefill --max-num-partial-prefills "
        "--max-long-partial-prefills --long-prefill-token-threshold"
    ),
    _ORDER: "--schedule-policy --scheduling-policy --enable-priority-scheduling",
    "the cache allocates single tokens and stays on the device; leave it out": (
        "--cpu-offload-gb --kv-offloading-size --enable-hierarchical-cache --hicache-ratio "
        "--hicache-size --radix-eviction-policy --num-gpu-blocks-override --kv-cache-memory-bytes"
    ),
    "each request sets its own seed; without one it is random": "--seed --random-seed",
    "adapters are not supported; merge them into the model": (
        "--enable-lora --lora-modules --lora-paths --max-loras --max-loras-per-batch "
        "--max-lora-rank --lora-backend --max-cpu-loras"
    ),
    "eyas reads and writes only text; leave it out": (
        "--limit-mm-per-prompt --mm-processor-kwargs --enable-multimodal --allowed-local-media-path "
        "--interleave-mm-strings --skip-mm-profiling"
    ),
    "eyas only generates text; leave it out": (
        "--task --runner --convert --is-embedding --pooler-config"
    ),
    "use a reverse proxy for TLS": (
        "--ssl-keyfile --ssl-certfile --ssl-ca-certs --ssl-cert-reqs --ssl-keyfile-password"
    ),
    "list the origins whose pages may use the API with --cors-origin": (
        "--allowed-origins --allowed-methods --allowed-headers --allow-credentials"
    ),
    "use a reverse proxy for it": ("--root-path --middleware --enable-request-id-headers"),
    "the content of requests is never logged; leave it out": "--log-requests --enable-log-requests",
}
REFUSED = {flag: reason for reason, flags in _FLAGS_BY_REASON.items() for flag in flags.split()}
"""Option of a peer -> why it is not supported, and the remedy."""

SWITCHES = frozenset(
    "--speculative-use-rejection-sampling --speculative-adaptive --calculate-kv-scales "
    "--skip-tokenizer-init --no-enable-chunked-prefill --interleave-mm-strings --skip-mm-profiling "
    "--is-embedding --allow-credentials --log-requests --enable-multi-layer-eagle "
    "--enable-multimodal --enable-lora --enable-ep-moe --enable-dp-lm-head "
    "--enable-eplb --enable-strict-thinking --enable-custom-logit-processor "
    "--enable-priority-scheduling --enable-hierarchical-cache --enable-request-id-headers "
    "--enable-log-requests".split()
)
"""The refused options that take no value."""

REFUSED_KEYS = {
    **dict.fromkeys(("draft_tensor_parallel_size", "tensor_parallel_size"), _DRAFT_DEVICE),
    "quantization": _OWN_FORMAT,
    "kv_cache_dtype": "drafts are cached in the format of --kv-cache-dtype; leave it out",
    "enforce_eager": _GRAPHS,
    "parallel_drafting": "levels are drafted one after the other; leave it out",
    **dict.fromkeys(
        ("max_model_len", "revision", "code_revision", "draft_load_config"), _DRAFT_FILES
    ),
    **dict.fromkeys(
        ("rejection_sample_method", "draft_sample_method", "acceptance_method"),
        "a draft token is accepted if the model chooses the same token; leave it out",
    ),
    **dict.fromkeys(
        ("disable_by_batch_size", "num_speculative_tokens_per_batch_size"),
        "--draft-nodes auto chooses the size by cost; leave it out",
    ),
}
"""Key of vLLM's --speculative-config -> why it is not supported, and the remedy."""


def reason_for(option: str, shown: str) -> str:
    """Return the error text of a refused option. shown: the option as it was written."""
    reason = REFUSED[option]
    return f"{shown}: {reason}" if reason == _OLD_FORM else f"{shown}: is not supported: {reason}"
