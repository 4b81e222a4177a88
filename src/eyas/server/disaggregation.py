"""The fields by which a router lets one server compute a prompt and another one continue it.

vLLM's routers send a request to a prefill server with kv_transfer_params {"do_remote_decode": true}.
The answer's kv_transfer_params, unchanged, go with the same request to a decode server. SGLang's send
the same request to both at once, with a room (`eyas.server.bootstrap`).

Promises: a field with a value that cannot be served is a RequestError that names it; fields that are
not read are ignored, since routers add their own. Does not know: engines, where keys and values are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeVar

from eyas.config import Role
from eyas.core import KVHandle, Request, field_error
from eyas.server.bootstrap import MAX_HOST_CHARS, ROOM, has_room, rooms_of
from eyas.server.formats import ChoiceOutput
from eyas.server.request_models import ChatBody, CompletionFields

FIELD = "kv_transfer_params"
FLAGS = ("do_remote_decode", "do_remote_prefill")
MAX_KEY_CHARS = 64
KEY = re.compile("[0-9a-f]{32}")
"""A key that a prefill server has made (`engine.disaggregation.engine`)."""

Body = TypeVar("Body", bound=CompletionFields)


def prompt_alone(body: Body, role: Role) -> Body:
    """Return the request that computes the prompt of a request for a decode server: for one choice of
    one token. Other requests stay as they are. role: of this server."""
    offers = _flag(body, "do_remote_decode")
    if not (offers or (has_room(body) and role == "prefill")):
        return body
    if offers and body.stream:
        raise field_error(FIELD, "do_remote_decode is not for stream: true")
    changes: dict[str, Any] = {"n": 1, "max_tokens": 1, "min_tokens": None}
    if isinstance(body, ChatBody):
        changes["max_completion_tokens"] = None
    return body.model_copy(update=changes)


def hand_over(body: CompletionFields, requests: Sequence[Request], role: Role) -> None:
    """Let requests offer their prompts, or take them over, as the body says. role: of this server."""
    if has_room(body):
        _meet(body, requests, role)
        return
    offers, takes = (_flag(body, name) for name in FLAGS)
    if not (offers or takes):
        if body.kv_transfer_params and body.kv_transfer_params.keys().isdisjoint(FLAGS):
            raise field_error(FIELD, f"has neither {' nor '.join(FLAGS)}; leave it out")
        return
    if offers and takes:
        raise field_error(FIELD, "give either do_remote_decode or do_remote_prefill")
    if len(requests) > 1:
        raise field_error(FIELD, "is for one prompt; send a request for each")
    request = requests[0]
    request.offers_kv = offers
    if takes:
        assert body.kv_transfer_params is not None
        request.kv_handle = _handle(body.kv_transfer_params)


def _meet(body: CompletionFields, requests: Sequence[Request], role: Role) -> None:
    """Let requests offer their prompts in a router's rooms, or take them over there."""
    if body.kv_transfer_params is not None:
        raise field_error(ROOM, f"give either {ROOM} or {FIELD}")
    if role == "both":
        raise field_error(
            ROOM,
            "is for servers that were started with --role prefill or --role decode",
            code="kv_handle_invalid",
        )
    for request, room in zip(requests, rooms_of(body, len(requests)), strict=True):
        if role == "prefill":
            request.offers_kv, request.kv_key = True, room.key
        else:
            request.kv_handle = KVHandle(
                engine_id="", host=room.host, port=room.port, key=room.key, is_awaited=True
            )


def transfer_fields(choices: Sequence[ChoiceOutput]) -> dict[str, Any]:
    """Return what an answer says of a prompt that is held for a decode server; nothing of others.

    remote_request_id is the key by which the prompt is found. remote_block_ids says nothing, but some
    routers take an answer without it for one without a prompt.
    """
    last = choices[0].last
    handle = None if last is None else last.kv_handle
    if handle is None:
        return {}
    fields = {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": handle.engine_id,
        "remote_host": handle.host,
        "remote_port": handle.port,
        "remote_request_id": handle.key,
        "remote_block_ids": [0],
    }
    return {FIELD: fields}


def _flag(body: CompletionFields, name: str) -> bool:
    value = (body.kv_transfer_params or {}).get(name)
    if value is not None and not isinstance(value, bool):
        raise field_error(FIELD, f"{name} must be true or false")
    return bool(value)


def _handle(fields: dict[str, Any]) -> KVHandle:
    """Return the handle of the prompt that a decode server is to take over."""
    port = fields.get("remote_port")
    if type(port) is not int or not 0 < port < 65536:
        raise field_error(FIELD, "remote_port must be a port of the prefill server")
    texts = {
        name: fields.get(name) for name in ("remote_engine_id", "remote_host", "remote_request_id")
    }
    for name, text in texts.items():
        limit = MAX_HOST_CHARS if name == "remote_host" else MAX_KEY_CHARS
        if not isinstance(text, str) or not 0 < len(text) <= limit:
            raise field_error(
                FIELD,
                f"{name} must be a text of at most {limit} characters; send the "
                "kv_transfer_params of the prefill server's answer unchanged",
            )
    # It is sent to a port that the request names: no other server must find a command in it.
    if not KEY.fullmatch(str(texts["remote_request_id"])):
        raise field_error(
            FIELD,
            "remote_request_id must be the one of the prefill server's answer, 32 "
            "hexadecimal digits",
        )
    return KVHandle(
        engine_id=str(texts["remote_engine_id"]),
        host=str(texts["remote_host"]),
        port=port,
        key=str(texts["remote_request_id"]),
    )
