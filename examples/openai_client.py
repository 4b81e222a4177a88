"""Use a running `eyas serve` with the `openai` client.

`eyas serve --port 8000`, then `python examples/openai_client.py [http://127.0.0.1:8000/v1]`
"""

import sys

from openai import OpenAI


def main(base_url: str = "http://127.0.0.1:8000/v1", api_key: str = "none") -> None:
    client = OpenAI(base_url=base_url, api_key=api_key)
    model = client.models.list().data[0].id
    no_reasoning = {"chat_template_kwargs": {"enable_thinking": False}}

    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        temperature=0,
        max_completion_tokens=40,
        extra_body=no_reasoning,
    )
    print(answer.choices[0].message.content)

    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Write the numbers from 6 to 14."}],
        temperature=0.7,
        seed=1,
        max_completion_tokens=80,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=no_reasoning,
    )
    for chunk in stream:
        for choice in chunk.choices:
            print(choice.delta.content or "", end="", flush=True)
        if chunk.usage is not None:
            print(f"\n{chunk.usage.completion_tokens} tokens")


if __name__ == "__main__":
    main(*sys.argv[1:3])
