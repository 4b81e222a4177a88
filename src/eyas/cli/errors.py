"""Report an exception as a line on standard error and an exit status.

Promises: an error that the user can correct is status 2 and names the option; any other is status 1,
with a hint at --debug. Does not know: commands.
"""

from __future__ import annotations

import errno
import sys

from eyas.peers import Refused

OPTION_OF_SETTING = {
    "model.path": "--model",
    "model.revision": "--revision",
    "model.dtype": "--dtype",
    "model.max_model_len": "--max-model-len",
    "cache.num_slots": "--num-slots",
    "cache.kv_events": "--kv-events-config",
    "cache.dtype": "--kv-cache-dtype",
    "cache.memory_fraction": "--memory-fraction",
    "scheduler.max_num_seqs": "--max-num-seqs",
    "scheduler.max_batch_tokens": "--max-batch-tokens",
    "scheduler.max_graph_batch": "--max-graph-batch",
    "scheduler.flights": "--flights",
    "draft.drafter": "--drafter",
    "draft.model": "--draft-model",
    "draft.steps": "--draft-steps",
    "draft.topk": "--draft-topk",
    "draft.nodes": "--draft-nodes",
    "draft.token_map": "--draft-token-map",
    "device.num_threads": "--threads",
    "device": "--device",
    "grammar.backend": "--grammar-backend",
    "grammar.compile_seconds": "--grammar-timeout",
    "grammar.cache_bytes": "--grammar-memory",
    "grammar.white_space": "--whitespace-pattern",
    "grammar.any_white_space": "--disable-any-whitespace",
    "handover.role": "--role",
    "handover.transport": "--kv-transport",
    "handover.host": "--kv-host",
    "handover.port": "--kv-port",
    "handover.hold_seconds": "--kv-hold",
    "handover.timeout_seconds": "--kv-timeout",
    "parallel.tp": "--tp",
    "parallel.ep": "--ep",
    "parallel.dp": "--dp",
    "parallel.dp_attention": "--enable-dp-attention",
    "parallel.exact_across_tp": "--exact-across-tp",
    "parallel.timeout_seconds": "--dist-timeout",
    "parallel.num_nodes": "--nnodes",
    "parallel.node_rank": "--node-rank",
    "parallel.address": "--dist-init-addr",
    "reasoning_parser": "--reasoning-parser",
    "tool_call_parser": "--tool-call-parser",
    "chat_template": "--chat-template",
    "max_top_logprobs": "--max-logprobs",
    "uds": "--uds",
    "api_keys": "--api-key",
    "port": "--port",
    "log_level": "--log-level",
    "otlp_traces_endpoint": "--otlp-traces-endpoint",
    "allowed_hosts": "--allowed-host",
    "cors_origins": "--cors-origin",
    "served_model_names": "--served-model-name",
    "max_queued": "--max-waiting",
    "max_body_bytes": "--max-body-bytes",
    "response_store_bytes": "--response-store",
    "stream_granularity": "--stream-granularity",
    "drain_seconds": "--drain-timeout",
    "stall_seconds": "--stall-timeout",
    "start_wait_seconds": "--start-wait",
    "output": "--output",
    "prompts": "--prompts",
    "conversations": "--conversations",
    "thinking": "--thinking",
    "temperatures": "--temperatures",
    "max_length": "--max-length",
    "max_num_seqs": "--max-num-seqs",
    "generate_seconds": "--generate-seconds",
    "heldout_share": "--heldout",
    "shard_mib": "--shard-mib",
    "cache_gib": "--cache-gib",
    "draft_vocab_size": "--draft-vocab-size",
    "intermediate_size": "--intermediate-size",
    "num_heads": "--num-heads",
    "num_kv_heads": "--num-kv-heads",
    "taps": "--taps",
    "ttt_steps": "--ttt-steps",
    "loss_decay": "--loss-decay",
    "batch_tokens": "--batch-tokens",
    "epochs": "--epochs",
    "format": "--format",
    "demo": "--demo",
    "max_steps": "--max-steps",
    "train_seconds": "--train-seconds",
    "optimizer": "--optimizer",
    "learning_rate": "--learning-rate",
    "matrix_rate": "--matrix-rate",
    "decay": "--decay",
    "dtype": "--dtype",
    "stop_after": "--stop-after",
    "log_every": "--log-every",
    "eval_every": "--eval-every",
    "shape": "--shape",
    "synthetic_acceptance": "--synthetic-acceptance",
    "tokenizer": "--tokenizer",
}
"""Name of a setting at the start of an error text -> the option that sets it."""


WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
"""Errors of a write, which does not name its file."""


class CheckFailed(Exception):
    """A check that the command makes has failed; exit status 1."""


def with_option_name(text: str) -> str:
    """Replace the leading `setting:` of an error text by the option that sets it."""
    setting, colon, rest = text.partition(":")
    option = OPTION_OF_SETTING.get(setting) or _option_of_sampling_field(setting)
    return f"{option}:{rest}" if colon and option else text


def report(error: Exception) -> int:
    """Print an error on standard error, in one line, and return the exit status."""
    if isinstance(error, CheckFailed):
        print(f"check failed: {error}", file=sys.stderr)
        return 1
    if isinstance(error, Refused):
        _report_all(error)
        return 2
    if isinstance(error, OSError) and (error.filename is not None or error.errno in WRITE_ERRORS):
        place = f"{error.filename}: " if error.filename is not None else ""
        print(f"error: {place}{error.strerror}", file=sys.stderr)
        return 2
    if isinstance(error, ValueError | FileNotFoundError | PermissionError):
        print(f"error: {with_option_name(_line(error))}", file=sys.stderr)
        return 2
    print(
        f"error: {type(error).__name__}: {_line(error)} (this is a bug in eyas; "
        "run `eyas --debug COMMAND ...` for the traceback)",
        file=sys.stderr,
    )
    return 1


def _report_all(refused: Refused) -> None:
    """Print each reason on a line, and the command line without the refused options."""
    reasons = [with_option_name(" ".join(reason.split())) for reason in refused.reasons]
    if len(reasons) == 1:
        print(f"error: {reasons[0]}", file=sys.stderr)
    else:
        print(f"error: {len(reasons)} options are invalid or not supported:", file=sys.stderr)
        for reason in reasons:
            print(f"  {reason}", file=sys.stderr)
    if refused.instead:
        print(f"command without them: {refused.instead}", file=sys.stderr)


def _option_of_sampling_field(name: str) -> str | None:
    """Return the option of a field of `SamplingParams`; None for any other name."""
    from eyas.core import SamplingParams

    is_field = name in SamplingParams.__struct_fields__
    return "--" + name.replace("_", "-") if is_field else None


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
