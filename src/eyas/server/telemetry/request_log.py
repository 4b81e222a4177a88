"""The log line of a request.

Promises: one line at the end of every request that asks for work, refused ones included, with the
reason for its end. GET requests have none: probes, routers and Prometheus send them every few seconds.
Does not know: when a request ends.
"""

from __future__ import annotations

import logging
from typing import Any

from eyas.server.telemetry.record import RequestRecord

log = logging.getLogger("eyas.server")


def log_request(record: RequestRecord) -> None:
    """Write the line of a request that has ended."""
    if record.method != "GET":
        log.info("%s", line_of(record), extra=extra_of(record))


def line_of(record: RequestRecord) -> str:
    """Return the line for people."""
    answer = record.answer
    route = f"{record.method[:20]} {record.route or '(not routed)'} {record.status}"
    parts = [", ".join(record.reasons) or "done"]
    if answer is not None:
        parts += [
            f"prompt {_tokens(answer.num_prompt_tokens, answer.num_cached_tokens, 'cached')}",
            f"output {_tokens(answer.num_output_tokens, answer.num_accepted_tokens, 'drafted')}",
        ]
        if answer.queue_seconds is not None:
            parts.append(f"queued {answer.queue_seconds:.3f} s")
        first = record.first_token_seconds
        parts.append(f"first after {first:.3f} s" if first is not None else "first never")
    parts.append(f"whole {record.seconds:.3f} s")
    name = "-" if answer is None else answer.id
    return f"{name} ({record.request_id}) {route}: {', '.join(parts)}"


def extra_of(record: RequestRecord) -> dict[str, Any]:
    """Return the same for machines: attributes of a log record, see `eyas.logs.JsonFormatter`."""
    answer = record.answer
    fields: dict[str, Any] = {
        "method": record.method[:20],
        "route": record.route or None,
        "status": record.status,
        "model": record.model or None,
        "error_code": record.error_code,
        "total_seconds": round(record.seconds, 6),
    }
    if answer is not None:
        fields |= {
            "answer_id": answer.id,
            "finish_reasons": answer.reasons,
            "constraint": answer.constraint,
            "prompt_tokens": answer.num_prompt_tokens,
            "cached_tokens": answer.num_cached_tokens,
            "completion_tokens": answer.num_output_tokens,
            "draft_tokens": answer.num_draft_tokens,
            "accepted_tokens": answer.num_accepted_tokens,
            "queue_seconds": _rounded(answer.queue_seconds),
            "first_token_seconds": _rounded(record.first_token_seconds),
        }
    known = {name: value for name, value in fields.items() if value is not None}
    return {"request_id": record.request_id, "fields": known}


def _tokens(number: int, of_these: int | None, kind: str) -> str:
    return f"{number} tokens" if of_these is None else f"{number} tokens ({of_these} {kind})"


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
