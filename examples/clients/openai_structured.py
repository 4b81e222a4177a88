"""Request structured answers and tool calls from a running `eyas serve` with the `openai` client.

`pip install openai`, then `python examples/clients/openai_structured.py [http://127.0.0.1:8000/v1]`
"""

import sys

from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel


class City(BaseModel):
    name: str
    population: int


class GetWeather(BaseModel):
    """The weather in a city."""

    city: str


def main(base_url: str = "http://127.0.0.1:8000/v1") -> None:
    client = OpenAI(base_url=base_url, api_key="none")
    model = client.models.list().data[0].id

    city = client.chat.completions.parse(
        model=model,
        messages=[{"role": "user", "content": "Specify a random city as JSON."}],
        response_format=City,
    )
    print(city.choices[0].message.parsed)

    call = client.chat.completions.parse(
        model=model,
        messages=[{"role": "user", "content": "What is the weather in Paris?"}],
        tools=[pydantic_function_tool(GetWeather)],
        tool_choice="required",
    )
    for tool_call in call.choices[0].message.tool_calls or ():
        print(tool_call.function.name, tool_call.function.parsed_arguments)

    with client.chat.completions.stream(
        model=model,
        messages=[{"role": "user", "content": "Specify a random city as JSON."}],
        response_format=City,
    ) as stream:
        for event in stream:
            if event.type == "content.delta":
                print(event.delta, end="", flush=True)
    print("\n" + repr(stream.get_final_completion().choices[0].message.parsed))


if __name__ == "__main__":
    main(*sys.argv[1:2])
