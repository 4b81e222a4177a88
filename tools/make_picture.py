"""Draw docs/drafted-tokens.svg: answers of the built-in model, with accepted draft tokens in green.

`python tools/make_picture.py`

Promises: the picture shows the same as `eyas demo`, and loads nothing from other places.
Does not know: how tokens are drafted.
"""

from __future__ import annotations

import io
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme

from eyas.cli.demo import DemoDrafting, answer, answer_panel, compare, free_tasks, open_contestants

PICTURE = Path(__file__).parents[1] / "docs" / "drafted-tokens.svg"
TASKS = ("JSON by schema", "tool call", "word problem")
THEME = TerminalTheme(
    (13, 17, 23),
    (201, 209, 217),
    [
        *((72, 79, 88), (255, 123, 114), (63, 185, 80), (210, 153, 34)),
        *((88, 166, 255), (188, 140, 255), (57, 197, 207), (177, 186, 196)),
    ],
)
FORMAT = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, Menlo, Consolas, monospace;
  font-size: {char_height}px; line-height: {line_height}px;
}}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g>
</g>
</svg>
"""
"""rich's SVG format without a font from a server."""


def main() -> None:
    console = Console(record=True, width=84, file=io.StringIO(), force_terminal=True)
    with ExitStack() as stack:
        llms = open_contestants(stack, {"device": "cpu"}, DemoDrafting(), quiet=True)
        for task in free_tasks():
            if task.task.title in TASKS:
                answers = {name: answer(llm, task) for name, llm in llms.items()}
                row = compare(task, answers)
                assert row["identical"], task
                console.print(answer_panel(row, answers))
    console.print(
        "[green]green[/green]: drafted, and right; [bold]white[/bold]: a step of its own",
        justify="center",
        highlight=False,
    )
    svg = console.export_svg(
        title="eyas demo", theme=THEME, code_format=FORMAT, unique_id="drafted-tokens"
    )
    PICTURE.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")


if __name__ == "__main__":
    main()
