"""What a router does with a prefill server and a decode server, as vLLM's example proxy does it."""

from __future__ import annotations

from typing import Any

import httpx

REMOTE_DECODE = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


def compute_prompt(prefill: str, path: str, body: dict[str, Any]) -> httpx.Response:
    """Send a request to the prefill server, for its prompt alone."""
    alone = {**body, "kv_transfer_params": REMOTE_DECODE, "stream": False, "max_tokens": 1}
    if "max_completion_tokens" in alone:
        alone["max_completion_tokens"] = 1
    alone.pop("stream_options", None)
    return httpx.post(prefill + path, json=alone, timeout=300)


def through_both(prefill: str, decode: str, path: str, body: dict[str, Any]) -> httpx.Response:
    """Send a request to both servers, one after the other; the answer of the last one asked."""
    first = compute_prompt(prefill, path, body)
    if first.status_code != 200:
        return first
    taking = {**body, "kv_transfer_params": first.json()["kv_transfer_params"]}
    return httpx.post(decode + path, json=taking, timeout=300)
