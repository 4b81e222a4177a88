"""The options of prefill-decode disaggregation. Does not know: how keys and values are
transferred."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import msgspec
import typer

from eyas.config import DisaggregationConfig, EngineConfig, KVTransport, Role

disaggregation_option = partial(typer.Option, rich_help_panel="Prefill-decode disaggregation")
DEFAULTS = DisaggregationConfig()


@dataclass(frozen=True, kw_only=True)
class DisaggregationOptions:
    """The role of a server."""

    role: Annotated[
        Role,
        disaggregation_option(
            help="What the server does with prompts: prefill computes them and holds them for other "
            "servers, decode reads them from there, as a router says in kv_transfer_params or "
            "bootstrap_room.",
        ),
    ] = DEFAULTS.role
    kv_transport: Annotated[
        KVTransport,
        disaggregation_option(
            help="How keys and values move between the servers: tcp, or nixl, which needs the extra "
            "'nixl'.",
        ),
    ] = DEFAULTS.transport
    kv_host: Annotated[
        str,
        disaggregation_option(
            help="Address at which decode servers reach this prefill server. The connection is not "
            "encrypted: use a network of your own.",
        ),
    ] = DEFAULTS.host
    kv_port: Annotated[
        int,
        disaggregation_option(
            help="Port at which decode servers reach this prefill server; 0 chooses a free port.",
        ),
    ] = DEFAULTS.port
    kv_peer: Annotated[
        list[str] | None,
        disaggregation_option(
            help="Host of a prefill server that this decode server may read from, written as its "
            "--kv-host. Repeat it for several. Default: 127.0.0.1.",
        ),
    ] = None
    kv_hold: Annotated[
        float,
        disaggregation_option(
            help="Time that a prefill server holds a prompt for a decode server, and that a decode "
            "server waits for a prompt that a router has named (bootstrap_room), in seconds.",
        ),
    ] = DEFAULTS.hold_seconds
    kv_timeout: Annotated[
        float,
        disaggregation_option(
            help="Time limit for moving the keys and values of one prompt, in seconds.",
        ),
    ] = DEFAULTS.timeout_seconds

    def applied_to(self, config: EngineConfig) -> EngineConfig:
        """Return a configuration with these settings. Raises ValueError that names one."""
        disaggregation = DisaggregationConfig(
            role=self.role,
            transport=self.kv_transport,
            host=self.kv_host,
            port=self.kv_port,
            peers=tuple(self.kv_peer or DEFAULTS.peers),
            hold_seconds=self.kv_hold,
            timeout_seconds=self.kv_timeout,
        )
        return msgspec.structs.replace(config, disaggregation=disaggregation)
