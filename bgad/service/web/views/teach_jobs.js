// The list of teaching jobs: following a job, and one line for each.

import { ApiError, followJob } from "../lib/api.js";
import { pause } from "../lib/dom.js";
import { formatPercent, formatPlural, formatTime } from "../lib/format.js";
import { showError, showMessage } from "../lib/messages.js";
import { html, nothing } from "../lib/vendor/lit-html.js";

/** @import { Job } from "../lib/types.js" */
/** @typedef {{ onCancel: () => void, onResume: () => void, onCompare: () => void }} JobActions */

const RETRY_MILLISECONDS = 3000;
const ENDED_STATES = ["done", "failed", "cancelled", "interrupted"];
const RESUMABLE_STATES = ["failed", "cancelled", "interrupted"];

/**
 * @param {Job} job
 */
export function isEnded(job) {
  return ENDED_STATES.includes(job.state);
}

/** Follows jobs until they end; a lost connection is opened again. */
export class JobFollower {
  /** @type {Set<number>} */
  #jobIds = new Set();

  /**
   * @param {(job: Job) => void} onChange
   * @param {() => Promise<void>} reloadJobs is called before a lost connection is opened again
   * @param {AbortSignal} signal
   */
  constructor(onChange, reloadJobs, signal) {
    this.onChange = onChange;
    this.reloadJobs = reloadJobs;
    this.signal = signal;
  }

  /**
   * @param {number} jobId
   */
  async follow(jobId) {
    if (this.#jobIds.has(jobId)) return;
    this.#jobIds.add(jobId);
    let isOver = false;
    const onChange = (/** @type {Job} */ job) => {
      isOver = isEnded(job);
      this.onChange(job);
    };
    for (let isLost = false; !isOver && !this.signal.aborted; ) {
      try {
        if (isLost) await this.reloadJobs();
        isLost = false;
        await followJob(jobId, onChange, this.signal);
      } catch (error) {
        if (this.signal.aborted) break;
        isOver = isRefused(error);
        if (isOver) showError(error);
        else if (!isLost) showMessage("The connection to the service was lost; trying again.", { isError: true });
      }
      isLost = true;
      if (!isOver) await pause(RETRY_MILLISECONDS);
    }
    this.#jobIds.delete(jobId);
  }
}

/**
 * Whether the service has refused a request, so that trying again would not help.
 * @param {unknown} error
 */
function isRefused(error) {
  return error instanceof ApiError && error.status >= 400 && error.status < 500;
}

/**
 * @param {string} state
 */
export function stateBadge(state) {
  return html`<span class=${`badge ${state}`}>${state}</span>`;
}

/**
 * Describes one job, with buttons for what can be done with it.
 * @param {Job} job
 * @param {{ isDisabled: boolean, title: string }} buttons
 * @param {JobActions} actions
 */
export function jobTemplate(job, { isDisabled, title }, { onCancel, onResume, onCompare }) {
  const button = (/** @type {string} */ text, /** @type {() => void} */ onClick) =>
    html`<button type="button" ?disabled=${isDisabled} title=${title || nothing} @click=${onClick}>${text}</button>`;
  return html`
    <span>Job ${job.id} ${stateBadge(job.state)}</span>
    ${isEnded(job)
      ? html`<span class="grow dim">${endedText(job)}</span>`
      : html`<span class="grow"><progress max="1" .value=${job.progress} aria-label=${`Job ${job.id}`}></progress>${progressText(job)}</span>`}
    ${isEnded(job) ? nothing : button("Cancel", onCancel)}
    ${RESUMABLE_STATES.includes(job.state) ? button("Resume", onResume) : nothing}
    ${job.state === "done" ? html`<button type="button" @click=${onCompare}>Compare</button>` : nothing}`;
}

/**
 * @param {Job} job
 */
function endedText({ images, who, created, state, message }) {
  const reason = state === "failed" ? `: ${message}` : "";
  return `${formatPlural(images.length, "image")}, ${who}, ${formatTime(created)}${reason}`;
}

/**
 * @param {Job} job
 */
function progressText({ progress, message, seconds_left: left }) {
  return ` ${formatPercent(progress)} ${message}${remainingText(left)}`;
}

/**
 * @param {number | null | undefined} seconds
 */
function remainingText(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 90) return `, about ${Math.max(5, 5 * Math.round(seconds / 5))} s left`;
  return `, about ${Math.round(seconds / 60)} min left`;
}
