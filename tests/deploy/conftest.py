"""A directory of a tiny model, as the server's tests have it."""

from __future__ import annotations

from tests.server.conftest import directory as directory  # noqa: PLC0414, a fixture
