// The threshold: the scores, where they are cut, and what that may promise.

import { chart, histogram, linear, mark, ruled, ticks, tip, xAxis, yAxis } from "../lib/chart.js";
import { get, send } from "../lib/api.js";
import { button, el, guarded, number, percent, plural, say, svg } from "../lib/dom.js";
import { loadModels, mayAll, modelRoute, newList, state } from "../lib/state.js";

const BINS = 36;
const LABELS = 18; // room above the first chart for the names of the lines
const ROWS = [
  ["calibration", "Good parts kept for calibration"],
  ["good", "Reviewed as good"],
  ["bad", "Reviewed as bad"],
];

export async function showThreshold(main, signal) {
  const data = await get(modelRoute("/threshold"), {}, { signal });
  const page = el("div", { class: "page" });
  main.append(page);
  fill(page, data);
}

function fill(page, data) {
  const n = data.calibration.length;
  const most = data.bounds.length; // the largest rank that can be chosen
  let rank = rankOf(data.rate, n);
  const words = el("div", { class: "words", "aria-live": "polite" });
  const charts = el("div");
  const promise = el("div", { class: "card" });
  const rateText = el("output", { class: "big" });
  const slider = el("input", { // to the right, the line goes to the right: the rank falls
    type: "range", min: "1", max: String(most), step: "1", value: String(most + 1 - rank), class: "wide",
    "aria-label": "Threshold, by the share of good parts that may be rejected", oninput: () => choose(most + 1 - Number(slider.value)),
  });
  const exact = el("input", {
    type: "number", min: String(100 * data.smallest_rate), max: String(100 * most / (n + 1)), step: "any", "aria-label": "False-reject rate in percent",
    onchange: () => chooseRate(Number(exact.value) / 100),
  });
  const use = button("Use this", guarded(() => save(page, rank / (n + 1))), { class: "primary" });

  function chooseRate(rate) {
    if (!(rate >= data.smallest_rate - 1e-9)) say(`${plural(n, "good part")} can promise ${percent(data.smallest_rate)} at best.`, true);
    choose(rankOf(Math.max(data.smallest_rate, rate || 0), n));
  }

  function choose(value) {
    rank = Math.max(1, Math.min(most, value));
    const chosen = data.calibration[n - rank];
    slider.value = String(most + 1 - rank);
    exact.value = Number((100 * rank / (n + 1)).toPrecision(4));
    rateText.textContent = `${percent(rank / (n + 1))}, threshold ${number(chosen)}`;
    slider.setAttribute("aria-valuetext", rateText.textContent);
    words.replaceChildren(...consequences(data, chosen, rank));
    promise.replaceChildren(...promised(data, rank));
    charts.replaceChildren(distributions(data, chosen));
    const same = rank === rankOf(data.rate, n);
    use.disabled = same || !mayAll();
    use.title = mayAll() ? (same ? "This is in use" : "") : "This needs the role admin";
  }

  page.replaceChildren(
    el("h1", {}, "Threshold"),
    el("p", {}, "Scores right of the line are called anomalous. Move it: fewer false alarms, or fewer misses."),
    charts,
    el("div", { class: "card" },
      el("label", { class: "stack" }, "Share of good parts that may be rejected", slider),
      el("div", { class: "ends" }, el("span", {}, "← fewer misses"), el("span", {}, "fewer false alarms →")),
      el("div", { class: "row" }, el("label", { class: "field" }, "Exactly ", exact, " %"), rateText, use),
      el("p", { class: "dim" }, `${plural(n, "good part")} kept for calibration can promise ${percent(data.smallest_rate)} at best. For less, train with more good parts.`),
      words),
    promise);
  choose(rank);
}

function rankOf(rate, n) {
  return Math.max(1, Math.floor(rate * (n + 1) + 1e-9));
}

async function save(page, rate) {
  const data = await send("PUT", modelRoute("/threshold"), { rate });
  await loadModels();
  newList();
  fill(page, data);
  say(`The threshold of ${state.model.name} is now ${number(data.threshold)}.`);
}

/** What the chosen rate promises about parts to come. */
function promised(data, rank) {
  const n = data.calibration.length;
  const rate = percent(rank / (n + 1));
  const now = rank === rankOf(data.rate, n) ? "now" : `at ${rate}`;
  return [
    el("h2", {}, `What is promised ${now}`),
    el("p", {}, `A good part is rejected with probability at most ${rate}, on average over sets of ${plural(n, "good part")} kept for calibration. For the set at hand, the true rate is below ${percent(data.bounds[rank - 1])} with ${percent(data.confidence)} confidence. Both hold as long as the parts to come are like those of the calibration.`),
  ];
}

/** What a threshold would do to what is known, in words. */
function consequences(data, chosen, rank) {
  const above = (values) => values.filter((value) => value > chosen).length;
  const n = data.calibration.length;
  const lines = [`Of new good parts, at most ${percent(rank / (n + 1))} are rejected on average, as long as they are like those of the calibration (${above(data.calibration)} of these ${n} are above the line).`];
  const [good, bad] = [data.good.length, data.bad.length];
  const rejected = above(data.good);
  const missed = bad - above(data.bad);
  if (good) lines.push(`Of ${plural(good, "picture")} reviewed as good, ${rejected} would be rejected (${percent(rejected / good)}).`);
  else if (!data.taught.good) lines.push("No picture has been reviewed as good yet.");
  if (bad) lines.push(`Of ${plural(bad, "picture")} reviewed as bad, ${missed} would be missed (${percent(missed / bad)}).`);
  else if (!data.taught.bad) lines.push("No picture has been reviewed as bad yet: what would be missed is not known.");
  for (const kind of ["good", "bad"]) if (data.taught[kind]) lines.push(taughtText(data.taught[kind], kind, data[kind].length));
  return [el("ul", {}, lines.map((line) => el("li", {}, line)))];
}

/** Why reviews are missing in the counts. */
function taughtText(count, kind, others) {
  const [were, do_] = count === 1 ? ["was", "does"] : ["were", "do"];
  return `${plural(count, others ? "other picture" : "picture")} reviewed as ${kind} ${were} taught and ${do_} not count here${others ? "." : "; review new ones."}`;
}

function distributions(data, chosen) {
  const sorted = ROWS.map(([key]) => data[key]).filter((values) => values.length);
  const low = Math.min(...sorted.map((values) => values[0]));
  const high = Math.max(...sorted.map((values) => values.at(-1)));
  const from = low - (high - low) * 0.03;
  const to = high + (high - low) * 0.08; // with room for a line's name
  return el("div", {}, ROWS.map(([key, title], i) => row(data[key], key, title, { from, to, chosen, used: data.threshold, first: i === 0, last: i === 2 })));
}

function row(values, key, title, { from, to, chosen, used, first, last }) {
  const top = first ? 10 + LABELS : 10;
  return chart(`${title}: ${values.length}`, { height: (last ? 80 : 62) + top, top, foot: last ? 24 : 8 }, (drawn, box) => {
    const counts = histogram(values, from, to, BINS);
    const tallest = Math.max(4, ...counts);
    const x = linear([from, to], [box.left, box.right]);
    const y = linear([0, tallest], [box.bottom, box.top]);
    yAxis(drawn, box, y, [0, tallest]);
    const wide = (to - from) / BINS;
    counts.forEach((count, i) => {
      if (!count) return;
      const start = from + i * wide;
      drawn.append(svg("rect", { class: `bar ${key}`, x: x(start) + 1, y: y(count), width: x(wide) - x(0) - 2, height: y(0) - y(count) },
        tip(`${count} from ${number(start)} to ${number(start + wide)}`)));
    });
    for (const [kind, value, text] of [["used", used, "in use"], ["chosen", chosen, "chosen"]]) {
      ruled(drawn, kind, { x1: x(value), x2: x(value), y1: box.top - 6, y2: box.bottom }, text);
    }
    if (first) names(drawn, box, x, used, chosen);
    if (last) xAxis(drawn, box, x, ticks(from, to, 8));
  });
}

/** The names of the two lines, each on its own side. */
function names(drawn, box, x, used, chosen) {
  if (used === chosen) return mark(drawn, box, x(used), "in use", true);
  mark(drawn, box, x(used), "in use", used > chosen);
  return mark(drawn, box, x(chosen), "chosen", chosen > used);
}
