// The history: who did what and when.

import { getJson } from "../lib/api.js";
import { imageAddress } from "../lib/back_links.js";
import { el, select, table, tableRow } from "../lib/dom.js";
import { formatPlural, formatTime } from "../lib/format.js";
import { reportErrors } from "../lib/messages.js";
import { state } from "../lib/state.js";

/** @import { Event } from "../lib/types.js" */

const query = { model: "", limit: "200" }; // kept while the page is open

/**
 * @param {HTMLElement} main
 * @param {AbortSignal} signal
 */
export async function showHistory(main, signal) {
  const body = el("tbody");
  const count = el("span", { class: "dim", "aria-live": "polite" });
  const search = el("input", { type: "search", placeholder: "review, release, a name …", oninput: () => draw() });
  /** @type {Event[]} */
  let events = [];

  function draw() {
    const words = search.value.trim().toLowerCase();
    const matches = events.filter((event) => Object.values(event).join(" ").toLowerCase().includes(words));
    body.replaceChildren(...matches.map(eventRow));
    count.textContent = formatPlural(matches.length, "entry", "entries");
  }

  async function load() {
    events = await getJson("history", query, { signal });
    draw();
  }

  const setter = (/** @type {"model" | "limit"} */ key) => reportErrors((/** @type {string} */ value) => {
    query[key] = value;
    return load();
  });
  /** @type {[string, string][]} */
  const models = state.models.map((model) => [model.name, `the model ${model.name}`]);
  main.append(el("div", { class: "page" },
    el("h1", {}, "History"),
    el("div", { class: "toolbar" },
      select("About", [["", "everything"], ...models], query.model, setter("model")),
      select("Newest", [["200", "200"], ["1000", "1000"]], query.limit, setter("limit")),
      el("label", { class: "field" }, "Find ", search), count),
    table(["When", "Who", "What", "Model", "Details"], body)));
  await load();
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
