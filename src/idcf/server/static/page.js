// The web page. The user's ratings or likes stay in this browser tab; after each change they are sent
// to the server, which answers with new recommendations and stores nothing. What the page shows is
// always what the server answered last: a change that fails is taken back, and can be tried again.

import { $, announce, byItem, contains, displayName, formatNumber, h, icon, titleElement } from "./elements.js";
import { keep, kept } from "./kept.js";
import { createNotice } from "./notice.js";
import { RequestError, call } from "./requests.js";
import { MAX_SHARED, makeFragment, readFragment, readOptions } from "./share.js";

const ratings = new Map(); // item id -> {title, rating}, in the order in which they were given
const skipped = new Set(); // ids of suggested items that the user does not know
let model = null;          // the response of /v1/model
let listLength = 10;
let lastUpdate = 0;        // number of the latest update; answers of older ones are dropped
let answered = null;       // the state that the server answered last
let shown = { items: [], question: undefined }; // and its answer

const REASON_ROWS = 10;      // further rows have no reasons: each takes a request
const KEY_DELAY_MS = 700;    // after the last arrow key on stars
const MIN_STD_RATIO = 1.25;  // of the largest deviation to the smallest, for deviations by row
const LIST = "#list-notice"; // where messages stand that belong to no title

const WORDS = {
  ratings: {
    title: "Recommendations from a few ratings",
    lead: "Rate some titles. Your ratings stay in this browser tab; the server does not store them.",
    name: "Your ratings", none: "No ratings yet. Search for a title, or rate one in the list.",
    question: "Your rating of this title would help most",
    given: "rated", removed: "All ratings removed.", recency: "all your ratings count alike",
    link: "A link that holds your ratings",
    share: "Whoever opens it sees these ratings with your options, and gets the same list. The server stores nothing.",
  },
  likes: {
    title: "Recommendations from a few likes",
    lead: "Like some titles. Your likes stay in this browser tab; the server does not store them.",
    name: "Your likes", none: "No likes yet. Search for a title, or like one in the list.",
    question: "Do you like this title? Your like of it would help most",
    given: "liked", removed: "All likes removed.", recency: "all your likes count alike",
    link: "A link that holds your likes",
    share: "Whoever opens it sees these likes with your options, and gets the same list. The server stores nothing.",
  },
};
const words = () => WORDS[model.implicit ? "likes" : "ratings"];
const history = () => [...ratings].map(([item_id, { rating }]) => (model.implicit ? { item_id } : { item_id, rating }));
const notice = createNotice(LIST), searchNotice = createNotice("#search-notice"), linkNotice = createNotice("#link-notice");

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
    const toggle = (event) => (isLiked ? removeRating(item) : rate(item, 1, placeOf(event.currentTarget)));
    return h("button", { type: "button", class: "like", "aria-pressed": String(isLiked), "aria-label": `Like ${displayName(item)}`, onclick: toggle }, icon("heart"), "Like");
  }
  const name = `rating-${controlCount++}`, steps = ratingSteps();
  let timer = null, pending = null, isArrow = false; // arrow keys pass over stars; only the last one is sent
  const commit = (keepsFocus = false) => {
    const value = pending;
    clearTimeout(timer);
    pending = null;
    if (value !== null) rate(item, value, placeOf(stars), keepsFocus);
  };
  const change = (value) => {
    pending = value;
    clearTimeout(timer);
    if (isArrow) timer = setTimeout(commit, KEY_DELAY_MS);
    else commit();
  };
  const stars = h("fieldset", {
    class: "stars", role: "radiogroup", "aria-label": `Rate ${displayName(item)}`, "data-item": item.item_id,
    onkeydown: (event) => { isArrow = event.key.startsWith("Arrow"); if (event.key === "Enter") commit(); },
    onpointerdown: () => { isArrow = false; },
    onfocusout: (event) => { if (!stars.contains(event.relatedTarget)) setTimeout(commit, 0, true); }, // once the focus is there
  }, ...steps.map((value, k) => h("label", { title: `${value}` },
    h("input", { type: "radio", name, value, checked: value === rating, "aria-label": steps.length === 5 ? `${k + 1} star${k ? "s" : ""}` : `${value}`, onchange: () => change(value) }),
    icon("star"))));
  return stars;
}

// the selector of the row or card that an element is in
function placeOf(element) {
  const row = element.closest("li[data-item]"), box = row ? row.parentElement : element.closest(".card");
  if (!box) return LIST; // it was replaced meanwhile
  return row ? `#${box.id} > ${byItem({ item_id: row.dataset.item })}` : `#${box.id}`;
}

// Replace the rows of a list; the keyboard focus stays where it is in its row.
function replaceRows(list, rows) {
  const row = list.contains(document.activeElement) ? document.activeElement.closest("li") : null;
  const controls = (x) => [...(x?.querySelectorAll("input, button") ?? [])];
  const index = controls(row).indexOf(document.activeElement);
  list.replaceChildren(...rows);
  if (row) controls(list.querySelector(`:scope > ${byItem({ item_id: row.dataset.item })}`))[index]?.focus({ preventScroll: true });
}

// ---- changes of the state ------------------------------------------------------------------------
function rate(item, rating, place, keepsFocus = false) {
  linkNotice.clear();
  ratings.set(item.item_id, { title: item.title, rating });
  refresh(`${displayName(item)} ${words().given}.`, place);
  if (keepsFocus) return;
  const control = $("ratings").querySelector(`${byItem(item)} :is(:checked, [aria-pressed])`);
  control?.focus({ preventScroll: true }); // keep the keyboard focus on the rated item
}

function removeRating(item) {
  ratings.delete(item.item_id);
  refresh(`${displayName(item)} removed.`, "#ratings-notice");
  $("query").focus({ preventScroll: true });
}

function refresh(message = "", place = LIST) {
  drawRatings();
  return update(message, place);
}

const fields = () => [...(model.can_choose_quality ? [$("quality")] : []), ...optionFields()];
const fieldName = (x) => x.dataset.option ?? (x.dataset.column ? `where.${x.dataset.column}` : x.id);
const isDefault = (x) => x.value === (x.dataset.column ? "" : x.defaultValue);
const optionValues = () => Object.fromEntries(fields().filter((x) => !isDefault(x)).map((x) => [fieldName(x), x.value]));
const snapshot = () => ({ ratings: [...ratings], skipped: [...skipped], listLength, values: optionValues() });

// Set the options, those that are not named to their defaults; return the names of those that this model lacks.
function setOptions(values) {
  const rest = new Map(Object.entries(values));
  for (const field of fields()) {
    const name = fieldName(field), value = rest.get(name), fallback = field.dataset.column ? "" : field.defaultValue;
    field.value = value ?? fallback;
    if (value === undefined) continue;
    if (field.value === value) rest.delete(name);
    else field.value = fallback;
  }
  drawOptionValues();
  return [...rest.keys()];
}

function restore(state) {
  ratings.clear();
  state.ratings.forEach(([id, x]) => ratings.set(id, x));
  skipped.clear();
  state.skipped.forEach((x) => skipped.add(x));
  listLength = state.listLength;
  setOptions(state.values);
  drawRatings();
}

// A line at the bottom of the window says what the last change did, and takes it back.
function showDone(text, previous) {
  $("done-text").textContent = text;
  $("done").hidden = false;
  $("undo").hidden = !previous;
  $("undo").onclick = () => {
    $("selected").hidden = true;
    restore(previous);
    update("Undone.");
    $("list").focus({ preventScroll: true });
  };
}

// ---- options of the list: those that the model has -----------------------------------------------
const MAX_COLUMNS = 6; // of attributes to choose by
const sliders = [
  { name: "diversity", has: (m) => m.can_diversify, label: "Diversity", max: 1, hint: () => "0: the best titles. More: titles that differ from one another." },
  { name: "damping", has: (m) => m.can_damp_popularity, label: "Popularity damping", max: 1, hint: () => "0: as likely as they are. More: titles that fewer people know." },
  { name: "recency", has: (m) => m.can_weigh_recency, label: "Recency", max: 0.9,
    hint: (m) => `0: ${words().recency}. More: the latest count more.` + (m.fitted_recency > 0 ? ` In training ${m.fitted_recency} was best.` : "") },
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

function drawOptionValues() {
  for (const field of optionFields()) if (field.dataset.option) field.parentElement.querySelector(".value").textContent = field.value;
  const n = optionsInUse().length;
  $("options-in-use").textContent = n ? ` (${n} in use)` : "";
}

function changeOptions(message) {
  drawOptionValues();
  update(message);
}

// ---- requests to the server ----------------------------------------------------------------------
let abortController = null;
async function update(message, place = LIST) {
  const number = ++lastUpdate, start = performance.now(), state = snapshot();
  $("done").hidden = true;
  abortController?.abort();
  const { signal } = abortController = new AbortController();
  notice.clear();
  $("duration").textContent = "";
  const userHistory = history(), isLatest = () => number === lastUpdate;
  const question = fetchQuestion(userHistory, signal);
  try {
    const request = { history: userHistory, n: listLength, ...listOptions() };
    const { items } = await notice.during(place, (onBusy) => call("/v1/recommend", request, { signal, onBusy }));
    if (!isLatest()) return;
    notice.clear();
    const previous = answered && JSON.stringify(answered) !== JSON.stringify(state) ? answered : null;
    answered = state;
    keep(state, model);
    shown.items = items;
    if (place === "#selected") $("selected").hidden = true;
    drawList(items);
    const duration = performance.now() - start;
    $("duration").textContent = `in ${Math.max(1, Math.round(duration))} ms`;
    document.body.dataset.durationMs = duration.toFixed(1);
    const first = items.length ? displayName(items[0]) : "none";
    announce(`${message} ${items.length} recommendations, the first is ${first}.`);
    if (message) showDone(`${message} First in the list: ${first}.`, message === "Undone." ? null : previous);
  } catch (error) {
    if (isLatest() && error.name !== "AbortError") takeBack(error, state, message, place);
    return;
  }
  try {
    const questions = await question.answer;
    if (!isLatest()) return;
    shown.question = questions?.items[0];
    drawQuestion(shown.question);
    if (model.can_explain && userHistory.length) await explainItems(shown.items.slice(0, REASON_ROWS), userHistory, signal, isLatest);
  } catch (error) {
    if (isLatest() && error.name !== "AbortError")
      notice.fail(LIST, `The list is new, but the next question or the reasons are missing. ${describe(error)}`, () => update(message));
  }
  if (isLatest()) document.body.dataset.update = number; // lets a test wait until the update is complete
}

// in an object: awaited after the list, and not an unhandled error if the list fails first
function fetchQuestion(userHistory, signal) {
  const request = { history: userHistory, n: 1, exclude: [...skipped] };
  const answer = model.can_suggest_questions ? call("/v1/next-question", request, { signal }) : null;
  answer?.catch(() => {});
  return { answer };
}

const describe = (error) => (error instanceof RequestError ? error.message : `This page failed: ${error.message}. Load it again.`);

// Show again what the server answered last, with a message where the change was made.
function takeBack(error, state, message, place) {
  const hasChanged = answered && JSON.stringify(answered) !== JSON.stringify(state);
  if (answered) {
    restore(answered);
    for (const item of shown.items) $("list").querySelector(`${byItem(item)} .rate`).replaceChildren(ratingControl(item));
    drawQuestion(shown.question);
    if (!$("selected").hidden) drawSelected();
  }
  const text = `${describe(error)}${hasChanged ? " Your change was taken back." : ""}`;
  notice.fail(place, text, () => { restore(state); update(message, place); });
}

async function explainItems(items, userHistory, signal, isLatest) {
  const reasons = [], counts = new Map();
  for (const item of items) { // one at a time: explanations share a core with the list
    const explanation = await call("/v1/explain", { history: userHistory, item_id: item.item_id, ...orderOptions() }, { signal });
    if (!isLatest()) return;
    const nodes = reasonNodes(explanation), text = nodes.map((x) => x.textContent ?? x).join("");
    reasons.push({ item, nodes, text });
    counts.set(text, (counts.get(text) ?? 0) + 1);
  }
  // a reason that most rows share says nothing about a row: it stands once, above the list
  const common = items.length > 1 ? reasons.find((x) => x.text && counts.get(x.text) > items.length / 2) : null;
  if (common) $("common-reason").replaceChildren(counts.get(common.text) === items.length ? "All are here " : "Most are here ", ...common.nodes, ".");
  for (const { item, nodes, text } of reasons)
    if (text !== common?.text) $("list").querySelector(`${byItem(item)} .reasons`)?.replaceChildren(...nodes);
}

// "because you liked Alien and Jaws, but not Scream", or what similar users like
function reasonNodes(explanation) {
  const middle = (model.rating_levels[0] + model.rating_levels.at(-1)) / 2;
  const reasons = explanation.reasons.filter((x) => x.effect > 0).slice(0, 2);
  const names = (items) => items.flatMap((x, k) => [k ? " and " : "", h("em", {}, displayName(x))]);
  const liked = reasons.filter((x) => model.implicit || x.rating >= middle), disliked = reasons.filter((x) => !liked.includes(x));
  const nodes = [];
  if (liked.length) nodes.push("because you liked ", ...names(liked));
  if (disliked.length) nodes.push(liked.length ? ", but not " : "because you did not like ", ...names(disliked));
  const cohort = explanation.cohorts.find((x) => x.liked_titles.length);
  if (cohort && !nodes.length) nodes.push("because similar users like ", cohort.liked_titles.slice(0, 2).map((title) => displayName({ title })).join(" and "));
  return nodes;
}

// ---- drawing -------------------------------------------------------------------------------------
function drawRatings() {
  const isEmpty = ratings.size === 0;
  $("no-ratings").hidden = !isEmpty;
  $("reset").hidden = $("share").hidden = isEmpty;
  toggleShare(false); // a link that is open holds other ratings
  replaceRows($("ratings"), [...ratings].reverse().map(([item_id, { title, rating }]) => {
    const item = { item_id, title };
    return h("li", { "data-item": item_id }, titleElement(item), ratingControl(item, rating),
      h("button", { type: "button", class: "remove", "aria-label": `Remove ${displayName(item)}`, onclick: () => removeRating(item) }, icon("cross")));
  }));
}

// What the rows show: a number that is the same in every row says nothing there.
function informativeColumns(items) {
  const stds = items.map((x) => x.std).filter((x) => x != null);
  const [low, high] = stds.length ? [Math.min(...stds), Math.max(...stds)] : [0, 0];
  const chances = new Set(items.map((x) => x.probability != null && formatProbability(x.probability)));
  return { std: high > MIN_STD_RATIO * low || items.length === 1, probability: items.length === 1 || chances.size > 1, low, high };
}

function drawCertainty(columns) {
  const range = [...new Set([columns.low, columns.high].map(formatNumber))].join(" to ");
  $("certainty").textContent = columns.std || !columns.high ? "" : `Expected ratings are ± ${range}: two in three ratings are that close.`;
}

function scoreElement({ rating, std, probability }, columns) {
  const hasRating = rating != null && model.rating_levels.length > 1, hasProbability = probability != null && columns.probability;
  if (!hasRating && !hasProbability) return null;
  return h("p", { class: "score" }, ...(hasRating ? ratingNodes(rating, columns.std ? std : null) : []),
    hasProbability ? h("span", { class: "likely", title: "how likely this is among your next ten" }, formatProbability(probability)) : null);
}

function ratingNodes(rating, std) {
  const low = model.rating_levels[0], high = model.rating_levels.at(-1);
  const percent = (x) => 100 * Math.min(1, Math.max(0, (x - low) / (high - low)));
  const bar = h("i"), scale = h("span", { class: std == null ? "scale" : "scale range", "aria-hidden": "true" }, bar);
  if (std == null) bar.style.width = `${percent(rating)}%`;
  else { // the bar is one standard deviation to each side (about 68 %), the dot is the expected rating
    const dot = h("b");
    bar.style.left = `${percent(rating - std)}%`;
    bar.style.width = `${percent(rating + std) - percent(rating - std)}%`;
    dot.style.left = `${percent(rating)}%`;
    scale.append(dot);
  }
  const plusMinus = std == null ? "" : ` ± ${formatNumber(std)}`, spoken = std == null ? "" : `, plus or minus ${formatNumber(std)}`;
  return [scale, h("span", { "aria-hidden": "true" }, `${formatNumber(rating)}${plusMinus} of ${high}`),
    h("span", { class: "visually-hidden" }, `expected rating ${formatNumber(rating)} of ${high}${spoken}`)];
}

const formatProbability = (p) => (p < 0.005 ? "<1 % likely next" : `${Math.round(100 * p)} % likely next`);

// what orders the list of a user without a history depends on the model and on the options
function listHeading(items) {
  if (ratings.size) return "For you";
  const isChanged = optionsInUse().some((x) => x.dataset.option);
  if (isChanged || !items.length || items.some((x) => x.source !== "popular")) return "Titles for any new user";
  const isByScore = items.every((x, k) => k === 0 || x.score <= items[k - 1].score);
  return isByScore && items[0].rating != null && items[0].probability == null ? "Highest expected ratings" : "Popular titles";
}

function drawList(items) {
  const columns = informativeColumns(items);
  $("list-name").textContent = listHeading(items);
  drawCertainty(columns);
  $("common-reason").replaceChildren();
  $("no-items").hidden = items.length > 0;
  const list = $("list"), oldTops = new Map([...list.children].map((x) => [x.dataset.item, x.getBoundingClientRect().top]));
  replaceRows(list, items.map((item) => h("li", { "data-item": item.item_id },
    h("span", { class: "rank", "aria-hidden": "true" }, String(item.rank)), titleElement(item), scoreElement(item, columns),
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
  const skip = () => { skipped.add(item.item_id); update(`${displayName(item)} skipped.`, "#question"); };
  $("question-item").replaceChildren(h("div", { class: "big" }, titleElement(item), ratingControl(item),
    h("button", { type: "button", class: "quiet", onclick: skip }, "Skip")));
}

// ---- search --------------------------------------------------------------------------------------
let searchController = null, matches = [], activeIndex = -1, selected = null;
let activeItemId = null; // chosen by arrow key or mouse since the last letter

async function search() {
  const query = $("query").value.trim();
  activeItemId = null;
  searchController?.abort();
  searchNotice.clear();
  if (!query) return closeSearch();
  const controller = searchController = new AbortController();
  try {
    const path = `/v1/items?n=8&query=${encodeURIComponent(query)}`;
    const { items } = await searchNotice.during("#search-notice", (onBusy) => call(path, null, { signal: controller.signal, onBusy }));
    if (controller.signal.aborted) return; // the search was closed or changed meanwhile
    searchNotice.clear();
    matches = items;
    // A response must not move the selection just before the user presses Enter.
    activeIndex = matches.length ? Math.max(0, matches.findIndex((x) => x.item_id === activeItemId)) : -1;
    drawMatches();
  } catch (error) {
    if (error.name !== "AbortError") searchNotice.fail("#search-notice", describe(error), () => { $("query").focus(); });
  }
}

function drawMatches() {
  const rows = matches.map((item, k) => h("li", {
    id: `match-${k}`, role: "option", "aria-selected": String(k === activeIndex),
    onmousedown: (event) => event.preventDefault(), onclick: () => select(item),
    onmousemove: () => { if (activeIndex !== k) setActive(k); },
  }, titleElement(item, "span")));
  const query = $("query").value.trim(), note = !rows.length ? "No matching title" : matches.some((x) => contains(x, query)) ? "" : `No title contains “${query}”. Similar:`;
  if (note) rows.unshift(h("li", { class: "no-match", role: "option", "aria-disabled": "true", "aria-selected": "false", onmousedown: (event) => event.preventDefault() }, note));
  $("matches").replaceChildren(...rows);
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
  const rows = [...$("matches").children].filter((x) => x.id);
  rows.forEach((row, k) => row.setAttribute("aria-selected", String(k === activeIndex)));
  $("query").setAttribute("aria-activedescendant", `match-${activeIndex}`);
  rows[activeIndex].scrollIntoView({ block: "nearest" });
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
  if (model.implicit) return rate(item, 1, "#search-notice");
  selected = item;
  drawSelected();
  $("selected").hidden = false;
  $("selected").querySelector("input").focus();
}

function drawSelected() {
  $("selected").replaceChildren(h("div", { class: "big" }, titleElement(selected), ratingControl(selected, ratings.get(selected.item_id)?.rating)));
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
$("reset").addEventListener("click", () => {
  ratings.clear();
  skipped.clear();
  listLength = 10;
  $("selected").hidden = true;
  refresh(words().removed, "#ratings-notice");
  $("query").focus();
});
$("quality").addEventListener("change", () => update("Another order."));
$("option-fields").addEventListener("change", () => changeOptions("Options changed."));
$("reset-options").addEventListener("click", () => {
  for (const field of optionFields()) field.value = field.dataset.option ? "0" : "";
  changeOptions("All options reset.");
});
$("more").addEventListener("click", () => { listLength += 10; update("Longer list.", "#more-notice"); });

// ---- a link that holds the ratings ---------------------------------------------------------------
function toggleShare(isOpen) {
  $("share-box").hidden = !isOpen;
  $("share").setAttribute("aria-expanded", String(isOpen));
  $("copy").textContent = "Copy";
}

function share() {
  if (!$("share-box").hidden) return toggleShare(false);
  if (ratings.size > MAX_SHARED) return linkNotice.tell("#ratings-notice", `A link holds at most ${MAX_SHARED} titles; you have ${ratings.size}.`);
  $("share-link").value = location.origin + location.pathname + makeFragment(history(), model.implicit, optionValues());
  toggleShare(true);
  $("share-link").select();
}

async function copyLink() {
  $("share-link").select();
  try {
    await navigator.clipboard.writeText($("share-link").value);
    $("copy").textContent = "Copied";
    announce("The link was copied.");
  } catch { // browsers without a clipboard for this address
    const how = matchMedia("(pointer: coarse)").matches ? "press and hold the link to copy it" : "the link is selected, copy it with Ctrl+C";
    linkNotice.tell("#share-box", `This browser does not let the page copy: ${how}.`);
  }
}

// Take over the history of a link; true if the list is on its way with it.
async function openLink() {
  const refuse = (reason) => {
    linkNotice.tell("#link-notice", `The link was not used: ${reason}. Ask for the link again, or go on without it.`);
    forgetFragment();
    return false;
  };
  linkNotice.clear();
  let linked;
  try { linked = readFragment(location.hash, model); } catch (error) { return refuse(error.message); }
  if (linked === null) return false;
  try {
    const { unknown_items } = await call("/v1/recommend", { history: linked, n: 1 });
    const unknown = new Set(unknown_items), known = linked.filter((x) => !unknown.has(x.item_id));
    if (!known.length) return refuse("this server knows none of its titles");
    const { items } = await call("/v1/predict", { item_ids: known.map((x) => x.item_id) }); // for the titles
    ratings.clear();
    known.forEach((x, k) => ratings.set(x.item_id, { title: items[k].title, rating: x.rating ?? 1 }));
    const lacking = setOptions(readOptions(location.hash)).map((x) => x.replace(/^where\./, ""));
    forgetFragment();
    const left = [unknown.size ? `This server does not know ${unknown.size} of the ${linked.length} titles in the link; they were left out.` : "",
      lacking.length ? `These options of the link do not fit here and were left out: ${lacking.join(", ").slice(0, 200)}.` : ""];
    if (left.some(Boolean)) linkNotice.tell("#link-notice", left.filter(Boolean).join(" "));
    refresh("The titles of the link were taken over.");
    return true;
  } catch (error) {
    linkNotice.fail("#link-notice", `The link was not opened. ${describe(error)}`, openLink);
    return false;
  }
}

// the address would go out of date with the next rating
const forgetFragment = () => window.history.replaceState(null, "", location.pathname + location.search);

$("share").addEventListener("click", share);
$("copy").addEventListener("click", copyLink);
$("close-done").addEventListener("click", () => { $("done").hidden = true; $("list").focus({ preventScroll: true }); });
window.addEventListener("hashchange", () => { if (model) openLink(); });

// ---- start ---------------------------------------------------------------------------------------
async function start() {
  try {
    model = await notice.during(LIST, (onBusy) => call("/v1/model", null, { onBusy }));
  } catch (error) {
    return notice.fail(LIST, describe(error), start);
  }
  for (const element of document.querySelectorAll("[data-words]")) element.textContent = words()[element.dataset.words];
  $("about").textContent = `${model.model} · ${model.n_items.toLocaleString("en")} titles · idcf ${model.version}`;
  $("query").disabled = false;
  $("quality-field").hidden = !model.can_choose_quality;
  drawOptions();
  const old = kept(model);
  if (old) restore(answered = old); // a link replaces it, and can be undone
  if (!(await openLink())) refresh();
}

await start();
