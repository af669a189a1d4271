// Sends verdicts.

import { get, request, send } from "./api.js";
import { state } from "./state.js";

/** Keep a verdict; what is painted goes along as PNG in base64. A good part has no defect. */
export async function judge(image, verdict, { note = "", mask = null, ignore = null, model = state.model.name } = {}) {
  const body = { verdict, note, mask: verdict === "good" ? null : mask, ignore, model };
  const kept = await send("POST", `images/${image}/reviews`, body);
  state.list?.judged(image, verdict, note, kept.mask !== null);
  return kept;
}

/** A verdict from the list: note and painting of an earlier review stay, also of one that came since. */
export async function judgeListed(row, verdict) {
  const last = (await get(`images/${row.id}`)).reviews.at(-1);
  const [mask, ignore] = await Promise.all([last?.mask, last?.ignore].map(encoded));
  return judge(row.id, verdict, { note: last?.note ?? "", mask, ignore });
}

async function encoded(link) {
  return link ? base64(await (await request(link)).blob()) : null;
}

/** A blob in base64, without the words before it. */
export function base64(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}
