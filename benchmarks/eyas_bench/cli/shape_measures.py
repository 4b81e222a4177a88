"""`eyas bench decode --shape`: select the measurement of a shape.

Does not know: how anything is measured.
"""

from __future__ import annotations

from pathlib import Path

from eyas.cli.options import DraftOptions
from eyas_bench.cli.shape_decode import decode_shape
from eyas_bench.cli.shape_more import prefill, schema_steps
from eyas_bench.cli.shape_options import Protocol, ShapeOptions, unpaced


def measure_shape(
    options: ShapeOptions,
    drafting: DraftOptions,
    protocol: Protocol,
    output: Path | None,
    as_json: bool,
) -> None:
    """Measure steps with schemas, long prompts, or decoding, as the options say."""
    from eyas_bench.shapes import find_shape

    assert options.shape is not None
    find_shape(options.shape)
    drafting = unpaced(drafting)
    if options.synthetic_acceptance is not None and drafting.drafter == "root":
        raise ValueError("--synthetic-acceptance: needs a drafter; add --drafter eagle3")
    measure = decode_shape
    if options.schemas is not None:
        measure = schema_steps
    elif options.prefill is not None:
        measure = prefill
    measure(options, drafting, protocol, output, as_json)
