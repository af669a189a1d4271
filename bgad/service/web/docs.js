// The API as a page: every operation of /v1/openapi.json, with what it takes and what it answers.

import { download, get, path, token } from "./lib/api.js";
import { el, fail } from "./lib/dom.js";
import { prepareTheme } from "./lib/theme.js";

const METHODS = ["get", "post", "put", "patch", "delete"];
const by = (id) => document.getElementById(id);

async function start() {
  prepareTheme();
  by("message-close").addEventListener("click", () => (by("message").hidden = true));
  const spec = await get("openapi.json");
  by("main").append(el("div", { class: "page" },
    el("h1", {}, `${spec.info.title} ${spec.info.version}: the API`),
    el("p", {}, spec.info.description),
    el("p", {}, "All of it is in ", el("a", { href: path("openapi.json"), onclick: save }, "/v1/openapi.json"),
      ", for programs that make clients. An error is one line in ", el("code", {}, "detail"), "."),
    examples(),
    groups(spec).map(([name, operations]) =>
      el("section", { class: "card", "aria-label": name }, el("h2", {}, name), operations.map(operation))),
    schemas(spec)));
  openTarget();
  addEventListener("hashchange", openTarget);
}

/** A link alone would come without the token. */
function save(event) {
  if (!token()) return;
  event.preventDefault();
  download(path("openapi.json"), "openapi.json").catch(fail);
}

/** Show what the address leads to, which may be inside of something that is closed. */
function openTarget() {
  const target = by(decodeURIComponent(location.hash.slice(1)));
  if (target instanceof HTMLDetailsElement) target.open = true;
  target?.scrollIntoView();
}

function examples() {
  const model = `${location.origin}/v1/models/NAME`;
  const token = '-H "Authorization: Bearer $TOKEN"';
  const lines = [
    "# one picture",
    `curl ${token} --data-binary @part.png '${model}/score?filename=part.png'`,
    "",
    "# several",
    `curl ${token} -F files=@a.png -F files=@b.png ${model}/batches`,
  ];
  return el("section", { class: "card", "aria-label": "Score pictures" },
    el("h2", {}, "Score pictures"),
    el("pre", {}, lines.join("\n")),
    el("p", { class: "dim" }, "NAME is the model's. A service that asks for no token needs no Authorization."));
}

/** The operations by the first part of their path. */
function groups(spec) {
  const found = new Map();
  for (const [place, item] of Object.entries(spec.paths)) {
    const name = place.split("/")[2] ?? place;
    for (const method of METHODS.filter((one) => item[one])) {
      if (!found.has(name)) found.set(name, []);
      found.get(name).push({ path: place, method, ...item[method] });
    }
  }
  return [...found];
}

function operation(one) {
  const answers = Object.entries(one.responses ?? {});
  const isGood = ([code]) => code < "400";
  return el("details", { class: "operation", id: one.operationId },
    el("summary", {}, el("span", { class: `badge ${one.method}` }, one.method.toUpperCase()), " ", el("code", {}, one.path),
      el("span", { class: "dim" }, ` ${one.description ?? one.summary ?? ""}`)),
    parameters(one.parameters ?? []),
    one.requestBody && el("div", {}, el("h3", {}, "Body"), contents(one.requestBody.content)),
    el("h3", {}, "Answer"),
    answers.filter(isGood).map(([code, answer]) => el("div", {}, el("p", {}, `${code}: ${answer.description}`), contents(answer.content ?? {}))),
    el("details", {}, el("summary", {}, "Errors"),
      el("ul", {}, answers.filter((answer) => !isGood(answer)).map(([code, answer]) => el("li", {}, `${code}: ${answer.description}`)))));
}

function parameters(all) {
  if (!all.length) return null;
  return el("div", {}, el("h3", {}, "Parameters"),
    table(["Name", "Where", "Type", "What"], all.map((one) =>
      [name(one.name, one.required), one.in, typed(one.schema), words(one.description, one.schema)])));
}

/** What a body or an answer may be: its kinds, and the fields of those that have some. */
function contents(content) {
  return Object.entries(content ?? {}).map(([kind, { schema }]) =>
    el("div", {}, el("p", {}, el("code", {}, kind), schema ? [": ", typed(schema)] : []), schema?.properties && fields(schema)));
}

function schemas(spec) {
  const all = Object.entries(spec.components?.schemas ?? {}).filter(([title]) => !/ValidationError$/.test(title));
  return el("section", { class: "card", "aria-label": "Fields" }, el("h2", {}, "Fields"),
    all.map(([title, schema]) => el("details", { class: "operation", id: `schema-${title}` },
      el("summary", {}, el("code", {}, title), el("span", { class: "dim" }, ` ${schema.description ?? ""}`)), fields(schema))));
}

function fields(schema) {
  const required = new Set(schema.required ?? []);
  return table(["Field", "Type", "What"], Object.entries(schema.properties ?? {}).map(([key, value]) =>
    [name(key, required.has(key)), typed(value), words(value.description, value)]));
}

function name(text, required) {
  return el("span", {}, el("code", {}, text), required ? el("span", { class: "dim" }, " needed") : "");
}

function words(description, schema) {
  const limits = [["minimum", "≥"], ["exclusiveMinimum", ">"], ["maximum", "≤"], ["exclusiveMaximum", "<"], ["maxLength", "length ≤"], ["maxItems", "items ≤"]];
  const known = [schema, ...(schema.anyOf ?? [])];
  const said = limits.flatMap(([key, sign]) => known.filter((one) => one[key] !== undefined).map((one) => `${sign} ${one[key]}`));
  if (schema.default !== undefined && schema.default !== null && schema.default !== "") said.push(`${schema.default} where it is left out`);
  return [description, said.join(", ")].filter(Boolean).join("; ");
}

/** The type of a schema in words; those that have a name lead to their fields. */
function typed(schema) {
  if (schema.$ref) {
    const title = schema.$ref.split("/").at(-1);
    return el("a", { href: `#schema-${title}` }, title);
  }
  const either = schema.anyOf ?? schema.oneOf;
  if (either) return el("span", {}, either.flatMap((one, i) => [i ? " or " : "", typed(one)]));
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(", ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.type === "array") return el("span", {}, "list of ", typed(schema.items ?? {}));
  if (schema.format === "binary") return "bytes";
  return schema.type ?? "anything";
}

function table(heads, rows) {
  return el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, heads.map((text) => el("th", { scope: "col" }, text)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((part) => el("td", {}, part)))))));
}

start().catch((error) => {
  fail(error);
  by("main").append(el("p", { class: "empty" }, error.message));
});
