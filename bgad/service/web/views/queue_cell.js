// One cell of the queue: thumbnail, name, score, decision, reason and verdict.

import { badge, decisionBadge, el } from "../lib/dom.js";
import { decisionText, formatNumber } from "../lib/format.js";
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
  const score = formatNumber(row.score);
  const verdict = isFailed ? "not saved" : `${row.verdict ?? "not reviewed"}${row.has_mask ? ", painted" : ""}`;
  cell.replaceChildren(
    img,
    el("div", { class: "name", title: row.name }, row.name),
    el("div", { class: "line" }, el("span", { class: "score" }, score), decisionBadge(row.is_anomaly)),
    el("div", { class: "why", title: row.reason }, row.reason),
    verdictLabel(row, isFailed) ?? "");
  cell.setAttribute("aria-label", `${row.name}, score ${score}, ${decisionText(row.is_anomaly)}${row.reason ? `: ${row.reason}` : ""}, ${verdict}`);
}

/**
 * @param {ListedImage} row
 * @param {boolean} isFailed
 */
function verdictLabel(row, isFailed) {
  if (isFailed) return el("div", { class: "said" }, badge("not saved", "failed"));
  if (!row.verdict) return null;
  const brush = row.has_mask && el("span", { class: "painted", title: "the defect is painted" }, " ✎");
  return el("div", { class: "said" }, badge([row.verdict, brush], row.verdict));
}
