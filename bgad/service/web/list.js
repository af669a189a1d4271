// The images of the queue in their order: pages of 100, fetched when they are looked at. A list stays as it was when it
// was made: what comes in, is reviewed or released later does not move it.

import { get } from "./api.js";

const PAGE = 100;

export class List {
  constructor(model, filters) {
    this.model = model;
    this.filters = { ...filters };
    this.total = null; // not known yet
    this.asOf = null; // when it was made, as the service calls it
    this.rows = [];
    this.pages = new Map();
    this.first = null; // the question that is under way while that is not known
  }

  /** The row at a place, if it has been fetched. */
  at(index) {
    return this.rows[index];
  }

  placeOf(image) {
    return this.rows.findIndex((row) => row?.id === image);
  }

  /** Fetch the first page; the place of an image in the list, or null. */
  async open(image) {
    return this.#keep(0, await this.#ask({ limit: PAGE, find: image })).position;
  }

  /** Fetch the page of a place, once. */
  fetch(index) {
    const page = Math.floor(index / PAGE);
    if (!this.pages.has(page)) {
      const first = page * PAGE;
      const coming = this.#ask({ limit: PAGE, offset: first }).then((found) => this.#keep(first, found));
      coming.catch(() => this.pages.delete(page));
      this.pages.set(page, coming);
    }
    return this.pages.get(page);
  }

  async row(index) {
    await this.fetch(index);
    return this.rows[index];
  }

  /** Which images are in it, as the service wants to be asked. */
  fits() {
    const { decision, review, from, to } = this.filters;
    return { decision, review, since: from && midnight(from, 0), until: to && midnight(to, 1) };
  }

  /** The first answer says when the list was made; all others are of the same moment. */
  async #ask(query) {
    while (!this.asOf && this.first) await this.first.catch(() => {});
    const { model, asOf } = this;
    const asked = get("images", { model, order: this.filters.order, ...this.fits(), as_of: asOf, ...query });
    if (!asOf) this.first = asked;
    try {
      return await asked;
    } finally {
      if (this.first === asked) this.first = null;
    }
  }

  #keep(first, found) {
    this.asOf ??= found.as_of;
    this.total ??= found.total;
    this.pages.set(first / PAGE, Promise.resolve());
    found.images.forEach((row, i) => (this.rows[first + i] ??= row)); // one that is here may hold a newer verdict
    return found;
  }

  /** Remember a new verdict, or that there is none; the row stays where it is, so that nothing moves under the eyes. */
  judged(image, verdict, note, hasMask) {
    const place = this.placeOf(image);
    if (place >= 0) Object.assign(this.rows[place], { verdict, note, has_mask: hasMask });
  }
}

function midnight(day, later) {
  const [year, month, date] = day.split("-").map(Number);
  return new Date(year, month - 1, date + later).getTime() / 1000;
}
