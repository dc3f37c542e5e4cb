// @ts-check
/** The tab "Things" of a recipe's run: lineage from left to right, scores, and where each ended. */

import { lookup } from "./data.js";
import { add, button, h, longText, put, spoken, svg, virtualList } from "./dom.js";
import { count, many, nameOf, oneLine } from "./format.js";
import { pathLink } from "./labels.js";

/**
 * @typedef {import("./modules").App} App
 * @typedef {import("./page").RecipeData} RecipeData
 * @typedef {import("./page").ThingRow} ThingRow
 * @typedef {RecipeData["lineage"][number]} LineageEntry
 */

/** How a Thing can end. */
const ENDS = /** @type {{[end: string]: {glyph: string, word: string, tone: string}}} */ ({
  result: { glyph: "✓", word: "result", tone: "good" },
  failed: { glyph: "✕", word: "failed", tone: "bad" },
  dropped: { glyph: "⊘", word: "dropped", tone: "warn" },
  consumed: { glyph: "→", word: "used", tone: "dim" },
  unfinished: { glyph: "…", word: "unfinished", tone: "live" },
});

const ROW_HEIGHT = 27;
const NARROW_ROW = 50;
const MOST_PRINTED = 2000;
const MOST_PARENTS = 12;

/**
 * The Things of a run, in the order in which they are shown.
 * @typedef {{
 *   recipe: RecipeData,
 *   stages: string[],
 *   rows: ThingRow[],
 *   at: Map<string, number>,
 *   entries: Map<string, LineageEntry[]>,
 *   children: Map<string, string[]>,
 *   winners: Map<string, string>,
 * }} Lineage
 */

/**
 * Return the tab; null if the run has no Things.
 * @param {App} app
 * @returns {import("./modules").Screen | null}
 */
export function thingsTab(app) {
  if (!app.run.recipe) return null;
  const element = h("div", { class: "things" });
  const chosen = { search: "", ends: /** @type {Set<string>} */ (new Set()), order: "lineage", thing: "" };
  let lineage = lineageOf(app, app.run.recipe);
  let view = thingsView(app, lineage, chosen);
  add(element, view.element);
  return {
    element,
    opened: () => view.list.redraw(),
    selected(call) {
      if (call >= 0) view.reveal(app.run.calls[call].path);
    },
    refresh() {
      if (!app.run.recipe) return;
      const top = view.list.element.scrollTop;
      lineage = lineageOf(app, app.run.recipe);
      view = thingsView(app, lineage, chosen);
      put(element, view.element);
      view.list.element.scrollTop = top;
    },
  };
}

/**
 * @param {App} app
 * @param {RecipeData} recipe
 * @returns {Lineage}
 */
function lineageOf(app, recipe) {
  const stages = recipe.stages.map((stage) => stage.id);
  /** @type {Map<string, LineageEntry[]>} */
  const entries = new Map();
  for (const entry of recipe.lineage) {
    const known = entries.get(entry.thing);
    if (known) known.push(entry);
    else entries.set(entry.thing, [entry]);
    // A stage that the outline doesn't name, as of a proposed recipe, is a column of its own.
    if (!stages.includes(entry.stage)) stages.push(entry.stage);
  }
  const { rows, children } = inLineageOrder(recipe.things);
  return { recipe, stages, rows, at: new Map(rows.map((row, at) => [row.id, at])), entries, children, winners: winnersOf(rows) };
}

/**
 * Return, for each Thing that stood for a choice, the Thing that was chosen: the one that a result
 * names, or whose content it has unchanged.
 * @param {ThingRow[]} rows
 * @returns {Map<string, string>}
 */
function winnersOf(rows) {
  const known = new Map(rows.map((row) => [row.id, row]));
  /** @type {Map<string, string>} */
  const found = new Map();
  for (const row of rows) {
    if (row.parents.length < 2) continue;
    const { winner: named } = row.props;
    const same = row.content === null ? [] : row.parents.filter((parent) => known.get(parent)?.content === row.content);
    const winner = typeof named === "string" && row.parents.includes(named) ? named : same.length === 1 ? same[0] : "";
    if (winner) for (const parent of row.parents) found.set(parent, winner);
  }
  return found;
}

/**
 * Return glyph, word and tone of how a Thing ended.
 * @param {Lineage} lineage
 * @param {ThingRow} thing
 */
function thingEnd(lineage, thing) {
  const winner = thing.end === "consumed" ? lineage.winners.get(thing.id) : undefined;
  if (winner === thing.id) return { glyph: "★", word: "chosen", tone: "good" };
  if (winner) return { glyph: "⊘", word: "not chosen", tone: "dim" };
  return ENDS[thing.end] ?? ENDS.unfinished;
}

/**
 * Return why a Thing ended as it did, as a sentence; "" if the record doesn't tell.
 * @param {Lineage} lineage
 * @param {ThingRow} thing
 */
function whyOf(lineage, thing) {
  const winner = thing.end === "consumed" ? lineage.winners.get(thing.id) : undefined;
  if (winner === undefined) return thing.why && `${thing.why[0].toUpperCase()}${thing.why.slice(1)}.`;
  const scored = (/** @type {ThingRow | undefined} */ row) => (row && row.score !== null ? `, with a score of ${row.score}` : "");
  if (winner === thing.id) return `It was chosen${scored(thing)}.`;
  return `${winner} was chosen${scored(lineage.rows[lineage.at.get(winner) ?? -1])}.`;
}

/**
 * Return Things so that each follows its parents, and families stay together.
 * @param {ThingRow[]} things
 */
function inLineageOrder(things) {
  const known = new Map(things.map((one) => [one.id, one]));
  /** @type {Map<string, string[]>} */
  const children = new Map();
  /** @type {Map<string, number>} */
  const missing = new Map();
  for (const one of things) {
    const parents = one.parents.filter((parent) => known.has(parent) && parent !== one.id);
    missing.set(one.id, new Set(parents).size);
    for (const parent of new Set(parents)) {
      const others = children.get(parent);
      if (others) others.push(one.id);
      else children.set(parent, [one.id]);
    }
  }
  /** @type {ThingRow[]} */
  const rows = [];
  const placed = new Set();
  const waiting = things.filter((one) => missing.get(one.id) === 0).reverse();
  while (waiting.length) {
    const one = /** @type {ThingRow} */ (waiting.pop());
    if (placed.has(one.id)) continue;
    placed.add(one.id);
    rows.push(one);
    // What was made of several comes after the last of them.
    for (const child of [...(children.get(one.id) ?? [])].reverse()) {
      const left = (missing.get(child) ?? 1) - 1;
      missing.set(child, left);
      if (left === 0) waiting.push(/** @type {ThingRow} */ (known.get(child)));
    }
  }
  // A damaged record could name a Thing among its own ancestors.
  for (const one of things) if (!placed.has(one.id)) rows.push(one);
  return { rows, children };
}

/**
 * @param {App} app
 * @param {Lineage} lineage
 * @param {{search: string, ends: Set<string>, order: string, thing: string}} chosen
 */
function thingsView(app, lineage, chosen) {
  const narrow = matchMedia("(max-width: 720px)").matches;
  const rowHeight = narrow ? NARROW_ROW : ROW_HEIGHT;
  const pitch = narrow ? 15 : Math.max(16, Math.min(74, Math.floor(360 / Math.max(1, lineage.stages.length))));
  const trackWidth = lineage.stages.length * pitch + 8;
  const summary = h("div", { class: "things-summary" });
  const tools = h("div", { class: "things-tools" });
  const detail = h("section", { class: "things-detail", "aria-label": "The selected Thing" });
  /** @type {ThingRow[]} */
  let rows = [];
  /** @type {Map<string, number>} */
  let place = new Map();
  /** @type {ReturnType<typeof edgesBetween>} */
  let lines = [];

  const list = virtualList({ count: 0, rowHeight, props: { class: "things-list", role: "list", "aria-label": "Things" }, render: (at) => drawnThing(at) });
  const edges = svg("svg", { class: "things-edges", "aria-hidden": "true" });
  edges.style.width = `${trackWidth}px`;
  list.body.before(edges);

  /** @param {number} at */
  function drawnThing(at) {
    const thing = rows[at];
    const row = thingRow(app, lineage, thing, { pitch, trackWidth, current: thing.id === chosen.thing }, () => choose(thing.id));
    row.style.height = `${rowHeight}px`;
    return row;
  }

  function draw() {
    rows = chosenThings(app, lineage, chosen);
    place = new Map(rows.map((row, at) => [row.id, at]));
    // Once for all rows: while scrolling, 10,000 of them are only compared.
    lines = edgesBetween(lineage, rows, place);
    drawTools();
    put(summary, ...summaryOfThings(app, lineage, choose));
    list.element.style.height = `${Math.min(rows.length, narrow ? 9 : 18) * rowHeight + 2}px`;
    list.update(rows.length);
    drawEdges();
    drawDetail();
  }

  function drawTools() {
    /** @type {Map<string, number>} */
    const ends = new Map();
    for (const row of lineage.rows) ends.set(row.end, (ends.get(row.end) ?? 0) + 1);
    const chips = Object.keys(ENDS).filter((end) => ends.has(end)).map((end) => button(
      [h("span", { "aria-hidden": "true" }, `${ENDS[end].glyph} `), ENDS[end].word, h("span", { class: "runs-count" }, count(ends.get(end) ?? 0))],
      () => {
        if (!chosen.ends.delete(end)) chosen.ends.add(end);
        draw();
        /** @type {HTMLElement | null} */ (tools.querySelector(`[data-end="${end}"]`))?.focus();
      },
      { class: `runs-chip tone-${ENDS[end].tone}`, "aria-pressed": String(chosen.ends.has(end)), "data-end": end }));
    const order = h("select", { "aria-label": "Order", on: { change: () => { chosen.order = order.value; draw(); /** @type {HTMLElement | null} */ (tools.querySelector("select"))?.focus(); } } },
      [["lineage", "by lineage"], ["score", "by score"], ["results", "results first"]].map(([value, label]) => {
        const option = h("option", { value }, label);
        option.selected = value === chosen.order;
        return option;
      }));
    const field = h("input", { type: "text", placeholder: "Filter Things", "aria-label": "Filter Things by ID or content", on: { input: () => {
      chosen.search = field.value;
      draw();
      const again = /** @type {HTMLInputElement | null} */ (tools.querySelector("input"));
      again?.focus();
      again?.setSelectionRange(field.selectionStart, field.selectionEnd);
    } } });
    field.value = chosen.search;
    put(tools, h("div", { class: "runs-chips", role: "group", "aria-label": "Where Things ended" }, chips), field, order,
      h("span", { class: "faint", role: "status" }, rows.length < lineage.rows.length && `${count(rows.length)} of ${count(lineage.rows.length)}`));
  }

  function drawEdges() {
    edges.replaceChildren();
    edges.style.height = `${rows.length * rowHeight}px`;
    if (chosen.order !== "lineage") return;
    const from = list.element.scrollTop / rowHeight - 30;
    const to = (list.element.scrollTop + (list.element.clientHeight || 600)) / rowHeight + 30;
    const family = familyOf(lineage, chosen.thing);
    // On a phone the track is the first of two lines.
    const middle = ROW_HEIGHT / 2 + (narrow ? 1 : 0);
    for (const line of lines) {
      if (Math.max(line.top, line.bottom) < from || Math.min(line.top, line.bottom) > to) continue;
      const [x1, x2] = [line.from * pitch + pitch / 2, line.to * pitch + pitch / 2];
      const [y1, y2] = [line.top * rowHeight + middle, line.bottom * rowHeight + middle];
      const bend = Math.min(x1 + pitch / 2, x2);
      const kin = family.has(line.parent) && family.has(line.child);
      add(edges, svg("path", { d: `M${x1} ${y1} C${bend} ${y1} ${bend} ${y2} ${x2} ${y2}`, class: kin ? "kin" : "" }));
    }
  }

  function drawDetail() {
    const thing = lineage.rows[lineage.at.get(chosen.thing) ?? -1];
    detail.hidden = !thing;
    put(detail, ...(thing ? detailOf(app, lineage, thing, choose) : []));
  }

  /** @param {string} id */
  function choose(id) {
    chosen.thing = chosen.thing === id ? "" : id;
    const at = place.get(id);
    if (at === undefined && chosen.thing) {
      // A filter hides it: the person asked for it by name.
      chosen.search = "";
      chosen.ends.clear();
      draw();
    }
    list.redraw();
    if (place.has(id)) list.scrollTo(place.get(id) ?? 0);
    drawEdges();
    drawDetail();
    /** @type {HTMLElement | null | undefined} */ (list.row(place.get(id) ?? -1)?.querySelector("button"))?.focus({ preventScroll: true });
  }

  list.element.addEventListener("scroll", drawEdges, { passive: true });
  list.element.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || rows.length === 0) return;
    event.preventDefault();
    const next = Math.min(rows.length - 1, Math.max(0, (place.get(chosen.thing) ?? -1) + step));
    if (rows[next].id !== chosen.thing) choose(rows[next].id);
  });
  const printed = h("table", { class: "things-printed" });
  addEventListener("beforeprint", () => put(printed, ...printedRows(app, lineage, rows)));
  addEventListener("afterprint", () => put(printed));
  const element = h("div", { class: "things-view" }, summary, stageFlow(lineage.recipe), tools,
    h("div", { class: "things-frame" }, narrow ? null : stageHeads(lineage, pitch, trackWidth), list.element), printed, detail);
  draw();
  return {
    element,
    list,
    /** @param {string} path */
    reveal(path) {
      const entry = lineage.recipe.lineage.find((one) => one.calls.includes(path));
      if (!entry || entry.thing === chosen.thing || detail.contains(document.activeElement)) return;
      chosen.thing = entry.thing;
      list.redraw();
      if (place.has(entry.thing)) list.scrollTo(place.get(entry.thing) ?? 0);
      drawEdges();
      drawDetail();
    },
  };
}

/**
 * Return the Things that a person wants to see, in the order that they want.
 * @param {App} app
 * @param {Lineage} lineage
 * @param {{search: string, ends: Set<string>, order: string}} chosen
 */
function chosenThings(app, lineage, chosen) {
  const words = chosen.search.trim().toLowerCase();
  const found = lineage.rows.filter((row) =>
    (chosen.ends.size === 0 || chosen.ends.has(row.end)) &&
    (!words || row.id.toLowerCase().includes(words) || app.text(row.content).toLowerCase().includes(words)));
  if (chosen.order === "score") return [...found].sort((a, b) => (b.score ?? -Infinity) - (a.score ?? -Infinity) || 0);
  if (chosen.order === "results") {
    const rank = Object.keys(ENDS);
    return [...found].sort((a, b) => rank.indexOf(a.end) - rank.indexOf(b.end));
  }
  return found;
}

/**
 * Return the lines from parents to children, by rows and columns.
 * @param {Lineage} lineage
 * @param {ThingRow[]} rows
 * @param {Map<string, number>} place
 */
function edgesBetween(lineage, rows, place) {
  const found = [];
  const columns = new Map(lineage.stages.map((stage, at) => [stage, at]));
  for (const [bottom, child] of rows.entries()) {
    const born = columns.get(lineage.entries.get(child.id)?.[0]?.stage ?? "") ?? 0;
    for (const parent of child.parents) {
      const top = place.get(parent);
      if (top !== undefined) found.push({ parent, child: child.id, top, bottom, from: lastBefore(lineage, columns, parent, born), to: born });
    }
  }
  return found;
}

/**
 * Return the column in which a Thing was last written before it was used in another.
 * @param {Lineage} lineage
 * @param {Map<string, number>} columns
 * @param {string} thing
 * @param {number} column
 */
function lastBefore(lineage, columns, thing, column) {
  let found = 0;
  for (const entry of lineage.entries.get(thing) ?? []) {
    const at = columns.get(entry.stage) ?? 0;
    if (at <= column) found = Math.max(found, at);
  }
  return found;
}

/**
 * Return a Thing with all that it came from and all that came of it.
 * @param {Lineage} lineage
 * @param {string} thing
 */
function familyOf(lineage, thing) {
  const found = new Set(thing ? [thing] : []);
  /** @type {string[]} */
  const up = [...found];
  while (up.length) {
    for (const parent of lineage.rows[lineage.at.get(/** @type {string} */ (up.pop())) ?? -1]?.parents ?? []) {
      if (!found.has(parent)) {
        found.add(parent);
        up.push(parent);
      }
    }
  }
  const down = thing ? [thing] : [];
  while (down.length) {
    for (const child of lineage.children.get(/** @type {string} */ (down.pop())) ?? []) {
      if (!found.has(child)) {
        found.add(child);
        down.push(child);
      }
    }
  }
  return found;
}

/**
 * Return the row of a Thing: its way through the stages, its ID and words, score, and end.
 * @param {App} app
 * @param {Lineage} lineage
 * @param {ThingRow} thing
 * @param {{pitch: number, trackWidth: number, current: boolean}} look
 * @param {() => void} choose
 */
function thingRow(app, lineage, thing, look, choose) {
  const { glyph, word, tone } = thingEnd(lineage, thing);
  const row = h("div", { class: `thing ${look.current ? "current" : ""} end-${thing.end}`, role: "listitem", on: { click: (/** @type {Event} */ event) => {
    if (!(event.target instanceof Element && event.target.closest("button"))) choose();
  } } },
  trackOf(lineage, thing, look),
  button(thing.id, choose, { class: "link mono thing-id", "aria-expanded": String(look.current) }),
  h("span", { class: "thing-words" }, oneLine(app.text(thing.content), 160) || h("span", { class: "faint" }, "content not recorded")),
  scoreOf(thing),
  h("span", { class: `thing-end tone-${tone}`, title: whyOf(lineage, thing) || word }, h("span", { "aria-hidden": "true" }, `${glyph} `), word));
  return row;
}

/** @param {ThingRow} thing */
function scoreOf(thing) {
  if (thing.score === null) return h("span", { class: "thing-score" });
  const score = Number.isInteger(thing.score) ? String(thing.score) : thing.score.toPrecision(3);
  if (!thing.stale) return h("span", { class: "thing-score num" }, spoken("score "), score);
  return h("span", { class: "thing-score num stale", title: "The content changed after this score was given" }, spoken("stale score "), h("s", null, score), h("span", { class: "badge tone-warn" }, "stale"));
}

/**
 * Return the way of a Thing through the stages: a dot where it was written, filled for its content.
 * @param {Lineage} lineage
 * @param {ThingRow} thing
 * @param {{pitch: number, trackWidth: number}} look
 */
function trackOf(lineage, thing, { pitch, trackWidth }) {
  const track = svg("svg", { class: "thing-track", width: trackWidth, height: ROW_HEIGHT, "aria-hidden": "true" });
  const entries = lineage.entries.get(thing.id) ?? [];
  const columns = entries.map((entry) => lineage.stages.indexOf(entry.stage));
  const y = ROW_HEIGHT / 2;
  const x = (/** @type {number} */ column) => column * pitch + pitch / 2;
  if (columns.length === 0) {
    add(track, svg("circle", { cx: pitch / 2, cy: y, r: 2.5, class: "given" }));
    return track;
  }
  add(track, svg("line", { x1: x(Math.min(...columns)), y1: y, x2: x(Math.max(...columns)), y2: y }));
  entries.forEach((entry, at) => add(track, svg("circle", { cx: x(columns[at]), cy: y, r: entry.drafted ? 4.5 : 3.5, class: entry.drafted ? "drafted" : "" })));
  const { tone } = thingEnd(lineage, thing);
  const last = x(Math.max(...columns));
  if (tone !== "dim") add(track, svg("circle", { cx: last, cy: y, r: 7.5, class: `mark-${tone}` }));
  return track;
}

/**
 * Return the names of the stages above their columns.
 * @param {Lineage} lineage
 * @param {number} pitch
 * @param {number} trackWidth
 */
function stageHeads(lineage, pitch, trackWidth) {
  const names = lineage.stages.map((stage, at) => {
    const head = h("span", { class: "things-stage", title: stage }, pitch > 40 ? nameOf(stage.replaceAll(".", "/")) : String(at + 1));
    head.style.width = `${pitch}px`;
    return head;
  });
  const track = h("span", { class: "things-stages" }, names);
  track.style.width = `${trackWidth}px`;
  return h("div", { class: "things-heads", "aria-hidden": "true" }, track, h("span", { class: "thing-id" }, "ID"), h("span", { class: "thing-words" }, "Content"), h("span", { class: "thing-score" }, "Score"), h("span", { class: "thing-end" }, "End"));
}

/**
 * Return what came to each stage and what left it: where Things were lost.
 * @param {RecipeData} recipe
 */
function stageFlow(recipe) {
  // Every stage begins with the recipe's name.
  const root = `${recipe.stages[0]?.id.split(".")[0] ?? ""}.`;
  const shared = recipe.stages.every((stage) => stage.id.startsWith(root)) ? root.length : 0;
  const cells = recipe.stages.map((stage) => h("li", null,
    h("span", { class: "things-flow-name", title: stage.id }, stage.id.slice(shared)),
    h("span", { class: "num soft" }, `${count(stage.came)} in, ${count(stage.left)} out`),
    stage.failed > 0 && h("span", { class: "tone-bad num" }, ` ${count(stage.failed)} failed`)));
  return h("ol", { class: "things-flow", "aria-label": "Stages" }, cells);
}

/**
 * Return the sentences above the list: how many ended how, and what became of the best.
 * @param {App} app
 * @param {Lineage} lineage
 * @param {(id: string) => void} choose
 * @returns {import("./dom.js").Child[]}
 */
function summaryOfThings(app, lineage, choose) {
  const { rows, recipe } = lineage;
  const results = rows.filter((row) => row.end === "result").length;
  /** @type {import("./dom.js").Child[]} */
  const said = [h("p", null, `${many(rows.length, "Thing")} on record, ${many(results, "result")}.`, recipe.stopped && ` Stopped: ${recipe.stopped}.`)];
  const scored = rows.filter((row) => row.score !== null && !row.stale);
  const best = scored.reduce((/** @type {ThingRow | null} */ found, row) => (found === null || (row.score ?? 0) > (found.score ?? 0) ? row : found), null);
  if (best && best.end !== "result" && scored.some((row) => row.end === "result" && row.score === best.score)) {
    said.push(h("p", null, `A result has the best score, ${best.score}.`));
  } else if (best) {
    const link = button(best.id, () => choose(best.id), { class: "link mono" });
    const { word } = thingEnd(lineage, best);
    if (best.end === "result" || word === "chosen") said.push(h("p", null, "The best score, ", String(best.score), `, has the ${best.end === "result" ? "result" : "chosen"} `, link, "."));
    else said.push(h("p", null, "The best score, ", String(best.score), ", has ", link, `, which isn't a result: ${word}`, best.stage && ` after ${best.stage}`, ". ", oneLine(whyOf(lineage, best), 120)));
  }
  for (const reason of recipe.reasons.slice(0, 3)) said.push(h("p", { class: "tone-bad" }, oneLine(reason, 240)));
  return said;
}

/**
 * Return everything about one Thing: how it ended, its content and props, and its history.
 * @param {App} app
 * @param {Lineage} lineage
 * @param {ThingRow} thing
 * @param {(id: string) => void} choose
 * @returns {import("./dom.js").Child[]}
 */
function detailOf(app, lineage, thing, choose) {
  const { glyph, word, tone } = thingEnd(lineage, thing);
  const links = (/** @type {string[]} */ ids) => ids.slice(0, MOST_PARENTS).flatMap((id, at) => [at > 0 && ", ", button(id, () => choose(id), { class: "link mono" })]);
  const children = lineage.children.get(thing.id) ?? [];
  const more = (/** @type {string[]} */ ids) => ids.length > MOST_PARENTS && ` and ${count(ids.length - MOST_PARENTS)} more`;
  const props = Object.entries(thing.props);
  return [
    h("header", { class: "things-detail-head" },
      h("h3", null, h("span", { class: "mono" }, thing.id)),
      h("span", { class: `badge tone-${tone}` }, h("span", { "aria-hidden": "true" }, glyph), word),
      thing.score !== null && h("span", null, "score ", scoreOf(thing)),
      button("×", () => choose(thing.id), { class: "quiet things-close", "aria-label": "Close" })),
    h("p", { class: "soft" }, thing.stage && `Last stage: ${thing.stage}. `, whyOf(lineage, thing)),
    thing.parents.length > 0 && h("p", null, "Made from ", links(thing.parents), more(thing.parents), "."),
    children.length > 0 && h("p", null, "Used in ", links(children), more(children), "."),
    h("h4", null, "Content"),
    thing.content === null ? h("p", { class: "faint" }, "The record doesn't have it: only results keep their content, and a call that made several Things doesn't tell which is which.") : longText(app.text(thing.content), { most: 3000, class: "things-content" }),
    props.length > 0 && h("h4", null, "Props"),
    props.length > 0 && h("dl", { class: "things-props" }, props.map(([name, value]) => [h("dt", { class: "mono" }, name), h("dd", null, longText(typeof value === "string" ? value : JSON.stringify(value), { most: 600 }))])),
    h("h4", null, "History"),
    historyOf(app, lineage, thing, choose),
  ];
}

/**
 * Return who wrote what, from the first ancestor to the Thing itself, with the calls behind it.
 * @param {App} app
 * @param {Lineage} lineage
 * @param {ThingRow} thing
 * @param {(id: string) => void} choose
 */
function historyOf(app, lineage, thing, choose) {
  const above = new Set([thing.id]);
  for (const id of above) for (const parent of lineage.rows[lineage.at.get(id) ?? -1]?.parents ?? []) above.add(parent);
  const entries = lineage.recipe.lineage.filter((entry) => above.has(entry.thing));
  if (entries.length === 0) return h("p", { class: "faint" }, "It was given to the run, and no stage wrote to it.");
  /** @type {Map<string, number>} */
  const last = new Map();
  entries.forEach((entry, at) => { if (entry.thing === thing.id) for (const name of entry.wrote) last.set(name, at); });
  const shown = entries.slice(-60);
  return h("ol", { class: "things-history" },
    entries.length > shown.length && h("li", { class: "faint" }, `${count(entries.length - shown.length)} earlier entries of its ancestors`),
    shown.map((entry) => {
      const own = entry.thing === thing.id;
      const at = entries.indexOf(entry);
      const wrote = entry.wrote.flatMap((name, number) => [number > 0 && ", ", h("b", null, name), own && name !== "content" && last.get(name) === at && name in thing.props && h("span", { class: "soft" }, ` = ${oneLine(JSON.stringify(thing.props[name]), 60)}`)]);
      return h("li", { class: own ? "" : "faint" },
        h("span", { class: "mono" }, entry.stage), " wrote ", wrote.length ? wrote : "nothing",
        !own && [" of ", button(entry.thing, () => choose(entry.thing), { class: "link mono" })],
        entry.calls.length > 0 && [" · ", callsBehind(app, entry.calls)]);
    }));
}

/**
 * @param {App} app
 * @param {string[]} paths
 */
function callsBehind(app, paths) {
  const known = paths.filter((path) => lookup(app.run).calls.has(path));
  return known.slice(0, 6).flatMap((path, at) => [at > 0 && ", ", pathLink(app, path, known.length === 1 ? "its call" : `call ${at + 1}`)])
    .concat(known.length > 6 ? ` and ${count(known.length - 6)} more calls` : []);
}

/**
 * Return the Things as rows of a plain table, for paper.
 * @param {App} app
 * @param {Lineage} lineage
 * @param {ThingRow[]} rows
 */
function printedRows(app, lineage, rows) {
  const head = h("tr", null, ["ID", "End", "Score", "Content"].map((name) => h("th", null, name)));
  const lines = rows.slice(0, MOST_PRINTED).map((thing) => h("tr", null,
    h("td", { class: "mono" }, thing.id), h("td", null, thingEnd(lineage, thing).word),
    h("td", { class: "num" }, scoreOf(thing)), h("td", null, oneLine(app.text(thing.content), 200))));
  return [h("thead", null, head), h("tbody", null, lines)];
}
