"""The commands of `eyas bench`.

Promises: the same as the commands of `eyas.cli`; each result includes its command line.
Does not know: how anything is measured.
"""

from __future__ import annotations

import typer

from eyas_bench.cli import (
    builtin,
    decode,
    grammar,
    ranking,
    serve_load,
    serve_soak,
    structured,
    tune,
)

app = typer.Typer(help="Run benchmarks of decoding, serving, grammars and draft trees.")
app.command("builtin")(builtin.builtin)
app.command("serve-soak")(serve_soak.serve_soak)
app.command("decode")(decode.decode)
app.command("tune")(tune.tune)
app.command("ranking")(ranking.ranking)
app.command("grammar")(grammar.grammar)
app.command("structured")(structured.structured)
app.command("serve")(serve_load.serve)
