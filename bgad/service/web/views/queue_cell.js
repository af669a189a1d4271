// One cell of the queue: thumbnail, name, score, decision, reason and verdict.

import { badge, decisionBadge, el } from "../lib/dom.js";
import { formatNumber } from "../lib/format.js";
import { imageElement } from "../lib/image_loader.js";

/** @import { ListedImage } from "../lib/types.js" */

/**
 * Creates an empty cell at a position of the grid.
 * @param {number} index
 * @param {import("../lib/grid_layout.js").GridLayout} layout
 */
export function createCell(index, layout) {
  const cell = el("div", { class: "cell", role: "option", id: `cell-${index}` });
  const { x, y } = layout.position(index);
  cell.style.width = `${layout.cellWidth}px`;
  cell.style.height = `${layout.cellHeight}px`;
  cell.style.transform = `translate(${x}px, ${y}px)`;
  return cell;
}

/**
 * Shows an image in its cell; a thumbnail that is there already stays.
 * @param {HTMLElement} cell
 * @param {ListedImage} row
 * @param {boolean} isFailed whether the last verdict could not be saved
 */
export function fillCell(cell, row, isFailed) {
  const img = cell.querySelector("img") ?? imageElement(row.thumbnail, { decoding: "async", draggable: "false" });
  cell.replaceChildren(
    img,
    el("div", { class: "name", title: row.name }, row.name),
    el("div", { class: "line" },
      unseen("score "), el("span", { class: "score" }, formatNumber(row.score)), decisionBadge(row.is_anomaly)),
    el("div", { class: "why", title: row.reason }, row.reason),
    verdictLabel(row, isFailed) ?? unseen("not reviewed"));
}

/**
 * Creates a text for screen readers, which read a cell by its content.
 * @param {string} text
 */
function unseen(text) {
  return el("span", { class: "unseen" }, text);
}

/**
 * @param {ListedImage} row
 * @param {boolean} isFailed
 */
function verdictLabel(row, isFailed) {
  if (isFailed) return el("div", { class: "said" }, badge("not saved", "failed"));
  if (!row.verdict) return null;
  const brush = row.has_mask && el("span", { class: "painted", title: "the defect is painted", role: "img", "aria-label": "painted" }, " ✎");
  return el("div", { class: "said" }, badge([row.verdict, brush], row.verdict));
}
