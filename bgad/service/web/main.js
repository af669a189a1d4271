// Starts the page: top bar, theme, and which view belongs to the address.

import { forgetToken, get, token } from "./api.js";
import { el, fail } from "./dom.js";
import { showDrift } from "./drift.js";
import { showHistory } from "./history.js";
import { showImage } from "./image.js";
import { askNews, followNews } from "./news.js";
import { showQueue } from "./queue.js";
import { loadModels, mayReview, newList, state } from "./state.js";
import { showTeach } from "./teach.js";
import { prepareTheme } from "./theme.js";
import { showThreshold } from "./threshold.js";
import { prepareUpload } from "./upload.js";

const VIEWS = {
  queue: showQueue,
  image: showImage,
  threshold: showThreshold,
  teach: showTeach,
  drift: showDrift,
  history: showHistory,
};
const by = (id) => document.getElementById(id);

let leaving = new AbortController(); // ends what the shown view has begun

/** Show the view of the address; views get a signal that ends with them. */
async function route() {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const [name, ...rest] = (location.hash.replace(/^#\/?/, "") || "queue").split("/");
  const view = VIEWS[name] ?? showQueue;
  for (const link of document.querySelectorAll(".tabs a")) {
    const here = link.hash === `#/${name === "image" ? "queue" : name}`;
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const main = by("main");
  main.className = name;
  main.replaceChildren();
  document.title = `${name[0].toUpperCase()}${name.slice(1)} · bgad workbench`;
  if (!state.model) return main.append(el("p", { class: "empty" }, "There is no model here yet."));
  if (!mayReview()) {
    const text = `${state.me.name} may send pictures. To look at them, the role review is needed.`;
    return main.append(el("p", { class: "empty" }, text));
  }
  try {
    await view(main, signal, ...rest);
  } catch (error) {
    if (signal.aborted) return;
    fail(error);
    main.append(el("p", { class: "empty" }, error.message));
  }
}

function prepareModels() {
  by("model").addEventListener("change", async (event) => {
    try {
      await loadModels(event.target.value);
    } catch (error) {
      return fail(error);
    }
    newList();
    if (location.hash.startsWith("#/image")) location.hash = "#/queue";
    else route();
    askNews();
  });
}

function showTop() {
  by("model").replaceChildren(...state.models.map((model) => el("option", { value: model.name }, model.name)));
  by("model").value = state.model?.name ?? "";
  by("who").hidden = !token();
  by("who").textContent = `${state.me.name} (${state.me.role}): sign out`;
}

async function start() {
  prepareTheme();
  prepareModels();
  prepareUpload(askNews);
  by("message-close").addEventListener("click", () => (by("message").hidden = true));
  by("who").addEventListener("click", () => {
    forgetToken();
    location.reload();
  });
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // the address is the view's
    by("main").focus();
  });
  state.me = await get("me");
  await loadModels();
  showTop();
  by("add").disabled = !state.model;
  addEventListener("hashchange", route);
  if (state.model && mayReview()) followNews();
  await route();
}

start().catch(fail);
