// What the queue shows, and in which order.

import { el, select } from "../lib/dom.js";
import { setFilter, state } from "../lib/state.js";

const FIRST = "2000-01-01"; // a day before is one whose year is still being typed
const LAST = "2199-12-31";

/** The fields; `changed` is called when one has another value, `more` comes after the number of pictures. */
export function filterBar(changed, ...more) {
  const { filters } = state;
  const set = (key) => (value) => {
    setFilter(key, value);
    changed();
  };
  return el("form", { class: "toolbar", "aria-label": "What the queue shows", onsubmit: (e) => e.preventDefault() },
    select("Sort", [["uncertain", "most uncertain"], ["anomalous", "most anomalous"], ["newest", "newest"]],
      filters.order, set("order")),
    select("Decision", [["", "all"], ["anomalous", "anomalous"], ["normal", "normal"]],
      filters.decision, set("decision")),
    select("Review", [["", "all"], ["none", "not reviewed"], ["any", "reviewed"], ["good", "good"], ["bad", "bad"],
      ["unsure", "unsure"]], filters.review, set("review")),
    day("From", "from", set("from")),
    day("To", "to", set("to")),
    el("span", { id: "count", class: "dim", "aria-live": "polite" }), more);
}

/** A day counts when it is whole; one that was not finished is taken out when the field is left. */
function day(label, key, set) {
  const whole = (value) => !value || (value >= FIRST && value <= LAST);
  const field = el("input", {
    type: "date", min: FIRST, max: LAST, value: state.filters[key],
    onchange: () => field.value !== state.filters[key] && whole(field.value) && set(field.value),
    onblur: () => (field.value = state.filters[key]),
  });
  return el("label", { class: "field" }, `${label} `, field);
}
