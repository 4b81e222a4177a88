"""Chat templates of models whose authors publish code in place of a template: DeepSeek-V4.

Promises: the code in a checkpoint is never run. The format of turns, reasoning and calls is a template
of this package; the sentences that introduce tools and the highest reasoning effort are read from the
checkpoint's file as literals, and are replaced by plain ones where it has none.
Does not know: how templates are rendered.
"""

from __future__ import annotations

import ast
import json
from importlib.resources import files
from pathlib import Path

from eyas.text.files import read_json_object_if_there

ENCODING_FILE = "encoding/encoding_dsv4.py"
_MODEL_TYPE = "deepseek_v4"
_MAX_BYTES = 1024 * 1024
_TOOLS, _EFFORT = "TOOLS_TEMPLATE", "REASONING_EFFORT_MAX"
_SCHEMAS = "{tool_schemas}"
_PLACEHOLDERS = {
    "{dsml_token}": "｜DSML｜",
    "{thinking_start_token}": "<think>",
    "{thinking_end_token}": "</think>",
}
_PLAIN = {
    _TOOLS: """\
## Tools

To call tools, end the reply with one block of this form:

<{dsml_token}tool_calls>
<{dsml_token}invoke name="$TOOL_NAME">
<{dsml_token}parameter name="$PARAMETER_NAME" string="true|false">$VALUE</{dsml_token}parameter>
...
</{dsml_token}invoke>
...
</{dsml_token}tool_calls>

A string is written as it is, with `string="true"`; any other value as JSON, with `string="false"`.

### Schemas of the tools

{tool_schemas}
""",
    _EFFORT: "Reasoning effort: maximum. Consider every case and check every step.\n\n",
}


def packaged_template(directory: Path) -> str | None:
    """Return the template for a model directory without one; None if its format is not known here."""
    config = read_json_object_if_there(directory / "config.json")
    if config.get("model_type") != _MODEL_TYPE:
        return None
    texts = _PLAIN | _literals(directory / ENCODING_FILE)
    tools = texts[_TOOLS] if texts[_TOOLS].count(_SCHEMAS) == 1 else _PLAIN[_TOOLS]
    for placeholder, text in _PLACEHOLDERS.items():
        tools = tools.replace(placeholder, text)
    before, _, after = tools.partition(_SCHEMAS)
    named = {"before_tools": before, "after_tools": after, "most_effort": texts[_EFFORT]}
    lines = [
        f"{{%- set {name} = {json.dumps(text, ensure_ascii=False)} -%}}"
        for name, text in named.items()
    ]
    return "".join(lines) + files("eyas.text").joinpath("deepseek_v4.jinja").read_text("utf-8")


def _literals(file: Path) -> dict[str, str]:
    """Return the texts of this module that are assigned as literals at the top level of a file."""
    try:
        if file.stat().st_size > _MAX_BYTES:
            return {}
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    found: dict[str, str] = {}
    for node in tree.body:
        match node:
            case ast.Assign(
                targets=[ast.Name(id=("TOOLS_TEMPLATE" | "REASONING_EFFORT_MAX") as name)],
                value=ast.Constant(value=str(text)),
            ):
                found[name] = text
    return found
