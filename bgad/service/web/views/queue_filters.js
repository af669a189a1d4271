// The filters of the queue.

import { el, select } from "../lib/dom.js";
import { setFilter, state } from "../lib/state.js";

/** @import { Filters } from "../lib/image_list.js" */

const FIRST_DAY = "2000-01-01"; // an earlier date has a year that is still being typed
const LAST_DAY = "2199-12-31";

/**
 * Creates the form.
 * @param {() => void} onChange
 * @param {...import("../lib/dom.js").Child} extra shown after the number of images
 */
export function filterBar(onChange, ...extra) {
  const { filters } = state;
  const setter = (/** @type {keyof Filters} */ key) => (/** @type {string} */ value) => {
    setFilter(key, value);
    onChange();
  };
  return el("form", { class: "toolbar", "aria-label": "Filters of the queue", onsubmit: (event) => event.preventDefault() },
    select("Sort", [["uncertain", "most uncertain"], ["anomalous", "most anomalous"], ["newest", "newest"]],
      filters.order, setter("order")),
    select("Decision", [["", "all"], ["anomalous", "anomalous"], ["normal", "normal"]],
      filters.decision, setter("decision")),
    select("Review", [["", "all"], ["none", "not reviewed"], ["any", "reviewed"], ["good", "good"], ["bad", "bad"],
      ["unsure", "unsure"]], filters.review, setter("review")),
    dateField("From", "from", setter("from")),
    dateField("To", "to", setter("to")),
    el("span", { id: "count", class: "dim", "aria-live": "polite" }), extra);
}

/**
 * Creates a date field. An incomplete date is ignored, and removed when the field is left.
 * @param {string} label
 * @param {"from" | "to"} key
 * @param {(value: string) => void} onChange
 */
function dateField(label, key, onChange) {
  const isComplete = (/** @type {string} */ value) => !value || (value >= FIRST_DAY && value <= LAST_DAY);
  /** @type {HTMLInputElement} */
  const field = el("input", {
    type: "date", min: FIRST_DAY, max: LAST_DAY, value: state.filters[key],
    onchange: () => field.value !== state.filters[key] && isComplete(field.value) && onChange(field.value),
    onblur: () => (field.value = state.filters[key]),
  });
  return el("label", { class: "field" }, `${label} `, field);
}
