// Starts the page: top bar, theme, and which view belongs to the address.

import { forgetToken, get, token } from "./lib/api.js";
import { el, fail } from "./lib/dom.js";
import { showDrift } from "./views/drift.js";
import { showHistory } from "./views/history.js";
import { showImage } from "./views/image.js";
import { askNews, followNews } from "./lib/poll.js";
import { showQueue } from "./views/queue.js";
import { loadModels, mayReview, newList, state } from "./lib/state.js";
import { showTeach } from "./views/teach.js";
import { prepareTheme } from "./lib/theme.js";
import { showThreshold } from "./views/threshold.js";
import { prepareUpload } from "./lib/upload.js";

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
