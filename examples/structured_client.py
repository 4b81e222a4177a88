"""Request a schema, a pattern and a tool call from a running `eyas serve`.

`eyas serve --port 8000`, then `python examples/structured_client.py [http://127.0.0.1:8000/v1]`
"""

import json
import sys

from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


class GetWeather(BaseModel):
    """Get the current weather in a city."""

    city: str


def main(base_url: str = "http://127.0.0.1:8000/v1") -> None:
    chat = OpenAI(base_url=base_url, api_key="none").chat.completions
    ask = {"model": "builtin", "temperature": 0, "max_completion_tokens": 200}

    text = "Extract name and age as JSON: Maria Silva is 34 years old."
    messages = [{"role": "user", "content": text}]
    person = chat.parse(messages=messages, response_format=Person, **ask)
    print(repr(person.choices[0].message.parsed))

    messages = [{"role": "user", "content": "What is the capital of France?"}]
    city = chat.create(messages=messages, extra_body={"regex": "(Paris|Amsterdam)"}, **ask)
    print(city.choices[0].message.content)

    tool = pydantic_function_tool(GetWeather, name="get_weather")
    messages = [{"role": "user", "content": "What is the weather in Oslo?"}]
    asked = chat.create(messages=messages, tools=[tool], **ask).choices[0].message
    print("reasoning:", asked.reasoning_content)
    call = asked.tool_calls[0]
    print(f"call: {call.function.name}({call.function.arguments})")

    weather = json.dumps({"temperature": 3, "sky": "cloudy"})
    result = {"role": "tool", "tool_call_id": call.id, "content": weather}
    answer = chat.create(messages=[*messages, asked, result], tools=[tool], **ask)
    print("answer:", answer.choices[0].message.content)


if __name__ == "__main__":
    main(*sys.argv[1:2])
