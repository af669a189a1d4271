// Adds pictures: by the button, or dropped anywhere; sent eight at a time.

import { path, request } from "./api.js";
import { fail, plural, say } from "./dom.js";
import { modelRoute, state } from "./state.js";

const CHUNK = 8;
const PICTURE = /\.(png|jpe?g|bmp|tiff?|webp|gif|ppm|pgm)$/i;
const by = (id) => document.getElementById(id);

let stopped = false;
let busy = false;

/** Wire up the button and the drop zone; `done` is called when pictures have come in. */
export function prepareUpload(done) {
  by("add").addEventListener("click", () => by("files").click());
  by("files").addEventListener("change", (event) => {
    const chosen = [...event.target.files];
    upload(chosen, done).catch(fail);
    event.target.value = "";
  });
  by("upload-stop").addEventListener("click", () => (stopped = true));
  prepareDrop(done);
}

function prepareDrop(done) {
  let depth = 0;
  const zone = by("drop");
  const holdsFiles = (event) => event.dataTransfer?.types.includes("Files");
  addEventListener("dragenter", (event) => {
    if (!holdsFiles(event)) return;
    depth += 1;
    zone.hidden = false;
  });
  addEventListener("dragleave", () => {
    depth = Math.max(0, depth - 1);
    zone.hidden = depth === 0;
  });
  addEventListener("dragover", (event) => holdsFiles(event) && event.preventDefault());
  addEventListener("drop", async (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    depth = 0;
    zone.hidden = true;
    const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
    const plain = [...event.dataTransfer.files];
    try {
      await upload(entries.length ? (await Promise.all(entries.map(filesOf))).flat() : plain, done);
    } catch (error) {
      fail(error);
    }
  });
}

/** The files of what was dropped, folders with all that is in them. */
async function filesOf(entry) {
  if (entry.isFile) return [await new Promise((resolve, reject) => entry.file(resolve, reject))];
  const reader = entry.createReader();
  const found = [];
  for (;;) {
    const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!some.length) return (await Promise.all(found.map(filesOf))).flat();
    found.push(...some);
  }
}

/** Whether pictures are being sent. */
export function uploading() {
  return busy;
}

async function upload(files, done) {
  const pictures = files.filter((file) => file.type.startsWith("image/") || PICTURE.test(file.name));
  if (!pictures.length) return say("There is no picture among these files.", true);
  if (!state.model) return say("There is no model here to score them.", true);
  if (busy) return say("Pictures are being sent already: wait, or stop them.", true);
  const route = path(modelRoute("/batches")); // of the model that is chosen now, also when another one is meanwhile
  busy = true;
  stopped = false;
  by("upload").hidden = false;
  const failures = [];
  let sent = 0;
  try {
    for (let i = 0; i < pictures.length && !stopped; i += CHUNK) {
      progress(sent, pictures.length);
      const some = pictures.slice(i, i + CHUNK);
      failures.push(...(await sendSome(route, some)));
      sent += some.length;
    }
  } finally {
    busy = false;
    by("upload").hidden = true;
    if (sent) done();
  }
  report(sent, failures);
}

function progress(sent, all) {
  by("upload-text").textContent = `Scoring ${sent} of ${plural(all, "picture")} …`;
  by("upload-bar").value = sent / all;
}

function report(sent, failures) {
  const scored = `${plural(sent - failures.length, "picture")} scored.`;
  if (!failures.length) return say(scored);
  const first = failures[0];
  say(`${scored} ${failures.length} could not be: ${first.name}: ${first.error}`, true);
}

async function sendSome(route, files) {
  const form = new FormData();
  for (const file of files) form.append("files", file, file.name);
  for (;;) {
    try {
      const answer = await request(route, { method: "POST", body: form });
      return (await answer.json()).results.filter((result) => result.error !== undefined);
    } catch (error) {
      if (error.status !== 503 || stopped) throw error;
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }
}
