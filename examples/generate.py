"""Use the offline API: continue a text, answer a chat, sample several answers.

`python examples/generate.py [MODEL]`
"""

import sys

from eyas import LLM, SamplingParams


def main(model: str = "builtin") -> None:
    with LLM(model) as llm:
        questions = ["What is the capital of France?", "Specify a random city.", "ping"]
        conversations = [[{"role": "user", "content": question}] for question in questions]
        params = SamplingParams(temperature=0, max_tokens=40)
        answers = llm.chat(conversations, params, enable_thinking=False)
        for question, output in zip(questions, answers, strict=True):
            print(f"{question}\n  {output.text}")

        sampled = SamplingParams(temperature=0.9, top_p=0.95, seed=3, n=3, max_tokens=20)
        output = llm.chat(conversations[1], sampled, enable_thinking=False)[0]
        print("three answers:", *(choice.text for choice in output.choices), sep="\n  ")

        scored = SamplingParams(temperature=0, logprobs=2, max_tokens=4)
        choice = llm.generate("The capital of France is", scored)[0].choices[0]
        for token in choice.logprobs or []:
            text = llm.tokenizer.token_text(token.token_id)
            print(f"  {text!r}: {token.logprob:.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
