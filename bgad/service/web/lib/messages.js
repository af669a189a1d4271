// The line at the bottom of the page: the hint of a view, and messages, which screen readers announce. It has its own
// place, so that no message covers a score.

import { button, el } from "./dom.js";

const SHOWN_MILLISECONDS = 5000;
const LONG_MILLISECONDS = 12000; // for errors and for messages with a button
const FOCUS_MILLISECONDS = 2000; // how often a message checks whether its buttons still have the focus

/** @typedef {{ label: string, run: () => unknown }} Action */

const text = el("span", { id: "message-text" });
const actionButton = button("", () => {}, { id: "message-act", hidden: true });
/** @type {HTMLElement} */
const box = el("div", { id: "message", role: "status", "aria-live": "polite", hidden: true },
  text, actionButton, button("×", () => (box.hidden = true), { id: "message-close", "aria-label": "Close the message" }));

const bar = el("footer", { id: "status" }, box);

let timer = 0;

/** Adds the line to the page; screen readers only announce changes to an existing one. */
export function setUpMessages() {
  document.body.append(bar);
}

/**
 * Shows a view's hint in the line, until the view is left.
 * @param {HTMLElement} hint
 * @param {AbortSignal} signal
 */
export function showHint(hint, signal) {
  bar.prepend(hint);
  signal.addEventListener("abort", () => hint.remove());
}

/**
 * Shows one line for a few seconds.
 * @param {string} content
 * @param {{ isError?: boolean, action?: Action | null }} [options] `action` adds a button
 */
export function showMessage(content, { isError = false, action = null } = {}) {
  text.textContent = content;
  box.classList.toggle("bad", isError);
  box.hidden = false;
  actionButton.hidden = !action;
  actionButton.textContent = action?.label ?? "";
  actionButton.onclick = () => {
    box.hidden = true;
    action?.run();
  };
  clearTimeout(timer);
  timer = setTimeout(hide, isError || action ? LONG_MILLISECONDS : SHOWN_MILLISECONDS);
}

/** Hides the message, unless one of its buttons has the focus. */
function hide() {
  if (box.matches(":focus-within")) timer = setTimeout(hide, FOCUS_MILLISECONDS);
  else box.hidden = true;
}

/**
 * Shows an error, unless it only says that a request was aborted.
 * @param {unknown} error
 */
export function showError(error) {
  if (!isAbort(error)) showMessage(errorText(error), { isError: true });
}

/**
 * Whether an error says that a request was aborted on purpose.
 * @param {unknown} error
 */
export function isAbort(error) {
  return error instanceof Error && error.name === "AbortError";
}

/**
 * @param {unknown} error
 */
export function errorText(error) {
  return error instanceof Error ? error.message : String(error);
}

/**
 * Wraps an event listener so that its errors are shown.
 * @template {unknown[]} A
 * @param {(...args: A) => unknown} listener
 * @returns {(...args: A) => Promise<void>}
 */
export function reportErrors(listener) {
  return async (...args) => {
    try {
      await listener(...args);
    } catch (error) {
      showError(error);
    }
  };
}
