// What is known of a picture: what a version says of it, what people said, and the pictures with scores nearby.

import { show, thumbnail } from "../lib/api.js";
import { badge, decision, el, number, percent, plural, time, versionText } from "../lib/dom.js";
import { state } from "../lib/state.js";
import { imageLink, otherImage } from "../lib/back_links.js";

/** What a version says; `calibration` is how many good parts its p-value rests on. */
export function facts(said, calibration) {
  return el("div", {},
    el("p", { class: "words" }, decisionBadge(said), ` ${inWords(said.p_value, calibration)}`),
    el("dl", { class: "facts" },
      el("dt", {}, "Score"), el("dd", {}, number(said.score)),
      el("dt", {}, "Threshold"), el("dd", {}, number(said.threshold)),
      el("dt", {}, "p-value"), el("dd", {}, said.p_value.toPrecision(2)),
      el("dt", {}, "Model"), el("dd", {}, `${said.model}, ${versionText(said)}`)));
}

function decisionBadge({ is_anomaly: strange }) {
  return badge(decision(strange), decision(strange));
}

/** A p-value as a sentence; `n` is how many good parts it was compared with. */
export function inWords(p, n) {
  if (n && p * (n + 1) < 1.5) return `Stranger than all ${n} good parts it was compared with.`;
  if (p > 0.5) return `Looks like most good parts: ${percent(p)} of them look at least this strange.`;
  return `1 in ${Math.round(1 / p)} good parts looks this strange.`;
}

/** Of a map: what its line means, and what it does not. */
export function lineText(map, said) {
  const reached = map.high > map.boundary;
  const meaning = reached
    ? "The bright line is the boundary of the map: what is inside looks strange."
    : "Nothing in the map reaches the boundary.";
  return reached || said.is_anomaly ? `${meaning} The decision is made by the score, not by this line.` : meaning;
}

/** All versions of any model that have scored the picture, but for the one that is shown. */
export function otherVersions({ id, scores }, shown) {
  const others = scores.filter((said) => said.version !== shown.id);
  if (!others.length) return null;
  const line = (said) => {
    const model = state.models.find((one) => one.name === said.model);
    const version = model?.versions.find((one) => one.id === said.version);
    const text = `${said.model}, ${versionText(said)}`;
    const address = imageLink(id, said.model, said.version === model?.version.id ? undefined : said.version);
    const usable = version && version.state !== "discarded";
    return el("li", {}, usable ? otherImage(address, {}, text) : text, `: ${number(said.score)} `, decisionBadge(said));
  };
  return el("details", {}, el("summary", {}, `What ${plural(others.length, "other version")} said`),
    el("ul", { class: "plain" }, others.map(line)));
}

export function reviewList(reviews) {
  if (!reviews.length) return el("p", { class: "dim" }, "Not reviewed yet.");
  const line = (review) =>
    el("li", {}, badge(review.verdict, review.verdict), ` ${review.who}, ${time(review.created)}`,
      review.mask && " · painted", review.ignore && " · ignored area",
      review.note && el("div", { class: "note" }, review.note));
  return el("details", { open: true }, el("summary", {}, plural(reviews.length, "review")),
    el("ul", { class: "plain" }, [...reviews].reverse().map(line)));
}

/** By the released version of a model. */
export function neighbours(near, model) {
  if (!near.length) return null;
  const link = (one) => {
    const picture = el("img", { alt: "", loading: "lazy" });
    show(picture, thumbnail(one.id, model.name, model.version.id));
    const said = one.verdict ? badge(one.verdict, one.verdict) : el("span", { class: "dim" }, "not reviewed");
    return otherImage(imageLink(one.id, model.name), { title: one.name },
      picture, el("span", {}, number(one.score)), decisionBadge(one), said);
  };
  return el("div", { class: "near" }, el("h2", {}, "Scores nearby"),
    model.versions.length > 1 && el("p", { class: "dim" }, `By ${versionText(model.version)}, which is released.`),
    el("div", { class: "strip" }, near.map(link)));
}
