// Small parts of charts in SVG.

import { el, svg } from "./dom.js";

/** A scale from values to places. */
export function linear([from, to], [start, end]) {
  const wide = to - from || 1;
  return (value) => start + ((value - from) / wide) * (end - start);
}

/** Round numbers that cut a range into about so many parts. */
export function ticks(from, to, about = 5) {
  const rough = (to - from) / about || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * power).find((value) => value >= rough);
  const found = [];
  for (let i = Math.ceil(from / step); i * step <= to + step * 1e-9; i += 1) found.push(Number((i * step).toPrecision(12)));
  return found;
}

/** How many of the sorted values fall into each of the bins. */
export function histogram(values, from, to, bins) {
  const counts = new Array(bins).fill(0);
  for (const value of values) counts[Math.min(bins - 1, Math.max(0, Math.floor(((value - from) / (to - from || 1)) * bins)))] += 1;
  return counts;
}

/** A chart with a title and room for axes; `draw` gets the SVG and the inner box. */
export function chart(title, { height = 170, label }, draw) {
  const width = 900;
  const box = { left: 56, right: width - 14, top: 10, bottom: height - 24 };
  const drawn = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img", "aria-label": label ?? title });
  draw(drawn, box);
  return el("figure", {}, el("figcaption", {}, title), drawn);
}

const plain = (value) => value.toLocaleString("en");

export function yAxis(drawn, box, scale, values, text = plain) {
  for (const value of values) {
    const y = scale(value);
    drawn.append(svg("line", { class: "rule", x1: box.left, x2: box.right, y1: y, y2: y }),
      svg("text", { x: box.left - 6, y: y + 4, "text-anchor": "end" }, text(value)));
  }
}

export function xAxis(drawn, box, scale, values, text = plain) {
  drawn.append(svg("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
  for (const value of values) {
    const x = scale(value);
    const anchor = x > box.right - 24 ? "end" : x < box.left + 24 ? "start" : "middle";
    drawn.append(svg("text", { x, y: box.bottom + 16, "text-anchor": anchor }, text(value)));
  }
}

/** Times to write below an axis: whole days or whole hours, not too many. */
export function timeTicks(from, to, most = 8) {
  const hours = [1, 2, 3, 6, 12, 24, 48, 24 * 7, 24 * 30, 24 * 91, 24 * 365];
  const step = hours.find((wide) => (to - from) / 3600 / wide <= most) ?? 24 * 365;
  const start = new Date(from * 1000);
  start.setHours(step < 24 ? Math.ceil(start.getHours() / step) * step : 24, 0, 0, 0);
  const found = [];
  for (let at = start.getTime() / 1000; at <= to; at += step * 3600) found.push(at);
  return { values: found, text: (at) => tickText(at, step) };
}

function tickText(at, step) {
  const date = new Date(at * 1000);
  if (step < 24) return date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });
  return date.toLocaleDateString([], { day: "numeric", month: "short" });
}

/** The words that show when the mouse rests on something. */
export function tip(text) {
  return svg("title", {}, text);
}
