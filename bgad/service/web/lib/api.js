// HTTP client of the page: JSON requests, job events, and the access token.

import { pause } from "./dom.js";
import { isAbort } from "./messages.js";
import { askForToken, getToken } from "./token.js";

/** @import { Job } from "./types.js" */
/** @typedef {Record<string, string | number | null | undefined>} Query */
/** @typedef {Omit<RequestInit, "headers"> & { headers?: Record<string, string> }} RequestOptions */

const BUSY = 503;
const RETRY_MILLISECONDS = 1000;

/** An answer with an error status; the status is 0 where the service did not answer. */
export class ApiError extends Error {
  /**
   * @param {number} status
   * @param {string} message
   * @param {any} [answer] the JSON of the answer
   */
  constructor(status, message, answer = null) {
    super(message);
    this.status = status;
    this.answer = answer;
  }
}

/**
 * Builds an address of the API; empty query values are left out.
 * @param {string} route
 * @param {Query} [query]
 */
export function apiUrl(route, query = {}) {
  const parameters = new URLSearchParams();
  for (const [key, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== "") parameters.append(key, String(value));
  }
  return parameters.size ? `/v1/${route}?${parameters}` : `/v1/${route}`;
}

/**
 * Sends a request, and asks the user for a token where the service requires one.
 * @param {string} url
 * @param {RequestOptions} [options]
 * @returns {Promise<Response>}
 */
export async function request(url, options = {}) {
  for (;;) {
    const token = getToken();
    const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
    let response;
    try {
      response = await fetch(url, { ...options, headers });
    } catch (error) {
      if (isAbort(error)) throw error;
      throw new ApiError(0, "the service does not answer: is it running?");
    }
    if (response.status === 401) {
      if (token === getToken()) await askForToken(token !== ""); // another request may have replaced the token
      continue;
    }
    if (!response.ok) throw await apiError(response);
    return response;
  }
}

/**
 * @param {Response} response
 */
async function apiError(response) {
  const { status, statusText } = response;
  try {
    const answer = await response.json();
    return new ApiError(status, answer.detail || statusText, answer);
  } catch {
    return new ApiError(status, `${status} ${statusText}`);
  }
}

/**
 * @param {string} route
 * @param {Query} [query]
 * @param {RequestOptions} [options]
 * @returns {Promise<any>}
 */
export async function getJson(route, query, options) {
  return (await request(apiUrl(route, query), options)).json();
}

/**
 * @param {"POST" | "PUT"} method
 * @param {string} route
 * @param {object} [body]
 * @param {Query} [query]
 * @returns {Promise<any>}
 */
export async function sendJson(method, route, body, query) {
  const content = body && { headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  return (await request(apiUrl(route, query), { method, ...content })).json();
}

/**
 * Sends a form, and sends it again while the service is too busy to take it.
 * @param {string} url
 * @param {FormData} form
 * @param {() => boolean} isCancelled
 * @returns {Promise<any>}
 */
export async function sendForm(url, form, isCancelled) {
  for (;;) {
    try {
      return await (await request(url, { method: "POST", body: form })).json();
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== BUSY || isCancelled()) throw error;
      await pause(RETRY_MILLISECONDS);
    }
  }
}

/**
 * Calls `onChange` with every new state of a job, until the stream of events ends.
 * @param {number} jobId
 * @param {(job: Job) => void} onChange
 * @param {AbortSignal} signal
 */
export async function followJob(jobId, onChange, signal) {
  const { body } = await request(apiUrl(`jobs/${jobId}/events`), { signal });
  if (!body) return;
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let unfinished = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (unfinished + value).split("\n");
    unfinished = lines.pop() ?? "";
    for (const line of lines) if (line.startsWith("data: ")) onChange(JSON.parse(line.slice(6)));
  }
}
