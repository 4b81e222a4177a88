"""Use guidance with a running `eyas serve`, through its experimental vLLM and SGLang models.

`pip install guidance openai`, then `python examples/clients/guidance_client.py [BASE_URL]`
"""

import sys

from guidance import assistant, gen, select, user
from guidance import json as json_of
from guidance.models.experimental import SglangModel, VLLMModel
from openai import OpenAI
from pydantic import BaseModel


class City(BaseModel):
    name: str
    population: int


def main(base_url: str = "http://127.0.0.1:8000/v1") -> None:
    name = OpenAI(base_url=base_url, api_key="none").models.list().data[0].id
    model = VLLMModel(name, base_url=base_url, api_key="none", echo=False)
    with user():
        asked = model + "Specify a random city."
    with assistant():
        print((asked + select(["Paris", "Amsterdam"], name="city"))["city"])
    with assistant():
        print((asked + json_of(name="city", schema=City))["city"])
    with assistant():
        print((asked + gen(regex="[A-Z][a-z]{2,9}", name="city"))["city"])

    model = SglangModel(name, base_url=base_url, api_key="none", echo=False)
    with user():
        asked = model + "Specify a random city."
    with assistant():
        print((asked + json_of(name="city", schema=City))["city"])


if __name__ == "__main__":
    main(*sys.argv[1:2])
