"""Use pydantic-ai with a running `eyas serve`, through its vLLM provider: output by tool or schema.

`pip install 'pydantic-ai-slim[openai]'`, then
`python examples/clients/pydantic_ai_client.py [http://127.0.0.1:8000/v1]`
"""

import sys

from openai import OpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.vllm import VLLMProvider


class City(BaseModel):
    name: str
    population: int


def main(base_url: str = "http://127.0.0.1:8000/v1") -> None:
    name = OpenAI(base_url=base_url, api_key="none").models.list().data[0].id
    provider = VLLMProvider(base_url=base_url, api_key="none")
    model = OpenAIChatModel(name, provider=provider)
    settings = {"max_tokens": 200, "temperature": 0.0}
    for output in (ToolOutput(City), NativeOutput(City)):
        agent = Agent(model, output_type=output, instructions="Be short.")
        result = agent.run_sync("Specify a random city as JSON.", model_settings=settings)
        print(type(output).__name__, repr(result.output))


if __name__ == "__main__":
    main(*sys.argv[1:2])
