// Elements that belong to a key. lit-html reuses the elements of a list by their position; with a key, the focus on a
// button never passes to the button of another item.

import { el } from "./dom.js";
import { render } from "./vendor/lit-html.js";

/** @import { TemplateResult } from "./vendor/lit-html.js" */

export class KeyedElements {
  /** @type {Map<number, HTMLElement>} */
  #elements = new Map();

  /**
   * @param {"li" | "div"} tag
   * @param {(key: number) => import("./dom.js").Attributes} attributes
   */
  constructor(tag, attributes) {
    this.tag = tag;
    this.attributes = attributes;
  }

  /**
   * Renders a template into the element of a key, and returns the element.
   * @param {number} key
   * @param {TemplateResult} template
   */
  render(key, template) {
    const element = this.#elements.get(key) ?? el(this.tag, this.attributes(key));
    this.#elements.set(key, element);
    render(template, element);
    return element;
  }
}
