// Fetches images and files of the API. An <img> cannot send a token, so with a token its content is fetched as a blob.

import { apiUrl, request } from "./api.js";
import { el } from "./dom.js";
import { getToken } from "./token.js";

const MARGIN = "200px"; // an <img> this close to the visible part is loaded
const DOWNLOAD_MILLISECONDS = 10000; // before the blob of a download is released

/** @typedef {{ url: string, controller: AbortController | null }} Pending */

/** @type {WeakMap<Element, Pending>} */
const pendingImages = new WeakMap();
const observer = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    const pending = pendingImages.get(target);
    if (!pending || !(target instanceof HTMLImageElement)) continue;
    if (isIntersecting) loadBlob(target, pending);
    else pending.controller?.abort(); // it was scrolled away, or its view has ended
  }
}, { rootMargin: MARGIN });

/**
 * Shows an image of the API in an <img>; with a token, it is fetched once it is visible.
 * @param {HTMLImageElement} img
 * @param {string} url
 */
export function setImageSource(img, url) {
  pendingImages.get(img)?.controller?.abort();
  if (!getToken()) {
    img.src = url;
    return;
  }
  pendingImages.set(img, { url, controller: null });
  observer.unobserve(img);
  observer.observe(img);
}

/**
 * @param {HTMLImageElement} img
 * @param {Pending} pending
 */
async function loadBlob(img, pending) {
  pending.controller = new AbortController();
  let blobUrl = "";
  try {
    blobUrl = await fetchBlobUrl(pending.url, pending.controller.signal);
  } catch {
    return; // the image is fetched again when it becomes visible again
  }
  observer.unobserve(img);
  const release = () => URL.revokeObjectURL(blobUrl);
  img.addEventListener("load", release, { once: true });
  img.addEventListener("error", release, { once: true });
  img.loading = "eager"; // a lazy <img> might never be drawn, and its blob never released
  img.src = blobUrl;
}

/**
 * @param {string} url
 * @param {AbortSignal} [signal]
 */
async function fetchBlobUrl(url, signal) {
  const response = await request(url, { signal });
  return URL.createObjectURL(await response.blob());
}

/**
 * Saves a file of the API under a name; a plain link could not send the token.
 * @param {string} url
 * @param {string} name
 */
export async function downloadFile(url, name) {
  const link = el("a", { href: await fetchBlobUrl(url), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), DOWNLOAD_MILLISECONDS);
}

/**
 * Fetches an image as a bitmap, with the headers of the answer.
 * @param {string} url
 * @param {AbortSignal} signal
 */
export async function fetchBitmap(url, signal) {
  const response = await request(url, { signal });
  return { bitmap: await createImageBitmap(await response.blob()), headers: response.headers };
}

/**
 * The address of a thumbnail with its heat map; it names the version, so that the browser's cache holds no old one.
 * @param {number} imageId
 * @param {string} modelName
 * @param {number} versionId
 */
export function thumbnailUrl(imageId, modelName, versionId) {
  return apiUrl(`images/${imageId}/thumbnail.jpg`, { model: modelName, version: versionId });
}

/**
 * Creates an <img> with the thumbnail of an image by a model's released version.
 * @param {number} imageId
 * @param {{ name: string, version: { id: number } }} model
 * @param {import("./dom.js").Attributes} [attributes]
 */
export function thumbnail(imageId, model, attributes = {}) {
  return imageElement(thumbnailUrl(imageId, model.name, model.version.id), attributes);
}

/**
 * Creates an <img> of an image of the API.
 * @param {string} url
 * @param {import("./dom.js").Attributes} [attributes]
 */
export function imageElement(url, attributes = {}) {
  const img = el("img", { alt: "", loading: "lazy", ...attributes });
  setImageSource(img, url);
  return img;
}
