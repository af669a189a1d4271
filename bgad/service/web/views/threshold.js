// The threshold: the scores, where they are cut, and the false-reject rate that this guarantees.

import { getJson, sendJson } from "../lib/api.js";
import { chart, drawBar, lineLabel, outlinedLine, xAxis, yAxis } from "../lib/chart.js";
import { button, el } from "../lib/dom.js";
import { formatApart, formatNumber, formatPercent, formatPlural } from "../lib/format.js";
import { reportErrors, showMessage } from "../lib/messages.js";
import { binEdges, histogram, linearScale, ticks } from "../lib/scales.js";
import { ADMIN_ONLY, currentModel, isAdmin, loadModels, modelRoute, resetList } from "../lib/state.js";

/** @import { Box } from "../lib/chart.js" */
/** @import { Scale } from "../lib/scales.js" */
/** @import { Threshold } from "../lib/types.js" */
/** @typedef {{ from: number, to: number, chosen: number, used: number }} Axis `chosen` and `used` are thresholds */

const BIN_COUNT = 36;
const MIN_TOP_COUNT = 4; // the smallest upper end of a count axis
const LABEL_HEIGHT = 18; // above the first chart, for the names of the lines
/** @type {[key: "calibration" | "good" | "bad", title: string][]} */
const ROWS = [
  ["calibration", "Good parts kept for calibration"],
  ["good", "Reviewed as good"],
  ["bad", "Reviewed as bad"],
];

/**
 * @param {HTMLElement} main
 * @param {AbortSignal} signal
 */
export async function showThreshold(main, signal) {
  const data = await getJson(modelRoute("/threshold"), {}, { signal });
  const page = el("div", { class: "page" });
  main.append(page);
  new ThresholdView(page, data).show();
}

/**
 * A threshold is one of the n calibration scores, chosen by its rank k from the top; its false-reject rate is the k-th
 * of the rates.
 */
class ThresholdView {
  consequenceBox = el("div", { class: "words", "aria-live": "polite" });
  chartBox = el("div");
  guaranteeBox = el("div", { class: "card" });
  rateText = el("output", { class: "big" });

  /**
   * @param {HTMLElement} page
   * @param {Threshold} data
   */
  constructor(page, data) {
    this.page = page;
    this.data = data;
    this.count = data.calibration.length;
    this.maxRank = data.rates.length;
    this.rank = this.#rankOf(data.rate);
    /** @type {HTMLInputElement} */
    this.slider = el("input", { // a step to the right moves the line to the right, so the rank falls
      type: "range", min: 1, max: this.maxRank, step: 1, value: String(this.maxRank + 1 - this.rank), class: "wide",
      "aria-label": "Threshold, by the share of good parts that may be rejected",
      oninput: () => this.#choose(this.maxRank + 1 - Number(this.slider.value)),
    });
    /** @type {HTMLInputElement} */
    this.rateField = el("input", {
      type: "number", min: 100 * data.rates[0], max: 100 * this.#rate(this.maxRank), step: "any",
      "aria-label": "False-reject rate in percent", onchange: () => this.#chooseRate(Number(this.rateField.value) / 100),
    });
    this.saveButton = button("Use this", reportErrors(() => this.#save()), { class: "primary" });
  }

  show() {
    const { data, count } = this;
    this.page.replaceChildren(
      el("h1", {}, "Threshold"),
      el("p", {}, "Scores to the right of the line count as anomalous. Move it for fewer false alarms or for fewer misses."),
      this.chartBox,
      el("div", { class: "card" },
        el("label", { class: "stack" }, "Share of good parts that may be rejected", this.slider),
        el("div", { class: "ends" }, el("span", {}, "← fewer misses"), el("span", {}, "fewer false alarms →")),
        el("div", { class: "row" }, el("label", { class: "field" }, "Exactly ", this.rateField, " %"), this.rateText, this.saveButton),
        el("p", { class: "dim" },
          `With ${formatPlural(count, "good part")} kept for calibration, the smallest guaranteed rate is ${formatPercent(data.rates[0])}. For a smaller one, train with more good parts.`),
        this.consequenceBox),
      this.guaranteeBox);
    this.#choose(this.rank);
  }

  /**
   * @param {number} rate
   */
  #rankOf(rate) {
    return Math.max(1, this.data.rates.filter((one) => one <= rate + 1e-9).length);
  }

  /**
   * @param {number} rank
   */
  #rate(rank) {
    return this.data.rates[rank - 1];
  }

  get #isInUse() {
    return this.rank === this.#rankOf(this.data.rate);
  }

  /**
   * @param {number} rate
   */
  #chooseRate(rate) {
    const smallest = this.data.rates[0];
    if (!(rate >= smallest - 1e-9)) {
      const parts = formatPlural(this.count, "good part");
      showMessage(`With ${parts}, the smallest guaranteed rate is ${formatPercent(smallest)}.`, { isError: true });
    }
    this.#choose(this.#rankOf(Math.max(smallest, rate || 0)));
  }

  /**
   * Chooses a rank and shows its consequences.
   * @param {number} rank
   */
  #choose(rank) {
    this.rank = Math.max(1, Math.min(this.maxRank, rank));
    const { data, slider } = this;
    const rate = this.#rate(this.rank);
    const threshold = data.calibration[this.count - this.rank];
    slider.value = String(this.maxRank + 1 - this.rank);
    this.rateField.value = String(Number((100 * rate).toPrecision(4)));
    this.rateText.textContent = `${formatPercent(rate)}, threshold ${formatNumber(threshold)}`;
    slider.setAttribute("aria-valuetext", this.rateText.textContent);
    this.consequenceBox.replaceChildren(el("ul", {}, consequences(data, threshold, rate).map((line) => el("li", {}, line))));
    this.guaranteeBox.replaceChildren(...guarantee(data, this.rank, rate, this.#isInUse));
    this.chartBox.replaceChildren(distributions(data, threshold));
    this.saveButton.disabled = this.#isInUse || !isAdmin();
    this.saveButton.title = !isAdmin() ? ADMIN_ONLY : this.#isInUse ? "This threshold is in use" : "";
  }

  async #save() {
    /** @type {Threshold} */
    const data = await sendJson("PUT", modelRoute("/threshold"), { rate: this.#rate(this.rank) });
    await loadModels();
    resetList();
    new ThresholdView(this.page, data).show();
    showMessage(`The threshold of ${currentModel().name} is now ${formatNumber(data.threshold)}.`);
  }
}

/**
 * States what a rank guarantees for future parts.
 * @param {Threshold} data
 * @param {number} rank
 * @param {number} rate
 * @param {boolean} isInUse
 */
function guarantee(data, rank, rate, isInUse) {
  const parts = formatPlural(data.calibration.length, "good part");
  const average = `A good part is rejected with probability at most ${formatPercent(rate)}, on average over sets of ${parts} kept for calibration.`;
  const bound = `For the present set, the true rate is below ${formatPercent(data.bounds[rank - 1])} with ${formatPercent(data.confidence)} confidence.`;
  const text = data.is_confident ? `${bound} This holds for one rate, chosen without looking at these scores,` : `${average} ${bound} Both hold`;
  return [
    el("h2", {}, `Guarantee ${isInUse ? "in use" : `at ${formatPercent(rate)}`}`),
    el("p", {}, `${text} as long as future parts resemble those kept for calibration.`),
  ];
}

/**
 * States what a threshold does to the images with a known verdict.
 * @param {Threshold} data
 * @param {number} threshold
 * @param {number} rate
 */
function consequences(data, threshold, rate) {
  const countAbove = (/** @type {number[]} */ values) => values.filter((value) => value > threshold).length;
  const { calibration, good, bad, taught } = data;
  const promise = data.is_confident ? `with ${formatPercent(data.confidence)} confidence` : "on average";
  const lines = [`Of new good parts, at most ${formatPercent(rate)} are rejected ${promise}, as long as they resemble those kept for calibration (${countAbove(calibration)} of these ${calibration.length} are above the line).`];
  if (good.length) {
    const rejected = countAbove(good);
    lines.push(`Of ${formatPlural(good.length, "image")} reviewed as good, ${rejected} would be rejected (${formatPercent(rejected / good.length)}).`);
  } else if (!taught.good) lines.push("No image has been reviewed as good yet.");
  if (bad.length) {
    const missed = bad.length - countAbove(bad);
    lines.push(`Of ${formatPlural(bad.length, "image")} reviewed as bad, ${missed} would be missed (${formatPercent(missed / bad.length)}).`);
  } else if (!taught.bad) lines.push("No image has been reviewed as bad yet, so the number of misses is unknown.");
  if (taught.good) lines.push(taughtText(taught.good, "good", good.length > 0));
  if (taught.bad) lines.push(taughtText(taught.bad, "bad", bad.length > 0));
  return lines;
}

/**
 * Explains why reviewed images are not counted.
 * @param {number} count
 * @param {"good" | "bad"} verdict
 * @param {boolean} hasOthers
 */
function taughtText(count, verdict, hasOthers) {
  const images = formatPlural(count, hasOthers ? "other image" : "image");
  const reason = count === 1 ? "was taught and does not count here" : "were taught and do not count here";
  return `${images} reviewed as ${verdict} ${reason}${hasOthers ? "." : "; review new ones."}`;
}

/**
 * @param {Threshold} data
 * @param {number} chosen
 */
function distributions(data, chosen) {
  const sorted = ROWS.map(([key]) => data[key]).filter((values) => values.length);
  const low = Math.min(...sorted.map((values) => values[0]));
  const high = Math.max(...sorted.map((values) => values[values.length - 1]));
  const axis = { from: low - (high - low) * 0.03, to: high + (high - low) * 0.08, chosen, used: data.threshold };
  return el("div", {}, ROWS.map((_, i) => distribution(data, i, axis)));
}

/**
 * @param {Threshold} data
 * @param {number} index of the row
 * @param {Axis} axis
 */
function distribution(data, index, { from, to, chosen, used }) {
  const [key, title] = ROWS[index];
  const [isFirst, isLast] = [index === 0, index === ROWS.length - 1];
  const top = isFirst ? 10 + LABEL_HEIGHT : 10;
  const options = { height: (isLast ? 80 : 62) + top, top, foot: isLast ? 24 : 8 };
  return chart(`${title}: ${data[key].length}`, options, (drawing, box) => {
    const x = linearScale([from, to], [box.left, box.right]);
    drawHistogram(drawing, box, x, key, data[key], binEdges(from, to, BIN_COUNT, [used, chosen]));
    for (const [kind, value, text] of /** @type {const} */ ([["used", used, "in use"], ["chosen", chosen, "chosen"]])) {
      outlinedLine(drawing, kind, { x1: x(value), x2: x(value), y1: box.top - 6, y2: box.bottom }, text);
    }
    if (isFirst) labelLines(drawing, box, x, used, chosen);
    if (isLast) xAxis(drawing, box, x, ticks(from, to, 8));
  });
}

/**
 * @param {SVGSVGElement} drawing
 * @param {Box} box
 * @param {Scale} x
 * @param {string} kind the CSS class
 * @param {number[]} values
 * @param {number[]} edges of the bins: no bin holds scores on both sides of a line
 */
function drawHistogram(drawing, box, x, kind, values, edges) {
  const counts = histogram(values, edges);
  const top = Math.max(MIN_TOP_COUNT, ...counts);
  const y = linearScale([0, top], [box.bottom, box.top]);
  yAxis(drawing, box, y, [0, top]);
  counts.forEach((count, i) => {
    if (!count) return;
    const [left, right] = [x(edges[i]), x(edges[i + 1])];
    const bar = { x: left + 1, y: y(count), width: Math.max(1, right - left - 2), height: y(0) - y(count) };
    const [from, to] = formatApart(edges[i], edges[i + 1]);
    drawBar(drawing, kind, bar, `${count} above ${from}, up to ${to}`);
  });
}

/**
 * Names the two lines, each on its outer side.
 * @param {SVGSVGElement} drawing
 * @param {Box} box
 * @param {Scale} x
 * @param {number} used
 * @param {number} chosen
 */
function labelLines(drawing, box, x, used, chosen) {
  if (used === chosen) return lineLabel(drawing, box, x(used), "in use", true);
  lineLabel(drawing, box, x(used), "in use", used > chosen);
  return lineLabel(drawing, box, x(chosen), "chosen", chosen > used);
}
