// The versions of the model: release, discard, roll back.

import { formatTime, versionText } from "../lib/format.js";
import { KeyedElements } from "../lib/keyed_elements.js";
import { reportErrors } from "../lib/messages.js";
import { ADMIN_ONLY, currentModel, isAdmin } from "../lib/state.js";
import { html, nothing } from "../lib/vendor/lit-html.js";
import { stateBadge } from "./teach_jobs.js";

/** @import { Version } from "../lib/types.js" */
/** @typedef {(route: string, message: () => string) => unknown} ChangeVersion `message` says what has been done */

export class VersionList {
  #lines = new KeyedElements("li", (id) => ({ "data-version": id }));
  #confirming = ""; // the discard button that asks for confirmation

  /**
   * @param {HTMLElement} box the element that holds the buttons
   * @param {() => void} update brings the page up to date
   * @param {ChangeVersion} changeVersion
   */
  constructor(box, update, changeVersion) {
    this.box = box;
    this.update = update;
    this.changeVersion = changeVersion;
  }

  /**
   * @param {boolean} isBusy whether all buttons are disabled
   */
  listTemplate(isBusy) {
    const { versions } = currentModel();
    const hasPrevious = versions.some((version) => version.state === "retired");
    const title = isAdmin() ? "Return to the version that was released before" : ADMIN_ONLY;
    return html`<h2>Versions</h2>
      <ul class="plain jobs">${[...versions].reverse().map((version) => this.#versionLine(version, isBusy))}</ul>
      <div class="row">
        <button type="button" id="rollback" title=${title} ?disabled=${!isAdmin() || !hasPrevious || isBusy}
          @click=${reportErrors(() => this.changeVersion("/rollback", releasedText))}>Roll back</button>
      </div>`;
  }

  /**
   * @param {Version} version
   * @param {boolean} isBusy
   */
  #versionLine(version, isBusy) {
    const origin = version.parent ? `, from version ${version.parent}` : "";
    return this.#lines.render(version.id, html`
      <span>${versionText(version.id, version.checksum)} ${stateBadge(version.state)}</span>
      <span class="grow dim">${formatTime(version.created)}${origin}</span>
      ${this.actionTemplate(version, "list", isBusy)}`);
  }

  /**
   * The buttons of one version.
   * @param {Version} version
   * @param {string} place where they are shown: each place asks for its own confirmation
   * @param {boolean} isBusy
   */
  actionTemplate({ id, checksum, state }, place, isBusy) {
    if (state === "released") return html`<span class="badge done">scores now</span>`;
    if (state === "discarded") return nothing;
    const release = () => this.changeVersion(`/versions/${id}/release`, releasedText);
    const discard = () => {
      this.#confirming = "";
      return this.changeVersion(`/versions/${id}/discard`, () => `${versionText(id, checksum)} was discarded.`);
    };
    return html`${adminButton("Release", release, isBusy, "primary")}
      ${state === "candidate" ? this.#discardTemplate(id, `${place}-${id}`, discard, isBusy) : nothing}`;
  }

  /**
   * A button that asks before it discards a version; Escape and "Keep it" cancel.
   * @param {number} versionId
   * @param {string} key identifies the button
   * @param {() => unknown} discard
   * @param {boolean} isBusy
   */
  #discardTemplate(versionId, key, discard, isBusy) {
    const ask = () => this.#setConfirming(key, key);
    const cancel = () => this.#setConfirming("", key);
    if (this.#confirming !== key) {
      return html`<span class="ask" role="group" data-discard=${key}>${adminButton("Discard", ask, isBusy)}</span>`;
    }
    const onKey = (/** @type {KeyboardEvent} */ event) => event.key === "Escape" && cancel();
    return html`<span class="ask" role="group" data-discard=${key} @keydown=${onKey}>
      <span>Discard version ${versionId}? This cannot be undone.</span>
      ${adminButton("Discard", discard, isBusy)}<button type="button" @click=${cancel}>Keep it</button></span>`;
  }

  /**
   * Shows or hides the confirmation, and moves the focus to its last button, which does no harm.
   * @param {string} confirming
   * @param {string} key of the button
   */
  #setConfirming(confirming, key) {
    this.#confirming = confirming;
    this.update();
    const button = this.box.querySelector(`[data-discard="${key}"] button:last-of-type`);
    if (button instanceof HTMLButtonElement) button.focus();
  }
}

/**
 * @param {string} text
 * @param {() => unknown} onClick
 * @param {boolean} isBusy
 * @param {string} [kind] the CSS class
 */
function adminButton(text, onClick, isBusy, kind = "") {
  return html`<button type="button" class=${kind || nothing} ?disabled=${!isAdmin() || isBusy}
    title=${isAdmin() ? nothing : ADMIN_ONLY} @click=${reportErrors(onClick)}>${text}</button>`;
}

function releasedText() {
  const { name, version } = currentModel();
  return `Model ${name} now scores with ${versionText(version.id, version.checksum)}.`;
}
