"""Add the generator of conversations, which is in tools/, to the wheel of eyas-bench."""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class GeneratorHook(BuildHookInterface):
    """Copies the generator into the wheel; an editable install uses `dev-mode-dirs` instead."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "standard":
            build_data["force_include"]["../tools/builtin_model"] = "builtin_model"
