// The history: who did what and when.

import { apiUrl, getJson } from "../lib/api.js";
import { imageAddress } from "../lib/back_links.js";
import { button, el, select, table, tableRow } from "../lib/dom.js";
import { formatPlural, formatTime } from "../lib/format.js";
import { downloadFile } from "../lib/image_loader.js";
import { reportErrors } from "../lib/messages.js";
import { state } from "../lib/state.js";

/** @import { Event } from "../lib/types.js" */

const PAGE = 200;
const TYPING_MILLISECONDS = 300; // after the last letter, before the service searches
const query = { model: "", search: "" }; // kept while the page is open

/**
 * @param {HTMLElement} main
 * @param {AbortSignal} signal
 */
export async function showHistory(main, signal) {
  const body = el("tbody");
  const count = el("span", { class: "dim", "aria-live": "polite" });
  let typed = 0;
  const search = el("input", {
    type: "search", value: query.search, placeholder: "review, release, a name …", oninput: () => {
      clearTimeout(typed);
      typed = window.setTimeout(set("search"), TYPING_MILLISECONDS, search.value.trim());
    },
  });
  const older = button("Older entries", reportErrors(() => load(lastId)), { hidden: true });
  /** @type {number | null} */
  let lastId = null;
  let asked = 0;

  /**
   * Shows the entries before one, or the newest in place of all.
   * @param {number | null} before
   */
  async function load(before) {
    const number = ++asked;
    /** @type {Event[]} */
    const events = await getJson("history", { ...query, limit: PAGE, before }, { signal });
    if (number !== asked) return; // other entries have been asked for since
    if (before === null) body.replaceChildren();
    body.append(...events.map(eventRow));
    lastId = events.at(-1)?.id ?? null;
    older.hidden = events.length < PAGE;
    count.textContent = formatPlural(body.rows.length, "entry", "entries") + (older.hidden ? "" : ", and older ones");
  }

  const set = (/** @type {"model" | "search"} */ key) => reportErrors((/** @type {string} */ value) => {
    query[key] = value;
    return load(null);
  });
  const save = (/** @type {string} */ format) =>
    reportErrors(() => downloadFile(apiUrl("history/export", { ...query, format }), `bgad-history.${format}`));
  /** @type {[string, string][]} */
  const models = state.models.map((model) => [model.name, `the model ${model.name}`]);
  main.append(el("div", { class: "page" },
    el("h1", {}, "History"),
    el("div", { class: "toolbar" },
      select("About", [["", "everything"], ...models], query.model, set("model")),
      el("label", { class: "field" }, "Find ", search), count,
      button("Save as CSV", save("csv")), button("Save as JSON lines", save("jsonl"))),
    table(["When", "Who", "What", "Model", "Details"], body), older));
  await load(null);
}

/**
 * @param {Event} event
 */
function eventRow(event) {
  return tableRow([formatTime(event.created), event.who, event.what, event.name, details(event)]);
}

/**
 * Links a review to its image, with the model that was looked at where that still exists.
 * @param {Event} event
 */
function details({ detail, image, image_name: imageName, name }) {
  if (!image) return detail;
  const model = state.models.some((one) => one.name === name) ? name : "";
  return [el("a", { href: imageAddress(image, model) }, imageName), detail.slice(detail.indexOf(":"))];
}
