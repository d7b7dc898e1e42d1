// DOM elements and names of items.

export const $ = (id) => document.getElementById(id);
export const byItem = (item) => `[data-item="${CSS.escape(item.item_id)}"]`;
export const formatNumber = (x) => x.toLocaleString("en", { maximumFractionDigits: 1, minimumFractionDigits: 1 });
export const announce = (text) => { $("status").textContent = text; }; // read aloud by screen readers

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== false && value != null) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((x) => x != null));
  return element;
}

export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `#${name}`);
  svg.setAttribute("aria-hidden", "true");
  svg.append(use);
  return svg;
}

// "Empire Strikes Back, The (1980)" -> ["The Empire Strikes Back", "1980"]
function nameAndYear(item) {
  const [, name, year] = /^(.*?)(?:\s*\((\d{4})\))?$/s.exec(item.title ?? item.item_id);
  return [name.replace(/^(.*?), (The|A|An|La|Le|Les|L'|Der|Die|Das|Il|El)((?: \(.*)?)$/, "$2 $1$3"), year];
}

export const displayName = (item) => nameAndYear(item)[0];

export function titleElement(item, tag = "p") {
  const [name, year] = nameAndYear(item);
  return h(tag, { class: "title" }, name, ...(year ? [" ", h("span", { class: "year" }, year)] : []));
}

// whether the title has each word of a text, whatever their case and accents
export function contains(item, text) {
  const words = (x) => x.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase().split(/[^\p{L}\p{N}]+/u);
  const title = words(item.title ?? item.item_id).join("");
  return words(text).every((word) => title.includes(word));
}
