// History: who did what and when.

import { get } from "./api.js";
import { el, fail, plural, select, time } from "./dom.js";
import { state } from "./state.js";
import { imageLink } from "./trail.js";

const shown = { model: "", limit: "200" };

export async function showHistory(main, signal) {
  const body = el("tbody");
  const count = el("span", { class: "dim", "aria-live": "polite" });
  const words = el("input", { type: "search", placeholder: "review, release, a name …", oninput: () => draw() });
  let events = [];

  function draw() {
    const wanted = words.value.trim().toLowerCase();
    const fits = events.filter((event) => Object.values(event).join(" ").toLowerCase().includes(wanted));
    body.replaceChildren(...fits.map(line));
    count.textContent = plural(fits.length, "entry", "entries");
  }

  async function load() {
    events = await get("history", shown, { signal });
    draw();
  }

  const set = (key) => (value) => {
    shown[key] = value;
    load().catch(fail);
  };
  main.append(el("div", { class: "page" },
    el("h1", {}, "History"),
    el("div", { class: "toolbar" },
      select("About", [["", "everything"], ...state.models.map((model) => [model.name, `the model ${model.name}`])], shown.model, set("model")),
      select("Newest", [["200", "200"], ["1000", "1000"]], shown.limit, set("limit")),
      el("label", { class: "field" }, "Find ", words), count),
    el("div", { class: "scroll" },
      el("table", {}, el("thead", {}, el("tr", {}, ["When", "Who", "What", "Model", "Details"].map((text) => el("th", { scope: "col" }, text)))), body))));
  await load();
}

function line(event) {
  return el("tr", {}, [time(event.created), event.who, event.what, event.name, details(event)].map((part) => el("td", {}, part)));
}

/** Of a review: the picture, as the model saw it that was looked at, where that is still here. */
function details({ detail, image, image_name: picture, name }) {
  if (!image) return detail;
  const model = state.models.some((one) => one.name === name) ? name : "";
  return [el("a", { href: imageLink(image, model) }, picture), detail.slice(detail.indexOf(":"))];
}
