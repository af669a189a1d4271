// The light and the dark theme: the system's, or the one that the user has chosen.

import { byId } from "./dom.js";
import { showMessage } from "./messages.js";

const STORAGE_KEY = "bgad-theme";

/** Applies the saved theme and connects the button that switches it. */
export function setUpTheme() {
  const { dataset } = document.documentElement;
  const saved = localStorage.getItem(STORAGE_KEY);
  if (saved) dataset.theme = saved;
  byId("theme", HTMLButtonElement).addEventListener("click", () => {
    const isDark = dataset.theme ? dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    dataset.theme = isDark ? "light" : "dark";
    localStorage.setItem(STORAGE_KEY, dataset.theme);
    showMessage(`The ${dataset.theme} theme is on.`);
  });
}
