// Addresses of images, and the way back from an image to the view that opened it.

import { el } from "./dom.js";

/** @typedef {{ address: string, trail: string[] }} Visit `trail`: the addresses to go back to, the nearest last */

const HOME = "#/queue";

let previousAddress = ""; // the address left last
/** @type {Visit} */
let shownImage = { address: "", trail: [] }; // the image shown last
/** @type {Visit | null} */
let nextImage = null; // the image that a followed link leads to

addEventListener("hashchange", ({ oldURL }) => {
  if (oldURL) previousAddress = new URL(oldURL).hash || HOME;
});

/**
 * The address of an image as scored by a model: by its released version where no other one is given.
 * @param {number} imageId
 * @param {string} [modelName]
 * @param {number} [versionId]
 */
export function imageAddress(imageId, modelName, versionId) {
  return ["#/image", imageId, modelName && encodeURIComponent(modelName), versionId].filter(Boolean).join("/");
}

/**
 * Records that an image is shown now, and returns its trail. The browser's history stores the trail with its entry, so
 * that it is still right after "back" and "reload".
 * @param {string} address
 * @returns {string[]}
 */
export function enterImage(address) {
  const linkedTrail = nextImage?.address === location.hash ? nextImage.trail : null;
  const trail = history.state?.trail ?? linkedTrail ?? defaultTrail();
  nextImage = null;
  shownImage = { address, trail };
  history.replaceState({ trail }, "");
  return trail;
}

/** The trail where no link was followed; an address typed while an image was shown keeps that image's trail. */
function defaultTrail() {
  if (previousAddress.startsWith("#/image")) return shownImage.trail;
  return previousAddress ? [previousAddress] : [];
}

/**
 * Changes the address of the shown image; its trail stays.
 * @param {string} address
 */
export function replaceAddress(address) {
  history.replaceState(history.state, "", address);
  shownImage.address = address;
}

/**
 * Creates a link from the shown image to another one, whose way back leads over the shown one.
 * @param {string} address
 * @param {import("./dom.js").Attributes} attributes
 * @param {...import("./dom.js").Child} children
 */
export function linkFromImage(address, attributes, ...children) {
  const follow = () => (nextImage = { address, trail: [...shownImage.trail, shownImage.address] });
  return el("a", { href: address, onclick: follow, ...attributes }, ...children);
}

/**
 * Opens an address with a given trail.
 * @param {string} address
 * @param {string[]} trail
 */
export function openAddress(address, trail) {
  nextImage = { address, trail };
  location.hash = address;
}

/**
 * Opens the nearest address of a trail.
 * @param {string[]} trail
 */
export function goBack(trail) {
  openAddress(trail.at(-1) ?? HOME, trail.slice(0, -1));
}
