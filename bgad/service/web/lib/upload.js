// Uploads images, chosen by the button or dropped anywhere on the page, in small batches.

import { apiUrl, sendForm } from "./api.js";
import { byId } from "./dom.js";
import { formatPlural } from "./format.js";
import { reportErrors, showError, showMessage } from "./messages.js";
import { modelRoute, state } from "./state.js";

const BATCH_SIZE = 8;
const IMAGE_NAME = /\.(png|jpe?g|bmp|tiff?|webp|gif|ppm|pgm)$/i;

/** @typedef {{ name: string, error?: string }} UploadResult */

let isStopped = false;
let isBusy = false;

/** Whether an upload is under way. */
export function isUploading() {
  return isBusy;
}

/**
 * Connects the button and the drop zone.
 * @param {Promise<void>} modelsLoaded images that are added earlier wait for it
 * @param {() => void} onUploaded is called after images have been scored
 */
export function setUpUpload(modelsLoaded, onUploaded) {
  const picker = byId("files", HTMLInputElement);
  const add = async (/** @type {File[]} */ files) => {
    await modelsLoaded;
    await upload(files, onUploaded);
  };
  byId("add", HTMLButtonElement).addEventListener("click", () => picker.click());
  picker.addEventListener("change", () => {
    add([...(picker.files ?? [])]).catch(showError);
    picker.value = ""; // so that the same files can be chosen again
  });
  byId("upload-stop", HTMLButtonElement).addEventListener("click", () => (isStopped = true));
  setUpDropZone(add);
}

/**
 * @param {(files: File[]) => Promise<void>} add
 */
function setUpDropZone(add) {
  const zone = byId("drop", HTMLDivElement);
  let depth = 0; // dragenter and dragleave also come from children
  const hasFiles = (/** @type {DragEvent} */ event) => event.dataTransfer?.types.includes("Files");
  addEventListener("dragenter", (event) => {
    if (!hasFiles(event)) return;
    depth += 1;
    zone.hidden = false;
  });
  addEventListener("dragleave", () => {
    depth = Math.max(0, depth - 1);
    zone.hidden = depth === 0;
  });
  addEventListener("dragover", (event) => hasFiles(event) && event.preventDefault());
  addEventListener("drop", reportErrors(async (event) => {
    if (!event.dataTransfer || !hasFiles(event)) return;
    event.preventDefault();
    depth = 0;
    zone.hidden = true;
    await add(await droppedFiles(event.dataTransfer));
  }));
}

/**
 * Returns the dropped files, and those inside dropped folders.
 * @param {DataTransfer} transfer
 */
async function droppedFiles(transfer) {
  const files = [...transfer.files];
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry()).filter((entry) => entry !== null);
  return entries.length ? (await Promise.all(entries.map(filesOf))).flat() : files;
}

/**
 * @param {FileSystemEntry} entry
 * @returns {Promise<File[]>}
 */
async function filesOf(entry) {
  if (entry.isFile) {
    const fileEntry = /** @type {FileSystemFileEntry} */ (entry);
    return [await new Promise((resolve, reject) => fileEntry.file(resolve, reject))];
  }
  const reader = /** @type {FileSystemDirectoryEntry} */ (entry).createReader();
  const children = [];
  for (;;) { // a reader returns the entries of a folder in several parts
    /** @type {FileSystemEntry[]} */
    const part = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!part.length) return (await Promise.all(children.map(filesOf))).flat();
    children.push(...part);
  }
}

/**
 * @param {File[]} files
 * @param {() => void} onUploaded
 */
async function upload(files, onUploaded) {
  const images = files.filter((file) => file.type.startsWith("image/") || IMAGE_NAME.test(file.name));
  const problem = uploadProblem(images);
  if (problem) return showMessage(problem, { isError: true });
  const url = apiUrl(modelRoute("/batches")); // stays with this model even if another one is selected meanwhile
  const bar = byId("upload", HTMLDivElement);
  isBusy = true;
  isStopped = false;
  bar.hidden = false;
  /** @type {UploadResult[]} */
  const failures = [];
  let sent = 0;
  try {
    while (sent < images.length && !isStopped) {
      showProgress(sent, images.length);
      const batch = images.slice(sent, sent + BATCH_SIZE);
      failures.push(...(await sendBatch(url, batch)));
      sent += batch.length;
    }
  } finally {
    isBusy = false;
    bar.hidden = true;
    if (sent) onUploaded();
  }
  return showResult(sent, failures);
}

/**
 * Says why images cannot be uploaded now; empty where they can.
 * @param {File[]} images
 */
function uploadProblem(images) {
  if (!images.length) return "There is no image among these files.";
  if (!state.model) return "There is no model to score them with.";
  return isBusy ? "An upload is already running: wait for it, or stop it." : "";
}

/**
 * @param {number} sent
 * @param {number} total
 */
function showProgress(sent, total) {
  byId("upload-text", HTMLSpanElement).textContent = `Scoring ${sent} of ${formatPlural(total, "image")} …`;
  byId("upload-bar", HTMLProgressElement).value = sent / total;
}

/**
 * @param {number} sent
 * @param {UploadResult[]} failures
 */
function showResult(sent, failures) {
  const scored = `${formatPlural(sent - failures.length, "image")} scored.`;
  const [first] = failures;
  if (!first) return showMessage(scored);
  return showMessage(`${scored} ${failures.length} failed: ${first.name}: ${first.error}`, { isError: true });
}

/**
 * Sends one batch and returns the images that could not be scored.
 * @param {string} url
 * @param {File[]} files
 * @returns {Promise<UploadResult[]>}
 */
async function sendBatch(url, files) {
  const form = new FormData();
  for (const file of files) form.append("files", file, file.name);
  /** @type {{ results: UploadResult[] }} */
  const { results } = await sendForm(url, form, () => isStopped);
  return results.filter((result) => result.error !== undefined);
}
