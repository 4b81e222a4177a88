"""Use instructor with a running `eyas serve`, in each of its modes.

`pip install instructor`, then `python examples/clients/instructor_client.py [BASE_URL]`
"""

import sys

import instructor
from openai import OpenAI
from pydantic import BaseModel


class City(BaseModel):
    name: str
    population: int


def main(base_url: str = "http://127.0.0.1:8000/v1") -> None:
    plain = OpenAI(base_url=base_url, api_key="none")
    model = plain.models.list().data[0].id
    messages = [{"role": "user", "content": "Specify a random city as JSON."}]
    for name in ("TOOLS", "TOOLS_STRICT", "JSON_SCHEMA", "JSON"):
        mode = getattr(instructor.Mode, name, None)
        if mode is None:
            continue
        client = instructor.from_openai(plain, mode=mode)
        city = client.chat.completions.create(
            model=model, messages=messages, response_model=City, max_tokens=200
        )
        print(name, repr(city))
    client = instructor.from_openai(plain, mode=instructor.Mode.TOOLS)
    partials = client.chat.completions.create_partial(
        model=model, messages=messages, response_model=City, max_tokens=200
    )
    print("partial", repr(list(partials)[-1]))


if __name__ == "__main__":
    main(*sys.argv[1:2])
