// Creates elements that are built once. What comes from outside is inserted as text, never as markup. Views whose
// elements change in place are lit-html templates instead.

import { decisionText } from "./format.js";

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

/** @typedef {Node | string | null | undefined | false | Child[]} Child */
/** @typedef {string | number | boolean | null | undefined | ((event: any) => unknown)} AttributeValue */
/** @typedef {Record<string, AttributeValue>} Attributes */

/**
 * Creates an HTML element. Attributes named `on...` are listeners; null, undefined and false are left out.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Attributes} [attributes]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/**
 * Creates an SVG element; otherwise like `el`.
 * @template {keyof SVGElementTagNameMap} K
 * @param {K} tag
 * @param {Attributes} [attributes]
 * @param {...Child} children
 * @returns {SVGElementTagNameMap[K]}
 */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG_NAMESPACE, tag), attributes, children);
}

/**
 * @template {Element} E
 * @param {E} node
 * @param {Attributes} attributes
 * @param {Child[]} children
 */
function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === "function") node.addEventListener(key.slice(2), value);
    else if (key === "value" || key === "checked" || key === "disabled") Object.assign(node, { [key]: value });
    else node.setAttribute(key, value === true ? "" : String(value));
  }
  node.append(...flatten(children));
  return node;
}

/**
 * @param {Child} child
 * @returns {(Node | string)[]}
 */
function flatten(child) {
  if (Array.isArray(child)) return child.flatMap(flatten);
  return child === null || child === undefined || child === false ? [] : [child];
}

/**
 * Returns the element with an id, which must exist and be of the given type.
 * @template {HTMLElement} E
 * @param {string} id
 * @param {new () => E} type
 * @returns {E}
 */
export function byId(id, type) {
  const element = document.getElementById(id);
  if (!(element instanceof type)) throw new Error(`the page has no ${type.name} with the id ${id}`);
  return element;
}

/**
 * Creates a labelled drop-down list; `onChange` receives the selected key.
 * @param {string} label
 * @param {[key: string, text: string][]} options
 * @param {string} value
 * @param {(value: string) => unknown} onChange
 */
export function select(label, options, value, onChange) {
  /** @type {HTMLSelectElement} */
  const field = el("select", { "aria-label": label, onchange: () => onChange(field.value) });
  for (const [key, text] of options) field.append(el("option", { value: key }, text));
  field.value = value;
  return el("label", { class: "field" }, `${label} `, field);
}

/**
 * @param {Child} content
 * @param {(event: MouseEvent) => unknown} onClick
 * @param {Attributes} [attributes]
 */
export function button(content, onClick, attributes = {}) {
  return el("button", { type: "button", onclick: onClick, ...attributes }, content);
}

/**
 * @param {Child} content
 * @param {string} kind the CSS class that colours the badge
 */
export function badge(content, kind) {
  return el("span", { class: `badge ${kind}` }, content);
}

/**
 * @param {boolean} isAnomaly
 */
export function decisionBadge(isAnomaly) {
  return badge(decisionText(isAnomaly), decisionText(isAnomaly));
}

/**
 * Creates a table that scrolls sideways where it does not fit.
 * @param {string[]} headings
 * @param {HTMLTableSectionElement} body
 * @param {Attributes} [attributes]
 */
export function table(headings, body, attributes = {}) {
  const head = el("tr", {}, headings.map((text) => el("th", { scope: "col" }, text)));
  return el("div", { class: "scroll" }, el("table", attributes, el("thead", {}, head), body));
}

/**
 * Creates a row of plain cells.
 * @param {Child[]} cells
 */
export function tableRow(cells) {
  return el("tr", {}, cells.map((content) => el("td", {}, content)));
}

/**
 * Creates a text that lists keyboard shortcuts.
 * @param {[key: string, action: string][]} shortcuts
 */
export function shortcutHint(shortcuts) {
  return el("span", {}, shortcuts.map(([key, action]) => [el("kbd", {}, key), ` ${action}  `]));
}

/**
 * Whether a key press is input for a form field or a dialog rather than a shortcut.
 * @param {KeyboardEvent} event
 */
export function isTyping(event) {
  const { target } = event;
  const inField = target instanceof HTMLElement && target.matches("textarea, select, input:not([type=range], [type=checkbox])");
  return inField || document.querySelector("dialog[open]") !== null;
}

/**
 * Returns the key of an event, letters in lower case.
 * @param {KeyboardEvent} event
 */
export function keyOf(event) {
  return event.key.length === 1 ? event.key.toLowerCase() : event.key;
}

/**
 * Resolves after a pause.
 * @param {number} milliseconds
 * @returns {Promise<void>}
 */
export function pause(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}
