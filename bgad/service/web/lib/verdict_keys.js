// The keys G, B and U that give verdicts. A user whom they disturb can switch them off, for this browser.

import { el, keyOf, shortcutHint } from "./dom.js";
import { showHint } from "./messages.js";

/** @import { Verdict } from "./types.js" */

const STORAGE_KEY = "bgad-verdict-keys";
const OFF = "off";
/** @type {Record<string, Verdict>} */
const VERDICTS = { g: "good", b: "bad", u: "unsure" };

export function areVerdictKeysOn() {
  return localStorage.getItem(STORAGE_KEY) !== OFF;
}

/**
 * Returns the verdict that a key stands for, or undefined.
 * @param {KeyboardEvent} event
 * @returns {Verdict | undefined}
 */
export function verdictOfKey(event) {
  const key = keyOf(event);
  return areVerdictKeysOn() && Object.hasOwn(VERDICTS, key) ? VERDICTS[key] : undefined;
}

/**
 * Names a verdict button, with its key where that works.
 * @param {Verdict} verdict
 */
export function verdictLabel(verdict) {
  const name = `${verdict[0].toUpperCase()}${verdict.slice(1)}`;
  return areVerdictKeysOn() ? `${name} (${name[0]})` : name;
}

/**
 * Shows the shortcuts of a view at the bottom of the page, with the switch of the verdict keys.
 * @param {[key: string, action: string][]} shortcuts the others
 * @param {AbortSignal} signal
 * @param {{ onSwitch?: () => void, touchText?: string }} [options] `touchText` is shown on touch screens instead
 */
export function showShortcuts(shortcuts, signal, { onSwitch = () => {}, touchText = "" } = {}) {
  /** @type {HTMLInputElement} */
  const field = el("input", { type: "checkbox", checked: areVerdictKeysOn(), onchange: () => {
    localStorage.setItem(STORAGE_KEY, field.checked ? "on" : OFF);
    onSwitch();
  } });
  const verdictKeys = shortcutHint(Object.entries(VERDICTS).map(([key, verdict]) => [key.toUpperCase(), verdict]));
  const label = el("label", { title: "Untick to switch these keys off" }, field, " ", verdictKeys);
  const keys = el("div", { class: "keys" }, label, shortcutHint(shortcuts));
  showHint(el("div", { class: "hint" }, keys, touchText && el("div", { class: "taps" }, touchText)), signal);
}
