// The threshold: the scores, where they are cut, and what that may promise.

import { chart, histogram, linear, ticks, tip, xAxis, yAxis } from "./chart.js";
import { get, send } from "./api.js";
import { button, el, guarded, number, percent, plural, say, svg } from "./dom.js";
import { loadModels, mayAll, modelRoute, newList, state } from "./state.js";

const BINS = 36;
const MOST = 0.5; // the largest rate that can be chosen
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
  let rank = rankOf(data.rate, n);
  const most = Math.max(rank, Math.floor(MOST * (n + 1)));
  const words = el("div", { class: "words", "aria-live": "polite" });
  const charts = el("div");
  const rateText = el("output", { class: "big" });
  const slider = el("input", {
    type: "range", min: "1", max: String(most), step: "1", value: String(rank), class: "wide",
    "aria-label": "False-reject rate", oninput: () => choose(Number(slider.value)),
  });
  const exact = el("input", {
    type: "number", min: String(100 * data.smallest_rate), max: String(100 * MOST), step: "any", "aria-label": "False-reject rate in percent",
    onchange: () => chooseRate(Number(exact.value) / 100),
  });
  const use = button("Use this", guarded(() => save(page, rank / (n + 1))), { class: "primary" });

  function chooseRate(rate) {
    if (!(rate >= data.smallest_rate - 1e-9)) say(`${plural(n, "good part")} can promise ${percent(data.smallest_rate)} at best.`, true);
    choose(rankOf(Math.max(data.smallest_rate, Math.min(MOST, rate || 0)), n));
  }

  function choose(value) {
    rank = Math.max(1, Math.min(most, value));
    slider.value = String(rank);
    const chosen = data.calibration[n - rank];
    exact.value = Number((100 * rank / (n + 1)).toPrecision(4));
    rateText.textContent = `${percent(rank / (n + 1))}, threshold ${number(chosen)}`;
    words.replaceChildren(...consequences(data, chosen, rank));
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
      el("div", { class: "row" }, el("label", { class: "field" }, "Exactly ", exact, " %"), rateText, use),
      el("p", { class: "dim" }, `${plural(n, "good part")} kept for calibration can promise ${percent(data.smallest_rate)} at best. For less, train with more good parts.`),
      words),
    el("div", { class: "card" }, el("h2", {}, "What is promised now"), el("p", {}, data.guarantee)));
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

/** What a threshold would do to what is known, in words. */
function consequences(data, chosen, rank) {
  const above = (values) => values.filter((value) => value > chosen).length;
  const n = data.calibration.length;
  const lines = [`Of new good parts, at most ${percent(rank / (n + 1))} are rejected on average, as long as they are like those of the calibration (${above(data.calibration)} of these ${n} are above the line).`];
  const good = data.good.length;
  const bad = data.bad.length;
  const rejected = above(data.good);
  const missed = bad - above(data.bad);
  lines.push(good
    ? `Of ${plural(good, "picture")} reviewed as good, ${rejected} would be rejected (${percent(rejected / good)}).`
    : "No picture has been reviewed as good yet.");
  lines.push(bad
    ? `Of ${plural(bad, "picture")} reviewed as bad, ${missed} would be missed (${percent(missed / bad)}).`
    : "No picture has been reviewed as bad yet: what would be missed is not known.");
  return [el("ul", {}, lines.map((line) => el("li", {}, line)))];
}

function distributions(data, chosen) {
  const sorted = ROWS.map(([key]) => data[key]).filter((values) => values.length);
  const low = Math.min(...sorted.map((values) => values[0]));
  const high = Math.max(...sorted.map((values) => values.at(-1)));
  const from = low - (high - low) * 0.03;
  const to = high + (high - low) * 0.03;
  return el("div", {}, ROWS.map(([key, title], i) => row(data[key], key, title, { from, to, chosen, used: data.threshold, last: i === 2 })));
}

function row(values, key, title, { from, to, chosen, used, last }) {
  return chart(`${title}: ${values.length}`, { height: last ? 90 : 72 }, (drawn, box) => {
    const bottom = last ? box.bottom : box.bottom + 16;
    const inner = { ...box, bottom };
    const counts = histogram(values, from, to, BINS);
    const tallest = Math.max(4, ...counts);
    const x = linear([from, to], [inner.left, inner.right]);
    const y = linear([0, tallest], [inner.bottom, inner.top]);
    yAxis(drawn, inner, y, [0, tallest]);
    const wide = (to - from) / BINS;
    counts.forEach((count, i) => {
      if (!count) return;
      const start = from + i * wide;
      drawn.append(svg("rect", { class: `bar ${key}`, x: x(start) + 1, y: y(count), width: x(wide) - x(0) - 2, height: y(0) - y(count) },
        tip(`${count} from ${number(start)} to ${number(start + wide)}`)));
    });
    line(drawn, inner, x(used), "used", "in use");
    line(drawn, inner, x(chosen), "chosen", "chosen");
    if (last) xAxis(drawn, inner, x, ticks(from, to, 8));
  });
}

function line(drawn, box, x, kind, text) {
  drawn.append(svg("line", { class: kind, x1: x, x2: x, y1: box.top - 6, y2: box.bottom }, tip(text)));
}
