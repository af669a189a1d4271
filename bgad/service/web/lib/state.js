// What the pages share: who asks, the model, and the list of the queue.

import { get } from "./api.js";
import { List } from "./image_list.js";

const FILTERS = "bgad-filters";

export const state = {
  me: null,
  models: [],
  model: null, // the chosen one, as the API gives it
  filters: { order: "uncertain", decision: "", review: "", from: "", to: "", ...JSON.parse(sessionStorage.getItem(FILTERS)) },
  list: null, // what the queue shows, also the order of "next" and "previous"
  at: 0, // the selection in it
};

export function mayReview() {
  return state.me.role !== "score";
}

export function mayAll() {
  return state.me.role === "admin";
}

export async function loadModels(wanted) {
  state.models = await get("models");
  const name = wanted ?? state.model?.name ?? localStorage.getItem("bgad-model");
  state.model = state.models.find((model) => model.name === name) ?? state.models[0] ?? null;
  if (state.model) localStorage.setItem("bgad-model", state.model.name);
}

/** Filters are kept until the tab is closed. */
export function setFilter(key, value) {
  state.filters[key] = value;
  sessionStorage.setItem(FILTERS, JSON.stringify(state.filters));
}

/** Of the chosen model's part of the API. */
export function modelRoute(rest = "") {
  return `models/${encodeURIComponent(state.model.name)}${rest}`;
}

/** Forget the list: something has changed what it holds. */
export function newList() {
  state.list = new List(state.model.name, state.filters);
  state.at = 0;
  return state.list;
}

export function theList() {
  return state.list ?? newList();
}
