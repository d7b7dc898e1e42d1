// A link that holds the history in its fragment, which browsers do not send to the server:
// #ratings=ID:RATING,ID:RATING or #likes=ID,ID, with ids percent-encoded, then the options that are
// not at their defaults: &diversity=0.5&where.genre=War

export const MAX_SHARED = 500; // titles in a link

export function makeFragment(history, implicit, options = {}) {
  const id = (x) => encodeURIComponent(x.item_id);
  const titles = implicit ? `#likes=${history.map(id).join(",")}` : `#ratings=${history.map((x) => `${id(x)}:${x.rating}`).join(",")}`;
  return titles + Object.entries(options).map(([name, value]) => `&${encodeURIComponent(name)}=${encodeURIComponent(value)}`).join("");
}

// The options that a fragment holds, by name.
export const readOptions = (fragment) => Object.fromEntries(new URLSearchParams(fragment.split("&").slice(1).join("&")));

// The history that a fragment holds, null if it holds none; throws an Error that says what is wrong.
export function readFragment(fragment, model) {
  const [, kind, text] = /^#(ratings|likes)=([^&]*)/.exec(fragment) ?? [];
  if (!kind) {
    if (/^#\w+=/.test(fragment)) throw new Error(`it begins with ${fragment.slice(0, 20).split("=")[0]}= instead of #ratings= or #likes=`);
    return null;
  }
  if ((kind === "likes") !== model.implicit) throw new Error(`it holds ${kind}, but this server goes by ${model.implicit ? "likes" : "ratings"}`);
  const parts = text.split(",");
  if (parts.length > MAX_SHARED) throw new Error(`it holds ${parts.length} titles, and at most ${MAX_SHARED} are allowed`);
  const history = parts.map((part) => readPart(part, model));
  if (new Set(history.map((x) => x.item_id)).size < history.length) throw new Error("it holds a title twice");
  return history;
}

function readPart(part, model) {
  const [encoded, text, ...rest] = part.split(":");
  const item_id = decodeId(encoded);
  if (!item_id || rest.length || (text === undefined) !== model.implicit) throw new Error(`“${part.slice(0, 40)}” in it cannot be read`);
  if (model.implicit) return { item_id };
  const low = model.rating_levels[0], high = model.rating_levels.at(-1), rating = Number(text);
  if (!text.trim() || !(rating >= low && rating <= high)) throw new Error(`the rating “${text.slice(0, 20)}” in it is not a number from ${low} to ${high}`);
  return { item_id, rating };
}

function decodeId(encoded) {
  try { return decodeURIComponent(encoded); } catch { return ""; }
}
