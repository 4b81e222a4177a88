// The draft trees of one answer: a strip of its steps, and the tree of the chosen one.

import { byId, counted, element, shape, visible } from "./elements.js";

const COLUMN = 116;
const ROW = 42;
const BOX = { width: 94, height: 32 };
const SHOWN_CHARACTERS = 11;
const MARGIN = 4;
const FATES = {
  root: "last known token",
  accepted: "drafted and accepted",
  refused: "refused by the grammar",
  unused: "not used",
  chosen: "chosen by the model",
};

/** The nodes of a step with the token that the model chose at the end of the walk, if it was not
 * drafted. */
function nodesOf(step) {
  const nodes = step.nodes.map((node) => ({ ...node }));
  const accepted = nodes.filter((node) => node.fate === "accepted");
  const chosen = step.tokens[accepted.length];
  if (chosen && !nodes.some((node) => node.fate === "chosen")) {
    const above = nodes.findLastIndex((node) => node.fate === "accepted" || node.fate === "root");
    nodes.push({ ...chosen, parent: above, source: "", score: null, fate: "chosen" });
  }
  return nodes;
}

/** Gives each node a column, its depth, and a row; a parent stands at its first child's. */
function placed(nodes) {
  const children = nodes.map(() => []);
  nodes.forEach((node, place) => node.parent >= 0 && children[node.parent].push(place));
  const isOnPath = ({ fate }) => fate === "accepted" || fate === "chosen";
  let rows = 0;
  const place = (number, depth) => {
    const node = nodes[number];
    node.column = depth;
    const ordered = children[number].sort((a, b) => isOnPath(nodes[b]) - isOnPath(nodes[a]));
    ordered.forEach((child) => place(child, depth + 1));
    node.row = ordered.length ? nodes[ordered[0]].row : rows++;
  };
  if (nodes.length) place(0, 0);
  const columns = 1 + Math.max(0, ...nodes.map((node) => node.column));
  return { columns, rows };
}

function scored(score) {
  return score === null ? "" : score.toFixed(2).replace("-", "−");
}

function described(node) {
  const parts = [JSON.stringify(node.text), `token ${node.id}`, FATES[node.fate]];
  if (node.source) parts.push(`drafted by ${node.source}`);
  if (node.score !== null) parts.push(`score ${scored(node.score)}`);
  return parts.join(", ");
}

function drawnNode(node) {
  const [x, y] = [MARGIN + node.column * COLUMN, MARGIN + node.row * ROW];
  const note = node.source ? `${node.source} ${scored(node.score)}` : "model";
  return shape(
    "g",
    { class: `node ${node.fate}`, transform: `translate(${x} ${y})` },
    shape("title", {}, described(node)),
    shape("rect", { ...BOX, rx: 6 }),
    shape("text", { x: 8, y: 14, class: "token" }, visible(node.text, SHOWN_CHARACTERS)),
    shape("text", { x: 8, y: 26, class: "note" }, node.fate === "root" ? "root" : note),
  );
}

function drawnEdge(nodes, node) {
  const above = nodes[node.parent];
  const [x1, y1] = [MARGIN + above.column * COLUMN + BOX.width, MARGIN + above.row * ROW + 16];
  const [x2, y2] = [MARGIN + node.column * COLUMN, MARGIN + node.row * ROW + 16];
  const middle = (x1 + x2) / 2;
  return shape("path", {
    class: `edge ${node.fate}`,
    d: `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`,
  });
}

function drawing(step, label) {
  const nodes = nodesOf(step);
  const { columns, rows } = placed(nodes);
  const width = 2 * MARGIN + (columns - 1) * COLUMN + BOX.width;
  const height = 2 * MARGIN + (rows - 1) * ROW + BOX.height;
  return shape(
    "svg",
    { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    ...nodes.filter((node) => node.parent >= 0).map((node) => drawnEdge(nodes, node)),
    ...nodes.map(drawnNode),
  );
}

function summary(step, number, total) {
  const drafted = step.nodes.slice(1);
  const sources = [...new Set(drafted.map((node) => node.source))].join(", ");
  const count = (fate) => drafted.filter((node) => node.fate === fate).length;
  const parts = [`Step ${number + 1} of ${total}`];
  parts.push(drafted.length ? `${counted(drafted.length, "node")} drafted by ${sources}` : "no draft");
  if (drafted.length) parts.push(`${count("accepted")} accepted`);
  if (count("refused")) parts.push(`${count("refused")} refused by the grammar`);
  parts.push(counted(step.tokens.length, "token"));
  return parts.join(" · ");
}

function table(step) {
  const cells = (tag, ...texts) => texts.map((text) => element(tag, {}, String(text)));
  const names = ["node", "parent", "token", "id", "source", "score", "fate"];
  const rows = step.nodes.map((node, number) =>
    element(
      "tr",
      {},
      ...cells("td", number, node.parent < 0 ? "" : node.parent, visible(node.text), node.id),
      ...cells("td", node.source, scored(node.score), FATES[node.fate]),
    ),
  );
  return [
    element("thead", {}, element("tr", {}, ...cells("th", ...names))),
    element("tbody", {}, ...rows),
  ];
}

export class TreePanel {
  #strip = byId("steps");
  #canvas = byId("tree");
  #summary = byId("tree-summary");
  #table = byId("tree-table");
  #steps = [];
  #chosen = -1;
  #follows = true;

  constructor() {
    this.#strip.addEventListener("keydown", (event) => this.#move(event));
    byId("tree-live").addEventListener("change", (event) => {
      this.#follows = event.target.checked;
      if (this.#follows) this.#choose(this.#steps.length - 1);
    });
    byId("tree-details").addEventListener("toggle", () => this.#draw());
  }

  /** Show these steps, which grow while an answer arrives. */
  show(steps) {
    const isNew = steps !== this.#steps;
    if (isNew) {
      this.#steps = steps;
      this.#chosen = -1;
      this.#follow(true);
      this.#strip.replaceChildren();
    }
    const start = this.#strip.childElementCount;
    this.#strip.append(...steps.slice(start).map((step, place) => this.#stepButton(step, start + place)));
    byId("tree-empty").hidden = steps.length > 0;
    if (isNew || (this.#follows && start < steps.length)) this.#choose(steps.length - 1);
    else if (this.#chosen >= 0) this.#summary.textContent = this.#summaryText();
  }

  /** Choose the step in which most drafted tokens were accepted, of an answer that is complete. */
  chooseBest() {
    const score = ({ nodes }) =>
      nodes.filter(({ fate }) => fate === "accepted").length +
      (nodes.some(({ fate }) => fate === "refused") ? 0.5 : 0);
    const scores = this.#steps.map(score);
    if (this.#follows && scores.length) this.#choose(scores.indexOf(Math.max(...scores)));
  }

  #stepButton(step, number) {
    const numAccepted = step.nodes.filter((node) => node.fate === "accepted").length;
    const tokens = step.tokens.map((token, place) =>
      element("span", { class: place < numAccepted ? "accepted" : "chosen" }, visible(token.text)),
    );
    const label = `step ${number + 1}: ${step.tokens.map((token) => token.text).join("")}`;
    return element(
      "button",
      {
        type: "button",
        tabindex: -1,
        "aria-label": label,
        "aria-pressed": "false",
        onclick: () => {
          this.#follow(false);
          this.#choose(number);
        },
      },
      ...tokens,
    );
  }

  #follow(value) {
    this.#follows = byId("tree-live").checked = value;
  }

  #move(event) {
    const last = this.#steps.length - 1;
    const targets = {
      ArrowLeft: this.#chosen - 1,
      ArrowRight: this.#chosen + 1,
      Home: 0,
      End: last,
    };
    if (!(event.key in targets) || last < 0) return;
    event.preventDefault();
    this.#follow(false);
    this.#choose(Math.max(0, Math.min(last, targets[event.key])));
    this.#strip.children[this.#chosen].focus();
  }

  #choose(number) {
    const buttons = this.#strip.children;
    if (buttons[this.#chosen]) {
      buttons[this.#chosen].setAttribute("aria-pressed", "false");
      buttons[this.#chosen].tabIndex = -1;
    }
    this.#chosen = number;
    const button = buttons[number];
    if (button) {
      button.setAttribute("aria-pressed", "true");
      button.tabIndex = 0;
      const { offsetTop, offsetHeight } = button;
      const { scrollTop, clientHeight } = this.#strip;
      if (offsetTop < scrollTop || offsetTop + offsetHeight > scrollTop + clientHeight) {
        this.#strip.scrollTop = offsetTop - clientHeight / 2;
      }
    }
    this.#draw();
  }

  #summaryText() {
    return summary(this.#steps[this.#chosen], this.#chosen, this.#steps.length);
  }

  #draw() {
    const step = this.#steps[this.#chosen];
    const text = step ? this.#summaryText() : "";
    this.#summary.textContent = text;
    this.#canvas.replaceChildren(...(step ? [drawing(step, `Draft tree. ${text}`)] : []));
    this.#table.replaceChildren(...(step && byId("tree-details").open ? table(step) : []));
  }
}
