// State that the views share: the caller, the models, and the list of the queue.

import { getJson } from "./api.js";
import { ImageList } from "./image_list.js";

/** @import { Me, Model } from "./types.js" */
/** @import { Filters } from "./image_list.js" */

export const ADMIN_ONLY = "This requires the role admin";
const FILTERS_KEY = "bgad-filters";
const MODEL_KEY = "bgad-model";

/** @type {Filters} */
const DEFAULT_FILTERS = { order: "uncertain", decision: "", review: "", from: "", to: "" };

/**
 * @typedef {object} State
 * @property {Me | null} me
 * @property {Model[]} models
 * @property {Model | null} model the selected one
 * @property {Filters} filters
 * @property {ImageList | null} list the list of the queue, which is also the order of "next" and "previous"
 * @property {number} selectedIndex the selection in the list
 */

/** @type {State} */
export const state = {
  me: null,
  models: [],
  model: null,
  filters: { ...DEFAULT_FILTERS, ...JSON.parse(sessionStorage.getItem(FILTERS_KEY) ?? "null") },
  list: null,
  selectedIndex: 0,
};

/** Returns the selected model; views are only shown when there is one. */
export function currentModel() {
  if (!state.model) throw new Error("There is no model yet.");
  return state.model;
}

export function canReview() {
  return state.me?.role !== "score";
}

export function isAdmin() {
  return state.me?.role === "admin";
}

/**
 * Fetches the models and selects one: that of the name, else the one selected before, else the first.
 * @param {string} [name]
 */
export async function loadModels(name) {
  state.models = await getJson("models");
  const preferred = name ?? state.model?.name ?? localStorage.getItem(MODEL_KEY);
  selectModel(state.models.find((model) => model.name === preferred) ?? state.models[0] ?? null);
}

/**
 * Selects a model and remembers it for the next visit.
 * @param {Model | null} model
 */
export function selectModel(model) {
  state.model = model;
  if (model) localStorage.setItem(MODEL_KEY, model.name);
}

/**
 * Sets a filter of the queue, which is kept until the tab is closed.
 * @param {keyof Filters} key
 * @param {string} value
 */
export function setFilter(key, value) {
  state.filters[key] = value;
  sessionStorage.setItem(FILTERS_KEY, JSON.stringify(state.filters));
}

/**
 * Builds an API route of the selected model.
 * @param {string} [suffix]
 */
export function modelRoute(suffix = "") {
  return `models/${encodeURIComponent(currentModel().name)}${suffix}`;
}

/** Replaces the list of the queue, whose content has become outdated. */
export function resetList() {
  state.list = new ImageList(currentModel().name, state.filters);
  state.selectedIndex = 0;
  return state.list;
}

/** Returns the list of the queue, and makes one where there is none. */
export function currentList() {
  return state.list ?? resetList();
}
