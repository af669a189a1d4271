// The images of the queue in their order, fetched in pages. A list is a snapshot: images, reviews and releases that
// come later do not move its rows.

import { getJson } from "./api.js";

/** @import { ImageList as ListPage, ListedImage, Review } from "./types.js" */
/** @typedef {{ order: string, decision: string, review: string, from: string, to: string }} Filters */

const PAGE_SIZE = 100;

export class ImageList {
  /** @type {number | null} */
  total = null; // unknown before the first answer
  /** @type {string | null} */
  asOf = null; // the moment of the snapshot, as the service names it
  /** @type {(ListedImage | undefined)[]} */
  rows = [];
  /** @type {Map<number, Promise<unknown>>} */
  #pages = new Map();
  /** @type {Promise<ListPage> | null} */
  #firstRequest = null; // under way while `asOf` is unknown

  /**
   * @param {string} model
   * @param {Filters} filters
   */
  constructor(model, filters) {
    this.model = model;
    this.filters = { ...filters };
  }

  /**
   * Returns a row that has been fetched already.
   * @param {number} index
   */
  rowAt(index) {
    return this.rows[index];
  }

  /**
   * Returns the index of an image among the fetched rows, or -1.
   * @param {number} imageId
   */
  indexOf(imageId) {
    return this.rows.findIndex((row) => row?.id === imageId);
  }

  /**
   * Fetches the first page, and returns the index of an image in the whole list, or null.
   * @param {number} [imageId]
   */
  async open(imageId) {
    const page = await this.#request({ limit: PAGE_SIZE, find: imageId });
    this.#store(0, page);
    return page.position;
  }

  /**
   * Fetches the page that holds a row, once.
   * @param {number} index
   */
  fetchPage(index) {
    const number = Math.floor(index / PAGE_SIZE);
    let page = this.#pages.get(number);
    if (!page) {
      const first = number * PAGE_SIZE;
      page = this.#request({ limit: PAGE_SIZE, offset: first }).then((answer) => this.#store(first, answer));
      page.catch(() => this.#pages.delete(number));
      this.#pages.set(number, page);
    }
    return page;
  }

  /**
   * @param {number} index
   */
  async fetchRow(index) {
    await this.fetchPage(index);
    return this.rows[index];
  }

  /** Returns the filters as query parameters of the API. */
  filterQuery() {
    const { decision, review, from, to } = this.filters;
    return { decision, review, since: from && midnight(from, 0), until: to && midnight(to, 1) };
  }

  /**
   * The first answer names the moment of the snapshot; all later requests refer to it.
   * @param {import("./api.js").Query} query
   * @returns {Promise<ListPage>}
   */
  async #request(query) {
    while (!this.asOf && this.#firstRequest) await this.#firstRequest.catch(() => {});
    const { model, asOf } = this;
    const answer = getJson("images", { model, order: this.filters.order, ...this.filterQuery(), as_of: asOf, ...query });
    if (!asOf) this.#firstRequest = answer;
    try {
      return await answer;
    } finally {
      if (this.#firstRequest === answer) this.#firstRequest = null;
    }
  }

  /**
   * @param {number} first
   * @param {ListPage} page
   */
  #store(first, page) {
    this.asOf ??= page.as_of;
    this.total ??= page.total;
    this.#pages.set(first / PAGE_SIZE, Promise.resolve());
    page.images.forEach((row, i) => (this.rows[first + i] ??= row)); // a stored row may hold a newer verdict
  }

  /**
   * Stores a new review; the row keeps its place even where it no longer matches the filters.
   * @param {Review} review
   */
  setReview({ id, image, verdict, note, mask }) {
    const row = this.rows[this.indexOf(image)];
    const counted = verdict === "withdrawn" ? null : verdict;
    if (row) Object.assign(row, { verdict: counted, note, has_mask: mask !== null, review: id });
  }
}

/**
 * Returns local midnight of a day, in seconds since 1970.
 * @param {string} day as YYYY-MM-DD
 * @param {number} daysLater
 */
function midnight(day, daysLater) {
  const [year, month, date] = day.split("-").map(Number);
  return new Date(year, month - 1, date + daysLater).getTime() / 1000;
}
