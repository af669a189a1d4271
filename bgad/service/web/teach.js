// Teach: choose reviewed images, follow the job, compare the new version with the old one, release it or not.

import { follow, get, send, show, thumbnail } from "./api.js";
import { againLine } from "./again.js";
import { comparison } from "./compare.js";
import { badge, button, el, fail, guarded, percent, plural, say, time, versionText } from "./dom.js";
import { loadModels, mayAll, modelRoute, newList, state } from "./state.js";

const ENDED = ["done", "failed", "cancelled", "interrupted"];
const ADMIN = "This needs the role admin";
const PAUSE = 3000; // milliseconds before a lost connection is tried again

export async function showTeach(main, signal, given) {
  const page = new Teach(signal, Number(given) || null);
  main.append(page.box);
  await page.start();
}

class Teach {
  constructor(signal, job) {
    this.signal = signal;
    this.wanted = job;
    this.followed = new Set();
    this.jobs = [];
    this.results = new Map(); // by job
    this.again = el("div");
    this.lessons = el("section", { class: "card", "aria-label": "What to teach" });
    this.jobList = el("section", { class: "card", "aria-label": "Jobs" });
    this.compared = el("section", { "aria-label": "Comparison" });
    this.versions = el("section", { class: "card", "aria-label": "Versions" });
    this.box = el("div", { class: "page" }, el("h1", {}, "Teach"), this.again, this.lessons, this.jobList, this.compared, this.versions);
  }

  async start() {
    await loadModels();
    this.showVersions();
    await Promise.all([this.loadLessons(), this.loadJobs()]);
  }

  // --- what to teach

  async loadLessons() {
    const rows = await get(modelRoute("/lessons"), {}, { signal: this.signal });
    const [good, bad] = ["good", "bad"].map((verdict) => rows.filter((row) => row.verdict === verdict));
    this.rows = [...bad, ...good];
    this.chosen = new Set(this.rows.map((row) => row.id));
    if (!this.rows.length) {
      this.lessons.replaceChildren(el("h2", {}, "What to teach"),
        el("p", {}, "No picture has been reviewed as good or bad yet. Do that in the queue first."));
      return;
    }
    this.go = button("Teach", guarded(() => this.begin()), { class: "primary", id: "teach" });
    const all = (value) => () => {
      for (const box of this.lessons.querySelectorAll("input")) {
        if (box.checked !== value) box.click();
      }
    };
    this.lessons.replaceChildren(
      el("h2", {}, "What to teach"),
      el("p", {}, `${plural(bad.length, "picture")} reviewed as bad, ${good.length} as good. Untick what should not be learnt.`),
      el("div", { class: "lessons" }, this.rows.map((row) => this.lesson(row))),
      el("div", { class: "row" }, this.go, button("Tick all", all(true)), button("Tick none", all(false))));
    this.count();
  }

  lesson(row) {
    const picture = el("img", { alt: "", loading: "lazy" });
    show(picture, thumbnail(row.id, state.model.name, state.model.version.id));
    const box = el("input", {
      type: "checkbox", checked: true, "aria-label": `${row.name}, ${row.verdict}`,
      onchange: () => {
        if (box.checked) this.chosen.add(row.id);
        else this.chosen.delete(row.id);
        this.count();
      },
    });
    return el("label", { class: "lesson", title: row.name }, picture, el("span", {}, box, badge(row.verdict, row.verdict)));
  }

  count() {
    this.go.textContent = `Teach ${plural(this.chosen.size, "picture")}`;
    this.go.disabled = !this.chosen.size || !mayAll();
    this.go.title = mayAll() ? "" : ADMIN;
  }

  async begin() {
    this.go.disabled = true;
    try {
      const job = await send("POST", "jobs", { model: state.model.name, images: [...this.chosen] });
      this.wanted = job.id;
      say(`Job ${job.id} begins.`);
      await this.loadJobs();
    } finally {
      this.count();
    }
  }

  // --- jobs

  async loadJobs() {
    this.jobs = await get("jobs", { model: state.model.name }, { signal: this.signal });
    this.showJobs();
    for (const job of this.jobs) if (!ENDED.includes(job.state)) this.follow(job.id);
    await this.showComparison();
  }

  /** Until it has ended; a connection that is lost is tried again. */
  async follow(number) {
    if (this.followed.has(number)) return;
    this.followed.add(number);
    let ended = false;
    const tell = (job) => {
      ended = ENDED.includes(job.state);
      this.told(job);
    };
    for (let lost = false; !ended && !this.signal.aborted; ) {
      try {
        if (lost) await this.loadJobs();
        lost = false;
        await follow(number, tell, this.signal);
      } catch (error) {
        if (this.signal.aborted) break;
        ended = error.status >= 400 && error.status < 500; // to ask again would not help
        if (ended) fail(error);
        else if (!lost) say("The connection to the service was lost: it is tried again.", true);
      }
      lost = true;
      if (!ended) await new Promise((resolve) => setTimeout(resolve, PAUSE));
    }
    this.followed.delete(number);
  }

  told(job) {
    const place = this.jobs.findIndex((one) => one.id === job.id);
    if (place < 0) this.jobs.unshift(job);
    else this.jobs[place] = job;
    this.showJobs();
    if (!ENDED.includes(job.state)) return;
    say(`Job ${job.id}: ${job.state}.${job.state === "failed" ? ` ${job.message}` : ""}`, job.state === "failed");
    if (job.state === "done") this.finished().catch(fail);
  }

  async finished() {
    await loadModels();
    this.showVersions();
    await this.showComparison();
  }

  /** Where no state has changed, the lines stay as they are but for their progress. */
  showJobs() {
    if (!this.jobs.length) return this.jobList.replaceChildren(el("h2", {}, "Jobs"), el("p", { class: "dim" }, "None yet."));
    const lines = [...this.jobList.querySelectorAll("li")];
    const shows = (line, job) => line?.dataset.job === String(job.id) && line.dataset.state === job.state;
    if (lines.length === this.jobs.length && this.jobs.every((job, i) => shows(lines[i], job))) {
      return this.jobs.forEach((job, i) => showProgress(lines[i], job));
    }
    return this.jobList.replaceChildren(el("h2", {}, "Jobs"), el("ul", { class: "plain jobs" }, this.jobs.map((job) => this.jobLine(job))));
  }

  jobLine(job) {
    const act = (route) => guarded(async () => {
      await send("POST", `jobs/${job.id}/${route}`);
      await this.loadJobs();
    });
    const running = !ENDED.includes(job.state);
    const right = { disabled: !mayAll(), title: mayAll() ? undefined : ADMIN };
    return el("li", { "data-job": job.id, "data-state": job.state },
      el("span", {}, `Job ${job.id} `, badge(job.state, job.state)),
      running
        ? el("span", { class: "grow" }, el("progress", { max: "1", value: job.progress, "aria-label": `Job ${job.id}` }), progressText(job))
        : el("span", { class: "grow dim" }, `${plural(job.images.length, "picture")}, ${job.who}, ${time(job.created)}${job.state === "failed" ? `: ${job.message}` : ""}`),
      running && button("Cancel", act("cancel"), right),
      ["failed", "cancelled", "interrupted"].includes(job.state) && button("Resume", act("resume"), right),
      job.state === "done" && button("Compare", guarded(async () => {
        this.wanted = job.id;
        await this.showComparison();
        this.compared.scrollIntoView({ behavior: "smooth" });
      })));
  }

  // --- compare and release

  async showComparison() {
    const done = this.jobs.filter((one) => one.state === "done");
    const { id, new_version: made } = done.find((one) => one.id === this.wanted) ?? done[0] ?? {};
    this.compares = id;
    const job = made && (await this.whole(id));
    if (this.compares !== id) return undefined; // another one was chosen meanwhile
    const version = job?.result && state.model.versions.find((one) => one.id === made);
    if (!version) return this.compared.replaceChildren();
    return this.compared.replaceChildren(el("div", { class: "card" },
      el("h2", {}, `Job ${job.id}: version ${job.version} and version ${job.new_version}`),
      comparison(job),
      el("div", { class: "row" }, this.actions(version))));
  }

  /** A job with its result, which a list of jobs does not have. */
  async whole(number) {
    if (!this.results.has(number)) this.results.set(number, await get(`jobs/${number}`, {}, { signal: this.signal }));
    return this.results.get(number);
  }

  showVersions() {
    this.again.replaceChildren(againLine(this.signal));
    const { versions } = state.model;
    this.versions.replaceChildren(
      el("h2", {}, "Versions"),
      el("ul", { class: "plain jobs" }, [...versions].reverse().map((version) =>
        el("li", { "data-version": version.id },
          el("span", {}, `${versionText(version)} `, badge(version.state, version.state)),
          el("span", { class: "grow dim" }, `${time(version.created)}${version.parent ? `, from version ${version.parent}` : ""}`),
          this.actions(version)))),
      el("div", { class: "row" },
        button("Roll back", guarded(() => this.act(modelRoute("/rollback"), scoresNow)), {
          id: "rollback", disabled: !mayAll() || !versions.some((version) => version.state === "retired"),
          title: mayAll() ? "Back to the version that was released before" : ADMIN,
        })));
  }

  actions(version) {
    const right = { disabled: !mayAll(), title: mayAll() ? undefined : ADMIN };
    const route = (what, text) => guarded(() => this.act(modelRoute(`/versions/${version.id}/${what}`), text));
    if (version.state === "released") return [badge("scores now", "done")];
    if (version.state === "discarded") return [];
    return [
      button("Release", route("release", scoresNow), { class: "primary", ...right }),
      version.state === "candidate" && askFirst("Discard", `Give up version ${version.id}? This cannot be taken back.`,
        route("discard", () => `${versionText(version)} was given up.`), right),
    ].filter(Boolean);
  }

  /** `text` makes the words for what has been done. */
  async act(route, text) {
    for (const one of this.box.querySelectorAll("button")) one.disabled = true;
    say("One moment …");
    try {
      await send("POST", route);
    } finally {
      await loadModels();
      newList();
      this.showVersions();
      this.jobList.replaceChildren(); // with buttons that can be used again
      this.showJobs();
      await Promise.all([this.showComparison(), this.loadLessons()]);
    }
    say(text());
  }
}

function scoresNow() {
  return `${versionText(state.model.version)} of ${state.model.name} scores now.`;
}

/** A button that asks before it does what cannot be taken back; Escape and "Keep it" are the way out. */
function askFirst(word, question, act, attributes) {
  const place = el("span", { class: "ask" });
  const first = button(word, () => {
    const keep = button("Keep it", rest);
    place.replaceChildren(el("span", {}, question), button(word, act), keep);
    keep.focus();
  }, attributes);
  const rest = () => {
    place.replaceChildren(first);
    first.focus();
  };
  place.setAttribute("role", "group");
  place.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !first.isConnected) rest();
  });
  place.append(first);
  return place;
}

function progressText(job) {
  return ` ${percent(job.progress)} ${job.message}${leftText(job.seconds_left)}`;
}

function leftText(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 90) return `, about ${Math.max(5, 5 * Math.round(seconds / 5))} s left`;
  return `, about ${Math.round(seconds / 60)} min left`;
}

function showProgress(line, job) {
  const bar = line.querySelector("progress");
  if (!bar) return;
  bar.value = job.progress;
  bar.nextSibling.data = progressText(job);
}
