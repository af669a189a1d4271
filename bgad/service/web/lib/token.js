// The access token: kept in session storage, requested from the user in a dialog.

import { el } from "./dom.js";

const STORAGE_KEY = "bgad-token";

/** @type {Promise<void> | null} */
let openDialog = null;

/** Returns the token, or an empty string when there is none. */
export function getToken() {
  return sessionStorage.getItem(STORAGE_KEY) || "";
}

export function forgetToken() {
  sessionStorage.removeItem(STORAGE_KEY);
}

/**
 * Asks the user for a token; concurrent calls share one dialog.
 * @param {boolean} wasRejected whether the service has refused the previous token
 */
export function askForToken(wasRejected) {
  openDialog ??= showTokenDialog(wasRejected).finally(() => (openDialog = null));
  return openDialog;
}

/**
 * @param {boolean} wasRejected
 * @returns {Promise<void>}
 */
function showTokenDialog(wasRejected) {
  const field = el("input", { id: "token", type: "password", autocomplete: "off", spellcheck: "false" });
  const reason = wasRejected
    ? "The service does not know this token."
    : ["This service requires a token. Create one with ", el("code", {}, "bgad token add NAME --role admin"), "."];
  const dialog = el("dialog", { id: "token-dialog", "aria-labelledby": "token-title" },
    el("form", { method: "dialog" },
      el("h2", { id: "token-title" }, "Token required"),
      el("p", { id: "token-reason" }, reason),
      el("label", {}, "Token ", field),
      el("p", { class: "dim" }, "The token is kept until this tab is closed."),
      el("button", { class: "primary", type: "submit" }, "Continue")));
  document.body.append(dialog);
  return new Promise((resolve) => {
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    dialog.addEventListener("close", () => {
      const entered = field.value.trim();
      if (entered) sessionStorage.setItem(STORAGE_KEY, entered);
      else forgetToken();
      dialog.remove();
      resolve();
    }, { once: true });
    dialog.showModal();
  });
}
