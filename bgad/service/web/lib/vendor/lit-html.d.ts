// Types of the vendored lit-html.js: those of the npm package of the same version, a development dependency.
export * from "lit-html";
