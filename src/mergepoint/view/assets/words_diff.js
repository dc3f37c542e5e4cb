// @ts-check
/** Difference of two texts in words: Myers' algorithm in linear space, with a limit on its work. */

import { add, h } from "./dom.js";

/**
 * A part of both texts ("same"), of the first ("removed"), or of the second ("added").
 * @typedef {{kind: "same" | "removed" | "added", text: string}} Part
 */

// A word with the space after it, or one other character with the space after it.
const TOKEN = /[\p{L}\p{N}\p{M}_]+(?:['’\-][\p{L}\p{N}\p{M}_]+)*\s*|[^\s\p{L}\p{N}\p{M}_]\s*|\s+/gu;
// Differences that are searched for in one piece. Beyond it, the farthest way found so far is taken;
// after so many pieces, the rest counts as replaced.
const MOST_EDITS = 1000;
const MOST_PIECES = 24;
const MOST_TOKENS = 60_000;

/**
 * Return the parts of two texts, in order. Whitespace alone is no difference; the second text's is
 * shown.
 * @param {string} before
 * @param {string} after
 * @returns {Part[]}
 */
export function wordsDiff(before, after) {
  if (before === after) return before ? [{ kind: "same", text: before }] : [];
  const a = before.match(TOKEN) ?? [];
  const b = after.match(TOKEN) ?? [];
  if (a.length + b.length > MOST_TOKENS) return replaced(before, after);
  const edits = new Edits(numbered(a, b), a.length, b.length);
  edits.compare(0, a.length, 0, b.length);
  return joined(a, b, edits);
}

/**
 * Return the share of words that two texts have in common, from 0 to 1, from their differences.
 * @param {Part[]} parts
 */
export function similarity(parts) {
  let same = 0;
  let all = 0;
  for (const part of parts) {
    all += part.text.length * (part.kind === "same" ? 2 : 1);
    if (part.kind === "same") same += part.text.length * 2;
  }
  return all === 0 ? 1 : same / all;
}

/**
 * Return parts as elements: `ins` and `del`, which screen readers announce.
 * @param {Part[]} parts
 * @returns {HTMLElement[]}
 */
export function diffElements(parts) {
  return parts.map((part) => h(part.kind === "same" ? "span" : part.kind === "added" ? "ins" : "del", null, part.text));
}

/**
 * Return how many words were removed and added: "−12 +30 words".
 * @param {Part[]} parts
 */
export function diffSize(parts) {
  const words = (/** @type {Part["kind"]} */ kind) =>
    parts.reduce((sum, part) => sum + (part.kind === kind ? (part.text.match(/\S+/gu)?.length ?? 0) : 0), 0);
  return `−${words("removed")} +${words("added")} words`;
}

/**
 * Return a box with the difference of two texts.
 * @param {string} before
 * @param {string} after
 * @returns {HTMLElement}
 */
export function diffBox(before, after) {
  const box = h("div", { class: "text diff" });
  add(box, diffElements(wordsDiff(before, after)));
  return box;
}

/**
 * @param {string} before
 * @param {string} after
 * @returns {Part[]}
 */
function replaced(before, after) {
  /** @type {Part[]} */
  const parts = [];
  if (before) parts.push({ kind: "removed", text: before });
  if (after) parts.push({ kind: "added", text: after });
  return parts;
}

/**
 * Return both lists of words as numbers; words that differ in whitespace alone have the same one.
 * @param {string[]} a
 * @param {string[]} b
 * @returns {[Int32Array, Int32Array]}
 */
function numbered(a, b) {
  /** @type {Map<string, number>} */
  const numbers = new Map();
  const number = (/** @type {string} */ token) => {
    const word = token.trimEnd();
    let found = numbers.get(word);
    if (found === undefined) numbers.set(word, (found = numbers.size));
    return found;
  };
  return [Int32Array.from(a, number), Int32Array.from(b, number)];
}

/** Which words were removed from the first list and added in the second. */
class Edits {
  /**
   * @param {[Int32Array, Int32Array]} words
   * @param {number} n
   * @param {number} m
   */
  constructor([a, b], n, m) {
    this.a = a;
    this.b = b;
    this.removed = new Uint8Array(n);
    this.added = new Uint8Array(m);
    const most = Math.min(n + m, 2 * MOST_EDITS) + 3;
    this.forward = new Int32Array(2 * most + 1);
    this.backward = new Int32Array(2 * most + 1);
    this.middle = most;
    this.pieces = 0;
  }

  /**
   * Mark the differences of a[from..to) and b[start..end).
   * @param {number} from
   * @param {number} to
   * @param {number} start
   * @param {number} end
   */
  compare(from, to, start, end) {
    // The second half is done by the loop, so that the stack stays low.
    for (;;) {
      while (from < to && start < end && this.a[from] === this.b[start]) {
        from++;
        start++;
      }
      while (from < to && start < end && this.a[to - 1] === this.b[end - 1]) {
        to--;
        end--;
      }
      const split = from < to && start < end ? this.split(from, to, start, end) : null;
      if (!split) {
        this.removed.fill(1, from, to);
        this.added.fill(1, start, end);
        return;
      }
      const [x, y] = split;
      this.compare(from, x, start, y);
      from = x;
      start = y;
    }
  }

  /**
   * Return a point on a shortest way through both lists, or null if they differ too much.
   * @param {number} from
   * @param {number} to
   * @param {number} start
   * @param {number} end
   * @returns {[number, number] | null}
   */
  split(from, to, start, end) {
    const { a, b, forward, backward, middle } = this;
    const n = to - from;
    const m = end - start;
    const delta = n - m;
    const odd = (delta & 1) !== 0;
    const most = Math.min(Math.ceil((n + m) / 2), MOST_EDITS);
    forward[middle + 1] = 0;
    backward[middle + 1] = 0;
    for (let d = 0; d <= most; d++) {
      for (let k = -d; k <= d; k += 2) {
        const down = k === -d || (k !== d && forward[middle + k - 1] < forward[middle + k + 1]);
        let x = down ? forward[middle + k + 1] : forward[middle + k - 1] + 1;
        let y = x - k;
        while (x < n && y < m && a[from + x] === b[start + y]) {
          x++;
          y++;
        }
        forward[middle + k] = x;
        const other = delta - k;
        if (odd && other > -d && other < d && x + backward[middle + other] >= n) return this.inside(from + x, start + y, from, to, start, end);
      }
      for (let k = -d; k <= d; k += 2) {
        const down = k === -d || (k !== d && backward[middle + k - 1] < backward[middle + k + 1]);
        let x = down ? backward[middle + k + 1] : backward[middle + k - 1] + 1;
        let y = x - k;
        while (x < n && y < m && a[to - 1 - x] === b[end - 1 - y]) {
          x++;
          y++;
        }
        backward[middle + k] = x;
        const other = delta - k;
        if (!odd && other >= -d && other <= d && x + forward[middle + other] >= n) return this.inside(to - x, end - y, from, to, start, end);
      }
    }
    return this.pieces++ < MOST_PIECES ? this.farthest(n, m, most, from, to, start, end) : null;
  }

  /**
   * Return the end of the farthest way from the start that a search found before it gave up.
   * @param {number} n
   * @param {number} m
   * @param {number} d
   * @param {number} from
   * @param {number} to
   * @param {number} start
   * @param {number} end
   */
  farthest(n, m, d, from, to, start, end) {
    let best = -1;
    let at = 0;
    for (let k = -d; k <= d; k += 2) {
      const x = this.forward[this.middle + k];
      const y = x - k;
      if (x <= n && y >= 0 && y <= m && x + y > best) {
        best = x + y;
        at = x;
      }
    }
    return best < 0 ? null : this.inside(from + at, start + best - at, from, to, start, end);
  }

  /**
   * Return a point unless it's a corner, which would split nothing.
   * @param {number} x
   * @param {number} y
   * @param {number} from
   * @param {number} to
   * @param {number} start
   * @param {number} end
   * @returns {[number, number] | null}
   */
  inside(x, y, from, to, start, end) {
    const valid = x >= from && x <= to && y >= start && y <= end;
    const corner = (x === from && y === start) || (x === to && y === end);
    return valid && !corner ? [x, y] : null;
  }
}

/**
 * Return parts from marked words. A lone short word between two changes counts as changed: many
 * small pieces are hard to read.
 * @param {string[]} a
 * @param {string[]} b
 * @param {Edits} edits
 * @returns {Part[]}
 */
function joined(a, b, edits) {
  const { removed, added } = edits;
  soften(a, b, edits);
  /** @type {Part[]} */
  const parts = [];
  let i = 0;
  let j = 0;
  while (i < a.length || j < b.length) {
    const from = i;
    const start = j;
    while (i < a.length && removed[i]) i++;
    while (j < b.length && added[j]) j++;
    if (i > from) {
      // The second text, whose spaces are shown, can end where the first one went on.
      const glued = /\s$/u.test(a[from - 1] ?? "") && !/\s$/u.test(b[start - 1] ?? " ");
      parts.push({ kind: "removed", text: (glued ? " " : "") + a.slice(from, i).join("") });
    }
    if (j > start) parts.push({ kind: "added", text: b.slice(start, j).join("") });
    const same = j;
    while (i < a.length && j < b.length && !removed[i] && !added[j]) {
      i++;
      j++;
    }
    if (j > same) parts.push({ kind: "same", text: b.slice(same, j).join("") });
  }
  return parts;
}

/**
 * @param {string[]} a
 * @param {string[]} b
 * @param {Edits} edits
 */
function soften(a, b, { removed, added }) {
  let i = 0;
  let j = 0;
  let changed = false;
  while (i < a.length && j < b.length) {
    if (removed[i] || added[j]) {
      if (removed[i]) i++;
      if (j < b.length && added[j]) j++;
      changed = true;
      continue;
    }
    let length = 0;
    while (i + length < a.length && j + length < b.length && !removed[i + length] && !added[j + length]) length++;
    const next = i + length < a.length && j + length < b.length;
    if (changed && next && length === 1 && b[j].trim().length <= 3) {
      removed[i] = 1;
      added[j] = 1;
    }
    i += length;
    j += length;
    changed = false;
    if (length === 0) break;
  }
}
