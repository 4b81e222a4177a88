"""Constrain answers offline: to a type, a choice of words, a pattern, a tool call.

`python examples/structured_output.py [MODEL]`
"""

import json
import sys
from dataclasses import dataclass
from typing import Any, Literal

from eyas import LLM, Regex, SamplingParams


@dataclass
class Person:
    name: str
    age: int


Mood = Literal["positive", "neutral", "negative"]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "City name"}},
            "required": ["city"],
        },
    },
}


def main(model: str = "builtin") -> None:
    params = SamplingParams(temperature=0, max_tokens=200)
    with LLM(model) as llm:

        def ask(question: str, **options: Any) -> Any:
            return llm.chat([{"role": "user", "content": question}], params, **options)

        text = "Extract name and age as JSON: Maria Silva is 34 years old."
        print(ask(text, output=Person))
        print(ask("Is this positive? The coffee is wonderful.", output=Mood))
        print(ask("What is the capital of France?", output=Regex("(Paris|Amsterdam)")))

        answer = ask("What is the weather in Oslo?", tools=[WEATHER])[0].choices[0]
        print("reasoning:", answer.reasoning)
        for call in answer.tool_calls:
            print(f"call: {call.name}({json.loads(call.arguments)})")


if __name__ == "__main__":
    main(*sys.argv[1:2])
