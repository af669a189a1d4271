// Drift: scores over time, the share of anomalous images, and the drift test with its alarms.

import { getJson } from "../lib/api.js";
import { imageAddress } from "../lib/back_links.js";
import { chart, drawBar, outlinedLine, tooltip, xAxis, yAxis } from "../lib/chart.js";
import { badge, decisionBadge, el, select, svg } from "../lib/dom.js";
import { formatCount, formatNumber, formatPercent, formatPlural, formatTime } from "../lib/format.js";
import { thumbnail } from "../lib/image_loader.js";
import { reportErrors } from "../lib/messages.js";
import { markAlarmsSeen } from "../lib/poll.js";
import { linearScale, momentText, ticks, timeTicks } from "../lib/scales.js";
import { currentModel, modelRoute } from "../lib/state.js";

/** @import { Box } from "../lib/chart.js" */
/** @import { Scale } from "../lib/scales.js" */
/** @import { Alarm, Bin, DriftView, Driver } from "../lib/types.js" */

const MIN_SECONDS = 3600; // that a time axis spans
const MIN_LEVEL = 0.1; // lowest level that the logarithmic axis shows
const POWERS = [0, 1, 2, 3, 4, 5, 6]; // of ten, that the axis labels

const ADVICE = {
  defects: "Look at the images below: review bad ones as bad, so that they no longer count here, and look for what makes them.",
  imaging: "Look at the images below, and at light, focus and position of the camera. If the parts are good and will look like this from now on, review and teach them.",
  unclear: "Look at the images below; if they are good, review and teach them.",
};

let binWidth = "auto"; // until the user chooses "hour" or "day"

/**
 * @param {HTMLElement} main
 * @param {AbortSignal} signal
 */
export async function showDrift(main, signal) {
  const data = await load(signal);
  markAlarmsSeen(data);
  const charts = el("div", {}, allCharts(data));
  const setBinWidth = reportErrors(async (/** @type {string} */ value) => {
    binWidth = value;
    const newData = await load(signal);
    if (newData.every === binWidth) charts.replaceChildren(...allCharts(newData)); // else it was changed again
  });
  main.append(el("div", { class: "page" },
    el("h1", {}, "Drift"),
    verdict(data),
    el("p", { class: "dim" }, `${data.guarantee} Images reviewed as bad do not count.`),
    data.total > 0 && el("div", { class: "toolbar" },
      select("Scores by", [["day", "day"], ["hour", "hour"]], data.every, setBinWidth)),
    charts));
}

/**
 * Fetches the data, with hours and days of the local time zone.
 * @param {AbortSignal} signal
 * @returns {Promise<DriftView>}
 */
function load(signal) {
  const secondsAhead = -60 * new Date().getTimezoneOffset();
  return getJson(modelRoute("/drift"), { every: binWidth, utc_offset: secondsAhead, last: 0 }, { signal });
}

/**
 * @param {DriftView} data
 */
function verdict(data) {
  if (!data.total) return el("p", { class: "words" }, "No images have been scored yet.");
  const last = data.alarms.at(-1);
  const tested = formatPlural(data.tested, "image");
  if (!last) return el("p", { class: "words" }, `No sign of a change in ${tested}.`);
  const alarms = formatPlural(data.alarms.length, "alarm");
  const since = formatPlural(data.since_alarm ?? 0, "image");
  if (!data.recent_alarm) {
    return el("p", { class: "words" },
      `Last alarm ${timeAgo(last.created)}; ${since} without one since (${alarms} in ${tested}). The scores have been steady since then, at the old level or at a new one: see below.`);
  }
  return el("div", {},
    el("p", { class: "words alarm" },
      `The scores have changed: ${alarms}, the last on ${formatTime(last.created)}, ${since} ago.`),
    data.cause && el("p", { class: "words", id: "cause" }, `${data.cause.text} ${ADVICE[data.cause.kind]}`));
}

/**
 * @param {number} time in seconds since 1970
 */
function timeAgo(time) {
  const minutes = Math.max(0, Date.now() / 1000 - time) / 60;
  if (minutes >= 24 * 60) return `${formatPlural(Math.floor(minutes / (24 * 60)), "day")} ago`;
  if (minutes >= 60) return `${formatPlural(Math.floor(minutes / 60), "hour")} ago`;
  return `${formatPlural(Math.floor(minutes), "minute")} ago`;
}

/**
 * @param {number} imageId
 */
function imageHref(imageId) {
  return imageAddress(imageId, currentModel().name);
}

// --- charts

/**
 * @param {DriftView} data
 */
function allCharts(data) {
  const { bins, levels } = data;
  if (!bins.length) return [];
  const start = Math.min(bins[0].start, levels[0]?.created ?? Infinity);
  /** @type {[number, number]} */
  const range = [start, Math.max(bins[bins.length - 1].end, start + MIN_SECONDS)];
  const parts = [testChart(data), driverCard(data), scoreChart(bins, range), anomalousChart(bins, range)];
  return parts.filter((part) => part !== null);
}

/**
 * Returns the horizontal extent of a bar.
 * @param {Bin} bin
 * @param {Scale} x
 */
function barExtent(bin, x) {
  const left = x(bin.start);
  return { x: left + 1, width: Math.max(2, x(bin.end) - left - 2) };
}

/**
 * @param {Bin[]} bins
 * @param {[number, number]} range
 */
function scoreChart(bins, range) {
  return chart("Scores: median (line), the middle nine tenths (bar), and the threshold (dashed)", {}, (drawing, box) => {
    const { threshold } = currentModel();
    const low = Math.min(threshold, ...bins.map((bin) => bin.low));
    const high = Math.max(threshold, ...bins.map((bin) => bin.high));
    const x = linearScale(range, [box.left, box.right]);
    const y = linearScale([low, high + (high - low) * 0.05], [box.bottom - 4, box.top]);
    yAxis(drawing, box, y, ticks(low, high, 4));
    for (const bin of bins) {
      const extent = barExtent(bin, x);
      const text = `${formatTime(bin.start)}: ${formatPlural(bin.count, "image")}, median ${formatNumber(bin.median)}`;
      drawBar(drawing, "range", { ...extent, y: y(bin.high), height: Math.max(2, y(bin.low) - y(bin.high)) }, text);
      const ends = { x1: extent.x, x2: extent.x + extent.width, y1: y(bin.median), y2: y(bin.median) };
      outlinedLine(drawing, "middle", ends, text);
    }
    outlinedLine(drawing, "used", { x1: box.left, x2: box.right, y1: y(threshold), y2: y(threshold) }, "threshold");
    timeAxis(drawing, box, x, range);
  });
}

/**
 * @param {Bin[]} bins
 * @param {[number, number]} range
 */
function anomalousChart(bins, range) {
  return chart("Share of anomalous images", { height: 120 }, (drawing, box) => {
    const x = linearScale(range, [box.left, box.right]);
    const top = Math.max(0.1, ...bins.map((bin) => bin.flagged));
    const y = linearScale([0, top], [box.bottom, box.top]);
    yAxis(drawing, box, y, [0, top / 2, top], formatPercent);
    for (const bin of bins) {
      const text = `${formatTime(bin.start)}: ${formatPercent(bin.flagged)} of ${bin.count}`;
      drawBar(drawing, "bad", { ...barExtent(bin, x), y: y(bin.flagged), height: box.bottom - y(bin.flagged) }, text);
    }
    timeAxis(drawing, box, x, range);
  });
}

/**
 * Draws the test against the number of images rather than time, since many may arrive within a minute.
 * @param {DriftView} data
 */
function testChart(data) {
  const title = "The test, image by image: when it reaches the dashed line, it raises an alarm and starts again";
  return chart(title, { height: 190, foot: 44, hasLinks: data.alarms.length > 0 }, (drawing, box) => {
    const logLevel = (/** @type {number} */ value) => Math.log10(Math.max(MIN_LEVEL, value));
    const highest = data.levels.reduce((top, one) => Math.max(top, one.level), data.patience);
    const x = linearScale([0, data.tested], [box.left, box.right]);
    const y = linearScale([-1, logLevel(highest) + 0.2], [box.bottom, box.top]);
    const powers = POWERS.filter((power) => power <= logLevel(highest));
    yAxis(drawing, box, y, powers, (power) => formatCount(10 ** power));
    const points = data.levels.map(({ number, level }) => `${x(number).toFixed(1)},${y(logLevel(level)).toFixed(1)}`);
    const alarmY = y(logLevel(data.patience));
    drawing.append(
      svg("line", { class: "alarm-line", x1: box.left, x2: box.right, y1: alarmY, y2: alarmY }, tooltip("alarm")),
      svg("polyline", { class: "level", points: points.join(" ") }),
      ...data.alarms.map((alarm) => alarmDot(alarm, x(alarm.number), alarmY)));
    if (data.levels.length) imageAxis(drawing, box, x, data);
  });
}

/**
 * @param {Alarm} alarm
 * @param {number} cx
 * @param {number} cy
 */
function alarmDot(alarm, cx, cy) {
  const time = formatTime(alarm.created);
  return svg("a", { href: imageHref(alarm.image), "aria-label": `Alarm on ${time}` },
    svg("circle", { class: "reach", cx, cy, r: 16 }),
    svg("circle", { class: "alarm-dot", cx, cy, r: 6 }, tooltip(`alarm, ${time}`)));
}

/**
 * Labels the axis with the number of images, and below it with the time at which that image arrived.
 * @param {SVGSVGElement} drawing
 * @param {Box} box
 * @param {Scale} x
 * @param {DriftView} data
 */
function imageAxis(drawing, box, x, { levels, tested }) {
  const last = levels[levels.length - 1];
  const arrival = (/** @type {number} */ count) => (levels.find((one) => one.number >= count) ?? last).created;
  const text = (/** @type {number} */ count) => momentText(arrival(count), levels[0].created, last.created);
  xAxis(drawing, box, x, ticks(0, tested, 6).filter(Number.isInteger), formatCount, text);
}

/**
 * @param {SVGSVGElement} drawing
 * @param {Box} box
 * @param {Scale} x
 * @param {[number, number]} range
 */
function timeAxis(drawing, box, x, [from, to]) {
  const { values, text } = timeTicks(from, to);
  xAxis(drawing, box, x, values, text);
}

// --- images that moved the test

/**
 * @param {DriftView} data
 */
function driverCard({ drivers }) {
  if (!drivers.length) return null;
  const highCount = drivers.filter((driver) => driver.side === "high").length;
  return el("section", { class: "card" },
    el("h2", {}, "The images that moved the test most"),
    el("p", {}, `${highCount} of ${drivers.length} score above the median of the images before them, ${drivers.length - highCount} below.`),
    el("div", { class: "strip drivers" }, drivers.map(driverLink)));
}

/**
 * @param {Driver} driver
 */
function driverLink(driver) {
  const img = driver.dropped === null
    ? thumbnail(driver.image, currentModel())
    : el("img", { alt: "the image was deleted", loading: "lazy" });
  return el("a", { href: imageHref(driver.image), title: driver.name }, img,
    el("span", { class: "name" }, driver.name),
    el("span", {}, `${formatNumber(driver.score)} ${driver.side === "high" ? "▲ high" : "▼ low"}`),
    el("span", {}, decisionBadge(driver.is_anomaly), driver.verdict && badge(driver.verdict, driver.verdict)));
}
