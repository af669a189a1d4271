// Teach: choose reviewed images, follow the job, compare the new version with the old one, release or discard it.

import { getJson, sendJson } from "../lib/api.js";
import { el } from "../lib/dom.js";
import { worseText } from "../lib/figures.js";
import { formatPlural } from "../lib/format.js";
import { thumbnail } from "../lib/image_loader.js";
import { KeyedElements } from "../lib/keyed_elements.js";
import { reportErrors, showError, showMessage } from "../lib/messages.js";
import { rescoreProgress } from "../lib/rescore_progress.js";
import { ADMIN_ONLY, currentModel, isAdmin, loadModels, modelRoute, resetList } from "../lib/state.js";
import { html, nothing, render } from "../lib/vendor/lit-html.js";
import { comparison } from "./compare.js";
import { isEnded, JobFollower, jobTemplate, stateBadge } from "./teach_jobs.js";
import { VersionList } from "./teach_versions.js";

/** @import { Job, Lesson, Version } from "../lib/types.js" */
/** @import { FinishedJob } from "./compare.js" */

/**
 * @param {HTMLElement} main
 * @param {AbortSignal} signal
 * @param {string} [jobId] the job to compare
 */
export async function showTeach(main, signal, jobId) {
  const view = new TeachView(signal, Number(jobId) || null);
  main.append(view.box);
  await view.start();
}

class TeachView {
  box = el("div", { class: "page" });
  #progressBox = el("div");
  /** @type {Lesson[] | null} */
  #lessons = null; // null: not loaded yet
  /** @type {Set<number>} */
  #chosenImages = new Set();
  /** @type {Map<number, HTMLImageElement>} */
  #thumbnails = new Map(); // by image
  /** @type {Job[] | null} */
  #jobs = null;
  #jobLines = new KeyedElements("li", (id) => ({ "data-job": id }));
  #comparisonCards = new KeyedElements("div", () => ({ class: "card" })); // by job
  /** @type {Map<number, Job>} */
  #finishedJobs = new Map(); // with their results
  /** @type {{ job: FinishedJob, version: Version, tables: HTMLElement } | null} */
  #comparison = null;
  /** @type {number | undefined} */
  #comparedJobId;
  #isBusy = false; // a job is being started, or a version released, discarded or rolled back

  /**
   * @param {AbortSignal} signal
   * @param {number | null} jobId
   */
  constructor(signal, jobId) {
    this.signal = signal;
    this.wantedJobId = jobId; // the job to compare; null: the last one that has finished
    this.versions = new VersionList(this.box, () => this.#update(), (...change) => this.#changeVersion(...change),
      (version) => this.#whyNotRelease(version));
    this.follower = new JobFollower((job) => this.#onJobChange(job), () => this.#loadJobs(), signal);
  }

  async start() {
    await loadModels();
    this.#showVersions();
    await Promise.all([this.#loadLessons(), this.#loadJobs()]);
  }

  /** Brings the page up to date with the state. */
  #update() {
    render(html`
      <h1>Teach</h1>
      ${this.#progressBox}
      <section class="card" aria-label="What to teach">${this.#lessonTemplate()}</section>
      <section class="card" aria-label="Jobs">${this.#jobListTemplate()}</section>
      <section aria-label="Comparison">${this.#comparisonTemplate()}</section>
      <section class="card" aria-label="Versions">${this.versions.listTemplate(this.#isBusy)}</section>`, this.box);
  }

  // --- what to teach

  async #loadLessons() {
    /** @type {Lesson[]} */
    const lessons = await getJson(modelRoute("/lessons"), {}, { signal: this.signal });
    const byVerdict = (/** @type {string} */ verdict) => lessons.filter((lesson) => lesson.verdict === verdict);
    this.#lessons = [...byVerdict("bad"), ...byVerdict("good")];
    this.#chosenImages = new Set(lessons.map((lesson) => lesson.id));
    this.#thumbnails = new Map(lessons.map((lesson) => [lesson.id, thumbnail(lesson.id, currentModel())]));
    this.#update();
  }

  #lessonTemplate() {
    const lessons = this.#lessons;
    if (!lessons) return nothing;
    const heading = html`<h2>What to teach</h2>`;
    if (!lessons.length) return [heading, html`<p>No image has been reviewed as good or bad yet. Review images in the queue first.</p>`];
    const badCount = lessons.filter((lesson) => lesson.verdict === "bad").length;
    const count = this.#chosenImages.size;
    return html`${heading}
      <p>${formatPlural(badCount, "image")} reviewed as bad, ${lessons.length - badCount} as good. Untick those to leave out.</p>
      <div class="lessons">${lessons.map((lesson) => html`
        <label class="lesson" title=${lesson.name}>${this.#thumbnails.get(lesson.id)}
          <span><input type="checkbox" .checked=${this.#chosenImages.has(lesson.id)} aria-label=${`${lesson.name}, ${lesson.verdict}`}
            @change=${(/** @type {any} */ event) => this.#choose([lesson], event.target.checked)}>${stateBadge(lesson.verdict)}</span>
        </label>`)}</div>
      <div class="row">
        <button type="button" class="primary" id="teach" ?disabled=${!count || !isAdmin() || this.#isBusy}
          title=${isAdmin() ? nothing : ADMIN_ONLY} @click=${reportErrors(() => this.#startJob())}>Teach ${formatPlural(count, "image")}</button>
        <button type="button" @click=${() => this.#choose(lessons, true)}>Tick all</button>
        <button type="button" @click=${() => this.#choose(lessons, false)}>Tick none</button>
      </div>`;
  }

  /**
   * @param {Lesson[]} lessons
   * @param {boolean} isChosen
   */
  #choose(lessons, isChosen) {
    for (const { id } of lessons) {
      if (isChosen) this.#chosenImages.add(id);
      else this.#chosenImages.delete(id);
    }
    this.#update();
  }

  async #startJob() {
    this.#setBusy(true);
    try {
      /** @type {Job} */
      const job = await sendJson("POST", "jobs", { model: currentModel().name, images: [...this.#chosenImages] });
      this.wantedJobId = job.id;
      showMessage(`Job ${job.id} has been started.`);
      await this.#loadJobs();
    } finally {
      this.#setBusy(false);
    }
  }

  /**
   * @param {boolean} isBusy
   */
  #setBusy(isBusy) {
    this.#isBusy = isBusy;
    this.#update();
  }

  // --- jobs

  async #loadJobs() {
    /** @type {Job[]} */
    const jobs = await getJson("jobs", { model: currentModel().name }, { signal: this.signal });
    this.#jobs = jobs;
    this.#update();
    for (const job of jobs) if (!isEnded(job)) this.follower.follow(job.id);
    await this.#loadComparison();
  }

  /**
   * @param {Job} job
   */
  #onJobChange(job) {
    const others = (this.#jobs ?? []).filter((one) => one.id !== job.id);
    this.#jobs = [job, ...others].sort((one, other) => other.id - one.id);
    this.#update();
    if (!isEnded(job)) return;
    const isError = job.state === "failed";
    showMessage(`Job ${job.id}: ${job.state}.${isError ? ` ${job.message}` : ""}`, { isError });
    if (job.state === "done") this.#onJobDone().catch(showError);
  }

  async #onJobDone() {
    await loadModels();
    this.#showVersions();
    await this.#loadComparison();
  }

  #jobListTemplate() {
    if (!this.#jobs) return nothing;
    if (!this.#jobs.length) return html`<h2>Jobs</h2><p class="dim">None yet.</p>`;
    return html`<h2>Jobs</h2><ul class="plain jobs">${this.#jobs.map((job) => this.#jobLine(job))}</ul>`;
  }

  /**
   * @param {Job} job
   */
  #jobLine(job) {
    const post = (/** @type {string} */ action) => reportErrors(async () => {
      await sendJson("POST", `jobs/${job.id}/${action}`);
      await this.#loadJobs();
    });
    const onCompare = reportErrors(async () => {
      this.wantedJobId = job.id;
      await this.#loadComparison();
      this.box.querySelector("[aria-label=Comparison]")?.scrollIntoView({ behavior: "smooth" });
    });
    const buttons = { isDisabled: !isAdmin() || this.#isBusy, title: isAdmin() ? "" : ADMIN_ONLY };
    const actions = { onCancel: post("cancel"), onResume: post("resume"), onCompare };
    return this.#jobLines.render(job.id, jobTemplate(job, buttons, actions));
  }

  // --- comparison

  /** Loads the comparison of the wanted job, else of the last one that has finished. */
  async #loadComparison() {
    const done = (this.#jobs ?? []).filter((job) => job.state === "done" && job.new_version !== null);
    const chosen = done.find((job) => job.id === this.wantedJobId) ?? done[0];
    this.#comparedJobId = chosen?.id;
    const job = chosen && (await this.#loadFinishedJob(chosen.id));
    if (this.#comparedJobId !== chosen?.id) return; // another one was chosen meanwhile
    const version = currentModel().versions.find((one) => one.id === job?.new_version);
    if (job?.result && version) {
      const finished = /** @type {FinishedJob} */ (job);
      this.#comparison = { job: finished, version, tables: comparison(finished) };
    } else this.#comparison = null;
    this.#update();
  }

  /**
   * Fetches a job with its result, which the list of jobs does not hold.
   * @param {number} jobId
   */
  async #loadFinishedJob(jobId) {
    /** @type {Job} */
    const job = this.#finishedJobs.get(jobId) ?? (await getJson(`jobs/${jobId}`, {}, { signal: this.signal }));
    this.#finishedJobs.set(jobId, job);
    return job;
  }

  /**
   * Says by how much a candidate is worse on the test images than the version it was made from; empty where it is not.
   * @param {Version} version
   */
  async #whyNotRelease({ id, state }) {
    const made = (this.#jobs ?? []).find((job) => job.new_version === id && job.state === "done");
    const job = state === "candidate" && made ? await this.#loadFinishedJob(made.id) : null;
    return job?.result ? worseText(job.result.validation, id, job.version) : "";
  }

  #comparisonTemplate() {
    if (!this.#comparison) return nothing;
    const { job, version, tables } = this.#comparison;
    return this.#comparisonCards.render(job.id, html`
      <h2>Job ${job.id}: version ${job.version} and version ${job.new_version}</h2>
      ${tables}
      <div class="row">${this.versions.actionTemplate(version, "comparison", this.#isBusy)}</div>`);
  }

  // --- versions

  /** Shows the versions after the models were loaded. */
  #showVersions() {
    this.#progressBox.replaceChildren(rescoreProgress(this.signal));
    this.#update();
  }

  /**
   * Sends a change of the versions and brings everything up to date.
   * @param {string} route
   * @param {() => string} message
   */
  async #changeVersion(route, message) {
    this.#setBusy(true);
    showMessage("One moment …");
    try {
      await sendJson("POST", modelRoute(route));
    } finally {
      await loadModels();
      resetList();
      this.#isBusy = false;
      this.#showVersions();
      await Promise.all([this.#loadComparison(), this.#loadLessons()]);
    }
    showMessage(message());
  }
}
