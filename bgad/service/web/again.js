// How far a version that was released is with the pictures that it scores again.

import { get } from "./api.js";
import { el } from "./dom.js";
import { modelRoute, state } from "./state.js";

const PAUSE = 3000; // milliseconds

/** A line that says so while there is something to say. */
export function againLine(signal) {
  const line = el("p", { class: "dim again", hidden: true });
  const show = ({ done, total }) => {
    line.hidden = done >= total;
    line.textContent = `${done} of ${total} pictures scored again`;
    return !line.hidden;
  };
  const watch = async () => {
    while (!signal.aborted && line.isConnected) {
      try {
        const { name, rescoring } = await get(modelRoute(), {}, { signal });
        if (name !== state.model.name) return;
        state.model.rescoring = rescoring;
        if (!show(rescoring)) return;
      } catch {} // it is asked again
      await new Promise((resolve) => setTimeout(resolve, PAUSE));
    }
  };
  if (show(state.model.rescoring)) setTimeout(watch, PAUSE);
  return line;
}
