// @ts-check
/** Small parts that several screens show: statuses, merges, links to calls, texts of a run. */

import { lookup } from "./data.js";
import { button, h, spoken } from "./dom.js";
import { MERGE, STATUS, money, nameOf, short, time } from "./format.js";

/**
 * @typedef {import("./modules").App} App
 * @typedef {import("./page").Merge} Merge
 * @typedef {import("./page").Index} Index
 */

/**
 * Return the glyph of a status, with its word for screen readers.
 * @param {string} status
 */
export function statusMark(status) {
  const { glyph, word, tone } = STATUS[status] ?? { glyph: "?", word: status, tone: "dim" };
  return h("span", { class: `mark-status tone-${tone}`, title: word }, h("span", { "aria-hidden": "true" }, glyph), spoken(word));
}

/**
 * Return a status in words.
 * @param {string} status
 */
export function statusBadge(status) {
  const { glyph, word, tone } = STATUS[status] ?? { glyph: "?", word: status, tone: "dim" };
  return h("span", { class: `badge tone-${tone}` }, h("span", { "aria-hidden": "true" }, glyph), word);
}

/**
 * Return the glyph of a merge, with its words for screen readers.
 * @param {Merge | ""} merge
 */
export function mergeMark(merge) {
  const { glyph, word, tone } = MERGE[merge];
  return h("span", { class: `mark-merge merge-${tone}`, title: `merge: ${word}` }, h("span", { "aria-hidden": "true" }, glyph), spoken(`merge: ${word}`));
}

/**
 * Return a merge in words.
 * @param {Merge | ""} merge
 */
export function mergeBadge(merge) {
  const { glyph, word, tone } = MERGE[merge];
  return merge && h("span", { class: `badge merge-${tone}` }, h("span", { "aria-hidden": "true" }, glyph), word);
}

/**
 * Return a button that selects a call.
 * @param {App} app
 * @param {Index} call
 * @param {string} [label] Default: its path below the root.
 */
export function callLink(app, call, label) {
  const path = app.run.calls[call].path;
  return button(label ?? shortPath(app, path), () => app.select(call), { class: "link", title: path });
}

/**
 * Return a button that selects the call at a path, or the path as text if there is none.
 * @param {App} app
 * @param {string} path
 * @param {string} [label]
 */
export function pathLink(app, path, label) {
  const said = label ?? shortPath(app, path);
  const known = lookup(app.run).calls.has(path) || lookup(app.run).nodes.has(path);
  if (!known) return h("span", { class: "mono", title: path }, said);
  return button(said, () => app.selectPath(path), { class: "link", title: path });
}

/**
 * Return a path without the root, which every path has.
 * @param {App} app
 * @param {string} path
 */
export function shortPath(app, path) {
  const root = app.run.nodes[0]?.path ?? "";
  return path.startsWith(`${root}/`) ? path.slice(root.length + 1) : path;
}

/**
 * Return the name of a node as people know it: iterations and Things with their parent's.
 * @param {App} app
 * @param {Index} node
 */
export function nodeName(app, node) {
  return nameOf(app.run.nodes[node].path);
}

/**
 * Return time, tokens and cost of something in one line.
 * @param {{seconds: number | null, tokens: number, cost: number | null}} figures
 */
export function figures({ seconds, tokens, cost }) {
  const parts = [time(seconds), tokens ? `${short(tokens)} tok` : "", money(cost)];
  return h("span", { class: "num faint" }, parts.filter(Boolean).join(" · "));
}
