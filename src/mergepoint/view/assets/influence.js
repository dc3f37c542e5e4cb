// @ts-check
/** Whose words an answer took over: of what changed in it, what the calls that it read had written. */

import { conversation, lookup } from "./data.js";
import { h } from "./dom.js";
import { many, nameOf } from "./format.js";
import { callLink } from "./labels.js";
import { wordsDiff } from "./words_diff.js";

/**
 * @typedef {import("./modules").App} App
 * @typedef {import("./page").Index} Index
 * @typedef {import("./page").Call} Call
 * @typedef {{call: Index, words: number, sample: string}} Influence
 */

const WORD = /[\p{L}\p{N}\p{M}_]+(?:['’\-][\p{L}\p{N}\p{M}_]+)*/gu;

/** @param {string} text */
function wordsOf(text) {
  return text.toLowerCase().match(WORD) ?? [];
}

/**
 * Return how many words of a run of words are in passages that another text has too, and the longest
 * of these passages. A passage has two words or more, or is the whole run.
 * @param {string[]} words
 * @param {Set<string>} pairs Of the other text: its words, and its pairs of neighbors.
 */
function shared(words, pairs) {
  if (words.length === 1) return pairs.has(words[0]) ? { count: 1, sample: words[0] } : { count: 0, sample: "" };
  let found = 0;
  let sample = "";
  /** @type {string[]} */
  let passage = [];
  words.forEach((word, at) => {
    const joins = at + 1 < words.length && pairs.has(`${word} ${words[at + 1]}`);
    if (joins || passage.length) passage.push(word);
    if (joins || passage.length === 0) return;
    found += passage.length;
    const text = passage.join(" ");
    if (text.length > sample.length) sample = text;
    passage = [];
  });
  return { count: found, sample };
}

/**
 * Return the calls whose captured answers a call read, with the changed words that are theirs too,
 * most first; none unless it read two or more.
 * @param {App} app
 * @param {Call} call
 * @returns {{changed: number, by: Influence[]}}
 */
export function influences(app, call) {
  const { run } = app;
  const { calls } = lookup(run);
  const makers = new Set(call.reads.map((read) => calls.get(read.made_by) ?? -1));
  makers.delete(-1);
  if (makers.size < 2 || call.answer === null) return { changed: 0, by: [] };
  const last = conversation(run, call.state).filter((at) => run.messages[at].role === "assistant").at(-1);
  const before = last === undefined ? "" : app.text(run.messages[last].text);
  const parts = wordsDiff(before, app.text(call.answer)).filter((part) => part.kind !== "same");
  const changes = parts.map((part) => wordsOf(part.text)).filter((words) => words.length);
  const by = [...makers].map((maker) => {
    const said = wordsOf(app.text(run.calls[maker].answer));
    const pairs = new Set([...said, ...said.slice(1).map((word, at) => `${said[at]} ${word}`)]);
    const found = changes.map((words) => shared(words, pairs));
    const sample = found.reduce((best, one) => (one.sample.length > best.length ? one.sample : best), "");
    return { call: maker, words: found.reduce((sum, one) => sum + one.count, 0), sample };
  });
  return { changed: changes.reduce((sum, words) => sum + words.length, 0), by: by.sort((a, b) => b.words - a.words) };
}

/**
 * Return a table of the influences, or null if there are none to tell.
 * @param {App} app
 * @param {Call} call
 */
export function influenceTable(app, call) {
  const { changed, by } = influences(app, call);
  if (changed === 0) return null;
  return h("table", { class: "influence" },
    h("caption", { class: "faint" }, `Of ${many(changed, "changed word")}, how many are in a passage that the call wrote too.`),
    h("tbody", null, by.map(({ call: maker, words, sample }) => h("tr", null,
      h("th", { scope: "row" }, callLink(app, maker, nameOf(app.run.calls[maker].path))),
      h("td", { class: "num" }, many(words, "word")),
      h("td", { class: "faint" }, sample ? `“${sample.slice(0, 120)}”` : "")))));
}
