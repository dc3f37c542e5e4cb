// @ts-check
/** A small part of Markdown as elements: what models write. No HTML, no images, no live links. */

import { add, h } from "./dom.js";

const FENCE = /^\s{0,3}(`{3,}|~{3,})\s*([\w+-]*)/u;
const HEADING = /^\s{0,3}(#{1,6})\s+(.*?)\s*#*\s*$/u;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/u;
const RULE = /^\s{0,3}([-*_])(?:\s*\1){2,}\s*$/u;
const ROW = /^\s*\|.*\|\s*$/u;
const INLINE = /(`+)([^`]|[^`].*?[^`])\1(?!`)|(\*\*|__)(?=\S)(.+?\S?)\3|(\*|_)(?=[^\s*_])(.*?[^\s*_])\5(?![\p{L}\p{N}])|\[([^[\]\n]{1,300})\]\(([^)\s]{1,600})\)/gu;

/**
 * Return a text as elements.
 * @param {string} text
 * @returns {HTMLElement}
 */
export function markdown(text) {
  const box = h("div", { class: "markdown" });
  const lines = text.replaceAll("\r\n", "\n").split("\n");
  for (let at = 0; at < lines.length; ) at = block(lines, at, box);
  return box;
}

/**
 * Append the block that begins at a line; return the line after it.
 * @param {string[]} lines
 * @param {number} at
 * @param {HTMLElement} box
 * @returns {number}
 */
function block(lines, at, box) {
  const line = lines[at];
  if (line.trim() === "") return at + 1;
  const fence = FENCE.exec(line);
  if (fence) return fenced(lines, at, fence[1], box);
  const heading = HEADING.exec(line);
  if (heading) {
    add(box, h("p", { class: "md-heading", role: "heading", "aria-level": Math.min(6, heading[1].length + 3) }, inline(heading[2])));
    return at + 1;
  }
  if (RULE.test(line)) {
    add(box, h("hr"));
    return at + 1;
  }
  if (ROW.test(line) && /^\s*\|[\s:|-]+\|\s*$/u.test(lines[at + 1] ?? "")) return tableOf(lines, at, box);
  if (ITEM.test(line)) return list(lines, at, box);
  if (/^\s{0,3}>/u.test(line)) return quote(lines, at, box);
  let end = at + 1;
  while (end < lines.length && lines[end].trim() !== "" && !FENCE.test(lines[end]) && !HEADING.test(lines[end]) && !ITEM.test(lines[end])) end++;
  add(box, h("p", null, inline(lines.slice(at, end).join("\n"))));
  return end;
}

/**
 * @param {string[]} lines
 * @param {number} at
 * @param {string} fence
 * @param {HTMLElement} box
 */
function fenced(lines, at, fence, box) {
  let end = at + 1;
  while (end < lines.length && !lines[end].trim().startsWith(fence)) end++;
  add(box, h("pre", { class: "md-code" }, lines.slice(at + 1, end).join("\n")));
  return end + 1;
}

/**
 * @param {string[]} lines
 * @param {number} at
 * @param {HTMLElement} box
 */
function quote(lines, at, box) {
  let end = at;
  while (end < lines.length && /^\s{0,3}>/u.test(lines[end])) end++;
  const inner = lines.slice(at, end).map((line) => line.replace(/^\s{0,3}>\s?/u, ""));
  add(box, h("blockquote", null, inline(inner.join("\n"))));
  return end;
}

/**
 * Append a list; items that are indented more belong to the item before.
 * @param {string[]} lines
 * @param {number} at
 * @param {HTMLElement} box
 */
function list(lines, at, box) {
  const first = /** @type {RegExpExecArray} */ (ITEM.exec(lines[at]));
  const depth = first[1].length;
  const ordered = /\d/u.test(first[2]);
  const made = ordered ? h("ol", { start: parseInt(first[2], 10) }) : h("ul");
  add(box, made);
  let item = h("li");
  while (at < lines.length) {
    const found = ITEM.exec(lines[at]);
    if (found && found[1].length > depth + 1) {
      at = list(lines, at, item);
      continue;
    }
    if (found && (found[1].length < depth || /\d/u.test(found[2]) !== ordered)) break;
    if (found) {
      item = h("li", null, inline(found[3]));
      add(made, item);
      at++;
      continue;
    }
    if (lines[at].trim() === "" && ITEM.test(lines[at + 1] ?? "")) at++;
    else if (lines[at].trim() !== "" && /^\s/u.test(lines[at])) add(item, " ", inline(lines[at++].trim()));
    else break;
  }
  return at;
}

/**
 * @param {string[]} lines
 * @param {number} at
 * @param {HTMLElement} box
 */
function tableOf(lines, at, box) {
  const cells = (/** @type {string} */ line) => line.trim().replace(/^\||\|$/gu, "").split("|").map((cell) => cell.trim());
  const head = h("tr", null, cells(lines[at]).map((cell) => h("th", { scope: "col" }, inline(cell))));
  const body = h("tbody");
  let end = at + 2;
  for (; end < lines.length && ROW.test(lines[end]); end++)
    add(body, h("tr", null, cells(lines[end]).map((cell) => h("td", null, inline(cell)))));
  add(box, h("div", { class: "md-table" }, h("table", null, h("thead", null, head), body)));
  return end;
}

/**
 * Return a line's parts: code, strong, emphasis; links are shown with their address.
 * @param {string} text
 * @returns {(Node | string)[]}
 */
function inline(text) {
  /** @type {(Node | string)[]} */
  const parts = [];
  let from = 0;
  // A line without end could take long to search, and is no prose.
  if (text.length > 20_000) return [text];
  for (const found of text.matchAll(INLINE)) {
    const at = /** @type {number} */ (found.index);
    // An underscore within a word is part of it.
    if (found[5] === "_" && /[\p{L}\p{N}]$/u.test(text.slice(0, at))) continue;
    parts.push(text.slice(from, at));
    if (found[2] !== undefined) parts.push(h("code", null, found[2]));
    else if (found[4] !== undefined) parts.push(h("strong", null, inline(found[4])));
    else if (found[6] !== undefined) parts.push(h("em", null, inline(found[6])));
    else parts.push(found[7], h("span", { class: "faint" }, ` (${found[8]})`));
    from = at + found[0].length;
  }
  parts.push(text.slice(from));
  return parts;
}

/**
 * Return whether a text looks like Markdown, so that rendering it shows more than the text.
 * @param {string} text
 */
export function isMarkdown(text) {
  return /^\s{0,3}(#{1,6}\s|[-*+]\s|\d+[.)]\s|```|>\s|\|.*\|)|\*\*\S|`[^`\n]+`/mu.test(text.slice(0, 20_000));
}
