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
  #confirming = ""; // the button that asks for confirmation
  #question = "";

  /**
   * @param {HTMLElement} box the element that holds the buttons
   * @param {() => void} update brings the page up to date
   * @param {ChangeVersion} changeVersion
   * @param {(version: Version) => Promise<string>} whyNotRelease says what speaks against a release; empty: nothing
   */
  constructor(box, update, changeVersion, whyNotRelease) {
    this.box = box;
    this.update = update;
    this.changeVersion = changeVersion;
    this.whyNotRelease = whyNotRelease;
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
    const precision = version.precision === "float32" ? "" : `, in ${version.precision}`;
    const origin = version.parent ? `, from version ${version.parent}` : "";
    return this.#lines.render(version.id, html`
      <span>${versionText(version.id, version.checksum)} ${stateBadge(version.state)}</span>
      <span class="grow dim">${formatTime(version.created)}${precision}${origin}</span>
      ${this.actionTemplate(version, "list", isBusy)}`);
  }

  /**
   * The buttons of one version.
   * @param {Version} version
   * @param {string} place where they are shown: each place asks for its own confirmation
   * @param {boolean} isBusy
   */
  actionTemplate(version, place, isBusy) {
    const { id, checksum, state } = version;
    if (state === "released") return html`<span class="badge done">scores now</span>`;
    if (state === "discarded") return nothing;
    const release = () => this.changeVersion(`/versions/${id}/release`, releasedText);
    const discard = () => this.changeVersion(`/versions/${id}/discard`, () => `${versionText(id, checksum)} was discarded.`);
    const askRelease = async () => {
      const reason = await this.whyNotRelease(version);
      if (reason) this.#ask(`release-${place}-${id}`, `${reason} Release it all the same?`);
      else await release();
    };
    const askDiscard = () => this.#ask(`discard-${place}-${id}`, `Discard version ${id}? This cannot be undone.`);
    return html`${this.#askingTemplate("Release", `release-${place}-${id}`, askRelease, release, isBusy)}
      ${state === "candidate" ? this.#askingTemplate("Discard", `discard-${place}-${id}`, askDiscard, discard, isBusy) : nothing}`;
  }

  /**
   * A button that may ask before it acts; Escape and the other button cancel.
   * @param {"Release" | "Discard"} text
   * @param {string} key identifies the button
   * @param {() => unknown} ask
   * @param {() => unknown} act
   * @param {boolean} isBusy
   */
  #askingTemplate(text, key, ask, act, isBusy) {
    const kind = text === "Release" ? "primary" : "";
    if (this.#confirming !== key) {
      return html`<span class="ask" role="group" data-ask=${key}>${adminButton(text, ask, isBusy, kind)}</span>`;
    }
    const cancel = () => this.#ask("", "", key);
    const confirm = () => {
      this.#confirming = "";
      return act();
    };
    const onKey = (/** @type {KeyboardEvent} */ event) => event.key === "Escape" && cancel();
    return html`<span class="ask" role="group" data-ask=${key} @keydown=${onKey}>
      <span>${this.#question}</span>
      ${adminButton(text, confirm, isBusy)}<button type="button" @click=${cancel}>${text === "Release" ? "Do not release" : "Keep it"}</button></span>`;
  }

  /**
   * Shows or hides a question, and moves the focus to its last button, which does no harm.
   * @param {string} confirming the button that asks; empty: none
   * @param {string} question
   * @param {string} [key] of the button that gets the focus
   */
  #ask(confirming, question, key = confirming) {
    this.#confirming = confirming;
    this.#question = question;
    this.update();
    const button = this.box.querySelector(`[data-ask="${key}"] button:last-of-type`);
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
