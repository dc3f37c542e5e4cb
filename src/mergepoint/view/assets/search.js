// @ts-check
/** Search in the paths and texts of a run. */

import { cutAt, focusOn, h, put, virtualList } from "./dom.js";
import { count, many } from "./format.js";
import { shortPath, statusMark } from "./labels.js";

/**
 * @typedef {import("./modules").App} App
 * @typedef {import("./page").Run} Run
 * @typedef {import("./page").Index} Index
 * @typedef {{call: Index, place: string, text: number}} Hit
 */

/** Lower-case texts of a page, made when they are first searched. */
class SearchIndex {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    this.texts = app.page.texts;
    /** @type {string[]} */
    this.lower = [];
    /** @type {{query: string, matches: Uint8Array} | null} */
    this.last = null;
  }

  /** Make the lower-case texts, so that the first search is as quick as the others. */
  prepare() {
    for (let id = 0; id < this.texts.length; id++) this.lower[id] ??= this.texts[id].toLowerCase();
  }

  /**
   * Return 1 for each text that contains a query, else 0.
   * @param {string} query In lower case.
   */
  matching(query) {
    const { texts, lower, last } = this;
    const matches = new Uint8Array(texts.length);
    // What contains a longer query is among what contained its beginning.
    const among = last && query.startsWith(last.query) ? last.matches : null;
    for (let id = 0; id < texts.length; id++) {
      if (among && !among[id]) continue;
      lower[id] ??= texts[id].toLowerCase();
      if (lower[id].includes(query)) matches[id] = 1;
    }
    this.last = { query, matches };
    return matches;
  }

  /**
   * Return the calls whose path or texts contain a query, in tree order, one line per call.
   * @param {string} query
   * @returns {Hit[]}
   */
  find(query) {
    const wanted = query.trim().toLowerCase();
    if (!wanted) return [];
    const run = this.app.run;
    const matches = this.matching(wanted);
    /** @type {Hit[]} */
    const hits = [];
    run.calls.forEach((call, at) => {
      for (const [place, text] of placesOf(run, call)) {
        if (!matches[text]) continue;
        hits.push({ call: at, place, text });
        return;
      }
      if (call.path.toLowerCase().includes(wanted)) hits.push({ call: at, place: "path", text: -1 });
    });
    return hits;
  }
}

/**
 * Yield the texts of a call with their names, those that people look for first.
 * @param {Run} run
 * @param {import("./page").Call} call
 * @returns {Generator<[string, number]>}
 */
function* placesOf(run, call) {
  if (call.answer !== null) yield ["answer", call.answer];
  if (call.refused !== null) yield ["refused answer", call.refused];
  if (call.prompt >= 0) yield ["prompt", run.messages[call.prompt].text];
  for (const message of call.lead) yield [run.messages[message].role, run.messages[message].text];
  for (const read of call.reads) if (read.text !== null) yield [`value ${read.key}`, read.text];
  for (const round of call.rounds) {
    yield ["tool round", round.said];
    for (const tool of round.calls) {
      yield [`arguments of ${tool.name}`, tool.args];
      if (tool.result !== null) yield [`result of ${tool.name}`, tool.result];
    }
  }
  for (const inner of call.inside) {
    yield ["answer inside", inner.answer];
    yield ["prompt inside", inner.prompt];
  }
}

const RESULT_HEIGHT = 46;

/**
 * Return the search field with its results.
 * @param {App} app
 * @returns {import("./modules").Screen}
 */
export function searchBox(app) {
  let index = new SearchIndex(app);
  /** @type {Hit[]} */
  let hits = [];
  let current = 0;
  const field = h("input", {
    type: "search", placeholder: "Search texts and paths", role: "combobox", "aria-label": "Search texts and paths",
    "aria-expanded": "false", "aria-controls": "search-results", "aria-autocomplete": "list", autocomplete: "off", spellcheck: "false",
  });
  const summary = h("p", { class: "search-count faint", role: "status" });
  const list = virtualList({
    count: 0,
    rowHeight: RESULT_HEIGHT,
    render: (at) => resultElement(app, index, hits[at], at, at === current, field.value, choose),
    props: { id: "search-results", role: "listbox", class: "search-rows", "aria-label": "Calls found" },
  });
  list.body.setAttribute("role", "none");
  const panel = h("div", { class: "search-panel panel", hidden: true }, summary, list.element);

  /** @param {number} at */
  function choose(at) {
    if (!hits[at]) return;
    close();
    app.select(hits[at].call);
    // Keys are commands again, and the next one with Tab is in the X-ray.
    const shown = /** @type {HTMLElement | null} */ (document.querySelector(".x-scroll"));
    if (shown) focusOn(shown);
    else field.blur();
  }

  function close() {
    panel.hidden = true;
    field.setAttribute("aria-expanded", "false");
    field.removeAttribute("aria-activedescendant");
  }

  function search() {
    if (!field.value.trim()) {
      close();
      return;
    }
    hits = index.find(field.value);
    current = 0;
    put(summary, hits.length ? `${many(hits.length, "call")} of ${count(app.run.calls.length)}` : "No call contains this.");
    panel.hidden = false;
    list.element.hidden = hits.length === 0;
    list.element.style.height = `${Math.min(hits.length, 9) * RESULT_HEIGHT}px`;
    list.element.scrollTop = 0;
    list.update(hits.length);
    field.setAttribute("aria-expanded", "true");
    if (hits.length) field.setAttribute("aria-activedescendant", "found-0");
  }

  /** @param {number} at */
  function moveTo(at) {
    current = Math.max(0, Math.min(hits.length - 1, at));
    list.scrollTo(current);
    list.redraw();
    field.setAttribute("aria-activedescendant", `found-${current}`);
  }

  field.addEventListener("input", search);
  field.addEventListener("focus", () => {
    setTimeout(() => index.prepare(), 50);
    if (field.value.trim() && panel.hidden) search();
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") moveTo(current + 1);
    else if (event.key === "ArrowUp") moveTo(current - 1);
    else if (event.key === "Enter") choose(current);
    else if (event.key === "Escape") {
      if (panel.hidden) field.blur();
      close();
    } else return;
    event.preventDefault();
  });
  const element = h("div", { class: "search", role: "search" }, field, h("kbd", { "aria-hidden": "true" }, "/"), panel);
  element.addEventListener("focusout", (event) => {
    if (!(event.relatedTarget instanceof Node) || !element.contains(event.relatedTarget)) close();
  });
  // A press would take the focus from the field, and close the panel before the click.
  panel.addEventListener("mousedown", (event) => event.preventDefault());
  return {
    element,
    refresh() {
      if (index.texts !== app.page.texts) index = new SearchIndex(app);
      if (!panel.hidden) search();
    },
  };
}

/**
 * @param {App} app
 * @param {SearchIndex} index
 * @param {Hit} hit
 * @param {number} at
 * @param {boolean} isCurrent
 * @param {string} query
 * @param {(at: number) => void} choose
 */
function resultElement(app, index, hit, at, isCurrent, query, choose) {
  const call = app.run.calls[hit.call];
  const wanted = query.trim().toLowerCase();
  return h("div", {
    id: `found-${at}`, role: "option", "aria-selected": String(isCurrent), class: `search-row ${isCurrent ? "is-current" : ""}`,
    on: { click: () => choose(at) },
  },
  h("div", { class: "search-path" }, statusMark(call.status), h("span", { class: "mono clip" }, shortPath(app, call.path)), h("span", { class: "faint" }, hit.place)),
  hit.text >= 0 ? h("div", { class: "search-snippet clip" }, snippet(index.texts[hit.text], index.lower[hit.text], wanted)) : null);
}

/**
 * Return the place of a word in a text, with a few words around it.
 * @param {string} text
 * @param {string} lower
 * @param {string} wanted
 */
function snippet(text, lower, wanted) {
  // Lower case has another length in a few scripts: then the place is near.
  const at = Math.min(lower.indexOf(wanted), text.length);
  const from = Math.max(0, at - 30);
  const line = (/** @type {string} */ part) => part.replace(/\s+/gu, " ");
  return [from > 0 ? "…" : "", line(text.slice(from, at)), h("mark", null, line(text.slice(at, at + wanted.length))),
    line(cutAt(text.slice(at + wanted.length, at + wanted.length + 160), 160))];
}
