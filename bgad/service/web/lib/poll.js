// Polls the service for changes while the page is visible, and marks tabs that need attention with a dot.

import { getJson } from "./api.js";
import { el } from "./dom.js";
import { versionText } from "./format.js";
import { showMessage } from "./messages.js";
import { currentModel, loadModels, modelRoute, state } from "./state.js";

/** @import { Alarm, Job, Changes } from "./types.js" */
/** @typedef {{ newImages: number, decisionChanged: boolean }} Update `decisionChanged`: another version or threshold */

const INTERVAL = 4000; // milliseconds from an answer to the next request
const MAX_INTERVAL = 60000; // while the service does not answer
const TIMEOUT = 20000;
const DRIFT_INTERVAL = 600000; // the drift test is expensive for the service

/** @type {((update: Update) => void) | null} */
let listener = null;
let isPollRequested = false;
let wake = () => {};
let lastJobs = { model: "", jobs: /** @type {number[]} */ ([]) };
let lastDrift = { model: "", latest: "", time: 0 };

/**
 * Calls `onChange` after every poll until the signal aborts; there is one listener at a time.
 * @param {AbortSignal} signal
 * @param {(update: Update) => void} onChange
 */
export function onUpdate(signal, onChange) {
  listener = onChange;
  signal.addEventListener("abort", () => {
    if (listener === onChange) listener = null;
  });
}

/** Polls now; where a request is under way, whose answer may be outdated, once more after it. */
export function pollNow() {
  isPollRequested = true;
  wake();
}

/** Polls for as long as the page is open. */
export async function startPolling() {
  document.addEventListener("visibilitychange", pollNow);
  for (let interval = INTERVAL, isFirst = true; ; ) {
    isPollRequested = false;
    try {
      const latest = await poll();
      if (!isFirst) await pollDrift(latest);
      interval = INTERVAL;
      isFirst = false;
    } catch {
      interval = Math.min(2 * interval, MAX_INTERVAL); // the user did not ask, so no error is shown
    }
    while (document.hidden || !isPollRequested) {
      const wasWoken = await sleep(document.hidden ? MAX_INTERVAL : interval);
      if (!wasWoken && !document.hidden) break;
      if (document.hidden) isPollRequested = false;
    }
  }
}

/**
 * Resolves to true when `wake` is called, to false after the given time.
 * @param {number} milliseconds
 * @returns {Promise<boolean>}
 */
function sleep(milliseconds) {
  return new Promise((resolve) => {
    const timer = setTimeout(() => resolve(false), milliseconds);
    wake = () => {
      clearTimeout(timer);
      resolve(true);
    };
  });
}

async function poll() {
  const { name } = currentModel();
  const list = state.list?.model === name ? state.list : null;
  const query = list?.asOf ? { ...list.filterQuery(), after: list.asOf } : {};
  /** @type {Changes} */
  const changes = await getJson(modelRoute("/changes"), query, { signal: AbortSignal.timeout(TIMEOUT) });
  if (name !== currentModel().name) return "";
  const decisionChanged = await updateModel(changes);
  await reportEndedJobs(name, changes.jobs);
  const candidateText = changes.candidates.length ? "a new version awaits your decision" : "";
  setDot("teach", changes.jobs.length ? "a job is running" : candidateText);
  listener?.({ newImages: list && list === state.list ? changes.new : 0, decisionChanged });
  return changes.latest;
}

/**
 * Reloads the models where they have changed; returns whether another version or threshold decides now.
 * @param {Changes} changes
 */
async function updateModel(changes) {
  const { name, version, threshold, versions } = currentModel();
  const isSame = (/** @type {number} */ id, /** @type {number} */ cut) => id === version.id && cut === threshold;
  const candidates = versions.filter((one) => one.state === "candidate").map((one) => one.id);
  if (isSame(changes.version, changes.threshold) && String(candidates) === String(changes.candidates)) return false;
  await loadModels();
  const updated = currentModel();
  if (updated.name !== name || isSame(updated.version.id, updated.threshold)) return false;
  const { id, checksum } = updated.version;
  showMessage(id === version.id
    ? `The threshold of ${name} has changed.`
    : `Model ${name} now scores with ${versionText(id, checksum)}.`);
  return true;
}

/**
 * Reports jobs that have ended since the last poll, unless the teach view is open, which does so itself.
 * @param {string} model
 * @param {number[]} jobs
 */
async function reportEndedJobs(model, jobs) {
  const ended = lastJobs.model === model ? lastJobs.jobs.filter((job) => !jobs.includes(job)) : [];
  if (!location.hash.startsWith("#/teach")) {
    for (const id of ended) {
      /** @type {Job} */
      const job = await getJson(`jobs/${id}`);
      const isError = job.state === "failed";
      const hint = job.state === "done" ? " Compare the new version, then release or discard it." : "";
      const action = { label: "Show", run: () => (location.hash = `#/teach/${id}`) };
      showMessage(`Job ${id}: ${job.state}.${isError ? ` ${job.message}` : hint}`, { isError, action });
    }
  }
  lastJobs = { model, jobs };
}

/**
 * @param {string} latest changes whenever the service has scored, reviewed or released something
 */
async function pollDrift(latest) {
  const { name } = currentModel();
  const isUnchanged = lastDrift.latest === latest || Date.now() - lastDrift.time < DRIFT_INTERVAL;
  if (!latest || (lastDrift.model === name && isUnchanged)) return;
  const data = await getJson(modelRoute("/drift"), { last: 0 }, { signal: AbortSignal.timeout(TIMEOUT) });
  lastDrift = { model: name, latest, time: Date.now() };
  if (name !== currentModel().name) return;
  const alarm = lastAlarm(data);
  const isUnseen = alarm !== "" && alarm !== localStorage.getItem(seenAlarmKey());
  setDot("drift", isUnseen ? "an alarm you have not seen yet" : "");
}

/**
 * Remembers in this browser that the user has seen the alarms.
 * @param {{ alarms: Alarm[] }} data
 */
export function markAlarmsSeen(data) {
  localStorage.setItem(seenAlarmKey(), lastAlarm(data));
  setDot("drift", "");
}

function seenAlarmKey() {
  return `bgad-alarm-${currentModel().name}`;
}

/**
 * Identifies the last alarm of the released version; empty where there is none.
 * @param {{ alarms: Alarm[] }} data
 */
function lastAlarm(data) {
  const last = data.alarms.at(-1);
  return last ? `${currentModel().version.id}:${last.image}` : "";
}

/**
 * Shows a dot on a tab, with a text for screen readers; removes it where the text is empty.
 * @param {string} tab
 * @param {string} text
 */
function setDot(tab, text) {
  const link = document.querySelector(`.tabs a[href="#/${tab}"]`);
  const dot = /** @type {HTMLElement | null | undefined} */ (link?.querySelector(".dot"));
  if ((dot?.title ?? "") === text) return; // an unchanged dot stays, so that it is not announced again
  dot?.remove();
  if (text) link?.append(el("span", { class: "dot", title: text }, el("span", { class: "unseen" }, ` (${text})`)));
}
