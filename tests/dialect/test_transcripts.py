"""What models write, in every family's own form: the grammar accepts it, the segmenter splits it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from eyas.dialect.base import Wanted

from .cases import FAMILIES, PERSON, TOOLS, Case, tokenizers
from .recognise import accepts
from .streams import Outcome, pushed

AUTO = Wanted(tools=TOOLS, choice="auto")
REQUIRED = Wanted(tools=TOOLS, choice="required")
ONE = Wanted(tools=TOOLS, choice="required", parallel=False)
CLOCK = Wanted(tools=TOOLS, choice="time")
PLAIN = Wanted()
JSON = Wanted(answer=PERSON)
EITHER = Wanted(answer=PERSON, tools=TOOLS, choice="auto")

OPENED, NEITHER = "<t>a:<think>\n", "<t>a:"
START = "<|start|>assistant"
CITY = '{"city": "Oslo"}'
CLOCK_CALL = '{"name": "time", "arguments": {}}'


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def tagged(name: str, **parameters: str) -> str:
    lines = [f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters.items()]
    return f"<tool_call>\n<function={name}>\n{''.join(lines)}</function>\n</tool_call>"


OSLO = tagged("get_weather", city="Os\nlo <b>", days="3", unit="C")


def fenced(name: str, arguments: str) -> str:
    fence = f"```json\n{arguments}\n```"
    return f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n{fence}<｜tool▁call▁end｜>"


@dataclass(frozen=True)
class Transcript:
    family: str
    prompt: str
    wanted: Wanted
    output: str
    outcome: Outcome
    is_legal: bool = True


def transcript(
    family: str,
    prompt: str,
    wanted: Wanted,
    output: str,
    *calls: tuple[str, str],
    reasoning: str = "",
    content: str = "",
    legal: bool = True,
) -> Transcript:
    return Transcript(family, prompt, wanted, output, Outcome(reasoning, content, calls), legal)


def invoked(name: str, **parameters: str) -> str:
    lines = [f'<parameter name="{key}">{value}</parameter>\n' for key, value in parameters.items()]
    return f'<invoke name="{name}">\n{"".join(lines)}</invoke>\n'


def of_seed(name: str, **parameters: str) -> str:
    lines = [f"<parameter={key}>{value}</parameter>\n" for key, value in parameters.items()]
    return f"<seed:tool_call>\n<function={name}>\n{''.join(lines)}</function>\n</seed:tool_call>"


def of_kimi(call_id: str, arguments: str) -> str:
    named = f"<|tool_call_begin|>{call_id}<|tool_call_argument_begin|>"
    return f"{named}{arguments}<|tool_call_end|>"


def section(*calls: str) -> str:
    return f"<|tool_calls_section_begin|>{''.join(calls)}<|tool_calls_section_end|>"


TRANSCRIPTS = [
    transcript(
        "minimax_m2",
        OPENED,
        AUTO,
        "h\n</think>\n\nLet me see.\n<minimax:tool_call>\n"
        f"{invoked('get_weather', city='Os <b>', days='3', unit='C')}{invoked('time')}"
        "</minimax:tool_call>",
        ("get_weather", '{"city": "Os <b>", "days": 3, "unit": "C"}'),
        ("time", "{}"),
        reasoning="h",
        content="Let me see.",
    ),
    transcript(
        "minimax_m2", OPENED, JSON, 'h</think>{"name":"y"}', reasoning="h", content='{"name":"y"}'
    ),
    transcript(
        "seed_oss",
        NEITHER,
        AUTO,
        "<seed:think>h</seed:think>\n"
        f"{of_seed('get_weather', city='Oslo', days='3')}\n{of_seed('time')}",
        ("get_weather", '{"city": "Oslo", "days": 3}'),
        ("time", "{}"),
        reasoning="h",
    ),
    transcript(
        "seed_oss", NEITHER, PLAIN, "<seed:think>h</seed:think>\nHi", reasoning="h", content="Hi"
    ),
    transcript(
        "kimi_k2",
        "<t>a:<think>",
        AUTO,
        "h</think>Ok."
        + section(of_kimi("functions.get_weather:0", CITY), of_kimi("functions.time:1", "{}")),
        ("get_weather", CITY),
        ("time", "{}"),
        reasoning="h",
        content="Ok.",
    ),
    transcript("kimi_k2", NEITHER, ONE, section(of_kimi("functions.time:12", "{}")), ("time", "{}")),
    transcript(
        "kimi_k2", NEITHER, AUTO, section(of_kimi(" time:0 ", CITY)), ("time", CITY), legal=False
    ),
    transcript("qwen3", OPENED, PLAIN, "a\nb\n</think>\n\nHi", reasoning="a\nb", content="Hi"),
    transcript("qwen3", NEITHER, PLAIN, "<think>\na\n</think>\n\nHi", reasoning="a", content="Hi"),
    transcript("qwen3", NEITHER, PLAIN, "<think>\n\n</think>\n\n Hi\n", content="Hi\n"),
    transcript("qwen3", NEITHER, PLAIN, "Hi <tool_call>", content="Hi <tool_call>"),
    transcript(
        "qwen3", OPENED, JSON, 'x\n</think>{"name":"y"}', reasoning="x", content='{"name":"y"}'
    ),
    transcript("qwen3", OPENED, JSON, "x</think>\n\n```", reasoning="x", content="```", legal=False),
    transcript(
        "qwen3",
        NEITHER,
        AUTO,
        f"Let me see.\n{hermes('get_weather', CITY)}\n{hermes('time', '{}')}",
        ("get_weather", CITY),
        ("time", "{}"),
        content="Let me see.",
    ),
    transcript(
        "qwen3",
        OPENED,
        ONE,
        f"h\n</think>\n\n{hermes('get_weather', CITY)}",
        ("get_weather", CITY),
        reasoning="h",
    ),
    transcript("qwen3", NEITHER, CLOCK, hermes("time", "{}"), ("time", "{}")),
    transcript(
        "qwen3", NEITHER, ONE, f"{hermes('time', '{}')}\n{hermes('time', '{}')}",
        ("time", "{}"), ("time", "{}"), legal=False,
    ),
    transcript("qwen3", NEITHER, EITHER, '{"name": "<tool_call>"}', content='{"name": "<tool_call>"}'),
    transcript(
        "qwen3",
        NEITHER,
        AUTO,
        '<tool_call>\n{"arguments": {"city": "}"}, "x": [1], "name": "get_weather"}</tool_call>',
        ("get_weather", '{"city": "}"}'),
        legal=False,
    ),
    transcript(
        "qwen3", NEITHER, AUTO, "<tool_call>time</tool_call>.", content="<tool_call>time</tool_call>.",
        legal=False,
    ),
    transcript(
        "qwen3_coder",
        OPENED,
        AUTO,
        f"h\n</think>\n\nSo:\n{OSLO}\n{tagged('time')}",
        ("get_weather", '{"city": "Os\\nlo <b>", "days": 3, "unit": "C"}'),
        ("time", "{}"),
        reasoning="h",
        content="So:",
    ),
    transcript(
        "qwen3_coder",
        NEITHER,
        ONE,
        tagged("get_weather", city=""),
        ("get_weather", '{"city": ""}'),
    ),
    transcript(
        "qwen3_coder", NEITHER, AUTO, tagged("get_weather", days="2"), ("get_weather", '{"days": 2}'),
        legal=False,
    ),
    transcript(
        "qwen3_coder", NEITHER, AUTO, "<tool_call>f</tool_call>.", content="<tool_call>f</tool_call>.",
        legal=False,
    ),
    transcript("qwen3_coder", NEITHER, AUTO, "a <function=f>", content="a <function=f>"),
    transcript("generic", OPENED, PLAIN, "a</think>b", reasoning="a", content="b"),
    transcript("generic", NEITHER, PLAIN, "<think>a</think>b", content="<think>a</think>b"),
    transcript("generic", NEITHER, AUTO, f"x {hermes('time', '{}')}", ("time", "{}"), content="x"),
    transcript(
        "llama3",
        NEITHER,
        AUTO,
        f'{{"name": "get_weather", "parameters": {CITY}}}',
        ("get_weather", CITY),
    ),
    transcript(
        "llama3",
        NEITHER,
        REQUIRED,
        f'<|python_tag|>{{"name": "get_weather", "parameters": {CITY}}}; '
        '{"name": "time", "parameters": {}}',
        ("get_weather", CITY),
        ("time", "{}"),
    ),
    transcript("llama3", NEITHER, AUTO, 'It is {"a": 1}; yes', content='It is {"a": 1}; yes'),
    transcript("llama3", NEITHER, EITHER, '{"name": "time"}', content='{"name": "time"}'),
    transcript(
        "deepseek",
        OPENED,
        AUTO,
        f"h\n</think>\n\nSo:<｜tool▁calls▁begin｜>{fenced('get_weather', CITY)}\n{fenced('time', '{}')}"
        "<｜tool▁calls▁end｜>",
        ("get_weather", CITY),
        ("time", "{}"),
        reasoning="h",
        content="So:",
    ),
    transcript("deepseek", NEITHER, PLAIN, "<think>\na\n</think>\n\nb", reasoning="a", content="b"),
    transcript(
        "deepseek_v31",
        "<t>a:</think>",
        REQUIRED,
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{CITY}"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ("get_weather", CITY),
    ),
    transcript(
        "deepseek_v4",
        "<t>a:<think>",
        AUTO,
        "h</think>So\n\n<｜DSML｜tool_calls>\n"
        '<｜DSML｜invoke name="get_weather">\n'
        '<｜DSML｜parameter name="city" string="true">O"\n</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n"
        '<｜DSML｜invoke name="time">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
        ("get_weather", '{"city": "O\\"\\n", "days": 3}'),
        ("time", "{}"),
        reasoning="h",
        content="So",
    ),
    transcript("deepseek_v31", "<t>a:<think>", PLAIN, "a</think>b", reasoning="a", content="b"),
    transcript("glm", NEITHER, PLAIN, "\n<think>a</think>\nb", reasoning="a", content="b"),
    transcript("glm", NEITHER, JSON, '\n{"name": ""}', content='{"name": ""}'),
    transcript(
        "glm",
        NEITHER,
        AUTO,
        "\n<think>a</think>\nSo\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>O\"\n"
        "</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n"
        "<tool_call>time\n</tool_call>",
        ("get_weather", '{"city": "O\\"\\n", "days": 3}'),
        ("time", "{}"),
        reasoning="a",
        content="So",
    ),
    transcript(
        "glm47",
        "<t>a:<think>",
        AUTO,
        "a</think>So<tool_call>get_weather<arg_key>city</arg_key><arg_value>O\"\n</arg_value>"
        "<arg_key>days</arg_key><arg_value>3</arg_value></tool_call><tool_call>time</tool_call>",
        ("get_weather", '{"city": "O\\"\\n", "days": 3}'),
        ("time", "{}"),
        reasoning="a",
        content="So",
    ),
    transcript(
        "glm47", "<t>a:</think>", ONE, "<tool_call>time\n</tool_call>", ("time", "{}"), legal=False
    ),
    transcript("mistral", NEITHER, PLAIN, "[THINK]a\n[/THINK]Hi", reasoning="a", content="Hi"),
    transcript("mistral", "<t>a:[THINK]", PLAIN, "a[/THINK]Hi", reasoning="a", content="Hi"),
    transcript(
        "mistral",
        NEITHER,
        AUTO,
        f'So:[TOOL_CALLS][{{"name": "get_weather", "arguments": {CITY}, "id": "a1B2c3D4e"}}, '
        '{"name": "time", "arguments": {}}]',
        ("get_weather", CITY),
        ("time", "{}"),
        content="So:",
    ),
    transcript(
        "mistral", NEITHER, ONE, '[TOOL_CALLS] [{"name": "time", "arguments": {}}]', ("time", "{}")
    ),
    transcript(
        "mistral",
        NEITHER,
        ONE,
        f'[TOOL_CALLS][{CLOCK_CALL}, {CLOCK_CALL}]',
        ("time", "{}"),
        ("time", "{}"),
        legal=False,
    ),
    transcript("mistral", NEITHER, EITHER, '{"name": "[TOOL"}', content='{"name": "[TOOL"}'),
    transcript(
        "mistral", NEITHER, AUTO, "[TOOL_CALLS]time.", content="[TOOL_CALLS]time.", legal=False
    ),
    transcript(
        "mistral_v11",
        NEITHER,
        AUTO,
        f"[THINK]h[/THINK]So:[TOOL_CALLS]get_weather[CALL_ID]a1B2c3D4e[ARGS]{CITY}"
        "[TOOL_CALLS]time[CALL_ID]000000000[ARGS]{}",
        ("get_weather", CITY),
        ("time", "{}"),
        reasoning="h",
        content="So:",
    ),
    transcript(
        "mistral_v11", NEITHER, ONE, "[TOOL_CALLS]time[ARGS]{}", ("time", "{}"), legal=False
    ),
    transcript(
        "mistral_v13",
        "<t>a:[THINK]",
        AUTO,
        f"h[/THINK]So:[TOOL_CALLS]get_weather[ARGS]{CITY}[TOOL_CALLS]time[ARGS]{{}}",
        ("get_weather", CITY),
        ("time", "{}"),
        reasoning="h",
        content="So:",
    ),
    transcript(
        "mistral_v13",
        NEITHER,
        ONE,
        "[TOOL_CALLS]time[ARGS]{}[TOOL_CALLS]time[ARGS]{}",
        ("time", "{}"),
        ("time", "{}"),
        legal=False,
    ),
    transcript("mistral_v13", NEITHER, CLOCK, "[TOOL_CALLS]time[ARGS]{}", ("time", "{}")),
    transcript(
        "harmony",
        START,
        PLAIN,
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b<|return|>",
        reasoning="a",
        content="b",
    ),
    transcript(
        "harmony",
        START,
        AUTO,
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary<|message|>p"
        "<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json"
        f"<|message|>{CITY}",
        ("get_weather", CITY),
        reasoning="a",
        content="p",
    ),
    transcript(
        "harmony",
        START,
        REQUIRED,
        " to=functions.time<|channel|>commentary json<|message|>{}",
        ("time", "{}"),
    ),
    transcript(
        "harmony",
        START,
        JSON,
        '<|channel|>final <|constrain|>JSON<|message|>{"name": "x"}',
        content='{"name": "x"}',
    ),
    transcript(
        "harmony",
        "<|start|>assistant<|channel|>analysis<|message|>",
        JSON,
        'a<|end|><|start|>assistant<|channel|>final<|message|>{"name": "x"}',
        reasoning="a",
        content='{"name": "x"}',
    ),
]  # fmt: skip


def case_of(entry: Transcript, kind: str) -> Case:
    family = FAMILIES[entry.family]
    return Case(kind, family, tokenizers(family)[kind], entry.prompt, entry.wanted)


def both() -> list:
    return [
        pytest.param(case_of(entry, kind), entry, id=f"{entry.family}-{number}-{kind}")
        for number, entry in enumerate(TRANSCRIPTS)
        for kind in ("shown", "skipped", "text")
        if case_of(entry, kind).is_told_by_tokens
        and not ("<t" in entry.outcome.content and kind == "skipped")
        and not ("<t" in entry.outcome.content and kind == "shown" and entry.wanted == EITHER)
        and not (kind == "text" and "<|return|>" in entry.output)
    ]


@pytest.mark.parametrize(("case", "entry"), both())
def test_it_is_split_into_its_parts(case: Case, entry: Transcript) -> None:
    stream = case.tokenizer.stream(case.tokenizer.tokens(entry.output))
    assert Outcome.of(stream.at_once(case.segmenter())) == entry.outcome


@pytest.mark.parametrize(("case", "entry"), both())
def test_the_grammar_takes_it(case: Case, entry: Transcript) -> None:
    spec = case.dialect.output(case.wanted, case.prompt_token_ids)
    if spec is None:
        assert case.wanted == PLAIN
        return
    assert accepts(spec.root, case.tokenizer.tokens(entry.output)) is entry.is_legal


@pytest.mark.parametrize(("case", "entry"), both())
def test_cut_anywhere_it_is_the_beginning_of_the_whole(case: Case, entry: Transcript) -> None:
    ids = case.tokenizer.tokens(entry.output)
    for length in range(len(ids)):
        segmenter = case.segmenter()
        stream = case.tokenizer.stream(ids[:length])
        before = pushed(segmenter, [stream])
        assert Outcome.of(before).begins(entry.outcome)
        rest = "".join(event.text for event in segmenter.finish())
        assert len(rest) <= len(stream.text)
        as_written = rest.replace("\\n", "\n")  # a line end of an argument becomes JSON
        assert as_written.rstrip("\n}") in stream.text
