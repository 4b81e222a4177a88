"""Chat in the terminal with streamed answers; an empty line ends it.

`python examples/chat_stream.py [MODEL]`
"""

import sys

from eyas import LLM


def main(model: str = "builtin") -> None:
    with LLM(model, drafter="ngram") as llm:
        messages: list[dict[str, str]] = []
        for line in sys.stdin:
            if not line.strip():
                break
            messages.append({"role": "user", "content": line.strip()})
            params = llm.default_params(max_tokens=200)
            answer = ""
            for delta in llm.stream_chat(messages, params, enable_thinking=False):
                print(delta.text, end="", flush=True)
                answer += delta.text
                if delta.usage is not None:
                    steps, tokens = delta.usage.num_steps, delta.usage.num_output_tokens
                    print(f"\n  ({tokens} tokens in {steps} steps)")
            messages.append({"role": "assistant", "content": answer})


if __name__ == "__main__":
    main(*sys.argv[1:2])
