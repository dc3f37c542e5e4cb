// @ts-check
/** How numbers, times and texts are written. */

/** @typedef {import("./page").Usage} Usage */

// Made once: a format of its own per number costs more than the rest of a line.
const NUMBERS = new Intl.NumberFormat("en-US");

// Control characters, direction marks, invisible separators, lone surrogates. Line feed and tab stay.
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff]|[\u{e0000}-\u{e0fff}]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/gu;

/**
 * Return how an invisible character is written: `\x1b` or `\u202e`.
 * @param {string} character
 */
export function escaped(character) {
  const point = character.codePointAt(0) ?? 0;
  if (point > 0xffff) return `\\U${point.toString(16).padStart(8, "0")}`;
  return point > 0xff ? `\\u${point.toString(16).padStart(4, "0")}` : `\\x${point.toString(16).padStart(2, "0")}`;
}

/**
 * Return a text in parts; every second one is an invisible character in its escaped form.
 * @param {string} text
 * @returns {string[]}
 */
export function visibleParts(text) {
  /** @type {string[]} */
  const parts = [];
  let from = 0;
  for (const found of text.matchAll(HIDDEN)) {
    const character = found[0];
    // Joiners and selectors of emoji and of many scripts are part of what people write.
    if (isPlain(character, text, found.index)) continue;
    parts.push(text.slice(from, found.index), escaped(character));
    from = found.index + character.length;
  }
  parts.push(text.slice(from));
  return parts;
}

/**
 * Return whether an invisible character belongs to the letter or picture before it.
 * @param {string} character
 * @param {string} text
 * @param {number} at
 */
function isPlain(character, text, at) {
  if (character === "\r") return text[at + 1] === "\n";
  if (character !== "\u200d" && character !== "\u200c" && character !== "\ufe0f" && character !== "\ufe0e") return false;
  return /[\p{L}\p{M}\p{Extended_Pictographic}\p{Emoji_Modifier}\ufe0f#*0-9]$/u.test(text.slice(Math.max(0, at - 4), at));
}

/**
 * Return a text whose invisible characters are written out.
 * @param {string} text
 */
export function visible(text) {
  return visibleParts(text).join("");
}

/**
 * Return a duration: "340 ms", "2.4 s", "3 min 05 s", "2 h 10 min"; "" if it is unknown.
 * @param {number | null | undefined} seconds
 */
export function time(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "";
  if (seconds < 0.0005) return "0 ms";
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  return `${Math.floor(whole / 3600)} h ${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")} min`;
}

/**
 * Return a duration for a narrow place: "340 ms", "2.4 s", "3:05", "2:10 h"; "" if it is unknown.
 * @param {number | null | undefined} seconds
 */
export function shortTime(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds) || seconds < 59.95) return time(seconds);
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
  return `${Math.floor(whole / 3600)}:${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")} h`;
}

/**
 * Return a count with separators: "12,480".
 * @param {number} count
 */
export function count(count) {
  return NUMBERS.format(Math.round(count));
}

/**
 * Return a count for a narrow place: "842", "1.2k", "34k", "1.3M".
 * @param {number} count
 */
export function short(count) {
  if (count < 1000) return String(Math.round(count));
  if (count < 9950) return `${(count / 1000).toFixed(1)}k`;
  if (count < 999500) return `${Math.round(count / 1000)}k`;
  return `${(count / 1e6).toFixed(count < 9.95e6 ? 1 : 0)}M`;
}

/**
 * Return USD with as many digits as the amount needs; "" if no price is known.
 * @param {number | null | undefined} cost
 */
export function money(cost) {
  if (cost === null || cost === undefined) return "";
  if (cost === 0) return "$0";
  if (cost < 0.00005) return "<$0.0001";
  return `$${cost.toFixed(cost < 0.1 ? 4 : cost < 10 ? 3 : 2)}`;
}

/**
 * Return a number of things with its noun: "1 call", "42 calls".
 * @param {number} number
 * @param {string} noun
 */
export function many(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

/**
 * Return tokens in and out: "1,204 in, 310 out".
 * @param {{input_tokens: number, output_tokens: number}} usage
 */
export function tokens(usage) {
  return `${count(usage.input_tokens)} in, ${count(usage.output_tokens)} out`;
}

/**
 * Return a usage in one line: calls, tokens, cost.
 * @param {Usage} usage
 */
export function usageLine(usage) {
  const cost = usage.cost === null ? "cost unknown" : money(usage.cost);
  const parts = [many(usage.calls, "call"), `${tokens(usage)} tokens`, cost];
  return (usage.estimated ? "about " : "") + parts.join(" · ");
}

/**
 * Return a range of a prediction: "3", "3–12", "3 or more".
 * @param {import("./page").Range | [number, number | null]} range
 * @param {(n: number) => string} write
 */
export function range(range, write = count) {
  const [least, most] = range;
  if (most === null) return `${write(least)} or more`;
  return least === most ? write(least) : `${write(least)}–${write(most)}`;
}

/**
 * Return a moment in the reader's time zone: "2026-11-23 12:34:56".
 * @param {number | string | null | undefined} moment Seconds since the epoch, or an ISO time.
 */
export function moment(moment) {
  if (moment === null || moment === undefined || moment === "") return "";
  const date = new Date(typeof moment === "number" ? moment * 1000 : moment);
  if (Number.isNaN(date.getTime())) return String(moment);
  const two = (/** @type {number} */ n) => String(n).padStart(2, "0");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

/**
 * Return a number of characters as a size: "812 B", "14 kB", "1.2 MB".
 * @param {number} characters
 */
export function size(characters) {
  if (characters < 1000) return `${characters} B`;
  if (characters < 999500) return `${Math.round(characters / 1000)} kB`;
  return `${(characters / 1e6).toFixed(1)} MB`;
}

/**
 * Return the last part of a path.
 * @param {string} path
 */
export function nameOf(path) {
  return path.slice(path.lastIndexOf("/") + 1);
}

/**
 * Return a text in one line, cut to a length.
 * @param {string} text
 * @param {number} most
 */
export function oneLine(text, most = 120) {
  const line = text.slice(0, most * 4).replace(/\s+/gu, " ").trim();
  return line.length > most ? `${line.slice(0, most - 1).trimEnd()}…` : line;
}

/**
 * Return a text with single spaces and line breaks, as in the text.
 * @param {string} text
 */
export function tidyLines(text) {
  return text.replace(/[^\S\n]+/gu, " ").replace(/ ?\n\s*/gu, "\n");
}

/**
 * Return the words of a text that may be Markdown, without its marks, line by line.
 * @param {string} text
 * @param {number} most
 */
export function gist(text, most) {
  const plain = text.slice(0, most * 2)
    .replace(/^\s*(?:#{1,6}\s+|[-*+]\s+(?=\S)|>\s?|```.*$)/gmu, "")
    .replace(/(\*\*|__)(?=\S)(.+?)\1/gu, "$2")
    .replace(/`([^`\n]+)`/gu, "$1");
  const lines = tidyLines(plain).trim();
  return lines.length > most ? `${lines.slice(0, most - 1).trimEnd()}…` : lines;
}

/** What each status is called, and its glyph. Words are for people who can't see the glyph. */
export const STATUS = /** @type {{[status: string]: {glyph: string, word: string, tone: string}}} */ ({
  done: { glyph: "✓", word: "done", tone: "good" },
  answered: { glyph: "✓", word: "answered", tone: "good" },
  failed: { glyph: "✕", word: "failed", tone: "bad" },
  damaged: { glyph: "✕", word: "damaged", tone: "bad" },
  rejected: { glyph: "⊘", word: "rejected", tone: "warn" },
  waiting: { glyph: "‖", word: "waiting", tone: "warn" },
  interrupted: { glyph: "‖", word: "interrupted", tone: "warn" },
  unfinished: { glyph: "…", word: "unfinished", tone: "warn" },
  queued: { glyph: "◷", word: "queued", tone: "live" },
  running: { glyph: "▸", word: "running", tone: "live" },
  left_out: { glyph: "–", word: "skipped", tone: "dim" },
  not_reached: { glyph: "·", word: "not reached", tone: "dim" },
  planned: { glyph: "○", word: "planned", tone: "dim" },
});

/** What each merge is called. */
export const MERGE = /** @type {{[merge: string]: {glyph: string, word: string, tone: string}}} */ ({
  all_messages: { glyph: "≡", word: "all messages", tone: "all" },
  last_response: { glyph: "▪", word: "last response", tone: "last" },
  none: { glyph: "∅", word: "none", tone: "none" },
  "": { glyph: "·", word: "", tone: "none" },
});
