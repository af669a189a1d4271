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

/** A chart with a title and room for axes; `draw` gets the SVG and the inner box. One with links is no single image. */
export function chart(title, { height = 170, top = 10, foot = 24, links = false }, draw) {
  const width = 900;
  const box = { left: 56, right: width - 14, top, bottom: height - foot };
  const drawn = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", role: links ? "group" : "img", "aria-label": title });
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

/** `below` gives a second line of text. */
export function xAxis(drawn, box, scale, values, text = plain, below = null) {
  drawn.append(svg("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
  for (const value of values) {
    const x = scale(value);
    const anchor = x > box.right - 24 ? "end" : x < box.left + 24 ? "start" : "middle";
    drawn.append(svg("text", { x, y: box.bottom + 16, "text-anchor": anchor }, text(value)));
    if (below) drawn.append(svg("text", { x, y: box.bottom + 32, "text-anchor": anchor }, below(value)));
  }
}

/** A line that is seen on bars as well: a wider one of the background lies below it. */
export function ruled(drawn, kind, ends, text = "") {
  drawn.append(svg("line", { class: "under", ...ends }), svg("line", { class: kind, ...ends }, text && tip(text)));
}

/** The name of an upright line, above the box and on one side of it, or on the other where there is no room. */
export function mark(drawn, box, x, text, right) {
  const room = 7 * text.length + 6;
  const after = right ? x + room < box.right : x - room < box.left;
  drawn.append(svg("text", { class: "mark", x: after ? x + 4 : x - 4, y: box.top - 10, "text-anchor": after ? "start" : "end" }, text));
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
  return step < 24 ? hourText(at) : dayText(at);
}

function hourText(at) {
  return new Date(at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });
}

function dayText(at) {
  return new Date(at * 1000).toLocaleDateString([], { day: "numeric", month: "short" });
}

/** How a moment of a span is written: with the hour where that is a few days at most. */
export function momentText(at, from, to) {
  return to - from < 5 * 86400 ? `${dayText(at)} ${hourText(at)}` : dayText(at);
}

/** The words that show when the mouse rests on something. */
export function tip(text) {
  return svg("title", {}, text);
}
