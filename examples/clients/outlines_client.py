"""Use outlines with a running `eyas serve`, through its vLLM and SGLang models.

`pip install outlines openai`, then `python examples/clients/outlines_client.py [BASE_URL]`
"""

import sys
from typing import Literal

import outlines
from openai import OpenAI
from outlines.types import CFG
from pydantic import BaseModel

LARK = 'start: ("yes" | "no") " " /[a-z]{3}/'


class City(BaseModel):
    name: str
    population: int


def main(base_url: str = "http://127.0.0.1:8000/v1") -> None:
    client = OpenAI(base_url=base_url, api_key="none")
    name = client.models.list().data[0].id
    for connect in (outlines.from_vllm, outlines.from_sglang):
        model = connect(client, name)
        print(model("The capital of France?", Literal["Paris", "Amsterdam"], max_tokens=60))
        print(City.model_validate_json(model("A city as JSON", City, max_tokens=200)))
        print(model("How old are you?", int, max_tokens=60))
        print(model("Yes or no?", CFG(LARK), max_tokens=60))
        print("".join(model.stream("A city as JSON", City, max_tokens=200)))


if __name__ == "__main__":
    main(*sys.argv[1:2])
