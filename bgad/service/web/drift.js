// Drift: have the parts changed? Scores over time, what was flagged, and the test with its alarm line.

import { chart, linear, momentText, ruled, ticks, timeTicks, tip, xAxis, yAxis } from "./chart.js";
import { get, show, thumbnail } from "./api.js";
import { badge, decision, el, guarded, number, percent, plural, select, svg, time } from "./dom.js";
import { seeAlarms } from "./news.js";
import { modelRoute, state } from "./state.js";
import { imageLink } from "./trail.js";

let by = "auto"; // until somebody chooses

export async function showDrift(main, signal) {
  const data = await load(signal);
  seeAlarms(data);
  const charts = el("div");
  const choose = guarded(async (value) => {
    by = value;
    const found = await load(signal);
    if (found.every === by) charts.replaceChildren(...allCharts(found)); // else there was another choice meanwhile
  });
  main.append(el("div", { class: "page" },
    el("h1", {}, "Drift"),
    verdict(data),
    el("p", { class: "dim" }, `${data.guarantee} Pictures that were reviewed as bad do not count.`),
    data.total > 0 && el("div", { class: "toolbar" }, select("Scores by", [["day", "day"], ["hour", "hour"]], data.every, choose)),
    charts));
  charts.replaceChildren(...allCharts(data));
}

/** Hours and days are those of this place, with the clock as it is set now. */
function load(signal) {
  const utcOffset = -60 * new Date().getTimezoneOffset();
  return get(modelRoute("/drift"), { every: by, utc_offset: utcOffset, last: 0 }, { signal });
}

function verdict(data) {
  if (!data.total) return el("p", { class: "words" }, "No pictures have been scored yet.");
  const last = data.alarms.at(-1);
  if (!last) return el("p", { class: "words" }, `No sign of a change in ${plural(data.tested, "picture")}.`);
  const all = plural(data.alarms.length, "alarm");
  const since = plural(data.since_alarm, "picture");
  if (!data.recent_alarm) {
    return el("p", { class: "words" },
      `Last alarm ${ago(last.created)}; ${since} without one since (${all} in ${plural(data.tested, "picture")}). The scores have been steady since then, at the old level or at a new one: see below.`);
  }
  return el("p", { class: "words alarm" },
    `The parts have changed: ${all}, the last on ${time(last.created)}, ${since} ago. Look at the pictures below; if they are good, review and teach them.`);
}

function ago(at) {
  const minutes = Math.max(0, Date.now() / 1000 - at) / 60;
  const [one, length] = [["day", 1440], ["hour", 60], ["minute", 1]].find(([, wide]) => minutes >= wide) ?? ["minute", 1];
  return `${plural(Math.floor(minutes / length), one)} ago`;
}

function link(image) {
  return imageLink(image, state.model.name);
}

function allCharts(data) {
  const { bins, levels } = data;
  if (!bins.length) return [];
  const from = Math.min(bins[0].start, levels[0]?.created ?? Infinity);
  const range = [from, Math.max(bins.at(-1).end, from + 3600)];
  return [level(data), drivers(data), scores(bins, range), flagged(bins, range)].filter(Boolean);
}

function place(bin, x) {
  const left = x(bin.start);
  return { left: left + 1, width: Math.max(2, x(bin.end) - left - 2) };
}

function scores(bins, range) {
  return chart("Scores: the middle one (line), where nine of ten lie (bar), and the threshold (dashed)", {}, (drawn, box) => {
    const threshold = state.model.threshold;
    const low = Math.min(threshold, ...bins.map((bin) => bin.low));
    const high = Math.max(threshold, ...bins.map((bin) => bin.high));
    const x = linear(range, [box.left, box.right]);
    const y = linear([low, high + (high - low) * 0.05], [box.bottom - 4, box.top]);
    yAxis(drawn, box, y, ticks(low, high, 4));
    for (const bin of bins) {
      const { left, width } = place(bin, x);
      const text = `${time(bin.start)}: ${plural(bin.count, "picture")}, middle ${number(bin.median)}`;
      drawn.append(svg("rect", { class: "bar range", x: left, width, y: y(bin.high), height: Math.max(2, y(bin.low) - y(bin.high)) }, tip(text)));
      ruled(drawn, "middle", { x1: left, x2: left + width, y1: y(bin.median), y2: y(bin.median) }, text);
    }
    ruled(drawn, "used", { x1: box.left, x2: box.right, y1: y(threshold), y2: y(threshold) }, "threshold");
    times(drawn, box, x, range);
  });
}

function flagged(bins, range) {
  return chart("Share called anomalous", { height: 120 }, (drawn, box) => {
    const x = linear(range, [box.left, box.right]);
    const most = Math.max(0.1, ...bins.map((bin) => bin.flagged));
    const y = linear([0, most], [box.bottom, box.top]);
    yAxis(drawn, box, y, [0, most / 2, most], percent);
    for (const bin of bins) {
      const { left, width } = place(bin, x);
      const text = `${time(bin.start)}: ${percent(bin.flagged)} of ${bin.count}`;
      drawn.append(svg("rect", { class: "bar bad", x: left, width, y: y(bin.flagged), height: box.bottom - y(bin.flagged) }, tip(text)));
    }
    times(drawn, box, x, range);
  });
}

/** By pictures and not by time: many of them may come within a minute. */
function level(data) {
  const title = "The test, picture by picture: when it reaches the dashed line, it is an alarm, and the test begins again";
  return chart(title, { height: 190, foot: 44, links: data.alarms.length > 0 }, (drawn, box) => {
    const x = linear([0, data.tested], [box.left, box.right]);
    const log = (value) => Math.log10(Math.max(0.1, value));
    const highest = data.levels.reduce((top, one) => Math.max(top, one.level), data.patience);
    const y = linear([-1, log(highest) + 0.2], [box.bottom, box.top]);
    const powers = [0, 1, 2, 3, 4, 5, 6].filter((power) => power <= log(highest));
    yAxis(drawn, box, y, powers, (power) => (10 ** power).toLocaleString("en"));
    const points = data.levels.map(({ number: at, level: value }) => `${x(at).toFixed(1)},${y(log(value)).toFixed(1)}`);
    drawn.append(svg("line", { class: "alarm-line", x1: box.left, x2: box.right, y1: y(log(data.patience)), y2: y(log(data.patience)) }, tip("alarm")),
      svg("polyline", { class: "level", points: points.join(" ") }));
    for (const alarm of data.alarms) {
      const at = { cx: x(alarm.number), cy: y(log(data.patience)) };
      drawn.append(svg("a", { href: link(alarm.image), "aria-label": `Alarm on ${time(alarm.created)}` },
        svg("circle", { class: "reach", ...at, r: 16 }),
        svg("circle", { class: "alarm-dot", ...at, r: 6 }, tip(`alarm, ${time(alarm.created)}`))));
    }
    if (data.levels.length) pictureTimes(drawn, box, x, data);
  });
}

/** Below the count of pictures, when that one came. */
function pictureTimes(drawn, box, x, { levels, tested }) {
  const [from, to] = [levels[0].created, levels.at(-1).created];
  const whole = ticks(0, tested, 6).filter(Number.isInteger);
  const when = (count) => momentText((levels.find((one) => one.number >= count) ?? levels.at(-1)).created, from, to);
  xAxis(drawn, box, x, whole, (count) => count.toLocaleString("en"), when);
}

function times(drawn, box, x, [from, to]) {
  const { values, text } = timeTicks(from, to);
  xAxis(drawn, box, x, values, text);
}

function drivers(data) {
  const { drivers: found } = data;
  if (!found.length) return null;
  const high = found.filter((one) => one.side === "high").length;
  return el("section", { class: "card" },
    el("h2", {}, "The pictures that moved the test most"),
    el("p", {}, `${high} of ${found.length} score higher than half of what came before them, ${found.length - high} lower.`),
    el("div", { class: "strip drivers" }, found.map(driver)));
}

function driver(one) {
  const picture = el("img", { alt: one.dropped === null ? "" : "the picture was dropped", loading: "lazy" });
  if (one.dropped === null) show(picture, thumbnail(one.image, state.model.name, state.model.version.id));
  return el("a", { href: link(one.image), title: one.name }, picture,
    el("span", { class: "name" }, one.name),
    el("span", {}, `${number(one.score)} ${one.side === "high" ? "▲ high" : "▼ low"}`),
    el("span", {}, badge(decision(one.is_anomaly), decision(one.is_anomaly)), one.verdict && badge(one.verdict, one.verdict)));
}
