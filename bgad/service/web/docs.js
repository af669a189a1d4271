// The API reference: every operation of /v1/openapi.json, with its parameters and answers.

import { apiUrl, getJson } from "./lib/api.js";
import { byId, el, table, tableRow } from "./lib/dom.js";
import { downloadFile } from "./lib/image_loader.js";
import { errorText, setUpMessages, showError } from "./lib/messages.js";
import { setUpTheme } from "./lib/theme.js";
import { getToken } from "./lib/token.js";

/** @import { Child } from "./lib/dom.js" */

/**
 * The parts of an OpenAPI document that the page shows.
 * @typedef {object} Specification
 * @property {{ title: string, version: string, description: string }} info
 * @property {Record<string, Record<string, Operation>>} paths
 * @property {{ schemas?: Record<string, Schema> }} [components]
 */

/**
 * @typedef {object} Operation
 * @property {string} operationId
 * @property {string} [summary]
 * @property {string} [description]
 * @property {Parameter[]} [parameters]
 * @property {{ content: Content }} [requestBody]
 * @property {Record<string, { description: string, content?: Content }>} [responses]
 */

/** @typedef {{ name: string, in: string, required?: boolean, description?: string, schema: Schema }} Parameter */
/** @typedef {Record<string, { schema?: Schema }>} Content by media type */

/**
 * @typedef {object} Schema
 * @property {string} [$ref]
 * @property {string} [type]
 * @property {string} [format]
 * @property {string} [description]
 * @property {Schema} [items]
 * @property {Schema[]} [anyOf]
 * @property {Schema[]} [oneOf]
 * @property {unknown[]} [enum]
 * @property {unknown} [const]
 * @property {unknown} [default]
 * @property {string[]} [required]
 * @property {Record<string, Schema>} [properties]
 * @property {number} [minimum]
 * @property {number} [exclusiveMinimum]
 * @property {number} [maximum]
 * @property {number} [exclusiveMaximum]
 * @property {number} [maxLength]
 * @property {number} [maxItems]
 */

const METHODS = ["get", "post", "put", "patch", "delete"];
/** @typedef {"minimum" | "exclusiveMinimum" | "maximum" | "exclusiveMaximum" | "maxLength" | "maxItems"} Limit */
/** @type {[key: Limit, sign: string][]} */
const LIMITS = [
  ["minimum", "≥"], ["exclusiveMinimum", ">"], ["maximum", "≤"], ["exclusiveMaximum", "<"], ["maxLength", "length ≤"],
  ["maxItems", "items ≤"],
];

async function start() {
  setUpMessages();
  setUpTheme();
  /** @type {Specification} */
  const specification = await getJson("openapi.json");
  const { title, version, description } = specification.info;
  byId("main", HTMLElement).append(el("div", { class: "page" },
    el("h1", {}, `${title} ${version}: the API`),
    el("p", {}, description),
    el("p", {}, "Client generators can read it from ", el("a", { href: apiUrl("openapi.json"), onclick: onSave }, "/v1/openapi.json"),
      ". An error is one line in ", el("code", {}, "detail"), "."),
    examples(),
    [...operationGroups(specification)].map(([name, operations]) =>
      el("section", { class: "card", "aria-label": name }, el("h2", {}, name), operations)),
    schemaSection(specification)));
  openTarget();
  addEventListener("hashchange", openTarget);
}

/**
 * Downloads the specification with the token, which a plain link would not send.
 * @param {MouseEvent} event
 */
function onSave(event) {
  if (!getToken()) return;
  event.preventDefault();
  downloadFile(apiUrl("openapi.json"), "openapi.json").catch(showError);
}

/** Opens and shows the element that the address names. */
function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target instanceof HTMLDetailsElement) target.open = true;
  target?.scrollIntoView();
}

function examples() {
  const model = `${location.origin}/v1/models/NAME`;
  const header = '-H "Authorization: Bearer $TOKEN"';
  const lines = [
    "# one image",
    `curl ${header} --data-binary @part.png '${model}/score?filename=part.png'`,
    "",
    "# several",
    `curl ${header} -F files=@a.png -F files=@b.png ${model}/batches`,
  ];
  return el("section", { class: "card", "aria-label": "Score images" },
    el("h2", {}, "Score images"),
    el("pre", {}, lines.join("\n")),
    el("p", { class: "dim" }, "NAME is the name of the model. A service without tokens needs no Authorization header."));
}

// --- operations

/**
 * Groups the operations by the first part of their path.
 * @param {Specification} specification
 */
function operationGroups({ paths }) {
  /** @type {Map<string, HTMLElement[]>} */
  const groups = new Map();
  for (const [path, operations] of Object.entries(paths)) {
    const name = path.split("/")[2] ?? path;
    const methods = METHODS.filter((method) => operations[method]);
    const shown = methods.map((method) => operationDetails(path, method, operations[method]));
    groups.set(name, [...(groups.get(name) ?? []), ...shown]);
  }
  return groups;
}

/**
 * @param {string} path
 * @param {string} method
 * @param {Operation} operation
 */
function operationDetails(path, method, operation) {
  const answers = Object.entries(operation.responses ?? {});
  const isSuccess = (/** @type {string} */ code) => code < "400";
  const successes = answers.filter(([code]) => isSuccess(code));
  const errors = answers.filter(([code]) => !isSuccess(code));
  return el("details", { class: "operation", id: operation.operationId },
    el("summary", {}, el("span", { class: `badge ${method}` }, method.toUpperCase()), " ", el("code", {}, path),
      el("span", { class: "dim" }, ` ${operation.description ?? operation.summary ?? ""}`)),
    parameterTable(operation.parameters ?? []),
    operation.requestBody && el("div", {}, el("h3", {}, "Body"), contentList(operation.requestBody.content)),
    el("h3", {}, "Answer"),
    successes.map(([code, answer]) => el("div", {}, el("p", {}, `${code}: ${answer.description}`), contentList(answer.content ?? {}))),
    el("details", {}, el("summary", {}, "Errors"),
      el("ul", {}, errors.map(([code, answer]) => el("li", {}, `${code}: ${answer.description}`)))));
}

/**
 * @param {Parameter[]} parameters
 */
function parameterTable(parameters) {
  if (!parameters.length) return null;
  const rows = parameters.map((parameter) => tableRow([
    fieldName(parameter.name, parameter.required ?? false), parameter.in, typeName(parameter.schema),
    schemaText(parameter.description, parameter.schema),
  ]));
  return el("div", {}, el("h3", {}, "Parameters"), table(["Name", "In", "Type", "Description"], el("tbody", {}, rows)));
}

/**
 * Lists the media types of a body or an answer, with the fields of those that have some.
 * @param {Content} content
 */
function contentList(content) {
  return Object.entries(content).map(([mediaType, { schema }]) =>
    el("div", {}, el("p", {}, el("code", {}, mediaType), schema ? [": ", typeName(schema)] : []), schema?.properties && fieldTable(schema)));
}

// --- schemas

/**
 * @param {Specification} specification
 */
function schemaSection({ components }) {
  const schemas = Object.entries(components?.schemas ?? {}).filter(([title]) => !/ValidationError$/.test(title));
  return el("section", { class: "card", "aria-label": "Fields" }, el("h2", {}, "Fields"),
    schemas.map(([title, schema]) => el("details", { class: "operation", id: `schema-${title}` },
      el("summary", {}, el("code", {}, title), el("span", { class: "dim" }, ` ${schema.description ?? ""}`)), fieldTable(schema))));
}

/**
 * @param {Schema} schema
 */
function fieldTable(schema) {
  const required = new Set(schema.required ?? []);
  const rows = Object.entries(schema.properties ?? {}).map(([name, field]) => tableRow([
    fieldName(name, required.has(name)), typeName(field), schemaText(field.description, field),
  ]));
  return table(["Field", "Type", "Description"], el("tbody", {}, rows));
}

/**
 * @param {string} name
 * @param {boolean} isRequired
 */
function fieldName(name, isRequired) {
  return el("span", {}, el("code", {}, name), isRequired && el("span", { class: "dim" }, " required"));
}

/**
 * Joins a description with the limits and the default of a schema.
 * @param {string | undefined} description
 * @param {Schema} schema
 */
function schemaText(description, schema) {
  const alternatives = [schema, ...(schema.anyOf ?? [])];
  const notes = LIMITS.flatMap(([key, sign]) =>
    alternatives.filter((one) => one[key] !== undefined).map((one) => `${sign} ${one[key]}`));
  if (schema.default !== undefined && schema.default !== null && schema.default !== "") notes.push(`default ${schema.default}`);
  return [description, notes.join(", ")].filter(Boolean).join("; ");
}

/**
 * Names the type of a schema; a type with fields links to them.
 * @param {Schema} schema
 * @returns {Child}
 */
function typeName(schema) {
  if (schema.$ref) {
    const title = schema.$ref.split("/").at(-1);
    return el("a", { href: `#schema-${title}` }, title);
  }
  const alternatives = schema.anyOf ?? schema.oneOf;
  if (alternatives) return el("span", {}, alternatives.map((one, i) => [i ? " or " : "", typeName(one)]));
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(", ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.type === "array") return el("span", {}, "list of ", typeName(schema.items ?? {}));
  return schema.format === "binary" ? "bytes" : schema.type ?? "any";
}

start().catch((error) => {
  showError(error);
  byId("main", HTMLElement).append(el("p", { class: "empty" }, errorText(error)));
});
