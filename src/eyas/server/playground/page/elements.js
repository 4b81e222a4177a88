// Makes elements. Text is always a text node: nothing that a model or a user wrote is read as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element with attributes and children; strings become text. */
export function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** An SVG element with attributes and children; strings become text. */
export function shape(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** The element of the page with this id. */
export function byId(id) {
  return document.getElementById(id);
}

/** The text of a token with its white space made visible, at most `limit` characters. */
export function visible(text, limit = Infinity) {
  const shown = text.replaceAll(" ", "·").replaceAll("\n", "↵").replaceAll("\t", "⇥");
  const characters = Array.from(shown);
  return characters.length > limit ? `${characters.slice(0, limit - 1).join("")}…` : shown;
}

/** A number with a word in the singular or the plural. */
export function counted(number, word, plural = `${word}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? word : plural}`;
}
