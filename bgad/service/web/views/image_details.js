// Details of an image: its scores, its reviews, and images with similar scores.

import { imageAddress, linkFromImage } from "../lib/back_links.js";
import { badge, button, decisionBadge, el } from "../lib/dom.js";
import { formatApart, formatNumber, formatPercent, formatPlural, formatTime, versionText } from "../lib/format.js";
import { thumbnail } from "../lib/image_loader.js";
import { partBars, reasonText } from "../lib/score_parts.js";
import { state } from "../lib/state.js";

/** @import { PartBar } from "../lib/score_parts.js" */
/** @import { ImageDetail, Judged, Model, Neighbour, Review, RecordedScore, Version } from "../lib/types.js" */

/**
 * Shows the score of one version.
 * @param {Judged | RecordedScore} score
 * @param {number} calibrationCount the calibration normals that the p-value rests on
 */
export function scoreFacts(score, calibrationCount) {
  const wasOther = "sent_threshold" in score && score.sent_threshold !== score.threshold;
  const [scoreText, thresholdText] = formatApart(score.score, score.threshold);
  return el("div", {},
    el("p", { class: "words" }, decisionBadge(score.is_anomaly), ` ${pValueText(score.p_value, calibrationCount)}`),
    score.reason && el("p", { class: "why" }, reasonText(score), score.region && " A dashed frame marks the region."),
    partsTable(partBars(score)),
    el("dl", { class: "facts" },
      el("dt", {}, "Score"), el("dd", {}, scoreText),
      el("dt", {}, "Threshold"), el("dd", {}, thresholdText),
      wasOther && [el("dt", {}, "As sent"), el("dd", {}, `${formatNumber(score.sent_threshold)} `, decisionBadge(score.sent_is_anomaly))],
      el("dt", {}, "p-value"), el("dd", {}, score.p_value.toPrecision(2)),
      el("dt", {}, "Model"), el("dd", {}, scorerText(score))));
}

/**
 * Shows the parts of a score as bars.
 * @param {PartBar[]} bars
 */
function partsTable(bars) {
  const head = el("tr", {}, ["Part of the score", "Value", "Limit"].map((text) => el("th", { scope: "col" }, text)));
  return el("table", { class: "parts" }, el("thead", {}, head), el("tbody", {}, bars.map((bar) => {
    const drawn = el("span", { class: "part-bar" }, el("span", { class: "length" }), bar.limit !== null && el("span", { class: "mark" }));
    drawn.style.setProperty("--length", String(bar.length));
    drawn.style.setProperty("--mark", String(bar.mark));
    const [value, limit] = bar.limit === null ? [formatNumber(bar.value), "–"] : formatApart(bar.value, bar.limit);
    return el("tr", { class: bar.isAbove && "above", title: bar.meaning },
      el("th", { scope: "row" }, bar.label, drawn), el("td", {}, value), el("td", {}, limit));
  })));
}

/**
 * @param {Judged} score
 */
function scorerText({ model, version, checksum }) {
  return `${model}, ${versionText(version, checksum)}`;
}

/**
 * Puts a p-value into words.
 * @param {number} pValue
 * @param {number} calibrationCount
 */
function pValueText(pValue, calibrationCount) {
  if (calibrationCount && pValue * (calibrationCount + 1) < 1.5) {
    return `Scores higher than all ${calibrationCount} good parts kept for calibration.`;
  }
  if (pValue > 0.5) return `Typical of good parts: ${formatPercent(pValue)} of them score at least this high.`;
  return `1 in ${Math.round(1 / pValue)} good parts scores this high.`;
}

/**
 * Explains the contour of a map.
 * @param {{ high: number, threshold: number, rate: number }} map
 * @param {{ is_anomaly: boolean }} score
 */
export function contourText(map, score) {
  const isReached = map.high > map.threshold;
  const meaning = isReached
    ? `The bright line is the map threshold: at most ${formatPercent(map.rate)} of good images show any.`
    : "Nothing in the map exceeds the map threshold, so there is no contour.";
  return isReached || score.is_anomaly ? `${meaning} The decision is made by the score, not by this line.` : meaning;
}

/**
 * Lists the scores by all other versions of any model; null where there is none.
 * @param {ImageDetail} detail
 * @param {Version} shownVersion
 */
export function otherScores({ id, scores }, shownVersion) {
  const others = scores.filter((score) => score.version !== shownVersion.id);
  if (!others.length) return null;
  return el("details", {}, el("summary", {}, `Scores by ${formatPlural(others.length, "other version")}`),
    el("ul", { class: "plain" }, others.map((score) => otherScore(id, score))));
}

/**
 * @param {number} imageId
 * @param {RecordedScore} score
 */
function otherScore(imageId, score) {
  const model = state.models.find((one) => one.name === score.model);
  const version = model?.versions.find((one) => one.id === score.version);
  const isUsable = version && version.state !== "discarded";
  const address = imageAddress(imageId, score.model, score.version === model?.version.id ? undefined : score.version);
  const text = scorerText(score);
  return el("li", {},
    isUsable ? linkFromImage(address, {}, text) : text, `: ${formatNumber(score.score)} `, decisionBadge(score.is_anomaly));
}

/**
 * Lists the reviews of an image, the newest first.
 * @param {Review[]} reviews
 * @param {((review: Review) => unknown) | null} onUndo withdraws the last one
 */
export function reviewList(reviews, onUndo) {
  const last = reviews.at(-1);
  if (!last) return el("p", { class: "dim" }, "Not reviewed yet.");
  const canUndo = onUndo && last.verdict !== "withdrawn";
  return el("details", { open: true }, el("summary", {}, formatPlural(reviews.length, "review")),
    el("ul", { class: "plain" }, [...reviews].reverse().map((review) => el("li", {},
      badge(review.verdict, review.verdict), ` ${review.who}, ${formatTime(review.created)}`,
      review.mask && " · painted", review.ignore && " · ignored area",
      review.note && el("div", { class: "note" }, review.note)))),
    canUndo && button("Undo the last verdict", () => onUndo(last)));
}

/**
 * Shows images with similar scores by the released version; null where there is none.
 * @param {Neighbour[]} neighbours
 * @param {Model} model
 */
export function neighbourStrip(neighbours, model) {
  if (!neighbours.length) return null;
  const { id, checksum } = model.version;
  return el("div", { class: "near" }, el("h2", {}, "Similar scores"),
    model.versions.length > 1 && el("p", { class: "dim" }, `By the released ${versionText(id, checksum)}.`),
    el("div", { class: "strip" }, neighbours.map((neighbour) => linkFromImage(
      imageAddress(neighbour.id, model.name), { title: neighbour.name },
      thumbnail(neighbour.id, model),
      el("span", {}, formatNumber(neighbour.score)),
      decisionBadge(neighbour.is_anomaly),
      neighbour.verdict ? badge(neighbour.verdict, neighbour.verdict) : el("span", { class: "dim" }, "not reviewed")))));
}
