"""The wheel of eyas-bench holds the generator of conversations too, which lies in tools/."""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class GeneratorHook(BuildHookInterface):
    """Nothing is copied where it is installed in place: `dev-mode-dirs` names the folder."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "standard":
            build_data["force_include"]["../tools/builtin_model"] = "builtin_model"
