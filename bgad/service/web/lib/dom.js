// Builds elements and texts. Everything that comes from outside goes in as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes (`on...` are listeners) and children (text or elements). */
export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "value" || key === "checked" || key === "disabled") node[key] = value;
    else node.setAttribute(key, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export function select(label, options, value, changed) {
  const chosen = el("select", { "aria-label": label, onchange: (event) => changed(event.target.value) });
  for (const [key, text] of options) chosen.append(el("option", { value: key }, text));
  chosen.value = value;
  return el("label", { class: "field" }, `${label} `, chosen);
}

export function button(text, pressed, attributes = {}) {
  return el("button", { type: "button", onclick: pressed, ...attributes }, text);
}

// --- messages

let hiding = 0;

/** One line for everyone to see, and for screen readers to read; `act`, a text and what it does, is a button in it. */
export function say(text, bad = false, act = null) {
  const box = document.getElementById("message");
  const offer = document.getElementById("message-act");
  document.getElementById("message-text").textContent = text;
  box.classList.toggle("bad", bad);
  box.hidden = false;
  offer.hidden = !act;
  offer.textContent = act ? act[0] : "";
  offer.onclick = () => {
    box.hidden = true;
    act[1]();
  };
  clearTimeout(hiding);
  hiding = setTimeout(hide, bad || act ? 12000 : 5000);
}

/** Not while somebody is at its buttons. */
function hide() {
  const box = document.getElementById("message");
  if (box.matches(":focus-within")) hiding = setTimeout(hide, 2000);
  else box.hidden = true;
}

export function fail(error) {
  if (error.name !== "AbortError") say(error.message, true);
}

/** A listener that shows what goes wrong. */
export function guarded(work) {
  return async (...given) => {
    try {
      return await work(...given);
    } catch (error) {
      fail(error);
      return undefined;
    }
  };
}

/** Whether a key is meant for a field and not for the page. */
export function typing(event) {
  const into = event.target;
  const field = into instanceof HTMLElement && into.matches("textarea, select, input:not([type=range], [type=checkbox])");
  return field || document.querySelector("dialog[open]") !== null;
}

// --- texts

export function time(seconds) {
  return new Date(seconds * 1000).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
}

export function number(value) {
  return Math.abs(value) >= 1000 || value === 0 ? value.toFixed(0) : value.toPrecision(3);
}

export function percent(share) {
  const value = share * 100;
  return `${value >= 10 || value === 0 ? Math.round(value) : Number(value.toPrecision(2))} %`;
}

export function plural(count, one, many = `${one}s`) {
  return `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
}

export function decision(isAnomaly) {
  return isAnomaly ? "anomalous" : "normal";
}

export function badge(content, kind) {
  return el("span", { class: `badge ${kind}` }, content);
}

/** The version of a model as people call it: its number here and the start of its checksum. */
export function versionText(version) {
  return `version ${version.id ?? version.version} (${version.checksum.slice(0, 8)})`;
}
