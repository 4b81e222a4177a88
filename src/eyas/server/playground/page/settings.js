// The form of settings, read as the fields of a request.

import { byId } from "./elements.js";

const NUMBERS = [
  "temperature",
  "top_p",
  "top_k",
  "min_p",
  "repetition_penalty",
  "presence_penalty",
  "frequency_penalty",
  "max_tokens",
  "max_reasoning_tokens",
  "max_draft_nodes",
  "seed",
];
const EDITORS = {
  schema: ["response_format", "json_schema", "schema"],
  regex: ["regex"],
  tools: ["tools", "tool_choice"],
};
/** The editors, with the request fields whose errors are about them. */

const PERSON = {
  type: "object",
  properties: { name: { type: "string" }, age: { type: "integer" } },
  required: ["name", "age"],
  additionalProperties: false,
};
const CITY = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
export const WEATHER = [
  {
    type: "function",
    function: { name: "get_weather", description: "The weather in a city", parameters: CITY },
  },
];

export const EXAMPLES = {
  story: { prompt: "Write a story about a fox.", format: "text", hasTools: false },
  person: {
    prompt: "Extract name and age as JSON: Maria Silva is 34 years old.",
    format: "schema",
    schema: PERSON,
    hasTools: false,
  },
  regex: {
    prompt: "What is the capital of France?",
    format: "regex",
    regex: "(Paris|Amsterdam)",
    hasTools: false,
  },
  weather: { prompt: "What is the weather in Oslo?", format: "text", hasTools: true, tools: WEATHER },
};

/** A field of the form that cannot be sent. editor: the name of the editor at fault, or null. */
export class SettingsError extends Error {
  constructor(message, editor) {
    super(message);
    this.editor = editor;
  }
}

export class Settings {
  #form = byId("settings");

  constructor() {
    this.#form.addEventListener("change", () => this.#showChosen());
    this.#form.addEventListener("submit", (event) => event.preventDefault());
    for (const name of Object.keys(EDITORS)) {
      byId(name).addEventListener("input", () => this.complain(name, null));
    }
    for (const name of ["schema", "tools"]) {
      byId(`${name}-format`).addEventListener("click", () => this.#reformat(name));
    }
    this.use(EXAMPLES.person);
    this.use(EXAMPLES.regex);
    this.use(EXAMPLES.weather);
    this.use(EXAMPLES.story);
  }

  get compares() {
    return byId("compare").checked;
  }

  get system() {
    return byId("system").value.trim();
  }

  /** Fill in an example. */
  use({ format, schema, regex, hasTools, tools }) {
    this.#form.elements.format.value = format;
    byId("has-tools").checked = hasTools;
    if (schema) byId("schema").value = JSON.stringify(schema, null, 2);
    if (regex) byId("regex").value = regex;
    if (tools) byId("tools").value = JSON.stringify(tools, null, 2);
    byId("tools-panel").open = hasTools;
    Object.keys(EDITORS).forEach((name) => this.complain(name, null));
    this.#showChosen();
  }

  /** The fields of a request. SettingsError if one cannot be read. */
  fields() {
    const fields = {};
    for (const name of NUMBERS) {
      const input = byId(name);
      if (!input.validity.valid) throw new SettingsError(`${name}: ${input.validationMessage}`, null);
      if (input.value !== "") fields[name] = input.valueAsNumber;
    }
    fields.seed ??= Math.floor(Math.random() * 2 ** 32);
    const format = this.#form.elements.format.value;
    if (format === "regex") fields.regex = byId("regex").value;
    if (format === "schema") {
      const schema = this.#parsed("schema", (value) => value instanceof Object && !Array.isArray(value));
      fields.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
    }
    if (byId("has-tools").checked) {
      fields.tools = this.#parsed("tools", Array.isArray);
      fields.tool_choice = byId("tool_choice").value;
    }
    return fields;
  }

  /** Show an error of the server beside the editor it is about. Returns whether there is one. */
  place(param, message) {
    const root = (param ?? "").split(/[.[]/)[0];
    const name = Object.keys(EDITORS).find((editor) => EDITORS[editor].includes(root));
    if (name) this.complain(name, message);
    return Boolean(name);
  }

  /** Show what is wrong with an editor's text; null if nothing is. */
  complain(name, message) {
    byId(`${name}-error`).textContent = message ?? "";
    byId(name).setAttribute("aria-invalid", String(message !== null));
  }

  #parsed(name, isRight) {
    let value;
    try {
      value = JSON.parse(byId(name).value);
    } catch (error) {
      throw new SettingsError(`not valid JSON: ${error.message}`, name);
    }
    if (isRight(value)) return value;
    throw new SettingsError(name === "tools" ? "must be a list of tools" : "must be an object", name);
  }

  #reformat(name) {
    try {
      byId(name).value = JSON.stringify(JSON.parse(byId(name).value), null, 2);
      this.complain(name, null);
    } catch (error) {
      this.complain(name, `not valid JSON: ${error.message}`);
    }
  }

  #showChosen() {
    const format = this.#form.elements.format.value;
    byId("schema-panel").hidden = format !== "schema";
    byId("regex-panel").hidden = format !== "regex";
  }
}
