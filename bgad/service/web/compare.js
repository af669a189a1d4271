// Two versions side by side: figures, and image by image what improved and what got worse.

import { path, show, thumbnail } from "./api.js";
import { badge, button, decision, el, number, select } from "./dom.js";
import { state } from "./state.js";
import { imageLink } from "./trail.js";

const MOST = 40; // rows of a table, until somebody asks for more
const PARTS = [["", "all pictures"], ["validation", "test pictures"], ["reviews", "reviewed pictures"]];
const SHOWN = [["changed", "changed decisions"], ["all", "all, the most moved first"]];

export function comparison(job) {
  const { validation, reviews, threshold } = job.result;
  return el("div", {},
    el("div", { class: "sides" },
      side("Test pictures that neither has learnt from", validation, threshold),
      side("Reviewed pictures", reviews, threshold, learntText(reviews))),
    pictures(job));
}

/** Figures on what was learnt say little about what is to come: say how many those are. */
function learntText(reviews) {
  const learnt = reviews.rows.filter((row) => row.taught).length;
  return `Learnt from by one version or both: ${learnt}. How well new parts are judged shows on the test pictures.`;
}

function side(title, found, threshold, text = "") {
  if (!found.images) return el("div", {}, el("h3", {}, title), el("p", { class: "dim" }, found.reason || "There are none here."));
  const rows = [
    ["AUROC", "auroc", true],
    [`Missed, of ${found.bad} bad`, "missed", false],
    [`False rejects, of ${found.images - found.bad} good`, "false_rejects", false],
  ];
  return el("div", {}, el("h3", {}, `${title}: ${found.images}`),
    el("table", { class: "figures" },
      el("thead", {}, el("tr", {}, ["", "Before", "After"].map((words) => el("th", { scope: "col" }, words)))),
      el("tbody", {},
        threshold && el("tr", {}, el("th", { scope: "row" }, "Threshold"), el("td", {}, number(threshold.before)), el("td", {}, number(threshold.after))),
        rows.map(([words, key, more]) => figures(words, found.before[key], found.after[key], more)))),
    text && el("p", { class: "dim" }, text));
}

function figures(text, before, after, more) {
  const change = before === null || after === null || before === after ? "" : after > before === more ? "better" : "worse";
  const shown = (value) => (value === null ? "–" : Number.isInteger(value) && !more ? String(value) : value.toFixed(3));
  const mark = { better: " ▲ better", worse: " ▼ worse", "": "" }[change];
  return el("tr", {}, el("th", { scope: "row" }, text), el("td", {}, shown(before)), el("td", { class: change }, shown(after) + mark));
}

// --- image by image

/** How far a picture moved to the right side of the threshold; scores of two versions cannot be compared, margins can. */
function moved(row) {
  const up = (row.after.margin ?? 0) - (row.before.margin ?? 0); // older results have none
  return row.label ? up : -up;
}

function pictures(job) {
  const rows = ["validation", "reviews"].flatMap((part) => job.result[part].rows.map((row, place) => ({ ...row, part, place })));
  rows.sort((one, other) => Math.abs(moved(other)) - Math.abs(moved(one)));
  const wanted = { shown: "changed", part: "" };
  const lists = el("div");
  const draw = () => {
    const found = rows.filter((row) => !wanted.part || row.part === wanted.part);
    lists.replaceChildren(...(wanted.shown === "all"
      ? [list("All", found, job)]
      : [["What improved", "better"], ["What got worse", "worse"]].map(([title, kind]) => list(title, found.filter((row) => row.change === kind), job))));
  };
  const choice = (label, options, key) => select(label, options, wanted[key], (value) => {
    wanted[key] = value;
    draw();
  });
  draw();
  return el("section", { "aria-label": "Image by image" },
    el("div", { class: "toolbar" }, choice("Show", SHOWN, "shown"), choice("Of", PARTS, "part")),
    el("p", { class: "dim" }, "Each version scores on a scale of its own. So each score is also given as its distance from the threshold: how many standard deviations of that version's own good parts it lies above (+) or below (−)."),
    lists);
}

function list(title, rows, job) {
  if (!rows.length) return el("p", {}, el("strong", {}, `${title}: `), "nothing.");
  const body = el("tbody");
  const more = button("", () => add());
  const add = () => {
    const from = body.childElementCount;
    body.append(...rows.slice(from, from + MOST).map((row) => line(row, job)));
    const left = rows.length - body.childElementCount;
    more.textContent = `Show ${Math.min(MOST, left)} more of ${left}`;
    more.hidden = !left;
  };
  add();
  const heads = ["Picture", "Is", `Before: version ${job.version}`, `After: version ${job.new_version}`, "Moved"];
  return el("details", { open: true }, el("summary", {}, `${title}: ${rows.length}`),
    el("div", { class: "scroll" }, el("table", { class: "compared" },
      el("thead", {}, el("tr", {}, heads.map((text) => el("th", { scope: "col" }, text)))), body)),
    more);
}

function line(row, job) {
  const name = row.image ? el("a", { href: link(row.image, job.new_version) }, row.name) : row.name;
  const by = moved(row);
  const change = Math.abs(by) < 0.005 ? "" : by > 0 ? "better" : "worse";
  return el("tr", {},
    el("td", {}, name, row.taught && el("span", { class: "dim" }, " taught")),
    el("td", {}, row.label ? badge("bad", "bad") : badge("good", "good")),
    said(row, "before", job),
    said(row, "after", job),
    el("td", { class: change }, change ? `${change === "better" ? "▲" : "▼"} ${Math.abs(by).toFixed(2)} ${change}` : "–"));
}

function said(row, side, job) {
  const { score, is_anomaly: strange, margin } = row[side];
  const distance = margin === undefined ? "" : `${margin < 0 ? "−" : "+"}${Math.abs(margin).toFixed(2)}`;
  return el("td", {}, el("div", { class: "said-by" },
    heat(row, side, job),
    el("div", {}, badge(decision(strange), decision(strange)), el("div", { class: "score" }, number(score), " ", el("span", { class: "dim" }, distance)))));
}

/** The picture with its heat by one of the two versions; test pictures were drawn by the job. */
function heat(row, side, job) {
  const version = side === "before" ? job.version : job.new_version;
  const url = row.part === "validation"
    ? row.sha256 && path(`jobs/${job.id}/validation/${row.place}/${side}.jpg`)
    : usable(version) && thumbnail(row.image, state.model.name, version);
  if (!url) return null;
  const small = el("img", { alt: `${row.name} by version ${version}`, loading: "lazy", class: "small", onerror: () => small.remove() });
  show(small, url);
  return row.image ? el("a", { href: link(row.image, version) }, small) : small;
}

/** A version that was discarded says nothing any more. */
function usable(version) {
  return state.model.versions.some((one) => one.id === version && one.state !== "discarded");
}

function link(image, version) {
  return imageLink(image, state.model.name, usable(version) ? version : undefined);
}
