// The light and the dark look: the system's, or the one that was chosen.

import { say } from "./dom.js";

export function prepareTheme() {
  const root = document.documentElement;
  const saved = localStorage.getItem("bgad-theme");
  if (saved) root.dataset.theme = saved;
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    localStorage.setItem("bgad-theme", root.dataset.theme);
    say(`The ${root.dataset.theme} theme.`);
  });
}
