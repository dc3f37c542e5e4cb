// @ts-check
/** The tab "Story": a run stage by stage, as a person reads it. */

import { conversation, isOpen, lookup, makerOf, wayUp } from "./data.js";
import { button, h, put, spoken } from "./dom.js";
import { gist, many, money, nameOf, oneLine, short, tidyLines, time } from "./format.js";
import { mergeBadge, nodeName, shortPath, statusMark } from "./labels.js";
import { diffElements, diffSize, similarity, wordsDiff } from "./words_diff.js";

/**
 * @typedef {import("./modules").App} App
 * @typedef {import("./page").Call} Call
 * @typedef {import("./page").Index} Index
 * @typedef {import("./dom.js").Child} Child
 */

// So many parts of one block are shown at first, and parts with so many calls; the others on demand.
const MOST_PARTS = 40;
const MOST_IN_PARTS = 84;
const MOST_CALLS = 12;
// Less than this share in common is another text, whose difference nobody can read.
const ALIKE = 0.25;
const CLOSE = 0.5;

/**
 * What the parts of a story share: the run, and the cards that were made, by call.
 * @typedef {{app: App, cards: Map<Index, HTMLElement>, whole: boolean, first: Map<Index, number>}} Telling
 */

/**
 * Return the tab.
 * @param {App} app
 * @returns {import("./modules").Screen}
 */
export function storyTab(app) {
  const body = h("div", { class: "story" });
  /** @type {Telling} */
  const telling = { app, cards: new Map(), whole: false, first: new Map() };
  const toggle = button("whole texts", () => {
    telling.whole = !telling.whole;
    toggle.setAttribute("aria-pressed", String(telling.whole));
    draw();
  }, { class: "quiet", "aria-pressed": "false", title: "Show every text in full" });
  const element = h("div", null, h("div", { class: "tab-tools" }, toggle), body);

  function draw() {
    telling.cards.clear();
    body.classList.toggle("whole", telling.whole);
    put(body, app.run.nodes.length ? storyOf(telling) : h("p", { class: "faint" }, "Nothing ran yet."));
    mark(app.selected);
  }

  /** @param {Index} call */
  function mark(call) {
    body.querySelector(".is-selected")?.classList.remove("is-selected");
    const card = telling.cards.get(call);
    card?.classList.add("is-selected");
    return card;
  }

  draw();
  return {
    element,
    selected(call) {
      if (call >= 0 && !telling.cards.has(call)) {
        bringIn(telling, call);
        draw();
      }
      mark(call)?.scrollIntoView({ block: "nearest" });
    },
    refresh: draw,
  };
}

/**
 * Let the parts of the story begin where a call is among them.
 * @param {Telling} telling
 * @param {Index} call
 */
function bringIn(telling, call) {
  const { run } = telling.app;
  const { children, callsOf } = lookup(run);
  const way = wayUp(run, run.calls[call].node);
  way.forEach((node, at) => {
    const parent = way[at + 1];
    if (parent === undefined) return;
    const place = children[parent].indexOf(node);
    const from = telling.first.get(parent) ?? 0;
    const shown = shownParts(run, children[parent], from).length;
    if (place < from || place >= from + shown) telling.first.set(parent, Math.max(0, place - 3));
  });
  const place = callsOf[way[0]]?.indexOf(call) ?? -1;
  if (place >= MOST_CALLS) telling.first.set(way[0], Math.max(0, place - 3));
}

/**
 * @param {Telling} telling
 * @returns {Child}
 */
function storyOf(telling) {
  const { run } = telling.app;
  const { children } = lookup(run);
  const hasStages = children[0].some((node) => children[node].length > 0);
  const content = partsOf(telling, 0, 1);
  return hasStages ? content : h("section", { class: "stage panel" }, content);
}

/**
 * Return what is in a block, in order: leaves that saw the same and add nothing side by side.
 * @param {Telling} telling
 * @param {Index} node
 * @param {number} level
 * @returns {Child[]}
 */
function partsOf(telling, node, level) {
  const { run } = telling.app;
  const { children } = lookup(run);
  const from = telling.first.get(node) ?? 0;
  const shown = shownParts(run, children[node], from);
  /** @type {Child[]} */
  const parts = [];
  if (from > 0) parts.push(moreButton(telling, node, Math.max(0, from - shown.length), `${from} earlier parts`));
  /** @type {Index[]} */
  let row = [];
  let afterRow = false;
  const isTop = level === 1 && children[node].some((one) => children[one].length > 0);
  const addLeaf = (/** @type {Index} */ leaf) => {
    const made = leafOf(telling, leaf, afterRow);
    // At the top, a step is a stage of its own.
    parts.push(isTop ? h("section", { class: "stage panel" }, made) : made);
  };
  const flush = () => {
    if (row.length === 0) return;
    if (row.length === 1 && run.nodes[row[0]].kind !== "thing") addLeaf(row[0]);
    else parts.push(sideBySide(telling, row));
    afterRow = row.length > 1;
    row = [];
  };
  for (const child of shown) {
    const leaf = children[child].length === 0;
    if (leaf && isAside(run, node, child)) {
      if (row.some((one) => readsFrom(run, child, one))) flush();
      row.push(child);
      continue;
    }
    flush();
    if (leaf) addLeaf(child);
    else parts.push(blockOf(telling, child, level));
  }
  flush();
  parts.push(...callCards(telling, node));
  const left = children[node].length - from - shown.length;
  if (left > 0) parts.push(moreButton(telling, node, from + shown.length, `${left} more parts`));
  return parts;
}

/**
 * Return whether a leaf stands beside its siblings: it adds nothing, or ran with them.
 * @param {import("./page").Run} run
 * @param {Index} parent
 * @param {Index} node
 */
function isAside(run, parent, node) {
  const { merge, kind } = run.nodes[node];
  return merge === "none" || kind === "thing" || run.nodes[parent].parallel;
}

/**
 * Return whether a leaf reads what another one captured: then it comes after it.
 * @param {import("./page").Run} run
 * @param {Index} reader
 * @param {Index} writer
 */
function readsFrom(run, reader, writer) {
  const path = run.nodes[writer].path;
  return lookup(run).callsOf[reader].some((call) => run.calls[call].reads.some((read) => read.path === path));
}

/**
 * Return as many parts from a place on as people read at once.
 * @param {import("./page").Run} run
 * @param {Index[]} parts
 * @param {number} from
 */
function shownParts(run, parts, from) {
  let calls = 0;
  let end = from;
  while (end < parts.length && end < from + MOST_PARTS && (end === from || calls + run.nodes[parts[end]].calls <= MOST_IN_PARTS)) {
    calls += run.nodes[parts[end]].calls;
    end++;
  }
  return parts.slice(from, end);
}

/**
 * @param {Telling} telling
 * @param {Index} node
 * @param {number} first
 * @param {string} label
 */
function moreButton(telling, node, first, label) {
  const more = button(label, () => {
    telling.first.set(node, first);
    const around = more.parentElement;
    const level = around?.closest(".stage") ? 2 : 1;
    // The parts replace those that were shown, so that the page doesn't grow without end.
    if (!around) return;
    const header = around.querySelector(":scope > .stage-head");
    put(around, header, partsOf(telling, node, level));
    around.scrollIntoView({ block: "start" });
  }, { class: "more" });
  return more;
}

/**
 * Return a block with its heading.
 * @param {Telling} telling
 * @param {Index} node
 * @param {number} level
 */
function blockOf(telling, node, level) {
  const { app } = telling;
  const one = app.run.nodes[node];
  const tokens = one.input_tokens + one.output_tokens;
  const seconds = one.start === null || one.end === null ? null : one.end - one.start;
  const facts = [one.calls ? many(one.calls, "call") : "", one.reused ? `${one.reused} reused` : "", time(seconds), tokens ? `${short(tokens)} tok` : "", money(one.cost)];
  const kind = one.kind === "block" ? "" : one.kind;
  const became = rowWords(app, node);
  const head = h("div", { class: "stage-head" },
    statusMark(one.status),
    h(level === 1 ? "h2" : "h3", { title: one.path }, nodeName(app, node)),
    kind && kind !== "iteration" ? h("span", { class: "faint" }, kind) : null,
    one.parallel ? h("span", { class: "faint" }, "in parallel") : null,
    mergeBadge(one.merge),
    one.capture ? h("span", { class: "faint" }, "captured as ", h("code", null, one.capture)) : null,
    became ? h("span", { class: "faint row-fate" }, became) : null,
    level === 1 ? h("span", { class: "num faint stage-facts" }, facts.filter(Boolean).join(" · ")) : null);
  const gate = lookup(app.run).calls.get(one.path);
  const decision = gate === undefined ? null : cardOf(telling, gate, { base: -1, column: false });
  if (one.calls === 0 && one.status !== "planned" && !decision)
    return h("div", { class: `${level === 1 ? "stage panel" : "substage"} is-empty` }, head);
  return h("div", { class: level === 1 ? "stage panel" : "substage", role: "group", "aria-label": nodeName(app, node) }, head,
    one.calls === 0 ? null : partsOf(telling, node, level + 1), decision);
}

/**
 * Return what became of the answers at the beginning of a block, if it was the same for all.
 * @param {App} app
 * @param {Index} node
 */
function rowWords(app, node) {
  const { children, calls } = lookup(app.run);
  const row = children[node].filter((child) => children[child].length === 0 && isAside(app.run, node, child) && calls.has(app.run.nodes[child].path));
  const fates = row.map((child) => app.run.calls[calls.get(app.run.nodes[child].path) ?? -1]?.fate ?? null);
  if (row.length < 2 || fates.some((fate) => fate?.end !== "dropped")) return "";
  const readers = new Set(fates.flatMap((fate) => fate?.captured.flatMap((one) => one.read_by) ?? []));
  const [reader] = readers;
  return `∅ ${row.length} dropped as messages${readers.size === 1 ? `, read by ${nameOf(reader)}` : readers.size ? `, read by ${readers.size} calls` : ""}`;
}

/**
 * Return leaves in columns.
 * @param {Telling} telling
 * @param {Index[]} nodes
 */
function sideBySide(telling, nodes) {
  const cards = nodes.flatMap((node) => {
    const { callsOf } = lookup(telling.app.run);
    return callsOf[node].length ? callsOf[node].slice(0, 1).map((call) => cardOf(telling, call, { base: -1, column: nodes.length > 1 })) : [notReached(telling, node)];
  });
  return h("div", { class: "columns", role: "group", "aria-label": `${many(nodes.length, "answer")} side by side` }, cards);
}

/**
 * @param {Telling} telling
 * @param {Index} node
 * @param {boolean} afterRow
 * @returns {Child[]}
 */
function leafOf(telling, node, afterRow) {
  const { callsOf, calls } = lookup(telling.app.run);
  const own = calls.get(telling.app.run.nodes[node].path);
  if (callsOf[node].length === 0) return [notReached(telling, node)];
  if (own === undefined) return callCards(telling, node);
  return [cardOf(telling, own, { base: baseOf(telling.app, own, afterRow), column: false, forced: afterRow })];
}

/**
 * Return the calls of a node that aren't nodes themselves: of tools, functions, recipes.
 * @param {Telling} telling
 * @param {Index} node
 * @returns {Child[]}
 */
function callCards(telling, node) {
  const { callsOf } = lookup(telling.app.run);
  const path = telling.app.run.nodes[node].path;
  const others = callsOf[node].filter((call) => telling.app.run.calls[call].path !== path);
  if (others.length === 0) return [];
  const from = telling.first.get(node) ?? 0;
  const shown = others.slice(from, from + MOST_CALLS);
  const left = others.length - from - shown.length;
  return [h("div", { class: "columns" }, shown.map((call) => cardOf(telling, call, { base: -1, column: true }))),
    left > 0 ? h("p", { class: "faint" }, `${many(left, "more call")}: see the outline`) : null];
}

/**
 * @param {Telling} telling
 * @param {Index} node
 */
function notReached(telling, node) {
  return h("p", { class: "not-reached faint" }, statusMark(telling.app.run.nodes[node].status), nodeName(telling.app, node));
}

/**
 * Return the call whose answer a call's answer is compared with, or -1.
 *
 * In a loop it is the same step of the iteration before; else the last answer in the conversation,
 * if it was made in the same stage.
 * @param {App} app
 * @param {Index} index
 * @param {boolean} afterRow
 * @returns {Index}
 */
function baseOf(app, index, afterRow) {
  const { run } = app;
  const call = run.calls[index];
  const way = wayUp(run, call.node);
  const { children, calls } = lookup(run);
  const iteration = way.find((node) => run.nodes[node].kind === "iteration");
  if (iteration !== undefined) {
    const siblings = children[run.nodes[iteration].parent];
    const before = siblings[siblings.indexOf(iteration) - 1];
    const found = before === undefined ? undefined : calls.get(run.nodes[before].path + call.path.slice(run.nodes[iteration].path.length));
    if (found !== undefined) return found;
  }
  const last = conversation(run, call.state).filter((message) => run.messages[message].role === "assistant").at(-1);
  const maker = last === undefined ? -1 : makerOf(run, last);
  if (maker < 0) return -1;
  const around = new Set(way.slice(1, afterRow ? 3 : 2));
  return wayUp(run, run.calls[maker].node).some((node) => around.has(node) && (node !== 0 || children[0].every((one) => children[one].length === 0))) ? maker : -1;
}

/**
 * Return a call as a card: name, figures, its answer or what changed in it, and its fate.
 * @param {Telling} telling
 * @param {Index} index
 * @param {{base: Index, column: boolean, forced?: boolean}} options
 */
function cardOf(telling, index, { base, column, forced = false }) {
  const { app } = telling;
  const call = app.run.calls[index];
  const tokens = call.usage.input_tokens + call.usage.output_tokens;
  const ran = call.status !== "running" && call.status !== "waiting";
  const facts = ran ? [time(call.seconds), tokens ? `${short(tokens)} tok` : "", money(call.usage.cost)] : [];
  const { body, note } = bodyOf(telling, call, base, forced);
  const dropped = call.fate?.end === "dropped" || call.fate?.end === "rejected";
  const card = h("article", {
    class: `call ${column ? "call-column" : ""} ${dropped ? "is-dropped" : ""} ${call.status === "failed" ? "is-failed" : ""}`,
    "aria-label": shortPath(app, call.path),
    data: { path: call.path },
    on: { click: (/** @type {MouseEvent} */ event) => {
      // Selecting text isn't a click on the card.
      if (getSelection()?.isCollapsed !== false && !(event.target instanceof HTMLButtonElement)) app.select(index);
    } },
  },
  h("div", { class: "call-head" },
    statusMark(call.status),
    button(cardName(call.path), () => app.select(index), { class: "call-name", title: call.path }),
    call.source === "reused" ? h("span", { class: "faint", title: "reused" }, "↺", spoken("reused")) : null,
    note ? h("span", { class: "call-note" }, note) : null,
    fateMark(app, call, column),
    column ? null : h("span", { class: "num faint call-facts" }, facts.filter(Boolean).join(" · "))),
  body);
  telling.cards.set(index, card);
  return card;
}

/**
 * Return the name of a call; those that only have a number are called after what they are for.
 * @param {string} path
 */
function cardName(path) {
  const parts = path.split("/");
  const name = parts[parts.length - 1];
  if (parts.length < 2 || !/^(call|attempt)_\d+$/u.test(name)) return name;
  // The end of a Thing's id tells it from others; its beginning is where it comes from.
  const thing = parts[parts.length - 2];
  return `${thing.length > 24 ? `…${thing.slice(-22)}` : thing} ${name}`;
}

/**
 * @param {Telling} telling
 * @param {Call} call
 * @param {Index} base
 * @param {boolean} forced
 * @returns {{body: Child, note: Child}}
 */
function bodyOf(telling, call, base, forced) {
  const { app, whole } = telling;
  if (call.error) {
    const text = `${call.error.type}: ${call.error.message}`;
    return { body: h("p", { class: "call-text text tone-bad" }, whole ? text : oneLine(text, 400)), note: null };
  }
  if (call.decision) {
    const words = { "": "waiting for a decision", approve: "approved", edit: "edited", reject: "rejected" }[call.decision.decision];
    return { body: h("p", { class: "call-text text" }, app.text(call.decision.question)), note: call.decision.who ? `${words} by ${call.decision.who}` : words };
  }
  const answer = app.text(call.answer);
  const plain = h("p", { class: "call-text text" }, whole ? answer : gist(answer, 1200));
  const before = base >= 0 ? app.text(app.run.calls[base].answer) : "";
  if (!before || !answer) return { body: plain, note: null };
  const parts = wordsDiff(before, answer);
  const alike = similarity(parts);
  const name = nameOf(app.run.calls[base].path);
  const against = name === nameOf(call.path) ? "the iteration before" : name;
  if (before === answer) return { body: plain, note: `same as ${against}` };
  if (alike >= CLOSE || (forced && alike >= ALIKE))
    return { body: h("div", { class: "call-text text diff" }, diffElements(whole ? parts : condensed(parts))), note: `against ${against}: ${diffSize(parts)}` };
  return { body: plain, note: forced ? `rewritten against ${against}: ${diffSize(parts)}` : null };
}

/**
 * Return parts whose long unchanged passages are cut in the middle.
 * @param {import("./words_diff.js").Part[]} parts
 * @returns {import("./words_diff.js").Part[]}
 */
function condensed(parts) {
  return parts.map(({ kind, text }, at) => {
    const line = tidyLines(text);
    if (kind !== "same" || line.length <= 160) return { kind, text: line };
    const head = at === 0 ? "" : line.slice(0, 60);
    const tail = at === parts.length - 1 ? "" : line.slice(-60);
    return { kind, text: `${head.replace(/\s\S*$/u, "")} … ${tail.replace(/^\S*\s/u, "")}` };
  });
}

/**
 * Return where an answer went, in few words; all of them are in the title, and for screen readers.
 * @param {App} app
 * @param {Call} call
 * @param {boolean} column Whether the place is narrow.
 * @returns {Child}
 */
function fateMark(app, call, column) {
  const fate = call.fate;
  if (!fate) return null;
  const readers = [...new Set(fate.captured.flatMap((one) => one.read_by))];
  const to = readers.length ? `${nameOf(readers[0])}${readers.length > 1 ? ` +${readers.length - 1}` : ""}` : "";
  const at = fate.at >= 0 ? ` at ${shortPath(app, app.run.nodes[fate.at].path)}` : "";
  const keys = fate.captured.map(({ key }) => key).join(", ");
  const read = readers.length ? `, captured as ${keys}, read by ${readers.map((path) => shortPath(app, path)).join(", ")}` : keys ? `, captured as ${keys}, read by no call` : "";
  /** @type {{[end: string]: [string, string]}} */
  const words = {
    dropped: [to ? "∅ →" : "∅ dropped", `dropped as a message${at}${read}`],
    superseded: ["▪ replaced by", `reduced away${at}: ${shortPath(app, fate.by)} replaces it${read}`],
    rejected: ["⊘ rejected", `rejected${at}`],
    unfinished: isOpen(app.run) ? ["not merged yet", `not merged yet${at}${read}`] : ["not merged", `not merged: the run did not finish${at.replace(" at ", " ")}${read}`],
    left_out: ["– skipped", `skipped${at}`],
    value: [to ? "value →" : "value", `a value${read}`],
  };
  const [mark, title] = words[fate.end] ?? ["", ""];
  if (!mark) return null;
  if (column) return h("span", { class: "call-fate faint at-end", title }, h("span", { "aria-hidden": "true" }, mark.charAt(0)), spoken(title));
  const name = fate.end === "superseded" ? nameOf(fate.by) : fate.end === "dropped" || fate.end === "value" ? to : "";
  return h("span", { class: "call-fate faint", title }, h("span", { "aria-hidden": "true" }, `${mark} ${name}`), spoken(title));
}
