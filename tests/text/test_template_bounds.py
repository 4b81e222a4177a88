"""Templates that are slow or large in every way there is: each is an error, and hurts no other.

No clock is looked at: a bound that does not hold shows as a test that never ends, or as a prompt.
"""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from eyas.core import RequestError
from eyas.text import ChatTemplate, Tokenizer, renderers
from eyas.text.renderers import BoundedTemplate
from tests.server.fakes import FakeClient, live_server
from tests.text import small_tokenizers as small
from tests.thorough import only_thorough

USER = [{"role": "user", "content": "Hi"}]
LOOPS = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}"
END_LOOPS = "{% endfor %}{% endfor %}{% endfor %}"
DOUBLING = "{% set n = namespace(x=S) %}{% for i in range(60) %}{% set n.x = OP %}{% endfor %}"


def doubling(start: str, step: str, after: str = "{{ n.x }}") -> str:
    return DOUBLING.replace("S", start).replace("OP", step) + after


HOSTILE = {
    "loops": f"{LOOPS}{END_LOOPS}",
    "loops that put out": f"{LOOPS}x{END_LOOPS}",
    "loops over lists": "{% set l = range(9999) | list %}"
    + "{% for a in l %}{% for b in l %}{% for c in l %}"
    + END_LOOPS,
    "loops that set": f"{LOOPS}{{% set x = a %}}{END_LOOPS}",
    "loops of a macro": "{% macro m() %}{% for i in range(9999) %}{% endfor %}{% endmacro %}"
    f"{LOOPS}{{{{ m() }}}}{END_LOOPS}",
    "a recursive loop": "{% for a in [range(99999)] * 9999 recursive %}"
    "{% if a is iterable %}{{ loop(a) }}{% endif %}{% endfor %}",
    "a macro that calls itself": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "center": '{{ "x" | center(10 ** 10) }}',
    "center by a variable": "{% set n = 10 ** 10 %}{{ messages[0].content | center(n) }}",
    "the method center": '{{ "x".center(10 ** 10) }}',
    "ljust": '{{ "x".ljust(10 ** 10) }}',
    "zfill": '{{ "x".zfill(10 ** 10) }}',
    "expandtabs": '{{ ("\t" * 1000).expandtabs(10 ** 8) }}',
    "format": '{{ "{:10000000000}".format(1) }}',
    "the filter format": '{{ "%10000000000d" | format(1) }}',
    "percent": '{{ "%10000000000d" % 1 }}',
    "percent with a star": '{{ "%*d" % (2000000000, 1) }}',
    "indent": '{{ ("\n" * 100000) | indent(10 ** 6, blank=true) }}',
    "replace": '{{ ("x" * 10 ** 6) | replace("x", "y" * 10 ** 6) }}',
    "the method replace": '{{ ("x" * 10 ** 6).replace("", "y" * 10 ** 6) }}',
    "join": '{{ (["x" * 10 ** 6] * 10 ** 6) | join }}',
    "the method join": '{{ ("x" * 10 ** 6).join("y" * 10 ** 6) }}',
    "batch": "{{ [1] | batch(10 ** 10, 0) | list | length }}",
    "slice": "{{ [1] | slice(10 ** 10) | list | length }}",
    "wordwrap": '{{ ("x " * 10 ** 6) | wordwrap(1, wrapstring="y" * 10 ** 6) }}',
    "tojson": "{{ ([[[[1]]]] * 10 ** 5) | tojson(indent=10 ** 6) }}",
    "urlize": '{{ ("http://www.example.com " * 10 ** 5) | urlize(target="x" * 10 ** 6) }}',
    "round": '{{ 1.5 | round(10 ** 9, "ceil") }}',
    "round of a whole number": "{{ 15 | round(-(10 ** 10)) }}",
    "a power": "{{ 99999 ** 99999 ** 99999 }}",
    "powers": doubling("9", "n.x ** 9"),
    "products": doubling("9 ** 99", "n.x * n.x * n.x", "{{ n.x > 1 }}"),
    "repeated text": '{{ "x" * 10 ** 10 }}',
    "repeated list": "{{ [1] * 10 ** 10 }}",
    "doubled text": doubling('"x"', "n.x ~ n.x"),
    "added text": doubling('"x"', "n.x + n.x"),
    "joined text": doubling('"x"', "[n.x, n.x] | join"),
    "doubled list": doubling("[1]", "n.x + n.x", "{{ n.x | length }}"),
    "lists of lists": doubling("[1]", "[n.x, n.x]"),
    "lists of lists as JSON": doubling("[1]", "[n.x, n.x]", "{{ n.x | tojson }}"),
    "lists of lists as text": doubling("[1]", "[n.x, n.x]", "{{ n.x | string | length }}"),
    "lists of lists compared": doubling("[1]", "[n.x, n.x]", "{% set a = n.x %}")
    + doubling("[1]", "[n.x, n.x]", "{{ a == n.x }}"),
    "dictionaries": doubling("{}", "dict(a=n.x, b=n.x)"),
    "a set block": "{% set x = 'x' * 9999 %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 40,
    "kept texts": "{% set n = namespace(x=[]) %}{% for i in range(99999) %}"
    "{% set n.x = n.x + ['x' * 10 ** 6 ~ i] %}{% endfor %}",
    "sums of lists": "{{ ([range(9999) | list] * 99999) | sum(start=[]) | length }}",
    "lipsum": "{{ lipsum(n=10 ** 6, min=10 ** 6, max=10 ** 7) }}",
    "a sorted product": "{{ (range(99999) | list * 999) | sort | length }}"
    "{{ ((range(99999) | list) * 9999) | sort | length }}",
    "an expensive sort": "{% for i in range(9999) %}{{ range(99999) | sort(reverse=true) | first }}"
    "{% endfor %}",
    "numbers of any base": '{{ ("z" * 10 ** 6) | int(base=36) }}{{ 1 / 0 }}',
    "a long text that is cut": f"{LOOPS}{{{{ ('x' * 10 ** 6)[a:b] | length }}}}{END_LOOPS}",
}


ALIKE = (
    *("loops that put out", "loops that set", "loops of a macro", "the method center", "ljust"),
    *("zfill", "percent", "the method replace", "the method join", "slice"),
    *("wordwrap", "round of a whole number", "products", "added text", "doubled list"),
    *("lists of lists as text", "a sorted product", "loops over lists", "center by a variable"),
    *("expandtabs", "percent with a star", "the filter format", "urlize", "joined text", "powers"),
    *("doubled text", "sums of lists", "a long text that is cut"),
)
"""Each is stopped as another one of `HOSTILE` is."""


@pytest.fixture
def ready(monkeypatch: pytest.MonkeyPatch) -> ChatTemplate:
    monkeypatch.setattr(renderers, "DEADLINE_SECONDS", 0.1)
    monkeypatch.setattr(renderers, "COMPILE_SECONDS", 0.25)
    return ChatTemplate(Tokenizer(small.chatml_spec()), small.CHATML_TEMPLATE)


@pytest.mark.parametrize(
    "name", [*(name for name in HOSTILE if name not in ALIKE), *only_thorough(*ALIKE)]
)
def test_a_hostile_template_is_an_error_and_the_next_is_served(
    name: str, ready: ChatTemplate
) -> None:
    """Where jinja2 works out while it compiles what is the same for all requests, at the start."""
    expected = ready.render(USER)
    with pytest.raises(ValueError, match="chat template"):
        ChatTemplate(Tokenizer(small.chatml_spec()), HOSTILE[name]).render(USER)
    assert ready.render(USER) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{% if true %}" * 30_000,
        "{% if true %}" * 400 + "{% endif %}" * 400,
        "{{ " + "(" * 100_000 + "1" + ")" * 100_000 + " }}",
        "{{ " + "[" * 30_000 + "]" * 30_000 + " }}",
        "{{ " + "not " * 100_000 + "1 }}",
        "{{ x" + "|d" * 100_000 + " }}",
        "{{ 1" + "+1" * 100_000 + " }}",
        "{% for %}",
        "{{ 'x' | nothing }}",
        "{% include 'x' %}{% extends 'y' %}",
        "{{ '" + "x" * 2**20 + "' }}",
    ],
    ids=range(11),
)
def test_a_source_that_is_too_deep_or_too_long_is_a_mistake_at_the_start_or_in_the_end(
    source: str, ready: ChatTemplate
) -> None:
    with pytest.raises((ValueError, RequestError), match="chat template"):
        BoundedTemplate(source).render({"x": "x"})
    assert ready.render(USER)


def test_a_slow_source_is_a_mistake(monkeypatch: pytest.MonkeyPatch, ready: ChatTemplate) -> None:
    monkeypatch.setattr(renderers, "COMPILE_SECONDS", 0.2)
    source = (
        "".join(f"{{% set a{k} = a{k + 1} %}}" for k in range(30_000))
        + "{% set a30000 = m.content %}"
    )
    with pytest.raises(ValueError, match="chat template takes too long to compile"):
        BoundedTemplate(source)
    assert ready.render(USER)


def test_a_file_that_is_too_long_is_not_read_whole(tmp_path: Path) -> None:
    directory = small.write_model_directory(tmp_path, small.chatml_spec(), template="x")
    with (directory / "chat_template.jinja").open("wb") as file:
        file.truncate(2**40)  # with nothing in it, which takes no room
    with pytest.raises(ValueError, match="more than 1048576 characters"):
        ChatTemplate.from_directory(directory)


def test_a_process_that_was_killed_is_replaced(ready: ChatTemplate) -> None:
    expected = ready.render(USER)
    for idle in renderers._pool_of(os.getpid())._idle:
        idle._process.send_signal(signal.SIGKILL)
        idle._process.wait()
    assert ready.render(USER) == expected


def test_renders_at_once_do_not_mix(ready: ChatTemplate) -> None:
    def rendered(k: int) -> bool:
        content = f"number {k} " * (k * 500 + 1)
        pieces = ready.render([{"role": "user", "content": content}])
        return content in "".join(piece for piece in pieces if isinstance(piece, str))

    with ThreadPoolExecutor(6) as threads:
        assert all(threads.map(rendered, range(60)))
    assert len(renderers._pool_of(os.getpid())._idle) <= renderers.MAX_IDLE


def test_more_templates_than_a_process_keeps(ready: ChatTemplate) -> None:
    templates = [BoundedTemplate(f"{{{{ x }}}}{k}") for k in range(80)]
    for _ in range(2):
        assert [template.render({"x": "a"}) for template in templates] == [
            f"a{k}" for k in range(80)
        ]


def test_odd_values_arrive_as_they_are(ready: ChatTemplate) -> None:
    template = BoundedTemplate("{{ x.a }}|{{ x['\ufffe'] }}|{{ x.n is none }}|{{ x.l | length }}")
    value = {"a": "\ud800 \0 \U0001f600", "\ufffe": 2**70, "n": None, "l": [1.5, float("inf")]}
    assert template.render({"x": value}) == f"\ud800 \0 \U0001f600|{2**70}|True|2"
    with pytest.raises(RequestError, match="must be plain data"):
        template.render({"x": threading.Lock()})


def test_a_server_with_a_hostile_template_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renderers, "DEADLINE_SECONDS", 0.4)
    source = "{% if messages[0].content == 'loop' %}" + HOSTILE["loops"]
    source += "{% elif messages[0].content == 'wide' %}" + HOSTILE["center"] + "{% endif %}x"
    directory = small.write_model_directory(
        tmp_path, small.chatml_spec(), template=source, eos_token="<|im_end|>"
    )
    with live_server(FakeClient(directory)) as server:

        def asked(content: str) -> httpx.Response:
            body = {"messages": [{"role": "user", "content": content}]}
            return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=300)

        with ThreadPoolExecutor(6) as threads:
            answers = list(threads.map(asked, ["loop", "wide", "fine"] * 3))
        assert [each.status_code for each in answers] == [400, 400, 200] * 3
        assert "chat template takes too long to render" in answers[0].text
        assert "chat template takes too much memory to render" in answers[1].text
        assert answers[0].json()["error"]["param"] == "messages"
