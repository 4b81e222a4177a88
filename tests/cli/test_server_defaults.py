"""The options of a server have the defaults of its settings, which are not imported for a help text."""

from __future__ import annotations

from dataclasses import fields

from eyas.cli.server_flags import ServerFlags
from eyas.config import EngineConfig
from eyas.server.options import ServerOptions

SETTINGS = {
    "max_body_bytes": "max_body_bytes",
    "host": "host",
    "port": "port",
    "uds": "uds",
    "max_logprobs": "max_top_logprobs",
    "drain_timeout": "drain_seconds",
    "start_wait": "start_wait_seconds",
    "stall_timeout": "stall_seconds",
    "stream_granularity": "stream_granularity",
    "log_level": "log_level",
    "log_format": "log_format",
    "metrics_names": "metrics_names",
    "allow_no_key": "allow_no_key",
    "otlp_traces_endpoint": "otlp_traces_endpoint",
}
"""The setting of each option that is one."""


def test_options_have_the_defaults_of_their_settings() -> None:
    usual, flags = ServerOptions(), ServerFlags()
    for option, setting in SETTINGS.items():
        assert getattr(flags, option) == getattr(usual, setting), option
    assert flags.response_store * 2**20 == usual.response_store_bytes
    given = flags.options(EngineConfig())
    computed = {"max_queued", "max_requests", "max_connections"}  # from the seats of the engine
    for setting in ServerOptions.__struct_fields__:
        if setting not in computed:
            assert getattr(given, setting) == getattr(usual, setting), setting
    assert SETTINGS.keys() <= {field.name for field in fields(ServerFlags)}
