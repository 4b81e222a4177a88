"""`eyas generate`: generate answers to prompts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eyas.cli import options
from eyas.cli.models import has_chat_template, model_directory
from eyas.cli.options import (
    DraftOptions,
    ModelOptions,
    ParallelOptions,
    ResourceOptions,
    engine_config,
    flattened,
    sampling_option,
)
from eyas.cli.prompts_file import read_entries

if TYPE_CHECKING:
    from eyas.core import SamplingParams
    from eyas.llm import LLM
    from eyas.llm.arguments import Prompt
    from eyas.outputs import GenerationOutput

output_option = partial(typer.Option, rich_help_panel="Output")
_DEFAULT = "Default: the model's."


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """Options that are fields of `SamplingParams` with the same names. None is the model's default."""

    max_tokens: options.MaxTokens = None
    temperature: options.Temperature = None
    top_p: Annotated[
        float | None,
        sampling_option(
            help="Sample from the fewest tokens whose probabilities sum to this; 1 is off. "
            f"{_DEFAULT}",
        ),
    ] = None
    top_k: Annotated[
        int | None,
        sampling_option(help=f"Sample from this many most likely tokens; 0 is off. {_DEFAULT}"),
    ] = None
    min_p: Annotated[
        float | None,
        sampling_option(
            help="Minimum probability of a token, relative to the most likely one; 0 is off. "
            f"{_DEFAULT}",
        ),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        sampling_option(
            help=f"Penalty factor of tokens in prompt and answer; 1 is off. {_DEFAULT}",
        ),
    ] = None
    frequency_penalty: Annotated[
        float | None,
        sampling_option(
            help="Penalty for each occurrence of a token in the answer; 0 is off.",
        ),
    ] = None
    presence_penalty: Annotated[
        float | None,
        sampling_option(help="Penalty of tokens that occur in the answer; 0 is off."),
    ] = None
    seed: Annotated[
        int | None,
        sampling_option(
            help="Random seed; with it the answer is the same on every run and with every drafter.",
        ),
    ] = None
    n: Annotated[
        int | None,
        sampling_option("--n", "-n", help="Number of answers per prompt."),
    ] = None
    stop: Annotated[
        list[str] | None,
        sampling_option(help="String that ends the answer. Repeat it for several strings."),
    ] = None
    min_tokens: Annotated[
        int | None,
        sampling_option(help="Minimum length of an answer in tokens."),
    ] = None
    logprobs: Annotated[
        int | None,
        sampling_option(
            help="With --json: log-probabilities of each token and of this many most likely tokens.",
        ),
    ] = None
    ignore_eos: Annotated[
        bool,
        sampling_option("--ignore-eos", help="Do not stop at end-of-text tokens."),
    ] = False

    def changes(self) -> dict[str, Any]:
        """Return the fields of `SamplingParams` that the command line sets. Raises ValueError if one is
        out of range."""
        from eyas.core import SamplingParams

        given: dict[str, Any] = {
            **vars(self),
            "stop": tuple(self.stop) if self.stop else None,
            "ignore_eos": self.ignore_eos or None,
        }
        changes = {name: value for name, value in given.items() if value is not None}
        SamplingParams(**changes)
        return changes


@flattened
def generate(
    *,
    prompt: Annotated[
        str | None, typer.Argument(help="The prompt. Default: read from standard input.")
    ] = None,
    prompts_file: Annotated[
        Path | None,
        typer.Option(
            help='JSON lines file of prompts: {"prompt": text or token ids} or {"messages": [...], '
            '"tools": [...]}, each optionally with its own sampling parameters.',
        ),
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--raw",
            help="Apply the chat template to the prompt, or use the prompt as it is. "
            "Default: --chat if the model has a template.",
        ),
    ] = None,
    system: Annotated[str | None, typer.Option(help="System message before the prompt.")] = None,
    think: options.Think = None,
    sampling: SamplingOptions,
    as_json: Annotated[
        bool,
        output_option("--json", help="Print one JSON object per prompt."),
    ] = False,
    show_tokens: Annotated[
        bool,
        output_option("--show-tokens", help="Print the token ids after the text."),
    ] = False,
    show_usage: Annotated[
        bool,
        output_option("--show-usage", help="Print the numbers of tokens and steps after the text."),
    ] = False,
    show_special: Annotated[
        bool,
        output_option("--show-special", help="Print control tokens too."),
    ] = False,
    chosen: ModelOptions,
    drafting: DraftOptions,
    resources: ResourceOptions,
    parallel: ParallelOptions,
) -> None:
    """Generate answers to prompts, and stream them to the terminal."""
    from eyas.cli.loading import open_model

    changes = sampling.changes()
    if show_special:
        changes["skip_special_tokens"] = False
    entries = _entries(prompt, prompts_file, system)
    config = engine_config(**vars(chosen), **vars(drafting), **vars(resources), **vars(parallel))
    with open_model(config, quiet=as_json) as llm:
        template_options = {} if think is None else {"enable_thinking": think}
        prompts: list[Prompt] = []
        params: list[SamplingParams] = []
        for number, entry in enumerate(entries):
            with _naming(f"prompts[{number}]", prompts_file):
                prompts.append(_encode(llm, entry, chat, template_options))
                params.append(_params(llm, changes, entry))
        if as_json:
            outputs = llm.generate(prompts, params)
            for output in outputs:
                print(json.dumps(as_dict(output), ensure_ascii=False))
        elif len(prompts) == 1 and params[0].n == 1:
            outputs = [_stream(llm, prompts[0], params[0])]
            _show_details(outputs[0], show_tokens, show_usage)
        else:
            outputs = llm.generate(prompts, params)
            for output in outputs:
                _show(output, show_tokens, show_usage)
    if has_failed(outputs):
        raise typer.Exit(1)


def has_failed(outputs: Iterable[GenerationOutput]) -> bool:
    """Whether an answer ended with an error."""
    return any(choice.error for output in outputs for choice in output.choices)


def as_dict(output: GenerationOutput) -> dict[str, Any]:
    """Return what --json prints for a prompt."""
    import msgspec

    shown: dict[str, Any] = {
        "num_prompt_tokens": len(output.prompt_token_ids),
        "choices": [msgspec.to_builtins(choice) for choice in output.choices],
    }
    if output.prompt_logprobs is not None:
        shown["prompt_logprobs"] = msgspec.to_builtins(output.prompt_logprobs)
    return shown


def _entries(
    prompt: str | None, prompts_file: Path | None, system: str | None
) -> list[dict[str, Any]]:
    """Return a dictionary for each prompt, with "prompt" or "messages", and "system" if given."""
    if prompts_file is None:
        text = sys.stdin.read() if prompt is None else prompt
        if not text.strip():
            raise ValueError("the prompt is empty; give it as argument or on standard input")
        entry: dict[str, Any] = {"prompt": text}
        return [{**entry, "system": system} if system else entry]
    if prompt is not None:
        raise ValueError("--prompts-file: a prompt is given as well; give one of them")
    entries = read_entries(prompts_file)
    return [{"system": system, **entry} if system else entry for entry in entries]


@contextmanager
def _naming(name: str, prompts_file: Path | None) -> Iterator[None]:
    """Say which prompt of a file a ValueError is about, with the name that `LLM.generate` gives it."""
    try:
        yield
    except ValueError as error:
        if prompts_file is None:
            raise
        raise ValueError(f"--prompts-file: {name}: {error}") from error


def _encode(
    llm: LLM, entry: Mapping[str, Any], chat: bool | None, template_options: Mapping[str, Any]
) -> Prompt:
    raw: Prompt = entry.get("prompt", "")
    if isinstance(raw, list):
        if entry.get("system"):
            raise ValueError("--system: cannot go with a prompt of token ids")
        return raw
    uses_template = has_chat_template(model_directory(llm)) if chat is None else chat
    if "messages" not in entry and not uses_template:
        if entry.get("system"):
            raise ValueError("--system: needs the chat template; leave out --raw")
        return raw
    messages = entry.get("messages") or [{"role": "user", "content": raw}]
    if entry.get("system") and isinstance(messages, list):
        messages = [{"role": "system", "content": entry["system"]}, *messages]
    return llm.prepare_chat(messages, tools=entry.get("tools"), **template_options)


def _params(llm: LLM, changes: Mapping[str, Any], entry: Mapping[str, Any]) -> SamplingParams:
    from eyas.core import bias_by_token_id

    own = {k: v for k, v in entry.items() if k not in ("prompt", "messages", "tools", "system")}
    if isinstance(own.get("logit_bias"), Mapping):
        own["logit_bias"] = bias_by_token_id(own["logit_bias"])
    try:
        return llm.default_params(**{**changes, **own})
    except TypeError as error:  # no such parameter
        raise ValueError(str(error)) from error


def _stream(llm: LLM, prompt: Prompt, params: SamplingParams) -> GenerationOutput:
    from eyas.outputs import Choice, GenerationOutput

    output = GenerationOutput([], [Choice(0)])
    deltas = llm.stream(prompt, params)
    for delta in deltas:
        print(delta.text, end="", flush=True)
        output.absorb(delta)
    print()
    return output


def _show(output: GenerationOutput, show_tokens: bool, show_usage: bool) -> None:
    for choice in output.choices:
        print(choice.text)
    _show_details(output, show_tokens, show_usage)


def _show_details(output: GenerationOutput, show_tokens: bool, show_usage: bool) -> None:
    for choice in output.choices:
        if choice.error:
            print(f"error: {choice.error}", file=sys.stderr)
        if show_tokens:
            print("tokens:", *choice.token_ids)
        if show_usage:
            usage = choice.usage
            per_step = usage.num_accepted_tokens / max(1, usage.num_steps)
            print(
                f"usage: {usage.num_prompt_tokens} prompt ({usage.num_cached_tokens} cached), "
                f"{usage.num_output_tokens} output in {usage.num_steps} steps, "
                f"{usage.num_accepted_tokens} of {usage.num_draft_tokens} drafted tokens accepted "
                f"({per_step:.2f} per step), "
                f"finish reason {choice.finish_reason}, seed {choice.seed}"
            )
