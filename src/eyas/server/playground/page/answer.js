// What the chunks of one streamed answer add up to. Knows no elements.

export class Answer {
  constructor() {
    this.reasoning = "";
    this.content = "";
    this.calls = [];
    this.steps = [];
    this.finishReason = null;
    this.usage = null;
    this.seconds = 0;
    this.error = null;
    this.startedAt = performance.now();
  }

  add(chunk) {
    if (chunk.usage) this.usage = chunk.usage;
    for (const choice of chunk.choices) {
      const delta = choice.delta;
      this.reasoning += delta.reasoning_content ?? "";
      this.content += delta.content ?? "";
      for (const call of delta.tool_calls ?? []) this.#addCall(call);
      this.steps.push(...(choice.draft_trees ?? []));
      if (choice.finish_reason) this.finishReason = choice.finish_reason;
    }
    this.seconds = (performance.now() - this.startedAt) / 1000;
  }

  #addCall(part) {
    this.calls[part.index] ??= { id: part.id, name: part.function.name, arguments: "" };
    this.calls[part.index].arguments += part.function.arguments ?? "";
  }

  get tokens() {
    return this.steps.flatMap((step) => step.tokens);
  }

  /** The answer as a message of the next request. */
  get message() {
    const message = { role: "assistant", content: this.content };
    if (this.reasoning) message.reasoning_content = this.reasoning;
    if (this.calls.length) {
      message.tool_calls = this.calls.map(({ id, name, arguments: text }) => ({
        id,
        type: "function",
        function: { name, arguments: text },
      }));
    }
    return message;
  }
}

/** Compares two finished answers: their tokens as far as both are recorded, their whole texts and how
 * they ended. Returns the number of tokens, and whether all is equal. */
export function compared(one, other) {
  const ids = (answer) => answer.tokens.map((token) => token.id);
  const [left, right] = [ids(one), ids(other)];
  const length = Math.min(left.length, right.length);
  const said = ({ reasoning, content, calls, finishReason, usage }) =>
    JSON.stringify([
      reasoning,
      content,
      calls.map((call) => [call.name, call.arguments]),
      finishReason,
      usage?.completion_tokens,
    ]);
  const differing = left.slice(0, length).findIndex((id, place) => id !== right[place]);
  return {
    isEqual: differing < 0 && said(one) === said(other),
    numTokens: one.usage?.completion_tokens ?? left.length,
    firstDifference: differing < 0 ? length : differing,
  };
}
