// The web page. Ratings live in this browser tab; after each change they are sent to the server,
// which answers with new recommendations and stores nothing.

const $ = (id) => document.getElementById(id);
const ratings = new Map(); // item id -> {title, rating}, in the order in which they were given
const skipped = new Set(); // ids of suggested items that the user could not rate
let model = null;          // the response of /v1/model
let listLength = 10;
let lastUpdate = 0;        // number of the latest update; answers of older ones are dropped

// ---- small helpers -----------------------------------------------------------------------------
function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== false && value != null) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((x) => x != null));
  return element;
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
  for (let attempt = 0; ; attempt++) {
    const options = body && { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" } };
    const response = await fetch(path, { ...options, signal });
    if (response.status === 503 && attempt < 5) {
      announce("The server is busy; trying again.");
      await new Promise((resolve) => setTimeout(resolve, 1000 * Number(response.headers.get("retry-after") || 1)));
      continue;
    }
    const content = await response.json();
    if (!response.ok) throw new Error(content.detail || response.statusText);
    return content;
  }
}

const announce = (text) => { $("status").textContent = text; }; // read aloud by screen readers
const history = () => [...ratings].map(([item_id, { rating }]) => (model.implicit ? { item_id } : { item_id, rating }));
const formatNumber = (x) => x.toLocaleString("en", { maximumFractionDigits: 1, minimumFractionDigits: 1 });
const byItem = (item) => `[data-item="${CSS.escape(item.item_id)}"]`;

// "Empire Strikes Back, The (1980)" -> ["The Empire Strikes Back", "1980"]
function nameAndYear(item) {
  const [, name, year] = /^(.*?)(?:\s*\((\d{4})\))?$/s.exec(item.title ?? item.item_id);
  return [name.replace(/^(.*?), (The|A|An|La|Le|Les|L'|Der|Die|Das|Il|El)((?: \(.*)?)$/, "$2 $1$3"), year];
}
function titleElement(item, tag = "p") {
  const [name, year] = nameAndYear(item);
  return h(tag, { class: "title" }, name, ...(year ? [" ", h("span", { class: "year" }, year)] : []));
}
const displayName = (item) => nameAndYear(item)[0];

// ---- rating controls: at most ten steps ----------------------------------------------------------
function ratingSteps() {
  const levels = model.rating_levels, low = Math.ceil(levels[0]), high = levels.at(-1);
  const whole = Array.from({ length: Math.max(0, Math.floor(high) - low + 1) }, (_, k) => low + k);
  if (whole.length >= 2 && whole.length <= 10) return whole; // also levels absent from the data
  return [0, 1, 2, 3, 4].map((k) => levels[0] + ((high - levels[0]) * k) / 4);
}

let controlCount = 0;
function ratingControl(item, rating) {
  if (model.implicit) {
    const isLiked = ratings.has(item.item_id);
    const toggle = () => (isLiked ? removeRating(item) : rate(item, 1));
    return h("button", { type: "button", class: "like", "aria-pressed": String(isLiked), "aria-label": `Like ${displayName(item)}`, onclick: toggle }, icon("heart"), "Like");
  }
  const name = `rating-${controlCount++}`, steps = ratingSteps();
  return h("fieldset", { class: "stars", role: "radiogroup", "aria-label": `Rate ${displayName(item)}`, "data-item": item.item_id },
    ...steps.map((value, k) => h("label", { title: `${value}` },
      h("input", { type: "radio", name, value, checked: value === rating, "aria-label": steps.length === 5 ? `${k + 1} star${k ? "s" : ""}` : `${value}`, onchange: () => rate(item, value) }),
      icon("star"))));
}

// ---- changes of the state ------------------------------------------------------------------------
function rate(item, rating) {
  ratings.set(item.item_id, { title: item.title, rating });
  if ($("selected").dataset.item === item.item_id) $("selected").hidden = true;
  refresh(`${displayName(item)} rated.`);
  const checked = $("ratings").querySelector(`${byItem(item)} :checked`);
  checked?.focus({ preventScroll: true }); // keep the keyboard focus on the rated item
}

function removeRating(item) {
  ratings.delete(item.item_id);
  refresh(`${displayName(item)} removed.`);
  $("query").focus({ preventScroll: true });
}

function refresh(message = "") {
  drawRatings();
  updateList(message);
}

// ---- options of the list: those that the model has -----------------------------------------------
const MAX_COLUMNS = 6; // of attributes to choose by
const sliders = [
  { name: "diversity", has: (m) => m.can_diversify, label: "Diversity", max: 1, hint: () => "0: the best titles. More: titles that differ from one another." },
  { name: "damping", has: (m) => m.can_damp_popularity, label: "Popularity damping", max: 1, hint: () => "0: as likely as they are. More: titles that fewer people know." },
  { name: "recency", has: (m) => m.can_weigh_recency, label: "Recency", max: 0.9,
    hint: (m) => "0: all your ratings count alike. More: the latest count more." + (m.fitted_recency > 0 ? ` In training ${m.fitted_recency} was best.` : "") },
];

function drawOptions() {
  const fields = sliders.filter((x) => x.has(model)).map((x) => h("label", {}, x.label, h("span", { class: "value", "aria-hidden": "true" }, "0"),
    h("input", { id: `option-${x.name}`, type: "range", min: 0, max: x.max, step: 0.1, value: 0, "data-option": x.name, "aria-label": x.label, "aria-describedby": `hint-${x.name}` }),
    h("small", { id: `hint-${x.name}` }, x.hint(model))));
  const columns = model.attributes.slice(0, MAX_COLUMNS).filter((x) => model.attribute_values[x].length);
  fields.push(...columns.map((column, k) => h("label", {}, column[0].toUpperCase() + column.slice(1),
    h("select", { "data-column": column, "aria-label": `Only titles of this ${column}`, "aria-describedby": `hint-column-${k}` },
      h("option", { value: "" }, "any"), ...model.attribute_values[column].map((value) => h("option", { value }, value))),
    h("small", { id: `hint-column-${k}` }, `Only titles of this ${column}.`))));
  $("option-fields").replaceChildren(...fields);
  $("options").hidden = !fields.length;
}

const optionFields = () => [...$("option-fields").querySelectorAll("input, select")];
const optionsInUse = () => optionFields().filter((x) => (x.dataset.option ? x.valueAsNumber > 0 : x.value));

// what both a list and an explanation are computed with
function orderOptions() {
  const options = model.can_choose_quality ? { quality: $("quality").valueAsNumber } : {};
  for (const field of optionsInUse()) if (["damping", "recency"].includes(field.dataset.option)) options[field.dataset.option] = field.valueAsNumber;
  return options;
}

function listOptions() {
  const options = orderOptions(), fields = optionsInUse();
  const diversity = fields.find((x) => x.dataset.option === "diversity"), columns = fields.filter((x) => x.dataset.column);
  if (diversity) options.diversity = diversity.valueAsNumber;
  if (columns.length) options.where = Object.fromEntries(columns.map((x) => [x.dataset.column, [x.value]]));
  return options;
}

function changeOptions(message) {
  for (const field of optionFields()) if (field.dataset.option) field.parentElement.querySelector(".value").textContent = field.value;
  const n = optionsInUse().length;
  $("options-in-use").textContent = n ? ` (${n} in use)` : "";
  updateList(message);
}

// ---- requests to the server ----------------------------------------------------------------------
let abortController = null;
async function updateList(message) {
  const update = ++lastUpdate, start = performance.now();
  abortController?.abort();
  abortController = new AbortController();
  const { signal } = abortController, userHistory = history();
  try {
    const questions = model.can_suggest_questions ? call("/v1/next-question", { history: userHistory, n: 1, exclude: [...skipped] }, signal) : null;
    const { items } = await call("/v1/recommend", { history: userHistory, n: listLength, ...listOptions() }, signal);
    if (update !== lastUpdate) return;
    drawList(items);
    const duration = performance.now() - start;
    $("duration").textContent = `in ${Math.max(1, Math.round(duration))} ms`;
    document.body.dataset.durationMs = duration.toFixed(1);
    announce(`${message} ${items.length} recommendations, the first is ${items.length ? displayName(items[0]) : "none"}.`);
    if (questions) drawQuestion((await questions).items[0]);
    if (model.can_explain && userHistory.length) await explainItems(items.slice(0, 5), userHistory, signal, update);
    document.body.dataset.update = update; // lets a test wait until the update is complete
  } catch (error) {
    if (error.name !== "AbortError") { $("duration").textContent = ""; announce(`The request failed: ${error.message}`); }
  }
}

async function explainItems(items, userHistory, signal, update) {
  for (const item of items) { // one at a time: explanations share a core with the list
    const explanation = await call("/v1/explain", { history: userHistory, item_id: item.item_id, ...orderOptions() }, signal);
    if (update !== lastUpdate) return;
    $("list").querySelector(`${byItem(item)} .reasons`)?.replaceChildren(...reasonNodes(explanation));
  }
}

// "because you liked Alien and Jaws, but not Scream"; cohorts are the same for every item of a list,
// so they are named only where no item of the history is a reason
function reasonNodes(explanation) {
  const middle = (model.rating_levels[0] + model.rating_levels.at(-1)) / 2;
  const reasons = explanation.reasons.filter((x) => x.effect > 0).slice(0, 2);
  const names = (items) => items.flatMap((x, k) => [k ? " and " : "", h("em", {}, displayName(x))]);
  const liked = reasons.filter((x) => model.implicit || x.rating >= middle), disliked = reasons.filter((x) => !liked.includes(x));
  const nodes = [];
  if (liked.length) nodes.push("because you liked ", ...names(liked));
  if (disliked.length) nodes.push(liked.length ? ", but not " : "because you did not like ", ...names(disliked));
  const cohort = explanation.cohorts.find((x) => x.liked_titles.length);
  if (cohort && !nodes.length) nodes.push("similar users like ", cohort.liked_titles.slice(0, 2).map((title) => displayName({ title })).join(" and "));
  return nodes;
}

// ---- drawing -------------------------------------------------------------------------------------
function drawRatings() {
  const isEmpty = ratings.size === 0;
  $("no-ratings").hidden = !isEmpty;
  $("reset").hidden = isEmpty;
  $("list-name").textContent = isEmpty ? "Popular titles" : "For you";
  $("ratings").replaceChildren(...[...ratings].reverse().map(([item_id, { title, rating }]) => {
    const item = { item_id, title };
    return h("li", {}, titleElement(item), ratingControl(item, rating),
      h("button", { type: "button", class: "remove", "aria-label": `Remove ${displayName(item)}`, onclick: () => removeRating(item) }, icon("cross")));
  }));
}

function scoreElement({ rating: score, std, probability }, showsProbability) {
  if (score == null || model.rating_levels.length < 2) return null;
  const low = model.rating_levels[0], high = model.rating_levels.at(-1);
  const percent = (x) => 100 * Math.min(1, Math.max(0, (x - low) / (high - low)));
  const bar = h("i"), scale = h("span", { class: std == null ? "scale" : "scale range", "aria-hidden": "true" }, bar);
  if (std == null) bar.style.width = `${percent(score)}%`;
  else { // the bar is one standard deviation to each side (about 68 %), the dot is the expected rating
    const dot = h("b");
    bar.style.left = `${percent(score - std)}%`;
    bar.style.width = `${percent(score + std) - percent(score - std)}%`;
    dot.style.left = `${percent(score)}%`;
    scale.append(dot);
  }
  const plusMinus = std == null ? "" : ` ± ${formatNumber(std)}`;
  return h("p", { class: "score" }, scale,
    h("span", { "aria-hidden": "true" }, `${formatNumber(score)}${plusMinus}`),
    h("span", { class: "visually-hidden" }, `expected rating ${formatNumber(score)} of ${high}${std == null ? "" : `, plus or minus ${formatNumber(std)}`}`),
    probability == null || !showsProbability ? null : h("span", { class: "likely", title: "how likely this is among your next ten" }, formatProbability(probability)));
}

const formatProbability = (p) => (p < 0.005 ? "under 1 % likely" : `${Math.round(100 * p)} % likely`);

function drawList(items) {
  // a number that is the same in every row says nothing
  const showsProbability = items.length < 2 || new Set(items.map((x) => x.probability && formatProbability(x.probability))).size > 1;
  $("no-items").hidden = items.length > 0;
  const list = $("list"), oldTops = new Map([...list.children].map((x) => [x.dataset.item, x.getBoundingClientRect().top]));
  list.replaceChildren(...items.map((item) => h("li", { "data-item": item.item_id },
    h("span", { class: "rank", "aria-hidden": "true" }, String(item.rank)), titleElement(item), scoreElement(item, showsProbability),
    h("div", { class: "rate" }, ratingControl(item)), h("p", { class: "reasons" }))));
  $("more").hidden = items.length < listLength || listLength >= 50;
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  for (const row of list.children) { // animate rows from their old positions
    const oldTop = oldTops.get(row.dataset.item);
    const shift = oldTop === undefined ? null : oldTop - row.getBoundingClientRect().top;
    if (shift === null && oldTops.size) row.animate([{ opacity: 0 }, { opacity: 1 }], { duration: 180, easing: "ease-out" });
    else if (shift) row.animate([{ transform: `translateY(${shift}px)` }, { transform: "none" }], { duration: 220, easing: "cubic-bezier(.2,.8,.2,1)" });
  }
}

function drawQuestion(item) {
  $("question").hidden = !item;
  if (!item) return;
  const skip = () => { skipped.add(item.item_id); updateList(`${displayName(item)} skipped.`); };
  $("question-item").replaceChildren(h("div", { class: "big" }, titleElement(item), ratingControl(item),
    h("button", { type: "button", class: "quiet", onclick: skip }, model.implicit ? "No" : "Not seen")));
}

// ---- search --------------------------------------------------------------------------------------
let searchController = null, matches = [], activeIndex = -1;
let activeItemId = null; // chosen by arrow key or mouse since the last letter

async function search() {
  const query = $("query").value.trim();
  activeItemId = null;
  searchController?.abort();
  if (!query) return closeSearch();
  const controller = searchController = new AbortController();
  try {
    const { items } = await call(`/v1/items?n=8&query=${encodeURIComponent(query)}`, null, controller.signal);
    if (controller.signal.aborted) return; // the search was closed or changed meanwhile
    matches = items;
    // A response must not move the selection just before the user presses Enter.
    activeIndex = matches.length ? Math.max(0, matches.findIndex((x) => x.item_id === activeItemId)) : -1;
    drawMatches();
  } catch (error) {
    if (error.name !== "AbortError") announce(`The search failed: ${error.message}`);
  }
}

function drawMatches() {
  const rows = matches.map((item, k) => h("li", {
    id: `match-${k}`, role: "option", "aria-selected": String(k === activeIndex),
    onmousedown: (event) => event.preventDefault(), onclick: () => select(item),
    onmousemove: () => { if (activeIndex !== k) setActive(k); },
  }, titleElement(item, "span")));
  $("matches").replaceChildren(...(rows.length ? rows : [h("li", { class: "no-match", role: "option", "aria-disabled": "true", "aria-selected": "false" }, "No matching title")]));
  $("matches").hidden = false;
  $("query").setAttribute("aria-expanded", "true");
  markActive();
}

function setActive(k) {
  activeIndex = k;
  activeItemId = matches[k].item_id;
  markActive();
}

function markActive() {
  if (activeIndex < 0) return $("query").removeAttribute("aria-activedescendant");
  [...$("matches").children].forEach((row, k) => row.setAttribute("aria-selected", String(k === activeIndex)));
  $("query").setAttribute("aria-activedescendant", `match-${activeIndex}`);
  $("matches").children[activeIndex].scrollIntoView({ block: "nearest" });
}

function closeSearch() {
  searchController?.abort(); // a late response must not open the list again
  $("matches").hidden = true;
  $("query").setAttribute("aria-expanded", "false");
  $("query").removeAttribute("aria-activedescendant");
}

function select(item) {
  closeSearch();
  $("query").value = "";
  if (model.implicit) return rate(item, 1);
  $("selected").dataset.item = item.item_id;
  $("selected").replaceChildren(h("div", { class: "big" }, titleElement(item), ratingControl(item, ratings.get(item.item_id)?.rating)));
  $("selected").hidden = false;
  $("selected").querySelector("input").focus();
}

$("query").addEventListener("input", search);
$("query").addEventListener("focus", () => { if ($("query").value.trim()) search(); });
$("query").addEventListener("blur", closeSearch);
$("query").addEventListener("keydown", (event) => {
  const isOpen = !$("matches").hidden && matches.length;
  if (event.key === "Escape") { closeSearch(); $("query").value = ""; }
  else if (!isOpen) return;
  else if (event.key === "Enter") select(matches[activeIndex]);
  else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    setActive((activeIndex + (event.key === "ArrowDown" ? 1 : matches.length - 1)) % matches.length);
  } else return;
  event.preventDefault();
});
$("reset").addEventListener("click", () => { ratings.clear(); skipped.clear(); listLength = 10; $("selected").hidden = true; refresh("All ratings removed."); $("query").focus(); });
$("quality").addEventListener("change", () => updateList("Another order."));
$("option-fields").addEventListener("change", () => changeOptions("Options changed."));
$("reset-options").addEventListener("click", () => {
  for (const field of optionFields()) field.value = field.dataset.option ? "0" : "";
  changeOptions("All options reset.");
});
$("more").addEventListener("click", () => { listLength += 10; updateList("Longer list."); });

// ---- start ---------------------------------------------------------------------------------------
try {
  model = await call("/v1/model");
  $("about").textContent = `${model.model} · ${model.n_items.toLocaleString("en")} titles · idcf ${model.version}`;
  $("quality-field").hidden = !model.can_choose_quality;
  drawOptions();
  refresh();
} catch (error) {
  announce(`The server could not be reached: ${error.message}`);
  $("no-ratings").textContent = "The server could not be reached.";
}
