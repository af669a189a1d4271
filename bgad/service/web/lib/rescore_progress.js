// Progress of rescoring after a release.

import { getJson } from "./api.js";
import { el, pause } from "./dom.js";
import { currentModel, modelRoute } from "./state.js";

/** @import { Rescoring, Model } from "./types.js" */

const INTERVAL = 3000; // milliseconds

/**
 * Creates a line that shows the progress while rescoring is under way, and is hidden otherwise.
 * @param {AbortSignal} signal
 */
export function rescoreProgress(signal) {
  const line = el("p", { class: "dim rescore", hidden: true });

  /** @param {Rescoring} progress */
  function show({ done, total }) {
    line.hidden = done >= total;
    line.textContent = `${done} of ${total} images rescored`;
    return !line.hidden;
  }

  async function watch() {
    await pause(INTERVAL);
    while (!signal.aborted && line.isConnected) {
      try {
        /** @type {Model} */
        const { name, rescoring } = await getJson(modelRoute(), {}, { signal });
        const model = currentModel();
        if (name !== model.name) return;
        model.rescoring = rescoring;
        if (!show(rescoring)) return;
      } catch {
        // the next request may succeed
      }
      await pause(INTERVAL);
    }
  }

  if (show(currentModel().rescoring)) watch();
  return line;
}
