import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";

const vendored = new URL("../../bgad/service/web/lib/vendor/", import.meta.url);
const installed = new URL("../../node_modules/lit-html/", import.meta.url);

test("the vendored lit-html is the file of the npm package, with its licence", async () => {
  for (const [copy, original] of [["lit-html.js", "lit-html.js"], ["lit-html.LICENSE", "LICENSE"]]) {
    assert.deepEqual(await readFile(new URL(copy, vendored)), await readFile(new URL(original, installed)), copy);
  }
});
