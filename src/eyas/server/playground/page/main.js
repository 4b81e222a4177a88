// Brings the parts together: sends what is asked, and shows what arrives.

import { Answer } from "./answer.js";
import { ApiError, get, streamChat, useKey } from "./api.js";
import { Conversation, Turn } from "./conversation.js";
import { byId, element } from "./elements.js";
import { EXAMPLES, Settings, SettingsError } from "./settings.js";
import { TreePanel } from "./tree.js";

const settings = new Settings();
const conversation = new Conversation();
const trees = new TreePanel();
let model = null;
let running = null;

function fail(message) {
  byId("problem").textContent = message ?? "";
  byId("problem").hidden = !message;
}

async function connect() {
  try {
    const models = await get("v1/models");
    const info = await get("server_info");
    model = models.data[0].id;
    byId("model").textContent = [model, info.device, info.dtype].join(" · ");
    byId("exact").textContent = info.exact ? "exact" : "not exact";
    byId("exact").hidden = false;
    byId("key-panel").hidden = true;
    fail(null);
    byId("prompt").focus();
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) {
      if (!byId("key-panel").hidden) fail("The server refuses this key.");
      byId("key-panel").hidden = false;
      byId("key").focus();
    } else if (error instanceof ApiError && error.status === 503) {
      byId("model").textContent = "loading the model";
      setTimeout(connect, 1000);
    } else fail(`The server cannot be reached: ${error.message}`);
  }
}

/** Stream one answer into `answer`. Its errors end in it, so that the other answer goes on. */
async function receive(answer, body, signal, onChange) {
  try {
    for await (const chunk of streamChat(body, signal)) {
      answer.add(chunk);
      onChange();
    }
  } catch (error) {
    answer.error = error.name === "AbortError" ? "stopped" : error.message;
    answer.refusal = error;
  }
  onChange();
}

async function ask() {
  const fields = settings.fields();
  const messages = [...conversation.messages];
  if (settings.system) messages.unshift({ role: "system", content: settings.system });
  const body = { model, messages, return_draft_trees: true, ...fields };
  const compares = settings.compares;
  const drafted = new Answer();
  const plain = compares ? new Answer() : null;
  const turn = new Turn(compares, () => trees.show(drafted.steps));
  conversation.addTurn(turn);
  let isDue = false;
  const draw = () => {
    isDue = false;
    turn.show(drafted, plain);
    trees.show(drafted.steps);
    conversation.scroll();
  };
  const onChange = () => {
    if (!isDue) requestAnimationFrame(draw);
    isDue = true;
  };
  running = new AbortController();
  busy(true);
  const answers = [receive(drafted, body, running.signal, onChange)];
  if (plain) answers.push(receive(plain, { ...body, max_draft_nodes: 1 }, running.signal, onChange));
  await Promise.all(answers);
  busy(false);
  draw();
  const refusal = drafted.refusal ?? plain?.refusal;
  if (refusal) {
    if (refusal instanceof ApiError) settings.place(refusal.param, refusal.message);
    if (refusal.status === 401) connect();
    conversation.leaveOut(drafted);
    return;
  }
  trees.chooseBest();
  conversation.messages.push(drafted.message);
  if (plain) turn.judge(drafted, plain);
  if (drafted.calls.length) {
    turn.askForResults(drafted.calls, (results) => {
      conversation.addResults(results);
      tryToAsk();
    });
  }
  conversation.scroll();
}

async function tryToAsk() {
  fail(null);
  try {
    await ask();
  } catch (error) {
    if (!(error instanceof SettingsError)) throw error;
    if (error.editor) settings.complain(error.editor, error.message);
    fail(error.editor ? `${error.editor}: ${error.message}` : error.message);
  }
}

function busy(isBusy) {
  byId("send").disabled = isBusy;
  byId("stop").hidden = !isBusy;
  byId("log").setAttribute("aria-busy", String(isBusy));
  if (!isBusy) running = null;
}

async function send() {
  const text = byId("prompt").value.trim();
  if (!text || running || !model) return;
  try {
    settings.fields();
  } catch {
    await tryToAsk();
    return;
  }
  byId("prompt").value = "";
  conversation.addUser(text);
  await tryToAsk();
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
byId("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
byId("stop").addEventListener("click", () => running?.abort());
byId("new").addEventListener("click", () => {
  running?.abort();
  conversation.clear();
  trees.show([]);
  fail(null);
  byId("prompt").focus();
});
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(byId("key").value);
  byId("key").value = "";
  connect();
});
for (const button of document.querySelectorAll("[data-example]")) {
  button.addEventListener("click", () => {
    const example = EXAMPLES[button.dataset.example];
    settings.use(example);
    byId("prompt").value = example.prompt;
    byId("prompt").focus();
  });
}
for (const [fate, text] of [
  ["accepted", "accepted"],
  ["chosen", "chosen by the model"],
  ["refused", "refused by the grammar"],
  ["unused", "not used"],
]) {
  byId("legend").append(element("li", { class: fate }, text));
}
connect();
