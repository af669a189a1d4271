// The images of the queue in their order: pages of 100, fetched when they are looked at.

import { get } from "./api.js";

const PAGE = 100;

export class List {
  constructor(model, filters) {
    this.model = model;
    this.filters = { ...filters };
    this.total = null; // not known yet
    this.rows = [];
    this.pages = new Map();
    this.gone = new Set(); // rows that a new verdict took out of what the filter wants
  }

  /** The row at a place, if it has been fetched. */
  at(index) {
    return this.rows[index];
  }

  placeOf(image) {
    return this.rows.findIndex((row) => row?.id === image);
  }

  /** Fetch the page of a place, once. */
  fetch(index) {
    const page = Math.floor(index / PAGE);
    if (!this.pages.has(page)) {
      const coming = this.#load(page);
      coming.catch(() => this.pages.delete(page));
      this.pages.set(page, coming);
    }
    return this.pages.get(page);
  }

  async row(index) {
    await this.fetch(index);
    return this.rows[index];
  }

  async #load(page) {
    const first = page * PAGE;
    const missing = [...this.gone].filter((place) => place < first).length;
    const { order, decision, review, from, to } = this.filters;
    const found = await get("images", {
      model: this.model,
      order,
      decision,
      review,
      since: from && midnight(from, 0),
      until: to && midnight(to, 1),
      limit: PAGE,
      offset: first - missing,
    });
    this.total ??= found.total;
    found.images.forEach((row, i) => (this.rows[first + i] = row));
  }

  /** Remember a new verdict; the row stays where it is, so that nothing moves under the eyes. */
  judged(image, verdict, note, hasMask) {
    const place = this.placeOf(image);
    if (place < 0) return;
    Object.assign(this.rows[place], { verdict, note, has_mask: hasMask });
    const wanted = this.filters.review;
    const fits = !wanted || wanted === "any" || wanted === verdict;
    if (fits) this.gone.delete(place);
    else this.gone.add(place);
  }
}

function midnight(day, later) {
  const [year, month, date] = day.split("-").map(Number);
  return new Date(year, month - 1, date + later).getTime() / 1000;
}
