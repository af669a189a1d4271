// Files as text, as the API takes and gives masks.

/**
 * Encodes a blob in base64.
 * @param {Blob} blob
 * @returns {Promise<string>}
 */
export function toBase64(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => {
      const dataUrl = String(reader.result);
      resolve(dataUrl.slice(dataUrl.indexOf(",") + 1));
    };
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

/**
 * Decodes a PNG in base64; null where there is none.
 * @param {string | null} text
 * @returns {Promise<ImageBitmap | null>}
 */
export async function bitmapFromBase64(text) {
  if (!text) return null;
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return createImageBitmap(new Blob([bytes], { type: "image/png" }));
}
