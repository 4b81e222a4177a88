"""What routers do with a prefill server and a decode server: vLLM's example proxy, and SGLang's."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
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

ROOMS = itertools.count(2**62)


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


def to_both(
    prefill: str, decode: str, path: str, body: dict[str, Any], kv_port: int | None
) -> tuple[httpx.Response, httpx.Response]:
    """Send a request to both servers at once, in rooms; the answers of both. Like SMG, with a room for
    each choice of a chat and for each prompt of a list."""
    count = body.get("n", 1) if "messages" in body else len(body["prompt"])
    is_list = isinstance(body.get("prompt"), list) or ("messages" in body and count > 1)
    columns: dict[str, list[Any]] = {
        "bootstrap_host": ["127.0.0.1"] * count,
        "bootstrap_port": [kv_port] * count,
        "bootstrap_room": [next(ROOMS) for _ in range(count)],
    }
    meeting = {**body, **(columns if is_list else {k: v[0] for k, v in columns.items()})}

    def send(url: str) -> httpx.Response:
        return httpx.post(url + path, json=meeting, timeout=300)

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(send, (decode, prefill))
    return second, first
