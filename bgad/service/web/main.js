// Starts the workbench: top bar, theme, upload, and the view that belongs to the address.

import { getJson } from "./lib/api.js";
import { byId, el } from "./lib/dom.js";
import { errorText, reportErrors, setUpMessages, showError } from "./lib/messages.js";
import { pollNow, startPolling } from "./lib/poll.js";
import { canReview, loadModels, resetList, state } from "./lib/state.js";
import { setUpTheme } from "./lib/theme.js";
import { forgetToken, getToken } from "./lib/token.js";
import { setUpUpload } from "./lib/upload.js";
import { showDrift } from "./views/drift.js";
import { showHistory } from "./views/history.js";
import { showImage } from "./views/image.js";
import { showQueue } from "./views/queue.js";
import { showTeach } from "./views/teach.js";
import { showThreshold } from "./views/threshold.js";

/** @typedef {(main: HTMLElement, signal: AbortSignal, ...rest: any[]) => Promise<unknown>} View */

/** @type {Record<string, View>} */
const VIEWS = {
  queue: showQueue,
  image: showImage,
  threshold: showThreshold,
  teach: showTeach,
  drift: showDrift,
  history: showHistory,
};

let viewController = new AbortController(); // aborts when the shown view is left

/** Shows another view, and moves the focus there: what had it may be gone. */
function changeView() {
  const focused = document.activeElement;
  const shown = route();
  focusHeading(viewController.signal, focused);
  return shown;
}

/**
 * Moves the focus to the heading of a view as soon as there is one, unless the user or the view moves it elsewhere.
 * @param {AbortSignal} signal
 * @param {Element | null} focused what had the focus before
 */
function focusHeading(signal, focused) {
  const main = byId("main", HTMLElement);
  const move = () => {
    const heading = main.querySelector("h1") ?? main.querySelector(".empty");
    if (!(heading instanceof HTMLElement)) return;
    observer.disconnect();
    if (document.activeElement !== focused && document.activeElement !== document.body) return;
    heading.tabIndex = -1;
    heading.focus({ preventScroll: true });
  };
  const observer = new MutationObserver(move);
  observer.observe(main, { childList: true, subtree: true });
  signal.addEventListener("abort", () => observer.disconnect());
  move();
}

/** Shows the view that the address names; the rest of the address are its arguments. */
async function route() {
  viewController.abort();
  viewController = new AbortController();
  const { signal } = viewController;
  const [name, ...rest] = (location.hash.replace(/^#\/?/, "") || "queue").split("/");
  const main = byId("main", HTMLElement);
  main.className = name;
  main.replaceChildren();
  document.title = `${name[0].toUpperCase()}${name.slice(1)} · bgad workbench`;
  markTab(name === "image" ? "queue" : name);
  const problem = accessProblem();
  if (problem) {
    main.append(el("p", { class: "empty" }, problem));
    return;
  }
  try {
    await (VIEWS[name] ?? showQueue)(main, signal, ...rest);
  } catch (error) {
    if (signal.aborted) return;
    showError(error);
    main.append(el("p", { class: "empty" }, errorText(error)));
  }
}

/**
 * @param {string} name
 */
function markTab(name) {
  for (const link of document.querySelectorAll(".tabs a")) {
    if (link.getAttribute("href") === `#/${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

/** Says why no view can be shown; empty where one can. */
function accessProblem() {
  if (!state.model) return "There is no model yet.";
  return canReview() ? "" : `${state.me?.name} may add images. To see them, the role review is required.`;
}

function setUpModelChoice() {
  const field = byId("model", HTMLSelectElement);
  field.addEventListener("change", reportErrors(async () => {
    await loadModels(field.value);
    resetList();
    if (location.hash.startsWith("#/image")) location.hash = "#/queue";
    else route(); // the focus stays on the list of models
    pollNow();
  }));
}

function setUpSignOut() {
  byId("who", HTMLButtonElement).addEventListener("click", () => {
    forgetToken();
    location.reload();
  });
}

function setUpSkipLink() {
  document.querySelector(".skip")?.addEventListener("click", (event) => {
    event.preventDefault(); // the fragment of the address names the view
    byId("main", HTMLElement).focus();
  });
}

function showTopBar() {
  const field = byId("model", HTMLSelectElement);
  field.replaceChildren(...state.models.map((model) => el("option", { value: model.name }, model.name)));
  field.value = state.model?.name ?? "";
  const signOut = byId("who", HTMLButtonElement);
  signOut.hidden = !getToken();
  signOut.textContent = `${state.me?.name} (${state.me?.role}): sign out`;
  byId("add", HTMLButtonElement).disabled = !state.model;
}

async function loadCallerAndModels() {
  state.me = await getJson("me");
  await loadModels();
}

async function start() {
  setUpMessages();
  setUpTheme();
  setUpModelChoice();
  const modelsLoaded = loadCallerAndModels();
  setUpUpload(modelsLoaded, pollNow);
  setUpSignOut();
  setUpSkipLink();
  await modelsLoaded;
  showTopBar();
  addEventListener("hashchange", changeView);
  if (state.model && canReview()) startPolling();
  await route();
}

start().catch(showError);
