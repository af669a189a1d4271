// The address of a picture, and the way back from it to where it was opened.

import { el } from "./dom.js";

const HOME = "#/queue";

let left = ""; // the address that was left last
let shown = null; // the picture that was shown last: its address and its trail
let led = null; // the picture that a link or a step leads to, and its trail

addEventListener("hashchange", ({ oldURL }) => {
  if (oldURL) left = new URL(oldURL).hash || HOME;
});

/** Of a picture as a model sees it: its released version, where no other one is named. */
export function imageLink(image, model, version) {
  return ["#/image", image, model && encodeURIComponent(model), version].filter(Boolean).join("/");
}

/** The addresses on the way back from a picture that is shown now, the nearest last. They stay with its entry in the
 * browser's history, so that they are right also after its own "back" and "reload". */
export function arrive(address) {
  const trail = history.state?.trail ?? (led?.address === location.hash ? led.trail : fromElsewhere());
  led = null;
  shown = { address, trail };
  history.replaceState({ trail }, "");
  return trail;
}

/** From another view; or by an address that was typed while a picture was shown, which changes nothing. */
function fromElsewhere() {
  if (left.startsWith("#/image")) return shown?.trail ?? [];
  return left ? [left] : [];
}

/** The picture is shown in another way: the address says so, the way back is the same. */
export function rename(address) {
  history.replaceState(history.state, "", address);
  shown.address = address;
}

/** A link from the picture that is shown to another one, from which the way back leads over this one. */
export function otherImage(address, attributes, ...children) {
  const lead = () => (led = { address, trail: [...shown.trail, shown.address] });
  return el("a", { href: address, onclick: lead, ...attributes }, ...children);
}

/** To another picture, from which the way back is the same. */
export function stepTo(address, trail) {
  led = { address, trail };
  location.hash = address;
}

export function goBack(trail) {
  stepTo(trail.at(-1) ?? HOME, trail.slice(0, -1));
}
