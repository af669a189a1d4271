// What happens meanwhile: asked every few seconds while the page is seen. Dots on the tabs say what waits elsewhere.

import { get } from "./api.js";
import { el, say, versionText } from "./dom.js";
import { loadModels, modelRoute, state } from "./state.js";

const PAUSE = 4000; // milliseconds from an answer to the next question
const LONGEST = 60000; // while the service is away
const PATIENCE = 20000; // with an answer
const DRIFT = 600000; // it is much work for the service

let tell = null; // the queue, while it is shown
let soon = false;
let wake = () => {};
let ran = { model: "", jobs: [] }; // the jobs of the last answer
let tested = { model: "", latest: "", at: 0 }; // when drift was asked last, and how things stood then

/** Be told how many pictures are new, and whether another version or threshold decides. */
export function hearNews(signal, listener) {
  tell = listener;
  signal.addEventListener("abort", () => {
    if (tell === listener) tell = null;
  });
}

/** Ask now, and once more where an answer is under way that may be too old. */
export function askNews() {
  soon = true;
  wake();
}

export async function followNews() {
  document.addEventListener("visibilitychange", askNews);
  for (let pause = PAUSE, first = true; ; ) {
    soon = false;
    try {
      const latest = await ask();
      if (!first) await askDrift(latest);
      pause = PAUSE;
      first = false;
    } catch {
      pause = Math.min(2 * pause, LONGEST); // nobody has asked for it: nothing is said
    }
    while (document.hidden || !soon) {
      const woken = await rest(document.hidden ? LONGEST : pause);
      if (!woken && !document.hidden) break;
      if (document.hidden) soon = false;
    }
  }
}

function rest(milliseconds) {
  return new Promise((resolve) => {
    const timer = setTimeout(() => resolve(false), milliseconds);
    wake = () => {
      clearTimeout(timer);
      resolve(true);
    };
  });
}

async function ask() {
  const { name } = state.model;
  const list = state.list?.model === name ? state.list : null;
  const query = list?.asOf ? { ...list.fits(), after: list.asOf } : {};
  const news = await get(modelRoute("/changes"), query, { signal: AbortSignal.timeout(PATIENCE) });
  if (name !== state.model.name) return "";
  const changed = await followModel(news);
  await followJobs(name, news.jobs);
  const waits = news.candidates.length > 0 && "a new version waits for a decision";
  dot("teach", news.jobs.length ? "a job runs" : waits);
  tell?.({ count: list && list === state.list ? news.new : 0, changed });
  return news.latest;
}

/** Whether another version or threshold decides than before. */
async function followModel(news) {
  const { name, version, threshold, versions } = state.model;
  const decides = (number, cut) => number === version.id && cut === threshold;
  const candidates = versions.filter((one) => one.state === "candidate").map((one) => one.id);
  if (decides(news.version, news.threshold) && String(candidates) === String(news.candidates)) return false;
  await loadModels();
  const now = state.model;
  if (now.name !== name || decides(now.version.id, now.threshold)) return false;
  say(now.version.id === version.id ? `The threshold of ${name} has changed.` : `${versionText(now.version)} of ${name} scores now.`);
  return true;
}

/** Say that a job has ended, unless its page is open, which does. */
async function followJobs(model, jobs) {
  const ended = ran.model === model ? ran.jobs.filter((job) => !jobs.includes(job)) : [];
  if (!location.hash.startsWith("#/teach")) {
    for (const number of ended) {
      const { state: how, message } = await get(`jobs/${number}`);
      const more = { done: " Compare the new version and decide.", failed: ` ${message}` }[how] ?? "";
      say(`Job ${number}: ${how}.${more}`, how === "failed", ["Show", () => (location.hash = `#/teach/${number}`)]);
    }
  }
  ran = { model, jobs };
}

async function askDrift(latest) {
  const { name } = state.model;
  const same = tested.model === name;
  if (!latest || (same && (tested.latest === latest || Date.now() - tested.at < DRIFT))) return;
  const data = await get(modelRoute("/drift"), { last: 0 }, { signal: AbortSignal.timeout(PATIENCE) });
  tested = { model: name, latest, at: Date.now() };
  if (name !== state.model.name) return;
  const last = lastAlarm(data);
  dot("drift", last && last !== localStorage.getItem(seenKey()) && "an alarm that you have not seen yet");
}

/** What the page of the drift shows has been seen in this browser. */
export function seeAlarms(data) {
  localStorage.setItem(seenKey(), lastAlarm(data));
  dot("drift", "");
}

function seenKey() {
  return `bgad-alarm-${state.model.name}`;
}

function lastAlarm(data) {
  const last = data.alarms.at(-1);
  return last ? `${state.model.version.id}:${last.image}` : "";
}

/** A dot on a tab, with words for who does not see it; none without a text. */
function dot(tab, text) {
  const link = document.querySelector(`.tabs a[href="#/${tab}"]`);
  const there = link.querySelector(".dot");
  if ((there?.title ?? "") === (text || "")) return;
  there?.remove();
  if (text) link.append(el("span", { class: "dot", title: text }, el("span", { class: "unseen" }, ` (${text})`)));
}
