"""The answers of `LLM`: outputs collected from deltas, and the values of output types.

Does not know: how an answer was made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from eyas.core import Delta, Request
from eyas.dialect import Event, Segmenter
from eyas.outputs import Choice, GenerationOutput, PartialOutput
from eyas.typed import OutputIncomplete, Typed


def empty_output(request: Request) -> GenerationOutput:
    """Return the output of a request without any deltas."""
    choices = [Choice(index) for index in range(request.params.n)]
    return GenerationOutput(request.prompt_token_ids, choices)


def events(delta: Delta, segmenters: Sequence[Segmenter] | None) -> list[Event] | None:
    """Split the text of a delta. Returns None without segmenters."""
    if segmenters is None:
        return None
    segmenter = segmenters[delta.index]
    found = segmenter.push(delta.text, delta.marks)
    return found if delta.finish_reason is None else found + segmenter.finish()


def partials(
    deltas: Iterator[Delta],
    output: GenerationOutput,
    segmenters: Sequence[Segmenter] | None,
    type_: Typed,
) -> Iterator[PartialOutput[Any]]:
    """Yield each delta with the content and the partial value of its choice so far."""
    for delta in deltas:
        output.absorb(delta, events(delta, segmenters))
        choice = output.choices[delta.index]
        final = None if delta.finish_reason is None else value(choice, type_)
        yield PartialOutput(delta, choice.content, type_.partial(choice.content), final)


def value(choice: Choice, type_: Typed) -> Any:
    """Parse a finished answer. Raises OutputIncomplete if it is not complete."""
    is_complete = choice.finish_reason == "stop" and choice.stop_reason is None
    if not is_complete or choice.tool_calls:
        raise OutputIncomplete(choice)
    return type_.parse(choice.content)


def to_values(outputs: list[GenerationOutput], type_: Typed | None, *, is_one: bool) -> Any:
    """Return the outputs, or with an output type their values: a list, or the value of one prompt."""
    if type_ is None:
        return outputs
    values = []
    for output in outputs:
        answers = [value(choice, type_) for choice in output.choices]
        values.append(answers[0] if len(answers) == 1 else answers)
    return values[0] if is_one else values
