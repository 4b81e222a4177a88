"""`eyas generate`: prompts in, answers out."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eyas.cli.models import has_chat_template, model_directory
from eyas.cli.options import (
    DraftOptions,
    ModelOptions,
    ResourceOptions,
    engine_config,
    flattened,
)

if TYPE_CHECKING:
    from eyas.core import SamplingParams
    from eyas.llm import LLM
    from eyas.outputs import GenerationOutput

SAMPLING_PANEL, OUTPUT_PANEL = "Sampling", "Output"


@flattened
def generate(
    *,
    prompt: Annotated[
        str | None, typer.Argument(help="The prompt; read from standard input when absent.")
    ] = None,
    prompts_file: Annotated[
        Path | None,
        typer.Option(
            "--prompts-file",
            help='JSON lines: {"prompt": text or token ids} or {"messages": [...], "tools": [...]}, '
            "each with sampling fields of its own where wanted.",
        ),
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--raw",
            help="Put the prompt through the chat template, or continue it as it is. "
            "Default: --chat where the model has a template.",
        ),
    ] = None,
    system: Annotated[
        str | None, typer.Option("--system", help="System message in front of the prompt.")
    ] = None,
    think: Annotated[
        bool | None,
        typer.Option("--think/--no-think", help="Ask a model that can reason to do so, or not."),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option("--max-tokens", help="Longest answer.", rich_help_panel=SAMPLING_PANEL),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", "-t", help="0 is greedy.", rich_help_panel=SAMPLING_PANEL),
    ] = None,
    top_p: Annotated[float | None, typer.Option("--top-p", rich_help_panel=SAMPLING_PANEL)] = None,
    top_k: Annotated[
        int | None, typer.Option("--top-k", help="0 is off.", rich_help_panel=SAMPLING_PANEL)
    ] = None,
    min_p: Annotated[float | None, typer.Option("--min-p", rich_help_panel=SAMPLING_PANEL)] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option("--repetition-penalty", rich_help_panel=SAMPLING_PANEL)
    ] = None,
    frequency_penalty: Annotated[
        float | None, typer.Option("--frequency-penalty", rich_help_panel=SAMPLING_PANEL)
    ] = None,
    presence_penalty: Annotated[
        float | None, typer.Option("--presence-penalty", rich_help_panel=SAMPLING_PANEL)
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            help="Fixes the answer, whatever the drafter.",
            rich_help_panel=SAMPLING_PANEL,
        ),
    ] = None,
    n: Annotated[
        int | None,
        typer.Option("--n", "-n", help="Answers a prompt.", rich_help_panel=SAMPLING_PANEL),
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(
            "--stop",
            help="A string that ends the answer; may be given several times.",
            rich_help_panel=SAMPLING_PANEL,
        ),
    ] = None,
    min_tokens: Annotated[
        int | None, typer.Option("--min-tokens", rich_help_panel=SAMPLING_PANEL)
    ] = None,
    logprobs: Annotated[
        int | None,
        typer.Option(
            "--logprobs",
            help="With --json: log-probabilities of each token and the N most likely.",
            rich_help_panel=SAMPLING_PANEL,
        ),
    ] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", rich_help_panel=SAMPLING_PANEL)
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="One JSON object a prompt and line.", rich_help_panel=OUTPUT_PANEL
        ),
    ] = False,
    show_tokens: Annotated[
        bool,
        typer.Option(
            "--show-tokens", help="Token ids after the text.", rich_help_panel=OUTPUT_PANEL
        ),
    ] = False,
    show_usage: Annotated[
        bool,
        typer.Option("--show-usage", help="Counts after the text.", rich_help_panel=OUTPUT_PANEL),
    ] = False,
    show_special: Annotated[
        bool,
        typer.Option(
            "--show-special", help="Keep control tokens in the text.", rich_help_panel=OUTPUT_PANEL
        ),
    ] = False,
    chosen: ModelOptions,
    drafting: DraftOptions,
    resources: ResourceOptions,
) -> None:
    """Continue a prompt or answer it; stream to the terminal."""
    wanted = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "frequency_penalty": frequency_penalty,
        "presence_penalty": presence_penalty,
        "seed": seed,
        "n": n,
        "stop": tuple(stop) if stop else None,
        "min_tokens": min_tokens,
        "logprobs": logprobs,
        "ignore_eos": ignore_eos or None,
        "skip_special_tokens": False if show_special else None,
    }
    changes = {name: value for name, value in wanted.items() if value is not None}
    _check_early(changes)
    entries = _entries(prompt, prompts_file, system)
    config = engine_config(**vars(chosen), **vars(drafting), **vars(resources))
    from eyas.cli.loading import open_model

    with open_model(config, quiet=as_json) as llm:
        template_options = {} if think is None else {"enable_thinking": think}
        prompts = [_encode(llm, entry, chat, template_options) for entry in entries]
        params = [_params(llm, changes, entry) for entry in entries]
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
    """Did an answer end by an error?"""
    return any(choice.error for output in outputs for choice in output.choices)


def as_dict(output: GenerationOutput) -> dict[str, Any]:
    """What `--json` prints of one prompt."""
    import msgspec

    return {
        "num_prompt_tokens": len(output.prompt_token_ids),
        "choices": [msgspec.to_builtins(choice) for choice in output.choices],
    }


def _check_early(changes: Mapping[str, Any]) -> None:
    """A sampling option out of range is refused before a model is loaded."""
    from eyas.core import SamplingParams

    SamplingParams(**changes)


def _entries(
    prompt: str | None, prompts_file: Path | None, system: str | None
) -> list[dict[str, Any]]:
    """One dictionary a prompt, with "prompt" or "messages"."""
    if prompts_file is None:
        text = sys.stdin.read() if prompt is None else prompt
        if not text.strip():
            raise ValueError("the prompt is empty; give it as argument or on standard input")
        entry: dict[str, Any] = {"prompt": text}
        return [{**entry, "system": system} if system else entry]
    if prompt is not None:
        raise ValueError("--prompts-file: a prompt was given as well; give one of them")
    entries = read_entries(prompts_file)
    return [{"system": system, **entry} if system else entry for entry in entries]


def read_entries(file: Path) -> list[dict[str, Any]]:
    """The objects of a prompts file. ValueError names the line that is wrong."""
    entries = [
        _entry(line, f"{file}:{number}")
        for number, line in enumerate(_read(file).splitlines(), start=1)
        if line.strip()
    ]
    if not entries:
        raise ValueError(f"--prompts-file: {file} holds no prompt")
    return entries


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--prompts-file: cannot read {file} ({error})") from error


def _entry(line: str, place: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise ValueError(f"--prompts-file: {place} is not JSON ({error})") from error
    if not isinstance(entry, dict) or not ("prompt" in entry) ^ ("messages" in entry):
        raise ValueError(
            f'--prompts-file: {place} must be an object with either "prompt" or "messages"'
        )
    return entry


def _encode(
    llm: LLM, entry: Mapping[str, Any], chat: bool | None, template_options: Mapping[str, Any]
) -> list[int]:
    if isinstance(entry.get("prompt"), list):
        if entry.get("system"):
            raise ValueError("--system: cannot go with a prompt of token ids")
        return entry["prompt"]
    uses_template = has_chat_template(model_directory(llm)) if chat is None else chat
    if "messages" not in entry and not uses_template:
        if entry.get("system"):
            raise ValueError("--system: needs the chat template; leave out --raw")
        return llm.tokenizer.encode_prompt(entry["prompt"])
    messages = list(entry.get("messages") or [{"role": "user", "content": entry["prompt"]}])
    if entry.get("system"):
        messages.insert(0, {"role": "system", "content": entry["system"]})
    return llm.encode_chat(messages, tools=entry.get("tools"), **template_options)


def _params(llm: LLM, changes: Mapping[str, Any], entry: Mapping[str, Any]) -> SamplingParams:
    own = {k: v for k, v in entry.items() if k not in ("prompt", "messages", "tools", "system")}
    if isinstance(own.get("stop"), list):
        own["stop"] = tuple(own["stop"])
    try:
        return llm.default_params(**{**changes, **own})
    except TypeError as error:
        raise ValueError(f"--prompts-file: {error}") from error


def _stream(llm: LLM, prompt: list[int], params: SamplingParams) -> GenerationOutput:
    from eyas.outputs import Choice, GenerationOutput

    output = GenerationOutput(prompt, [Choice(0)])
    for delta in llm.stream(prompt, params):
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
                f"({per_step:.2f} a step), "
                f"ended by {choice.finish_reason}, seed {choice.seed}"
            )
