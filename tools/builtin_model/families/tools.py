"""Call one of the given tools, call none, or use the result of a call."""

import dataclasses
import json

from builtin_model.families.draw import Draw
from builtin_model.families.everyday_tools import SHAPES, draw_shape, weather_in
from builtin_model.families.example import Check, Example, Message
from builtin_model.families.facts import facts
from builtin_model.families.talk import talk
from builtin_model.families.tool_shapes import Shape

_SYSTEM = (
    "You are a helpful assistant with tools.",
    "Use the tools when they help.",
    "You can call functions.",
    "Call a tool if the request needs one. Otherwise answer yourself.",
)
NO_TOOL = "I have no tool for that."


def tools(draw: Draw) -> Example:
    """Draw a request with tools: a call, two calls, no call, or an answer from a result."""
    roll = draw.random.random()
    if roll < 0.14:
        return _left_alone(draw)
    shape = draw_shape(draw)
    offered = _offered(draw, shape)
    if roll < 0.2:
        return _refused(draw, shape, offered)
    if roll < 0.28 and len(shape.arguments) == 1:
        return _two_calls(draw, offered)
    call = {"name": shape.name, "arguments": shape.arguments}
    enable = draw.chance(0.35)
    reasoning = _call_reasoning(draw, shape) if enable else None
    messages = _opening(draw)
    messages.append({"role": "user", "content": draw.polite(shape.request)})
    messages.append(draw.reply(None, reasoning, [call]))
    check = Check("tool_calls", [call])
    if roll < 0.65:
        return Example("tools", tuple(messages), check, tuple(s.tool for s in offered), enable)
    result = json.dumps(shape.result, ensure_ascii=False)
    messages.append({"role": "tool", "content": result})
    after = draw.pick((f"The tool returned {result}.", "I have the result.")) if enable else None
    messages.append(draw.reply(shape.answer, after))
    check = Check("contains", shape.needed)
    return Example("tools", tuple(messages), check, tuple(s.tool for s in offered), enable)


def _opening(draw: Draw) -> list[Message]:
    if draw.chance(0.4):
        return [{"role": "system", "content": draw.pick(_SYSTEM)}]
    return []


def _call_reasoning(draw: Draw, shape: Shape) -> str:
    arguments = ", ".join(f"{key} is {value}" for key, value in shape.arguments.items())
    return draw.pick(
        (
            f"The tool {shape.name} does this: {arguments}.",
            f"I call {shape.name}.",
            f"This needs {shape.name} with {arguments}.",
        )
    )


def _offered(draw: Draw, shape: Shape) -> list[Shape]:
    shapes = [shape]
    known = {shape.name, shape.tool["function"]["description"]}
    for _ in range(draw.pick((0, 0, 1, 1, 2, 3, 4))):
        other = draw_shape(draw)
        if not known & {other.name, other.tool["function"]["description"]}:
            known |= {other.name, other.tool["function"]["description"]}
            shapes.append(other)
    return draw.shuffled(shapes)


def _left_alone(draw: Draw) -> Example:
    plain = facts(draw) if draw.chance(0.7) else talk(draw)
    offered = _offered(draw, draw_shape(draw))
    return dataclasses.replace(plain, family="tools", tools=tuple(s.tool for s in offered))


def _refused(draw: Draw, shape: Shape, offered: list[Shape]) -> Example:
    others = [other for other in offered if other is not shape]
    while not others:
        other = draw.pick(SHAPES)(draw)
        described = other.tool["function"]["description"]
        if described != shape.tool["function"]["description"]:
            others = [other]
    tools_left = [other.tool for other in others]
    user = draw.polite(shape.request)
    reasoning = "None of the tools fits this request."
    check = Check("one_of", (NO_TOOL,))
    return draw.example(
        "tools", user, NO_TOOL, check, reasoning=reasoning, system="", tools=tools_left
    )


def _two_calls(draw: Draw, offered: list[Shape]) -> Example:
    shape = SHAPES[0](draw)
    offered = [other for other in offered if "weather" not in other.name][:3]
    offered = draw.shuffled([shape, *offered])
    second, more = weather_in(draw, shape)
    key = next(iter(shape.arguments))
    shape = dataclasses.replace(shape, arguments={key: shape.arguments[key]})
    first = shape.arguments[key]
    more = {key: second}
    calls = [
        {"name": shape.name, "arguments": shape.arguments},
        {"name": shape.name, "arguments": more},
    ]
    user = draw.pick(
        (
            f"What is the weather in {first} and in {second}?",
            f"Compare the weather of {first} and {second}.",
            f"Weather in {first} and {second}, please.",
            f"What's the weather like in {first} and {second}?",
        )
    )
    enable = draw.chance(0.35)
    messages = _opening(draw)
    messages.append({"role": "user", "content": user})
    reasoning = f"Two calls of {shape.name}: {first} and {second}." if enable else None
    messages.append(draw.reply(None, reasoning, calls))
    tools_given = tuple(other.tool for other in offered)
    return Example("tools", tuple(messages), Check("tool_calls", calls), tools_given, enable)
