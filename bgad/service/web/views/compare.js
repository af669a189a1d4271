// Two versions side by side: figures, and image by image what improved and what got worse.

import { apiUrl } from "../lib/api.js";
import { imageAddress } from "../lib/back_links.js";
import { badge, button, decisionBadge, el, select, table } from "../lib/dom.js";
import { figureChanges } from "../lib/figures.js";
import { formatNumber } from "../lib/format.js";
import { setImageSource, thumbnailUrl } from "../lib/image_loader.js";
import { currentModel } from "../lib/state.js";

/** @import { FigureChange } from "../lib/figures.js" */
/** @import { ComparedImage, ComparedSet, Job, JobResult } from "../lib/types.js" */
/** @typedef {Job & { new_version: number, result: JobResult }} FinishedJob */
/** @typedef {"validation" | "reviews"} SetName */
/** @typedef {"before" | "after"} Side */
/** @typedef {ComparedImage & { set: SetName, place: number }} Row `place` is the index within its set */

const PAGE_SIZE = 40; // rows of a table that each click adds
const MARGIN_DIGITS = 2; // after the point; smaller changes of a margin are not shown
/** @type {[string, string][]} */
const SETS = [["", "all images"], ["validation", "test images"], ["reviews", "reviewed images"]];
/** @type {[string, string][]} */
const SELECTIONS = [["changed", "changed decisions"], ["all", "all, largest change first"]];

/**
 * Shows the comparison that a job has made.
 * @param {FinishedJob} job
 */
export function comparison(job) {
  const { validation, reviews, threshold } = job.result;
  return el("div", {},
    el("div", { class: "sides" },
      figureTable("Test images that neither version was trained on", validation, threshold),
      figureTable("Reviewed images", reviews, threshold, taughtText(reviews))),
    imageTables(job));
}

/**
 * Warns that figures on taught images say little about new ones.
 * @param {ComparedSet} reviews
 */
function taughtText(reviews) {
  const count = reviews.rows.filter((row) => row.taught).length;
  return `Taught to one version or both: ${count}. The test images show how well new parts are judged.`;
}

// --- figures

/**
 * @param {string} title
 * @param {ComparedSet} set
 * @param {{ before: number, after: number }} threshold
 * @param {string} [text]
 */
function figureTable(title, set, threshold, text = "") {
  if (!set.images) return el("div", {}, el("h3", {}, title), el("p", { class: "dim" }, set.reason || "There are none."));
  const body = el("tbody", {},
    el("tr", {}, rowHeading("Threshold"),
      el("td", {}, formatNumber(threshold.before)), el("td", {}, formatNumber(threshold.after))),
    figureChanges(set).map(figureRow));
  return el("div", {}, el("h3", {}, `${title}: ${set.images}`),
    table(["", "Before", "After"], body, { class: "figures" }), text && el("p", { class: "dim" }, text));
}

/**
 * @param {string} text
 */
function rowHeading(text) {
  return el("th", { scope: "row" }, text);
}

/**
 * @param {FigureChange} figure
 */
function figureRow({ title, before, after, change }) {
  const mark = { better: " ▲ better", worse: " ▼ worse", "": "" }[change];
  return el("tr", {}, rowHeading(title), el("td", {}, before), el("td", { class: change }, after + mark));
}

// --- image by image

/**
 * Returns how far an image moved towards its right side of the threshold. Scores of two versions are on different
 * scales, so their margins are compared, as they are shown.
 * @param {ComparedImage} row
 */
function improvement({ before, after, label }) {
  const change = shownMargin(after.margin) - shownMargin(before.margin);
  return label ? change : -change;
}

/**
 * @param {number} margin
 */
function shownMargin(margin) {
  return Number(margin.toFixed(MARGIN_DIGITS));
}

/**
 * @param {FinishedJob} job
 */
function imageTables(job) {
  /** @type {Row[]} */
  const rows = /** @type {SetName[]} */ (["validation", "reviews"]).flatMap((set) =>
    job.result[set].rows.map((row, place) => ({ ...row, set, place })));
  rows.sort((one, other) => Math.abs(improvement(other)) - Math.abs(improvement(one)));
  const filter = { selection: "changed", set: "" };
  const tables = el("div");
  const draw = () => {
    const matches = rows.filter((row) => !filter.set || row.set === filter.set);
    const changed = (/** @type {string} */ change) => matches.filter((row) => row.change === change);
    tables.replaceChildren(...(filter.selection === "all"
      ? [imageTable("All", matches, job)]
      : [imageTable("What improved", changed("better"), job), imageTable("What got worse", changed("worse"), job)]));
  };
  const setter = (/** @type {"selection" | "set"} */ key) => (/** @type {string} */ value) => {
    filter[key] = value;
    draw();
  };
  draw();
  return el("section", { "aria-label": "Image by image" },
    el("div", { class: "toolbar" },
      select("Show", SELECTIONS, filter.selection, setter("selection")), select("Of", SETS, filter.set, setter("set"))),
    el("p", { class: "dim" }, "Each version scores on its own scale. Therefore each score is also given as its distance above (+) or below (−) the threshold, in standard deviations of the good parts' scores by the same version."),
    tables);
}

/**
 * @param {string} title
 * @param {Row[]} rows
 * @param {FinishedJob} job
 */
function imageTable(title, rows, job) {
  if (!rows.length) return el("p", {}, el("strong", {}, `${title}: `), "none.");
  const body = el("tbody");
  const addRows = () => {
    const shown = body.childElementCount;
    body.append(...rows.slice(shown, shown + PAGE_SIZE).map((row) => imageRow(row, job)));
    const left = rows.length - body.childElementCount;
    moreButton.textContent = `Show ${Math.min(PAGE_SIZE, left)} more of ${left}`;
    moreButton.hidden = !left;
  };
  const moreButton = button("", addRows);
  addRows();
  const headings = ["Image", "Is", `Before: version ${job.version}`, `After: version ${job.new_version}`, "Change"];
  return el("details", { open: true }, el("summary", {}, `${title}: ${rows.length}`),
    table(headings, body, { class: "compared" }), moreButton);
}

/**
 * @param {Row} row
 * @param {FinishedJob} job
 */
function imageRow(row, job) {
  const name = row.image ? el("a", { href: imageHref(row.image, job.new_version) }, row.name) : row.name;
  const label = row.label ? "bad" : "good";
  const gain = improvement(row);
  const size = Math.abs(gain).toFixed(MARGIN_DIGITS);
  const change = Number(size) === 0 ? "" : gain > 0 ? "better" : "worse";
  return el("tr", {},
    el("td", {}, name, row.taught && el("span", { class: "dim" }, " taught")),
    el("td", {}, badge(label, label)),
    scoreCell(row, "before", job),
    scoreCell(row, "after", job),
    el("td", { class: change }, change ? `${change === "better" ? "▲" : "▼"} ${size} ${change}` : "–"));
}

/**
 * @param {Row} row
 * @param {Side} side
 * @param {FinishedJob} job
 */
function scoreCell(row, side, job) {
  const { score, is_anomaly: isAnomaly, margin } = row[side];
  const distance = `${isAnomaly ? "+" : "−"}${Math.abs(margin).toFixed(MARGIN_DIGITS)}`; // at the threshold is normal
  return el("td", {}, el("div", { class: "said-by" },
    heatThumbnail(row, side, job),
    el("div", {}, decisionBadge(isAnomaly),
      el("div", { class: "score" }, formatNumber(score), " ", el("span", { class: "dim" }, distance)))));
}

/**
 * Shows the image with its heat map by one of the versions; null where there is none.
 * @param {Row} row
 * @param {Side} side
 * @param {FinishedJob} job
 */
function heatThumbnail(row, side, job) {
  const versionId = side === "before" ? job.version : job.new_version;
  const url = thumbnailAddress(row, side, versionId, job.id);
  if (!url) return null;
  const img = el("img", { alt: `${row.name} by version ${versionId}`, loading: "lazy", class: "small" });
  const shown = row.image ? el("a", { href: imageHref(row.image, versionId) }, img) : img;
  img.addEventListener("error", () => shown.remove()); // a link without content has no name
  setImageSource(img, url);
  return shown;
}

/**
 * The job has drawn the thumbnails of test images; those of reviewed images are drawn by usable versions.
 * @param {Row} row
 * @param {Side} side
 * @param {number} versionId
 * @param {number} jobId
 */
function thumbnailAddress({ set, place, sha256, image }, side, versionId, jobId) {
  if (set === "validation") return sha256 ? apiUrl(`jobs/${jobId}/validation/${place}/${side}.jpg`) : "";
  return image && isUsable(versionId) ? thumbnailUrl(image, currentModel().name, versionId) : "";
}

/**
 * Whether a version can still score: one that was discarded cannot.
 * @param {number} versionId
 */
function isUsable(versionId) {
  return currentModel().versions.some((version) => version.id === versionId && version.state !== "discarded");
}

/**
 * @param {number} imageId
 * @param {number} versionId
 */
function imageHref(imageId, versionId) {
  return imageAddress(imageId, currentModel().name, isUsable(versionId) ? versionId : undefined);
}
