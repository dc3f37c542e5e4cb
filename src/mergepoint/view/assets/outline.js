// @ts-check
/** The outline of a run: a tree with time, tokens and cost per path. */

import { lookup, wayUp } from "./data.js";
import { h, virtualList } from "./dom.js";
import { STATUS, many, money, nameOf, short, shortTime, time } from "./format.js";
import { statusMark } from "./labels.js";

/**
 * @typedef {import("./modules").App} App
 * @typedef {import("./page").Index} Index
 * @typedef {import("./page").TreeNode} TreeNode
 */

/**
 * A line: a node, a call that isn't a node of its own, or several equal siblings.
 * @typedef {{
 *   key: string,
 *   level: number,
 *   node: Index,
 *   call: Index,
 *   members: Index[],
 *   open: boolean | null,
 *   place: number,
 *   of: number,
 * }} Line
 */

/** @typedef {{seconds: number | null, tokens: number, cost: number | null}} Figures */

const HEIGHT = 25;
// Stages at the top are worth a line each; deeper down, equal siblings are one.
const FOLD_TOP = 13;
const FOLD_BELOW = 3;
const SPAN = "from the first start to the last end, with waits";

/**
 * Return the outline.
 * @param {App} app
 * @returns {import("./modules").Screen}
 */
export function outline(app) {
  /** @type {Map<string, boolean>} */
  const chosen = new Map();
  /** @type {Set<string>} */
  let revealed = failing(app);
  /** @type {Line[]} */
  let lines = linesOf(app, chosen, revealed);
  let current = 0;

  const list = virtualList({
    count: lines.length,
    rowHeight: HEIGHT,
    render: (at) => lineElement(app, lines[at], at, at === current, press),
    props: { class: "outline-rows", role: "tree", tabindex: "0", "aria-label": "Paths of the run" },
  });
  list.body.setAttribute("role", "none");

  /** @param {number} at */
  function moveTo(at) {
    current = Math.max(0, Math.min(lines.length - 1, at));
    list.scrollTo(current);
    list.redraw();
    list.element.setAttribute("aria-activedescendant", `outline-${current}`);
  }

  function linesAgain() {
    lines = linesOf(app, chosen, revealed);
    return lines;
  }

  function redraw() {
    const key = lines[current]?.key;
    lines = linesOf(app, chosen, revealed);
    current = Math.max(0, lines.findIndex((line) => line.key === key));
    list.update(lines.length);
    list.element.setAttribute("aria-activedescendant", `outline-${current}`);
  }

  /**
   * @param {Line} line
   * @param {boolean} open
   */
  function toggle(line, open) {
    if (line.open === null || line.open === open) return;
    chosen.set(line.key, open);
    redraw();
  }

  /**
   * @param {number} at
   * @param {boolean} [fold] Whether its fold was pressed.
   */
  function press(at, fold = false) {
    const line = lines[at];
    current = at;
    if (line.call >= 0 && !fold) app.select(line.call);
    else if (line.open !== null) toggle(line, !line.open);
    list.redraw();
    list.element.setAttribute("aria-activedescendant", `outline-${current}`);
  }

  list.element.addEventListener("keydown", (event) => {
    const line = lines[current];
    if (!line || event.ctrlKey || event.metaKey || event.altKey) return;
    const keys = /** @type {{[key: string]: () => void}} */ ({
      ArrowDown: () => moveTo(current + 1),
      ArrowUp: () => moveTo(current - 1),
      Home: () => moveTo(0),
      End: () => moveTo(lines.length - 1),
      PageDown: () => moveTo(current + 20),
      PageUp: () => moveTo(current - 20),
      ArrowRight: () => (line.open === false ? toggle(line, true) : moveTo(current + (line.open ? 1 : 0))),
      ArrowLeft: () => (line.open ? toggle(line, false) : moveTo(above(lines, current))),
      Enter: () => press(current),
      " ": () => press(current),
    });
    if (!(event.key in keys)) return;
    keys[event.key]();
    event.preventDefault();
  });

  const head = h("div", { class: "outline-head", "aria-hidden": "true" },
    h("span", { class: "o-name" }, "path"), h("span", { title: SPAN }, "time"), h("span", null, "tok"), h("span", null, "cost"));
  return {
    element: h("div", { class: "outline" }, head, list.element),
    selected(call) {
      revealed = failing(app);
      if (call >= 0) reveal(app, call, revealed, chosen);
      const at = call < 0 ? -1 : linesAgain().findIndex((line) => line.call === call);
      if (at < 0) {
        redraw();
        return;
      }
      current = at;
      list.show(lines.length, at);
      list.element.setAttribute("aria-activedescendant", `outline-${at}`);
    },
    refresh() {
      revealed = failing(app);
      redraw();
    },
  };
}

/**
 * Return the paths above the first failure.
 * @param {App} app
 * @returns {Set<string>}
 */
function failing(app) {
  const found = new Set();
  const path = app.run.failure?.path;
  const node = path === undefined ? undefined : lookup(app.run).nodes.get(path);
  const at = node ?? app.run.nodes.findIndex((one) => one.status === "failed" && one.failed > 0 && one.kind === "step");
  if (at >= 0) for (const up of wayUp(app.run, at)) found.add(app.run.nodes[up].path);
  return found;
}

/**
 * Open what is above a call.
 * @param {App} app
 * @param {Index} call
 * @param {Set<string>} revealed
 * @param {Map<string, boolean>} chosen
 */
function reveal(app, call, revealed, chosen) {
  const node = app.run.calls[call].node;
  for (const up of wayUp(app.run, node)) {
    const path = app.run.nodes[up].path;
    revealed.add(path);
    // Who folded a path and then selects something in it wants to see it.
    if (chosen.get(path) === false) chosen.delete(path);
  }
}

/**
 * Return the line above which a line is.
 * @param {Line[]} lines
 * @param {number} at
 */
function above(lines, at) {
  let up = at - 1;
  while (up > 0 && lines[up].level >= lines[at].level) up--;
  return Math.max(0, up);
}

/**
 * Return the visible lines.
 * @param {App} app
 * @param {Map<string, boolean>} chosen
 * @param {Set<string>} revealed
 * @returns {Line[]}
 */
function linesOf(app, chosen, revealed) {
  /** @type {Line[]} */
  const lines = [];
  const { children, callsOf, calls } = lookup(app.run);
  const nodes = app.run.nodes;

  /**
   * @param {Index} node
   * @param {number} level
   * @param {number} place
   * @param {number} of
   */
  function addNode(node, level, place, of) {
    const { path } = nodes[node];
    const own = calls.get(path) ?? -1;
    const more = callsOf[node].filter((call) => call !== own);
    const inner = children[node].length + more.length > 0;
    const open = inner ? (chosen.get(path) ?? (level === 1 || revealed.has(path))) : null;
    lines.push({ key: path, level, node, call: own, members: [], open, place, of });
    if (open) addBelow(node, more, level + 1);
  }

  /**
   * @param {Index} node
   * @param {Index[]} more
   * @param {number} level
   */
  function addBelow(node, more, level) {
    const parts = folded(nodes, children[node], node === 0 ? FOLD_TOP : FOLD_BELOW, revealed);
    const of = parts.length + more.length;
    parts.forEach((members, place) => {
      if (members.length === 1) {
        addNode(members[0], level, place, of);
        return;
      }
      const key = `${nodes[members[0]].path}×`;
      const open = chosen.get(key) ?? members.some((at) => revealed.has(nodes[at].path));
      lines.push({ key, level, node: -1, call: -1, members, open, place, of });
      if (open) members.forEach((member, at) => addNode(member, level + 1, at, members.length));
    });
    more.forEach((call, at) => {
      lines.push({ key: `${app.run.calls[call].path}#${call}`, level, node: -1, call, members: [], open: null, place: parts.length + at, of });
    });
  }

  if (nodes.length) addNode(0, 1, 0, 1);
  return lines;
}

/**
 * Return siblings in groups: consecutive ones with equal shapes and statuses that need no look.
 * @param {TreeNode[]} nodes
 * @param {Index[]} siblings
 * @param {number} least
 * @param {Set<string>} revealed
 * @returns {Index[][]}
 */
function folded(nodes, siblings, least, revealed) {
  /** @type {Index[][]} */
  const groups = [];
  for (const at of siblings) {
    const last = groups.at(-1);
    const first = last && nodes[last[0]];
    const node = nodes[at];
    const fine = node.status === "done" || node.status === "not_reached" || node.status === "planned";
    if (last && first && fine && first.shape === node.shape && first.status === node.status) last.push(at);
    else groups.push([at]);
  }
  return groups.flatMap((group) => (group.length >= least ? [group] : group.map((one) => [one])));
}

/**
 * Return time, tokens and cost of a line.
 * @param {App} app
 * @param {Line} line
 * @returns {Figures}
 */
function figuresOf(app, line) {
  if (line.members.length || line.node >= 0) {
    const nodes = (line.members.length ? line.members : [line.node]).map((at) => app.run.nodes[at]);
    const starts = nodes.map((node) => node.start).filter((one) => one !== null);
    const ends = nodes.map((node) => node.end).filter((one) => one !== null);
    const costs = nodes.filter((node) => node.calls > 0).map((node) => node.cost).filter((one) => one !== null);
    return {
      // Siblings can run at once: the sum of their times would be more than their parent's.
      seconds: starts.length && ends.length ? Math.max(...ends) - Math.min(...starts) : null,
      tokens: nodes.reduce((sum, node) => sum + node.input_tokens + node.output_tokens, 0),
      cost: costs.length ? costs.reduce((sum, one) => sum + one, 0) : null,
    };
  }
  const call = app.run.calls[line.call];
  return { seconds: call.seconds, tokens: call.usage.input_tokens + call.usage.output_tokens, cost: call.usage.cost };
}

/**
 * Return what a line is called.
 * @param {App} app
 * @param {Line} line
 */
function lineName(app, line) {
  const nodes = app.run.nodes;
  if (line.members.length) {
    const [first, last] = [line.members[0], line.members[line.members.length - 1]];
    return `${many(line.members.length, "sibling")}: ${nameOf(nodes[first].path)} … ${nameOf(nodes[last].path)}`;
  }
  return nameOf(line.node >= 0 ? nodes[line.node].path : app.run.calls[line.call].path);
}

/**
 * @param {App} app
 * @param {Line} line
 * @param {number} at
 * @param {boolean} isCurrent
 * @param {(at: number, fold?: boolean) => void} press
 */
function lineElement(app, line, at, isCurrent, press) {
  const nodes = app.run.nodes;
  const node = line.members.length ? nodes[line.members[0]] : line.node >= 0 ? nodes[line.node] : null;
  const status = node ? node.status : app.run.calls[line.call].status;
  const { seconds, tokens, cost } = figuresOf(app, line);
  const reused = node && line.members.length === 0 && node.calls > 0 && node.reused === node.calls;
  const name = lineName(app, line);
  const words = [name, STATUS[status]?.word ?? status,
    reused ? "reused" : "", time(seconds), tokens ? many(tokens, "token") : "", money(cost)];
  return h("div", {
    class: `o-row ${isCurrent ? "is-current" : ""} ${line.call >= 0 && line.call === app.selected ? "is-selected" : ""} ${status === "not_reached" ? "is-dim" : ""}`,
    role: "treeitem",
    id: `outline-${at}`,
    "aria-level": line.level,
    "aria-setsize": line.of,
    "aria-posinset": line.place + 1,
    "aria-expanded": line.open === null ? null : String(line.open),
    "aria-selected": String(line.call >= 0 && line.call === app.selected),
    "aria-label": words.filter(Boolean).join(", "),
    title: node && line.members.length === 0 ? node.path : name,
    data: { path: node ? node.path : app.run.calls[line.call].path },
    on: { click: (/** @type {MouseEvent} */ event) => press(at, event.target instanceof Element && event.target.classList.contains("o-fold")) },
  },
  h("span", { class: "o-name", style: { paddingLeft: `${(line.level - 1) * 13}px` } },
    h("span", { class: "o-fold", "aria-hidden": "true" }, line.open === null ? "" : line.open ? "▾" : "▸"),
    statusMark(status), h("span", { class: "o-text" }, name), reused ? h("span", { class: "o-reused", title: "reused" }, "↺") : null),
  h("span", { class: "num", title: seconds === null ? null : `${time(seconds)} ${SPAN}` }, shortTime(seconds)),
  h("span", { class: "num" }, tokens ? short(tokens) : ""),
  h("span", { class: "num" }, money(cost)));
}
