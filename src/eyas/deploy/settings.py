"""The settings of a deployment.

Promises: plain frozen data; a setting that cannot be used is a ValueError that names it, before any
process is started. Does not know: Ray.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from eyas.config import EngineConfig
from eyas.server.options import ServerOptions
from eyas.settings import engine_config


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """engine: keywords of `eyas.settings.engine_config`, such as model and max_num_seqs. server: fields
    of `eyas.server.options.ServerOptions`, such as served_model_names and api_keys.

    min_replicas, max_replicas: of engines. target_requests: target number of running and waiting
    answers per engine; None is half of the number that it runs at once. upscale_delay,
    downscale_delay: seconds before the number of engines changes. gpus, cpus: of one engine.
    ingress_replicas: processes that read requests and choose engines. prefix_chars: characters of a
    prompt that choose its engine.
    """

    engine: dict[str, Any] = {}
    server: dict[str, Any] = {}
    min_replicas: int = 1
    max_replicas: int = 1
    target_requests: int | None = None
    upscale_delay: float = 10.0
    downscale_delay: float = 300.0
    gpus: float = 0.0
    cpus: float = 1.0
    ingress_replicas: int = 1
    prefix_chars: int = 512

    def __post_init__(self) -> None:
        for name, low, high in (
            ("min_replicas", 1, 10_000),
            ("max_replicas", self.min_replicas, 10_000),
            ("target_requests", 1, 1_000_000),
            ("upscale_delay", 0, 86_400),
            ("downscale_delay", 0, 86_400),
            ("gpus", 0, 1024),
            ("cpus", 0, 1024),
            ("ingress_replicas", 1, 1000),
            ("prefix_chars", 1, 1_000_000),
        ):
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ValueError(f"{name}: must be between {low} and {high}, not {value}")

    def engine_config(self) -> EngineConfig:
        """Return the engine's configuration. ValueError names a setting that cannot be used."""
        try:
            return engine_config(**self.engine)
        except TypeError as error:
            raise ValueError(f"engine: {str(error).partition('() ')[2] or error}") from None

    def server_options(self) -> ServerOptions:
        """Return the options of the HTTP side. ValueError names one that cannot be used."""
        try:
            return msgspec.convert(self.server, ServerOptions, strict=False)
        except msgspec.ValidationError as error:
            raise ValueError(f"server: {error}") from None

    @property
    def max_ongoing(self) -> int:
        """Maximum number of requests of one engine: as many wait as run."""
        return 2 * self.engine_config().scheduler.num_seats

    @property
    def target(self) -> int:
        """Target number of requests per engine."""
        if self.target_requests is not None:
            return self.target_requests
        return max(1, self.engine_config().scheduler.num_seats // 2)


def read_settings(given: Mapping[str, Any]) -> Settings:
    """Return the settings of a deployment. ValueError names one that cannot be used."""
    try:
        settings = msgspec.convert(dict(given), Settings, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"settings of the deployment: {error}") from None
    settings.engine_config()
    settings.server_options()
    return settings
