"""Report an exception as a line on standard error and an exit status.

Promises: an error that the user can correct is status 2 and names the option; any other is status 1,
with a hint at --debug. Does not know: commands.
"""

from __future__ import annotations

import errno
import sys

from eyas.peers import Refused

SAME_NAME = frozenset(
    "model.revision model.dtype model.max_model_len cache.num_slots cache.memory_fraction "
    "scheduler.max_num_seqs scheduler.max_batch_tokens scheduler.max_step_ms "
    "scheduler.max_graph_batch scheduler.flights draft.drafter device disaggregation.role parallel.tp "
    "parallel.ep parallel.dp parallel.exact_across_tp parallel.node_rank reasoning_parser "
    "tool_call_parser chat_template default_chat_template_kwargs "
    "uds port log_level otlp_traces_endpoint max_body_bytes "
    "stream_granularity output prompts conversations thinking temperatures max_length "
    "max_num_seqs generate_seconds shard_mib cache_gib draft_vocab_size intermediate_size "
    "num_heads num_kv_heads taps ttt_steps loss_decay batch_tokens epochs format demo max_steps "
    "train_seconds optimizer learning_rate matrix_rate decay dtype stop_after log_every "
    "eval_every shape synthetic_acceptance tokenizer".split()
)
"""Settings whose option has their name."""
OTHER_NAME = {
    "model.path": "--model",
    "cache.kv_events": "--kv-events-config",
    "cache.dtype": "--kv-cache-dtype",
    "draft.model": "--draft-model",
    "draft.steps": "--draft-steps",
    "draft.topk": "--draft-topk",
    "draft.nodes": "--draft-nodes",
    "draft.token_map": "--draft-token-map",
    "device.num_threads": "--threads",
    "grammar.backend": "--grammar-backend",
    "grammar.compile_seconds": "--grammar-timeout",
    "grammar.cache_bytes": "--grammar-memory",
    "grammar.white_space": "--whitespace-pattern",
    "grammar.any_white_space": "--disable-any-whitespace",
    "disaggregation.transport": "--kv-transport",
    "disaggregation.host": "--kv-host",
    "disaggregation.port": "--kv-port",
    "disaggregation.hold_seconds": "--kv-hold",
    "disaggregation.timeout_seconds": "--kv-timeout",
    "parallel.dp_attention": "--enable-dp-attention",
    "parallel.timeout_seconds": "--dist-timeout",
    "parallel.num_nodes": "--nnodes",
    "parallel.address": "--dist-init-addr",
    "max_top_logprobs": "--max-logprobs",
    "api_keys": "--api-key",
    "allowed_hosts": "--allowed-host",
    "cors_origins": "--cors-origin",
    "served_model_names": "--served-model-name",
    "max_queued": "--max-waiting",
    "response_store_bytes": "--response-store",
    "drain_seconds": "--drain-timeout",
    "stall_seconds": "--stall-timeout",
    "start_wait_seconds": "--start-wait",
    "heldout_share": "--heldout",
}
"""Setting -> the option that sets it, where its name is another."""


WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
"""Errors of a write, which does not name its file."""


class CheckFailed(Exception):
    """A check that the command makes has failed; exit status 1."""


def with_option_name(text: str) -> str:
    """Replace the leading `setting:` of an error text by the option that sets it."""
    setting, colon, rest = text.partition(":")
    option = OTHER_NAME.get(setting)
    if setting in SAME_NAME or _is_sampling_field(setting):
        option = "--" + setting.rpartition(".")[2].replace("_", "-")
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


def _is_sampling_field(name: str) -> bool:
    from eyas.core import SamplingParams

    return name in SamplingParams.__struct_fields__


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
