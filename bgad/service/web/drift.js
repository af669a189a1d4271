// Drift: have the parts changed? Scores over time, what was flagged, and the test with its alarm line.

import { chart, linear, ticks, timeTicks, tip, xAxis, yAxis } from "./chart.js";
import { get, show, thumbnail } from "./api.js";
import { el, number, percent, plural, select, svg, time } from "./dom.js";
import { modelRoute, state } from "./state.js";

const POINTS = 900; // of a line, at most

let by = "day";

export async function showDrift(main, signal) {
  const data = await get(modelRoute("/drift"), {}, { signal });
  const charts = el("div");
  const draw = () => charts.replaceChildren(...allCharts(data));
  main.append(el("div", { class: "page" },
    el("h1", {}, "Drift"),
    verdict(data),
    el("p", { class: "dim" }, `${data.promise} Pictures that were reviewed as bad do not count.`),
    data.series.length > 0 && el("div", { class: "toolbar" },
      select("Scores by", [["day", "day"], ["hour", "hour"]], by, (value) => {
        by = value;
        draw();
      })),
    charts));
  draw();
}

function verdict(data) {
  if (!data.series.length) return el("p", { class: "words" }, "No pictures have been scored yet.");
  const last = data.alarms.at(-1);
  if (!last) return el("p", { class: "words" }, `No sign of a change in ${plural(data.levels.length, "picture")}.`);
  return el("p", { class: "words alarm" },
    `The parts have changed: ${plural(data.alarms.length, "alarm")}, the last on ${time(last.created)}. Look at the pictures below; if they are good, review and teach them.`);
}

function allCharts(data) {
  if (!data.series.length) return [];
  const from = data.series[0].created;
  const to = Math.max(data.series.at(-1).created, from + 3600);
  const bins = binned(data.series, by);
  const range = [Math.min(from, bins[0].from), Math.max(to, bins.at(-1).to)];
  return [level(data, range), drivers(data), scores(bins, range), flagged(bins, range)].filter(Boolean);
}

/** Group by local hour or day. */
function binned(series, kind) {
  const bins = new Map();
  for (const point of series) {
    const start = new Date(point.created * 1000);
    start.setHours(kind === "day" ? 0 : start.getHours(), 0, 0, 0);
    const from = start.getTime() / 1000;
    if (!bins.has(from)) bins.set(from, { from, to: from + (kind === "day" ? 86400 : 3600), points: [] });
    bins.get(from).points.push(point);
  }
  return [...bins.values()].map((bin) => {
    const values = bin.points.map((point) => point.score).sort((a, b) => a - b);
    const at = (share) => values[Math.round(share * (values.length - 1))];
    const share = bin.points.filter((point) => point.is_anomaly).length / values.length;
    return { ...bin, count: values.length, low: at(0.1), middle: at(0.5), high: at(0.9), share };
  });
}

function place(bin, x) {
  const left = x(bin.from);
  return { left: left + 1, width: Math.max(2, x(bin.to) - left - 2) };
}

function scores(bins, range) {
  return chart("Scores: the middle one (line), from the lowest to the highest tenth (bar), and the threshold (dashed)", {}, (drawn, box) => {
    const threshold = state.model.threshold;
    const low = Math.min(threshold, ...bins.map((bin) => bin.low));
    const high = Math.max(threshold, ...bins.map((bin) => bin.high));
    const x = linear(range, [box.left, box.right]);
    const y = linear([low, high + (high - low) * 0.05], [box.bottom - 4, box.top]);
    yAxis(drawn, box, y, ticks(low, high, 4));
    for (const bin of bins) {
      const { left, width } = place(bin, x);
      const text = `${time(bin.from)}: ${plural(bin.count, "picture")}, middle ${number(bin.middle)}`;
      drawn.append(
        svg("rect", { class: "bar range", x: left, width, y: y(bin.high), height: Math.max(2, y(bin.low) - y(bin.high)) }, tip(text)),
        svg("line", { class: "middle", x1: left, x2: left + width, y1: y(bin.middle), y2: y(bin.middle) }));
    }
    drawn.append(svg("line", { class: "used", x1: box.left, x2: box.right, y1: y(threshold), y2: y(threshold) }, tip("threshold")));
    times(drawn, box, x, range);
  });
}

function flagged(bins, range) {
  return chart("Share called anomalous", { height: 120 }, (drawn, box) => {
    const x = linear(range, [box.left, box.right]);
    const most = Math.max(0.1, ...bins.map((bin) => bin.share));
    const y = linear([0, most], [box.bottom, box.top]);
    yAxis(drawn, box, y, [0, most / 2, most], percent);
    for (const bin of bins) {
      const { left, width } = place(bin, x);
      const text = `${time(bin.from)}: ${percent(bin.share)} of ${bin.count}`;
      drawn.append(svg("rect", { class: "bar bad", x: left, width, y: y(bin.share), height: box.bottom - y(bin.share) }, tip(text)));
    }
    times(drawn, box, x, range);
  });
}

function level(data, range) {
  return chart("The test: when it reaches the dashed line, it is an alarm, and the test begins again", {}, (drawn, box) => {
    const x = linear(range, [box.left, box.right]);
    const log = (value) => Math.log10(Math.max(0.1, value));
    const highest = data.levels.reduce((top, one) => Math.max(top, one.level), data.patience);
    const y = linear([-1, log(highest) + 0.2], [box.bottom, box.top]);
    const powers = [0, 1, 2, 3, 4, 5, 6].filter((power) => power <= log(highest));
    yAxis(drawn, box, y, powers, (power) => (10 ** power).toLocaleString("en"));
    const points = thinned(data.levels).map(({ created, level: value }) => `${x(created).toFixed(1)},${y(log(value)).toFixed(1)}`);
    drawn.append(svg("line", { class: "alarm-line", x1: box.left, x2: box.right, y1: y(log(data.patience)), y2: y(log(data.patience)) }, tip("alarm")),
      svg("polyline", { class: "level", points: points.join(" ") }));
    for (const alarm of data.alarms) {
      const at = x(alarm.created);
      drawn.append(svg("a", { href: `#/image/${alarm.image}`, "aria-label": `Alarm on ${time(alarm.created)}` },
        svg("circle", { class: "alarm-dot", cx: at, cy: y(log(data.patience)), r: 6 }, tip(`alarm, ${time(alarm.created)}`))));
    }
    times(drawn, box, x, range);
  });
}

/** Few enough points to draw; the highest of each group, so that no alarm is lost. */
function thinned(levels) {
  const group = Math.ceil(levels.length / POINTS);
  if (group <= 1) return levels;
  const kept = [];
  for (let i = 0; i < levels.length; i += group) {
    kept.push(levels.slice(i, i + group).reduce((top, one) => (one.level > top.level ? one : top)));
  }
  return kept;
}

function times(drawn, box, x, [from, to]) {
  const { values, text } = timeTicks(from, to);
  xAxis(drawn, box, x, values, text);
}

function drivers(data) {
  if (!data.drivers.length) return null;
  const link = (image) => {
    const picture = el("img", { alt: `Image ${image}`, loading: "lazy" });
    show(picture, thumbnail(image, state.model.name, state.model.version.id));
    return el("a", { href: `#/image/${image}` }, picture);
  };
  return el("section", { class: "card" }, el("h2", {}, "The pictures that moved the test most"), el("div", { class: "strip" }, data.drivers.map(link)));
}
