// The page: what you rate is kept in this tab and nowhere else, and asked about at each change.

const $ = (id) => document.getElementById(id);
const rated = new Map();   // item id -> {title, rating}, in the order they were given
const skipped = new Set(); // asked about, not seen
let model = null, shown = 10, turn = 0;

// ---- small helpers -----------------------------------------------------------------------------
function h(tag, props = {}, ...inside) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== false && value != null) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...inside.filter((x) => x != null));
  return made;
}

function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `#${name}`);
  svg.setAttribute("aria-hidden", "true");
  svg.append(use);
  return svg;
}

async function call(path, body, signal) {
  for (let tries = 0; ; tries++) {
    const options = body && { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" } };
    const answer = await fetch(path, { ...options, signal });
    if (answer.status === 503 && tries < 5) {
      say("The server is busy; trying again.");
      await new Promise((go) => setTimeout(go, 1000 * Number(answer.headers.get("retry-after") || 1)));
      continue;
    }
    const found = await answer.json();
    if (!answer.ok) throw new Error(found.detail || answer.statusText);
    return found;
  }
}

const say = (text) => { $("status").textContent = text; };
const history = () => [...rated].map(([item_id, { rating }]) => (model.implicit ? { item_id } : { item_id, rating }));
const number = (x) => x.toLocaleString("en", { maximumFractionDigits: 1, minimumFractionDigits: 1 });

// "Empire Strikes Back, The (1980)" is filed that way; people say it another way.
function parts(item) {
  const [, name, year] = /^(.*?)(?:\s*\((\d{4})\))?$/s.exec(item.title ?? item.item_id);
  return [name.replace(/^(.*?), (The|A|An|La|Le|Les|L'|Der|Die|Das|Il|El)((?: \(.*)?)$/, "$2 $1$3"), year];
}
function heading(item, tag = "p") {
  const [name, year] = parts(item);
  return h(tag, { class: "title" }, name, ...(year ? [" ", h("span", { class: "year" }, year)] : []));
}
const spoken = (item) => parts(item)[0];

// ---- the scale: at most ten steps, whatever the data had -----------------------------------------
function steps() {
  const { levels } = model, low = Math.ceil(levels[0]), high = levels.at(-1);
  const whole = Array.from({ length: Math.max(0, Math.floor(high) - low + 1) }, (_, k) => low + k);
  if (whole.length >= 2 && whole.length <= 10) return whole; // one that nobody gave is a rating too
  return [0, 1, 2, 3, 4].map((k) => levels[0] + ((high - levels[0]) * k) / 4);
}

let groups = 0;
function stars(item, rating) {
  if (model.implicit) {
    const on = rated.has(item.item_id);
    const toggle = () => (on ? forget(item) : rate(item, 1));
    return h("button", { type: "button", class: "like", "aria-pressed": String(on), "aria-label": `Like ${spoken(item)}`, onclick: toggle }, icon("heart"), "Like");
  }
  const name = `rate-${groups++}`, all = steps();
  return h("fieldset", { class: "stars", role: "radiogroup", "aria-label": `Rate ${spoken(item)}`, "data-item": item.item_id },
    ...all.map((value, k) => h("label", { title: `${value}` },
      h("input", { type: "radio", name, value, checked: value === rating, "aria-label": all.length === 5 ? `${k + 1} star${k ? "s" : ""}` : `${value}`, onchange: () => rate(item, value) }),
      icon("star"))));
}

// ---- what changes the state ----------------------------------------------------------------------
function rate(item, rating) {
  rated.set(item.item_id, { title: item.title, rating });
  if ($("picked").dataset.item === item.item_id) $("picked").hidden = true;
  renew(`${spoken(item)} rated.`);
  const held = $("mine").querySelector(`[data-item="${CSS.escape(item.item_id)}"] :checked`);
  held?.focus({ preventScroll: true }); // the keyboard stays with what was rated
}

function forget(item) {
  rated.delete(item.item_id);
  renew(`${spoken(item)} taken back.`);
  $("query").focus({ preventScroll: true });
}

function renew(said = "") {
  drawMine();
  ask(said);
}

// ---- asking the server ---------------------------------------------------------------------------
let pending = null;
async function ask(said) {
  const mine = ++turn, began = performance.now();
  pending?.abort();
  pending = new AbortController();
  const { signal } = pending, told = history();
  try {
    const questions = model.asks ? call("/v1/next-question", { history: told, n: 1, exclude: [...skipped] }, signal) : null;
    const best = await call("/v1/recommend", { history: told, n: shown }, signal);
    if (mine !== turn) return;
    drawList(best.items);
    const took = performance.now() - began;
    $("took").textContent = `in ${Math.max(1, Math.round(took))} ms`;
    document.body.dataset.took = took.toFixed(1);
    say(`${said} ${best.items.length} recommendations, the first is ${best.items.length ? spoken(best.items[0]) : "none"}.`);
    if (questions) drawQuestion((await questions).items[0]);
    if (model.explains && told.length) await explain(best.items.slice(0, 5), told, signal, mine);
    document.body.dataset.turn = mine; // for whoever drives this page
  } catch (error) {
    if (error.name !== "AbortError") { $("took").textContent = ""; say(`That did not work: ${error.message}`); }
  }
}

async function explain(items, told, signal, mine) {
  for (const item of items) { // one at a time: they share a core with the list itself
    const found = await call("/v1/explain", { history: told, item_id: item.item_id }, signal);
    if (mine !== turn) return;
    const place = $("list").querySelector(`[data-item="${CSS.escape(item.item_id)}"] .why`);
    place?.replaceChildren(...reasons(found));
  }
}

// "because you liked Alien and Jaws, but not Scream; liked by people who like Heat"
function reasons(found) {
  const middle = (model.levels[0] + model.levels.at(-1)) / 2;
  const pushed = found.reasons.filter((x) => x.effect > 0).slice(0, 2);
  const names = (all) => all.flatMap((x, k) => [k ? " and " : "", h("em", {}, spoken(x))]);
  const liked = pushed.filter((x) => model.implicit || x.rating >= middle), not = pushed.filter((x) => !liked.includes(x));
  const out = [];
  if (liked.length) out.push("because you liked ", ...names(liked));
  if (not.length) out.push(liked.length ? ", but not " : "because you did not like ", ...names(not));
  const cohort = found.cohorts.find((x) => x.likes.length);
  if (cohort) out.push(out.length ? "; " : "", "you are near people who like ", cohort.likes.slice(0, 2).map((title) => spoken({ title })).join(" and "));
  return out;
}

// ---- drawing -------------------------------------------------------------------------------------
function drawMine() {
  const none = rated.size === 0;
  $("none").hidden = !none;
  $("reset").hidden = none;
  $("list-name").textContent = none ? "Well liked by most" : "For you";
  $("mine").replaceChildren(...[...rated].reverse().map(([item_id, { title, rating }]) => {
    const item = { item_id, title };
    return h("li", {}, heading(item), stars(item, rating),
      h("button", { type: "button", class: "drop", "aria-label": `Take back ${spoken(item)}`, onclick: () => forget(item) }, icon("cross")));
  }));
}

function guess({ score, std }) {
  if (model.implicit || model.levels.length < 2) return null;
  const low = model.levels[0], high = model.levels.at(-1);
  const at = (x) => 100 * Math.min(1, Math.max(0, (x - low) / (high - low)));
  const bar = h("i"), scale = h("span", { class: std == null ? "scale" : "scale range", "aria-hidden": "true" }, bar);
  if (std == null) bar.style.width = `${at(score)}%`;
  else { // the band is where the rating lies two times out of three, the dot is the best guess
    const dot = h("b");
    bar.style.left = `${at(score - std)}%`;
    bar.style.width = `${at(score + std) - at(score - std)}%`;
    dot.style.left = `${at(score)}%`;
    scale.append(dot);
  }
  const sure = std == null ? "" : ` ± ${number(std)}`;
  return h("p", { class: "guess" }, scale,
    h("span", { "aria-hidden": "true" }, `${number(score)}${sure}`),
    h("span", { class: "unseen" }, `expected rating ${number(score)} of ${high}${std == null ? "" : `, give or take ${number(std)}`}`));
}

function drawList(items) {
  const list = $("list"), before = new Map([...list.children].map((x) => [x.dataset.item, x.getBoundingClientRect().top]));
  list.replaceChildren(...items.map((item) => h("li", { "data-item": item.item_id },
    h("span", { class: "rank", "aria-hidden": "true" }, String(item.rank)), heading(item), guess(item),
    h("div", { class: "rate" }, stars(item)), h("p", { class: "why" }))));
  $("more").hidden = items.length < shown || shown >= 50;
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  for (const row of list.children) { // rows glide to their new places
    const old = before.get(row.dataset.item);
    const moved = old === undefined ? null : old - row.getBoundingClientRect().top;
    if (moved === null && before.size) row.animate([{ opacity: 0 }, { opacity: 1 }], { duration: 180, easing: "ease-out" });
    else if (moved) row.animate([{ transform: `translateY(${moved}px)` }, { transform: "none" }], { duration: 220, easing: "cubic-bezier(.2,.8,.2,1)" });
  }
}

function drawQuestion(item) {
  $("question").hidden = !item;
  if (!item) return;
  const pass = () => { skipped.add(item.item_id); ask(`${spoken(item)} skipped.`); };
  $("asked").replaceChildren(h("div", { class: "big" }, heading(item), stars(item),
    h("button", { type: "button", class: "quiet", onclick: pass }, model.implicit ? "No" : "Not seen")));
}

// ---- searching -----------------------------------------------------------------------------------
let looking = null, options = [], at = -1;
let marked = null; // the item an arrow or the mouse went to since the last letter

async function search() {
  const query = $("query").value.trim();
  marked = null;
  looking?.abort();
  if (!query) return closeSearch();
  const mine = looking = new AbortController();
  try {
    const found = await call(`/v1/items?n=8&query=${encodeURIComponent(query)}`, null, mine.signal);
    if (mine.signal.aborted) return; // closed, or asked anew, in the meantime
    options = found.items;
    // A late answer must not move the mark from under a hand that is about to press Enter.
    at = options.length ? Math.max(0, options.findIndex((x) => x.item_id === marked)) : -1;
    drawFound();
  } catch (error) {
    if (error.name !== "AbortError") say(`The search did not work: ${error.message}`);
  }
}

function drawFound() {
  const rows = options.map((item, k) => h("li", {
    id: `found-${k}`, role: "option", "aria-selected": String(k === at),
    onmousedown: (event) => event.preventDefault(), onclick: () => pick(item),
    onmousemove: () => { if (at !== k) mark(k); },
  }, heading(item, "span")));
  $("found").replaceChildren(...(rows.length ? rows : [h("li", { class: "nothing", role: "option", "aria-disabled": "true", "aria-selected": "false" }, "Nothing of that name")]));
  $("found").hidden = false;
  $("query").setAttribute("aria-expanded", "true");
  markFound();
}

function mark(k) {
  at = k;
  marked = options[k].item_id;
  markFound();
}

function markFound() {
  if (at < 0) return $("query").removeAttribute("aria-activedescendant");
  [...$("found").children].forEach((row, k) => row.setAttribute("aria-selected", String(k === at)));
  $("query").setAttribute("aria-activedescendant", `found-${at}`);
  $("found").children[at].scrollIntoView({ block: "nearest" });
}

function closeSearch() {
  looking?.abort(); // an answer that comes late must not open it again
  $("found").hidden = true;
  $("query").setAttribute("aria-expanded", "false");
  $("query").removeAttribute("aria-activedescendant");
}

function pick(item) {
  closeSearch();
  $("query").value = "";
  if (model.implicit) return rate(item, 1);
  $("picked").dataset.item = item.item_id;
  $("picked").replaceChildren(h("div", { class: "big" }, heading(item), stars(item, rated.get(item.item_id)?.rating)));
  $("picked").hidden = false;
  $("picked").querySelector("input").focus();
}

$("query").addEventListener("input", search);
$("query").addEventListener("focus", () => { if ($("query").value.trim()) search(); });
$("query").addEventListener("blur", closeSearch);
$("query").addEventListener("keydown", (event) => {
  const open = !$("found").hidden && options.length;
  if (event.key === "Escape") { closeSearch(); $("query").value = ""; }
  else if (!open) return;
  else if (event.key === "Enter") pick(options[at]);
  else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    mark((at + (event.key === "ArrowDown" ? 1 : options.length - 1)) % options.length);
  } else return;
  event.preventDefault();
});
$("reset").addEventListener("click", () => { rated.clear(); skipped.clear(); shown = 10; $("picked").hidden = true; renew("Started over."); $("query").focus(); });
$("more").addEventListener("click", () => { shown += 10; ask("More."); });

// ---- begin ---------------------------------------------------------------------------------------
try {
  model = await call("/v1/model");
  $("about").textContent = `${model.model} · ${model.items.toLocaleString("en")} titles · idcf ${model.version}`;
  renew();
} catch (error) {
  say(`The server could not be reached: ${error.message}`);
  $("none").textContent = "The server could not be reached.";
}
