// Talks to the service: JSON, pictures and events, with the token where there is one.

const KEY = "bgad-token";

export class Problem extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

export function token() {
  return sessionStorage.getItem(KEY) || "";
}

export function forgetToken() {
  sessionStorage.removeItem(KEY);
}

/** An address of the API; undefined and empty values are left out. */
export function path(route, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(given).toString();
  return text ? `/v1/${route}?${text}` : `/v1/${route}`;
}

/** Ask, and ask for a token where one is needed. */
export async function request(url, options = {}) {
  for (;;) {
    const sent = token();
    const headers = { ...options.headers, ...(sent ? { Authorization: `Bearer ${sent}` } : {}) };
    let answer;
    try {
      answer = await fetch(url, { ...options, headers });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Problem(0, "the service does not answer: is it running?");
    }
    if (answer.status === 401) {
      if (sent === token()) await askToken(sent !== "");
      continue;
    }
    if (!answer.ok) throw new Problem(answer.status, await detail(answer));
    return answer;
  }
}

async function detail(answer) {
  try {
    return (await answer.json()).detail || answer.statusText;
  } catch {
    return `${answer.status} ${answer.statusText}`;
  }
}

export async function get(route, query, options) {
  return (await request(path(route, query), options)).json();
}

export async function send(method, route, body) {
  const answer = await request(path(route), {
    method,
    headers: body === undefined ? {} : { "Content-Type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  return answer.json();
}

/** Follow a job: call `tell` with it whenever it has changed, until the events end or `signal` aborts. */
export async function follow(job, tell, signal) {
  const answer = await request(path(`jobs/${job}/events`), { signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data: ")) tell(JSON.parse(line.slice(6)));
  }
}

// --- the token

let asking = null;

function askToken(wasWrong) {
  asking ??= new Promise((resolve) => {
    const dialog = document.getElementById("token-dialog");
    const field = document.getElementById("token");
    if (wasWrong) document.getElementById("token-reason").textContent = "The service does not know this token.";
    field.value = "";
    dialog.oncancel = (event) => event.preventDefault();
    dialog.addEventListener(
      "close",
      () => {
        const given = field.value.trim();
        if (given) sessionStorage.setItem(KEY, given);
        else forgetToken();
        asking = null;
        resolve();
      },
      { once: true },
    );
    dialog.showModal();
  });
  return asking;
}

// --- pictures

const wanted = new WeakMap(); // of an <img> that waits for its picture: the address, and what ends the fetching
const watcher = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (isIntersecting) load(target);
    else wanted.get(target)?.control?.abort(); // it was scrolled away, or its view has ended
  }
}, { rootMargin: "200px" });

/** Show a picture of the API in an <img>; with a token it is fetched when it is seen. */
export function show(img, url) {
  wanted.get(img)?.control?.abort();
  if (!token()) {
    img.src = url;
    return;
  }
  wanted.set(img, { url, control: null });
  watcher.unobserve(img);
  watcher.observe(img);
}

/** By way of a blob, which is let go once it is drawn. */
async function load(img) {
  const one = wanted.get(img);
  const control = new AbortController();
  one.control = control;
  let made;
  try {
    made = await blobUrl(one.url, control.signal);
  } catch {
    return;
  }
  watcher.unobserve(img);
  const release = () => URL.revokeObjectURL(made);
  img.addEventListener("load", release, { once: true });
  img.addEventListener("error", release, { once: true });
  img.loading = "eager"; // a lazy one might never be drawn, and its blob never let go
  img.src = made;
}

async function blobUrl(url, signal) {
  const answer = await request(url, { signal });
  return URL.createObjectURL(await answer.blob());
}

/** Save a file of the API under a name. */
export async function download(url, name) {
  const link = document.createElement("a");
  link.href = await blobUrl(url);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/** A picture as a bitmap, and the headers that came with it. */
export async function bitmap(url, signal) {
  const answer = await request(url, { signal });
  return { picture: await createImageBitmap(await answer.blob()), headers: answer.headers };
}

/** The small picture of an image by one version, which is part of the address so that no old one is shown. */
export function thumbnail(image, model, version) {
  return path(`images/${image}/thumbnail.jpg`, { model, version });
}
