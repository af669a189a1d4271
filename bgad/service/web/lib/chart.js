// Parts of charts in SVG.

import { el, svg } from "./dom.js";
import { formatCount } from "./format.js";

/** @import { Attributes } from "./dom.js" */
/** @import { Scale } from "./scales.js" */
/** @typedef {{ left: number, right: number, top: number, bottom: number }} Box the area inside the axes */

const WIDTH = 900; // units of the drawing, which the page scales to its own width
const LEFT_MARGIN = 56;
const RIGHT_MARGIN = 14;
const EDGE = 24; // labels closer to the left or right edge are not centred
const LETTER_WIDTH = 7;

/**
 * @typedef {object} ChartOptions
 * @property {number} [height]
 * @property {number} [top]
 * @property {number} [foot] room below the box
 * @property {boolean} [hasLinks] screen readers treat a chart without links as one image
 */

/**
 * Creates a figure with a caption and a drawing.
 * @param {string} title
 * @param {ChartOptions} options
 * @param {(drawing: SVGSVGElement, box: Box) => void} draw
 */
export function chart(title, { height = 170, top = 10, foot = 24, hasLinks = false }, draw) {
  const role = hasLinks ? "group" : "img";
  const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, class: "chart", role, "aria-label": title });
  draw(drawing, { left: LEFT_MARGIN, right: WIDTH - RIGHT_MARGIN, top, bottom: height - foot });
  return el("figure", {}, el("figcaption", {}, title), drawing);
}

/**
 * Draws grid lines with their labels.
 * @param {SVGSVGElement} drawing
 * @param {Box} box
 * @param {Scale} scale
 * @param {number[]} values
 * @param {(value: number) => string} [text]
 */
export function yAxis(drawing, box, scale, values, text = formatCount) {
  for (const value of values) {
    const y = scale(value);
    drawing.append(
      svg("line", { class: "rule", x1: box.left, x2: box.right, y1: y, y2: y }),
      svg("text", { x: box.left - 6, y: y + 4, "text-anchor": "end" }, text(value)));
  }
}

/**
 * Draws the horizontal axis with its labels.
 * @param {SVGSVGElement} drawing
 * @param {Box} box
 * @param {Scale} scale
 * @param {number[]} values
 * @param {(value: number) => string} [text]
 * @param {((value: number) => string) | null} [secondText] gives a second line below each label
 */
export function xAxis(drawing, box, scale, values, text = formatCount, secondText = null) {
  drawing.append(svg("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
  for (const value of values) {
    const x = scale(value);
    const anchor = x > box.right - EDGE ? "end" : x < box.left + EDGE ? "start" : "middle";
    drawing.append(svg("text", { x, y: box.bottom + 16, "text-anchor": anchor }, text(value)));
    if (secondText) drawing.append(svg("text", { x, y: box.bottom + 32, "text-anchor": anchor }, secondText(value)));
  }
}

/**
 * Draws a line that stands out from bars: a wider one in the background's colour lies below it.
 * @param {SVGSVGElement} drawing
 * @param {string} kind the CSS class
 * @param {Attributes} ends
 * @param {string} tooltipText
 */
export function outlinedLine(drawing, kind, ends, tooltipText) {
  drawing.append(svg("line", { class: "under", ...ends }), svg("line", { class: kind, ...ends }, tooltip(tooltipText)));
}

/**
 * Draws a bar with a tooltip.
 * @param {SVGSVGElement} drawing
 * @param {string} kind the CSS class
 * @param {{ x: number, y: number, width: number, height: number }} bar
 * @param {string} tooltipText
 */
export function drawBar(drawing, kind, bar, tooltipText) {
  drawing.append(svg("rect", { class: `bar ${kind}`, ...bar }, tooltip(tooltipText)));
}

/**
 * Labels a vertical line above the box, on the other side where the preferred one has no room.
 * @param {SVGSVGElement} drawing
 * @param {Box} box
 * @param {number} x
 * @param {string} text
 * @param {boolean} prefersRight
 */
export function lineLabel(drawing, box, x, text, prefersRight) {
  const width = LETTER_WIDTH * text.length + 6;
  const isRight = prefersRight ? x + width < box.right : x - width < box.left;
  const [labelX, anchor] = isRight ? [x + 4, "start"] : [x - 4, "end"];
  drawing.append(svg("text", { class: "mark", x: labelX, y: box.top - 10, "text-anchor": anchor }, text));
}

/**
 * @param {string} text
 */
export function tooltip(text) {
  return svg("title", {}, text);
}
