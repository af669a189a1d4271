// Two versions side by side: figures, and image by image what improved and what got worse.

import { show, thumbnail } from "./api.js";
import { badge, decision, el, number } from "./dom.js";
import { state } from "./state.js";

const MOST = 60; // rows of a table

export function comparison(job) {
  const { validation, reviews } = job.result;
  return el("div", {},
    el("div", { class: "sides" },
      side("Test pictures that neither has learnt from", validation),
      side("Reviewed pictures", reviews, learntText(reviews))),
    changes("What improved", "better", job),
    changes("What got worse", "worse", job));
}

/** Figures on what was learnt say little about what is to come: say how many those are. */
function learntText(reviews) {
  const learnt = reviews.rows.filter((row) => row.learnt).length;
  return `${learnt} of them were taught: how well new parts are judged shows on the test pictures.`;
}

function side(title, found, text = "") {
  if (!found.images) return el("div", {}, el("h3", {}, title), el("p", { class: "dim" }, "There are none here."));
  const rows = [
    ["AUROC", "auroc", true],
    [`Missed, of ${found.bad} bad`, "missed", false],
    [`False rejects, of ${found.images - found.bad} good`, "false_rejects", false],
  ];
  return el("div", {}, el("h3", {}, `${title}: ${found.images}`),
    el("table", { class: "figures" },
      el("thead", {}, el("tr", {}, ["", "Before", "After"].map((text) => el("th", { scope: "col" }, text)))),
      el("tbody", {}, rows.map(([words, key, more]) => figures(words, found.before[key], found.after[key], more)))),
    text && el("p", { class: "dim" }, text));
}

function figures(text, before, after, more) {
  const change = before === null || after === null || before === after ? "" : after > before === more ? "better" : "worse";
  const shown = (value) => (value === null ? "–" : Number.isInteger(value) && !more ? String(value) : value.toFixed(3));
  const mark = { better: " ▲ better", worse: " ▼ worse", "": "" }[change];
  return el("tr", {}, el("th", { scope: "row" }, text), el("td", {}, shown(before)), el("td", { class: change }, shown(after) + mark));
}

function changes(title, kind, job) {
  const rows = ["reviews", "validation"].flatMap((part) => job.result[part].rows.filter((row) => row.change === kind));
  if (!rows.length) return el("p", {}, el("strong", {}, `${title}: `), "nothing.");
  return el("details", { open: true }, el("summary", {}, `${title}: ${rows.length}`),
    el("div", { class: "scroll" }, el("table", {},
      el("thead", {}, el("tr", {}, ["Picture", "Is", "Before", "After"].map((text) => el("th", { scope: "col" }, text)))),
      el("tbody", {}, rows.slice(0, MOST).map((row) => changeLine(row, job))))),
    rows.length > MOST && el("p", { class: "dim" }, `and ${rows.length - MOST} more`));
}

function changeLine(row, job) {
  const said = ({ score, is_anomaly: strange }) => [badge(decision(strange), decision(strange)), ` ${number(score)}`];
  return el("tr", {},
    el("td", {}, picture(row, job), row.learnt && el("span", { class: "dim" }, " taught")),
    el("td", {}, row.label ? badge("bad", "bad") : badge("good", "good")),
    el("td", {}, said(row.before)),
    el("td", {}, said(row.after)));
}

function picture(row, job) {
  if (!row.image) return row.name;
  const small = el("img", { alt: "", loading: "lazy", class: "small" });
  show(small, thumbnail(row.image, state.model.name, job.version));
  return el("a", { href: `#/image/${row.image}` }, small, row.name);
}
