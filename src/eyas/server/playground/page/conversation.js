// The conversation: its messages, and the elements that show them.

import { compared } from "./answer.js";
import { byId, counted, element } from "./elements.js";

/** One answer while it arrives and after. */
class AnswerCard {
  constructor(title, kind) {
    this.reasoning = element("p", { class: "reasoning-text" });
    this.details = element("details", { open: true, hidden: true, class: "reasoning" });
    this.details.append(element("summary", {}, "Reasoning"), this.reasoning);
    this.content = element("p", { class: "content" });
    this.calls = element("div", { class: "calls" });
    this.numbers = element("p", { class: "numbers" });
    this.error = element("p", { class: "error", role: "alert", hidden: true });
    this.root = element("section", { class: `card ${kind}`, "aria-label": `${title} answer` });
    this.root.append(element("h3", {}, title), this.details, this.content, this.calls);
    this.root.append(this.error, this.numbers);
  }

  show(answer) {
    this.details.hidden = !answer.reasoning;
    this.reasoning.textContent = answer.reasoning.trim();
    this.content.textContent = answer.content;
    this.calls.replaceChildren(
      ...answer.calls.map((call) =>
        element("div", { class: "call" }, element("b", {}, call.name), element("code", {}, call.arguments)),
      ),
    );
    this.error.hidden = !answer.error;
    this.error.textContent = answer.error ?? "";
    this.numbers.textContent = numbersOf(answer);
  }
}

function numbersOf(answer) {
  const numTokens = answer.usage?.completion_tokens ?? answer.tokens.length;
  if (!numTokens) return "";
  const parts = [counted(numTokens, "token")];
  if (answer.steps.length) {
    parts.push(counted(answer.steps.length, "step"));
    parts.push(`${(answer.tokens.length / answer.steps.length).toFixed(2)} tokens a step`);
  }
  if (answer.seconds) parts.push(`${(numTokens / answer.seconds).toFixed(0)} tokens/s`);
  if (answer.finishReason) parts.push(`ended by ${answer.finishReason}`);
  return parts.join(" · ");
}

/** The answer to one message: the drafted one, and beside it perhaps the plain one. */
export class Turn {
  constructor(compares, onSelect) {
    this.badge = element("p", { class: "badge", role: "status" });
    this.drafted = new AnswerCard(compares ? "Drafted" : "Answer", "drafted");
    this.plain = compares ? new AnswerCard("Plain", "plain") : null;
    this.results = element("div", { class: "results" });
    const select = element("button", { type: "button", class: "quiet", onclick: onSelect }, "Show trees");
    const cards = element("div", { class: "cards" }, this.drafted.root, this.plain?.root);
    const foot = element("div", { class: "turn-foot" }, this.badge, select);
    this.root = element("div", { class: "turn assistant" }, cards, foot, this.results);
  }

  show(drafted, plain) {
    this.drafted.show(drafted);
    this.plain?.show(plain);
  }

  /** Say whether the answers, which are complete, are equal. */
  judge(drafted, plain) {
    const { isEqual, numTokens, firstDifference } = compared(drafted, plain);
    this.badge.classList.add(isEqual ? "equal" : "different");
    this.badge.textContent = isEqual
      ? `✓ Equal: the same ${counted(numTokens, "token")}`
      : `✗ Different from token ${firstDifference + 1} on`;
  }

  /** Ask for the results of tool calls. onResults gets a message for each. */
  askForResults(calls, onResults) {
    const inputs = calls.map((call) =>
      element("input", { type: "text", value: '{"temperature": 7, "sky": "rain"}', "aria-label": `Result of ${call.name}` }),
    );
    const send = (event) => {
      event.preventDefault();
      this.results.replaceChildren();
      onResults(
        calls.map((call, place) => ({ role: "tool", tool_call_id: call.id, content: inputs[place].value })),
      );
    };
    const form = element("form", { class: "tool-results", onsubmit: send });
    calls.forEach((call, place) =>
      form.append(element("label", {}, `Result of ${call.name}`, inputs[place])),
    );
    form.append(element("button", { type: "submit" }, "Send results"));
    this.results.replaceChildren(form);
  }
}

export class Conversation {
  messages = [];
  #log = byId("log");

  clear() {
    this.messages = [];
    this.#log.replaceChildren();
    byId("welcome").hidden = false;
  }

  addUser(text) {
    this.messages.push({ role: "user", content: text });
    this.#append(element("div", { class: "turn user" }, text));
  }

  addResults(results) {
    this.messages.push(...results);
    for (const { content } of results) {
      this.#append(element("div", { class: "turn user result" }, element("code", {}, content)));
    }
  }

  /** Keep what a stopped answer has said, or forget the question if it has said nothing. */
  leaveOut(answer) {
    if (answer.content) this.messages.push({ role: "assistant", content: answer.content });
    else if (this.messages.at(-1)?.role === "user") this.messages.pop();
  }

  addTurn(turn) {
    this.#append(turn.root);
  }

  /** Keep the end in view while answers arrive. */
  scroll() {
    const area = byId("conversation");
    area.scrollTop = area.scrollHeight;
  }

  #append(node) {
    byId("welcome").hidden = true;
    this.#log.append(node);
    this.scroll();
  }
}
