// The scores of one image: which model and version is shown, its score and its map.

import { decodeMap, mapLayer } from "../image/anomaly_map.js";
import { apiUrl, getJson } from "../lib/api.js";
import { imageAddress, replaceAddress } from "../lib/back_links.js";
import { button, byId, el, select } from "../lib/dom.js";
import { formatTime, versionText } from "../lib/format.js";
import { fetchBitmap } from "../lib/image_loader.js";
import { reportErrors } from "../lib/messages.js";
import { currentModel, resetList, selectModel, state } from "../lib/state.js";
import { contourText, otherScores, scoreFacts } from "./image_details.js";

/** @import { Viewer } from "../image/viewer.js" */
/** @import { ComputedScore, ImageDetail, RecordedScore, Version } from "../lib/types.js" */

/**
 * Fetches an image and selects its model: that of the address, else the selected one, unless only another one has
 * scored the image.
 * @param {number} imageId
 * @param {string | undefined} modelName
 * @param {AbortSignal} signal
 * @returns {Promise<ImageDetail>}
 */
export async function loadDetail(imageId, modelName, signal) {
  if (modelName) switchModel(modelName);
  const selected = currentModel().name;
  /** @type {ImageDetail} */
  const detail = await getJson(`images/${imageId}`, { model: selected }, { signal });
  const models = state.models.map((model) => model.name);
  const scorers = detail.scores.map((score) => score.model).filter((name) => models.includes(name));
  if (modelName || !scorers.length || scorers.includes(selected) || signal.aborted) return detail;
  return loadDetail(imageId, scorers.at(-1), signal);
}

/**
 * @param {string} name
 */
function switchModel(name) {
  if (name === currentModel().name) return;
  const model = state.models.find((one) => one.name === name);
  if (!model) throw new Error(`There is no model ${name}.`);
  selectModel(model);
  byId("model", HTMLSelectElement).value = name;
  resetList();
}

/**
 * Returns a version of the selected model.
 * @param {number} id
 */
export function findVersion(id) {
  const version = usableVersions().find((one) => one.id === id);
  if (!version) throw new Error(`${currentModel().name} has no usable version ${id}.`);
  return version;
}

/** Returns the versions that can score: the released one, then the others, the newest first. */
function usableVersions() {
  const { versions, version } = currentModel();
  const others = versions.filter((one) => one.id !== version.id && one.state !== "discarded");
  return [version, ...others.reverse()];
}

/** Shows what one version says about an image; the user can choose another version. */
export class ScorePanel {
  model = currentModel();
  scoreBox = el("div", { "aria-live": "polite" });
  otherBox = el("div");
  /** @type {Promise<unknown>} */
  imageShown = Promise.resolve();

  /**
   * @param {ImageDetail} detail
   * @param {Version | null} version the one that the address names; null: the released one, if it has scored the image
   * @param {Viewer} viewer
   * @param {AbortSignal} signal
   */
  constructor(detail, version, viewer, signal) {
    this.detail = detail;
    this.version = version ?? this.model.version;
    this.isExplicit = version !== null;
    this.viewer = viewer;
    this.signal = signal;
  }

  /**
   * The address of an image with the model and the version shown here.
   * @param {number} [imageId]
   */
  address(imageId = this.detail.id) {
    return imageAddress(imageId, this.model.name, this.isExplicit ? this.version.id : undefined);
  }

  /**
   * Creates the list of versions; null where there is only one.
   * @param {() => void} onSelect
   */
  versionChoice(onSelect) {
    const versions = usableVersions();
    if (versions.length < 2) return null;
    /** @type {[string, string][]} */
    const options = versions.map(({ id, checksum, state: name }) => [String(id), `${id} (${checksum.slice(0, 8)}), ${name}`]);
    return select("Version", options, String(this.version.id), reportErrors(async (value) => {
      onSelect();
      await this.setVersion(findVersion(Number(value)));
    }));
  }

  /**
   * Shows the score of a version, which scores the image now where it has not done so before.
   * @param {Version} version
   */
  async setVersion(version) {
    this.version = version;
    this.isExplicit = version.id !== this.model.version.id || !this.storedScore();
    replaceAddress(this.address());
    await this.show();
  }

  /** Returns the score that the service has stored for the version. */
  storedScore() {
    return this.detail.scores.find((score) => score.version === this.version.id);
  }

  /** Shows score and map of the version; gives up where another version is chosen meanwhile. */
  async show() {
    const { version, isExplicit, model } = this;
    const stored = this.storedScore();
    this.viewer.setMap(null);
    this.viewer.setRegion(null);
    this.#showOthers();
    if (!isExplicit && !stored) return this.#showNotScored();
    if (isExplicit) this.scoreBox.replaceChildren(el("p", { class: "dim" }, "Scoring …"));
    const score = isExplicit || !stored ? await this.#fetchScore() : stored;
    if (this.version !== version) return undefined;
    const contourLine = el("p", { class: "dim" });
    const calibrationCount = "calibration" in score ? score.calibration : model.calibration;
    this.scoreBox.replaceChildren(
      scoreFacts(score, calibrationCount),
      stored ? "" : el("p", { class: "dim" }, "This version has not scored the image before; the score is not stored."),
      contourLine);
    await this.imageShown;
    if (this.version !== version) return undefined;
    this.viewer.setRegion(score.is_anomaly ? score.region : null);
    const map = await this.#fetchMap();
    if (this.version !== version) return undefined;
    this.viewer.setMap(mapLayer(map));
    contourLine.textContent = contourText(map, score);
    return undefined;
  }

  #showOthers() {
    this.otherBox.replaceChildren(otherScores(this.detail, this.version) ?? "");
  }

  #showNotScored() {
    const text = versionText(this.version.id, this.version.checksum);
    this.scoreBox.replaceChildren(
      el("p", {}, `The released ${text} of ${this.model.name} has not scored this image, so there is no map.`),
      button("Score it now", reportErrors(() => this.setVersion(this.version))));
  }

  /** Shows the stored score of an image whose file has been deleted. */
  showDropped() {
    const stored = this.storedScore();
    const deleted = formatTime(this.detail.dropped ?? 0);
    this.#showOthers();
    this.scoreBox.replaceChildren(
      el("p", {}, `The image was deleted on ${deleted} because nobody had reviewed it. Add it again to see it.`),
      stored ? scoreFacts(stored, this.model.calibration) : "");
  }

  #query() {
    return { model: this.model.name, version: this.version.id };
  }

  /** @returns {Promise<RecordedScore | ComputedScore>} */
  #fetchScore() {
    return getJson(`images/${this.detail.id}/score`, this.#query(), { signal: this.signal });
  }

  async #fetchMap() {
    const { bitmap, headers } = await fetchBitmap(apiUrl(`images/${this.detail.id}/map.png`, this.#query()), this.signal);
    return decodeMap(bitmap, headers);
  }
}
