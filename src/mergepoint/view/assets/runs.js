// @ts-check
/** The list of runs and sessions: sort, filter, search, and tick two to compare. */

import { add, addText, announce, button, copyButton, h, put } from "./dom.js";
import { STATUS, count, many, moment, money, oneLine, short, time } from "./format.js";
import { sortButton, sortOf, sortedBy, statusChips } from "./lists.js";

/**
 * @typedef {import("./modules").App} App
 * @typedef {import("./page").ListedRun} ListedRun
 */

/** Rows that are drawn at once; more follow when the end of the list comes into view. */
const CHUNK = 50;

/**
 * The columns by which rows are sorted.
 * @type {import("./lists").Column<ListedRun>[]}
 */
const COLUMNS = [
  { name: "status", label: "Status", value: (row) => row.status, first: 1 },
  { name: "run", label: "Run", value: (row) => row.graph || row.id, first: 1 },
  { name: "model", label: "Model", value: (row) => row.models[0] ?? "", first: 1 },
  { name: "started", label: "Started", value: (row) => row.created_at, first: -1 },
  { name: "time", label: "Time", value: (row) => row.seconds, first: -1, numeric: true },
  { name: "calls", label: "Calls", value: (row) => row.calls, first: -1, numeric: true },
  { name: "tokens", label: "Tokens", value: (row) => row.tokens, first: -1, numeric: true },
  { name: "cost", label: "Cost", value: (row) => row.cost, first: -1, numeric: true },
];

/** The beginning of the commands that make pages. */
const VIEW = "mergepoint view ";

/**
 * What the person has chosen; it outlives new data.
 * @typedef {{
 *   search: string, statuses: Set<string>, graph: string, sorted: string, direction: 1 | -1,
 *   ticked: string[], current: string, opened: string,
 * }} Choice
 */

/**
 * @param {App} app
 * @returns {import("./modules").Screen}
 */
export function runsScreen(app) {
  /** @type {Choice} */
  const choice = { search: "", statuses: new Set(), graph: "", sorted: "", direction: -1, ticked: [], current: "", opened: "" };
  const title = h("h1");
  const filters = h("div", { class: "runs-filters" });
  const summary = h("p", { class: "runs-summary soft", role: "status" });
  const body = h("tbody");
  const head = h("tr");
  const end = h("div", { class: "runs-end" });
  const compare = h("div", { class: "runs-compare", role: "region", "aria-label": "Comparison" });
  const search = h("input", {
    type: "search",
    placeholder: "Search runs",
    "aria-label": "Search in graph, input, result, model and ID",
    on: { input: () => { choice.search = search.value; draw(); } },
  });
  const table = h("table", { class: "runs-table" }, h("caption", { class: "spoken" }, "Runs, the last changed first"), h("thead", null, head), body);
  const element = h("div", { class: "runs" }, h("header", { class: "runs-head" }, title, search, filters), summary, table, end, compare);

  /** @type {ListedRun[]} */
  let rows = [];
  let drawn = 0;

  const list = () => app.page.list ?? [];

  function draw() {
    rows = chosen(list(), choice);
    drawn = 0;
    body.replaceChildren();
    drawHead(head, choice, draw);
    put(title, app.page.title);
    // Offline runs have no cost, and a column without a value takes room from the others.
    table.classList.toggle("runs-free", list().every((row) => row.cost === null));
    drawFilters(filters, list(), choice, draw);
    put(summary, summaryOf(rows, list()));
    more();
    drawCompare(compare, app, choice, draw);
  }

  function more() {
    for (const row of rows.slice(drawn, drawn + CHUNK)) add(body, rowOf(app, row, choice, draw));
    drawn = Math.min(rows.length, drawn + CHUNK);
    put(end, drawn < rows.length && button(`show ${many(Math.min(CHUNK, rows.length - drawn), "more run")}`, more, { class: "more" }));
  }

  new IntersectionObserver((seen) => {
    if (seen.some((one) => one.isIntersecting) && drawn < rows.length) more();
  }, { rootMargin: "600px" }).observe(end);

  draw();
  return {
    element,
    refresh: draw,
    key: (key) => pressedInList(key, rows, choice, draw, body),
  };
}

/**
 * Return the rows that a person wants to see, sorted.
 * @param {ListedRun[]} list
 * @param {Choice} choice
 */
function chosen(list, choice) {
  const words = choice.search.toLowerCase().split(/\s+/u).filter(Boolean);
  const found = list.filter((row) =>
    (choice.statuses.size === 0 || choice.statuses.has(row.status)) &&
    (choice.graph === "" || row.graph === choice.graph) &&
    (words.length === 0 || matches(row, words)));
  const column = COLUMNS.find((one) => one.name === choice.sorted);
  return column ? sortedBy(found, column, choice.direction) : found;
}

/**
 * @param {ListedRun} row
 * @param {string[]} words
 */
function matches(row, words) {
  const text = [row.id, row.graph, row.kind, row.status, row.input, row.result, ...row.models].join("\n").toLowerCase();
  return words.every((word) => text.includes(word));
}

/**
 * @param {ListedRun[]} rows
 * @param {ListedRun[]} list
 */
function summaryOf(rows, list) {
  if (list.length === 0) return "There are no runs yet. To make one: mergepoint demo";
  if (rows.length === 0) return `None of ${many(list.length, "run")} matches.`;
  const costs = rows.map((row) => row.cost).filter((cost) => cost !== null);
  const cost = costs.reduce((sum, one) => sum + (one ?? 0), 0);
  const calls = rows.reduce((sum, row) => sum + row.calls, 0);
  const shown = rows.length === list.length ? many(rows.length, "row") : `${count(rows.length)} of ${many(list.length, "row")}`;
  return [shown, many(calls, "call"), costs.length ? money(cost) : ""].filter(Boolean).join(" · ");
}

/**
 * @param {HTMLElement} head
 * @param {Choice} choice
 * @param {() => void} draw
 */
function drawHead(head, choice, draw) {
  const cells = COLUMNS.map((column) => h("th", {
    scope: "col",
    class: `runs-${column.name} ${column.numeric ? "num" : ""}`,
    "aria-sort": sortOf(column, choice),
  }, sortButton(column, choice, () => {
    draw();
    /** @type {HTMLElement | null} */ (head.querySelector(`.runs-${column.name} button`))?.focus();
  })));
  put(head, h("th", { scope: "col", class: "runs-tick" }, h("span", { class: "spoken" }, "Compare")), cells);
}

/**
 * @param {HTMLElement} filters
 * @param {ListedRun[]} list
 * @param {Choice} choice
 * @param {() => void} draw
 */
function drawFilters(filters, list, choice, draw) {
  /** @type {Map<string, number>} */
  const statuses = new Map();
  /** @type {Map<string, number>} */
  const graphs = new Map();
  for (const row of list) {
    statuses.set(row.status, (statuses.get(row.status) ?? 0) + 1);
    if (row.graph) graphs.set(row.graph, (graphs.get(row.graph) ?? 0) + 1);
  }
  const focused = document.activeElement?.getAttribute("data-status");
  const chips = statusChips(statuses, choice.statuses, draw);
  const select = h("select", { "aria-label": "Graph", on: { change: () => { choice.graph = select.value; draw(); } } },
    h("option", { value: "" }, "all graphs"),
    [...graphs].sort(([a], [b]) => a.localeCompare(b)).map(([graph, number]) => {
      const option = h("option", { value: graph }, `${oneLine(graph, 40)} (${count(number)})`);
      option.selected = graph === choice.graph;
      return option;
    }));
  put(filters, h("div", { class: "runs-chips", role: "group", "aria-label": "Status" }, chips), graphs.size > 1 && select);
  if (focused) /** @type {HTMLElement | null} */ (filters.querySelector(`[data-status="${focused}"]`))?.focus();
}

/**
 * Return the row of a run.
 * @param {App} app
 * @param {ListedRun} row
 * @param {Choice} choice
 * @param {() => void} draw
 */
function rowOf(app, row, choice, draw) {
  const { glyph, word, tone } = STATUS[row.status] ?? STATUS.damaged;
  const comparable = row.kind === "run" && row.status !== "damaged";
  const tick = h("input", {
    type: "checkbox",
    "aria-label": `Compare ${row.id}`,
    disabled: !comparable,
    title: comparable ? "" : "Only runs that can be read are compared",
    on: { change: () => { tickRow(row.id, choice); draw(); focusTick(row.id); } },
  });
  tick.checked = choice.ticked.includes(row.id);
  const [model, ...others] = row.models;
  return h("tr", { class: choice.current === row.id ? "current" : "", "data-id": row.id },
    h("td", { class: "runs-tick" }, tick),
    h("td", { class: "runs-status" }, h("span", { class: `badge tone-${tone}` }, h("span", { "aria-hidden": "true" }, glyph), word)),
    h("td", { class: "runs-run" }, nameOfRow(row, choice, draw), wordsOfRow(row), choice.opened === row.id && commandOf(row)),
    h("td", { class: "runs-model soft", "data-label": "Model" }, model ?? "", others.length ? h("span", { class: "faint", title: others.join(", ") }, ` +${others.length}`) : null),
    h("td", { class: "runs-started num soft", "data-label": "Started" }, h("time", { datetime: row.created_at, title: moment(row.created_at) }, moment(row.created_at).slice(0, 16))),
    h("td", { class: "runs-time num", "data-label": "Time" }, time(row.seconds)),
    h("td", { class: "runs-calls num", "data-label": "Calls" }, callsOfRow(row)),
    h("td", { class: "runs-tokens num", "data-label": "Tokens", title: row.tokens ? many(row.tokens, "token") : "" }, row.tokens ? short(row.tokens) : ""),
    h("td", { class: "runs-cost num", "data-label": "Cost" }, row.cost === null ? "" : money(row.cost)));
}

/** @param {ListedRun} row */
function callsOfRow(row) {
  if (row.status === "damaged") return null;
  return [
    h("span", null, count(row.calls)),
    row.failed > 0 && h("span", { class: "tone-bad" }, ` ${count(row.failed)} failed`),
    row.reused > 0 && h("span", { class: "faint" }, ` ${count(row.reused)} reused`),
  ];
}

/**
 * Return the name of a run: a link to its page, or a button that shows the command that makes it.
 * @param {ListedRun} row
 * @param {Choice} choice
 * @param {() => void} draw
 */
function nameOfRow(row, choice, draw) {
  const words = [h("span", { class: "runs-graph" }, row.graph || row.id), row.kind === "session" && h("span", { class: "badge" }, "session")];
  const id = row.graph && h("span", { class: "mono faint runs-id" }, row.id);
  // Only addresses of pages next to this one, and of the server that it came from.
  const address = /^[a-z][a-z0-9+.-]*:/iu.test(row.href) ? "" : row.href;
  const name = address
    ? h("a", { href: address, class: "runs-name" }, words)
    : button(words, () => {
        choice.opened = choice.opened === row.id ? "" : row.id;
        draw();
        /** @type {HTMLElement | null} */ (document.querySelector(`tr[data-id="${CSS.escape(row.id)}"] .runs-name`))?.focus();
      }, { class: "link runs-name runs-unfold", title: "Show the command that opens it", "aria-expanded": String(choice.opened === row.id) });
  return h("div", { class: "runs-line" }, name, id);
}

/**
 * Return the first words of a run's input and result.
 * @param {ListedRun} row
 */
function wordsOfRow(row) {
  const line = h("div", { class: "runs-story" });
  // A long input must not hide the result, which is cut after two lines.
  if (row.input) add(line, h("span", { class: "soft", title: row.result ? row.input : "" }, row.result ? oneLine(row.input, 80) : row.input));
  if (row.input && row.result) addText(line, " → ");
  if (row.result) add(line, h("span", { class: row.status === "failed" || row.status === "damaged" ? "tone-bad" : "" }, row.result));
  return line;
}

/** @param {ListedRun} row */
function commandOf(row) {
  if (!row.command) return h("p", { class: "runs-command soft" }, "There is no command that opens it.");
  return h("p", { class: "runs-command" }, h("code", null, row.command), " ", copyButton("copy", row.command));
}

/**
 * Tick a run, or take the tick away; of three, the first one goes.
 * @param {string} id
 * @param {Choice} choice
 */
function tickRow(id, choice) {
  choice.ticked = choice.ticked.includes(id) ? choice.ticked.filter((one) => one !== id) : [...choice.ticked, id].slice(-2);
  announce(choice.ticked.length === 2 ? `${choice.ticked[0]} and ${choice.ticked[1]} can be compared` : many(choice.ticked.length, "run") + " ticked");
}

/** @param {string} id */
function focusTick(id) {
  /** @type {HTMLElement | null} */ (document.querySelector(`tr[data-id="${CSS.escape(id)}"] input`))?.focus();
}

/**
 * Draw what can be done with the ticked runs: one more to tick, or the way to the comparison.
 * @param {HTMLElement} compare
 * @param {App} app
 * @param {Choice} choice
 * @param {() => void} draw
 */
function drawCompare(compare, app, choice, draw) {
  const ticked = (app.page.list ?? []).filter((row) => choice.ticked.includes(row.id) && row.kind === "run");
  compare.hidden = ticked.length === 0;
  if (ticked.length === 0) return put(compare);
  // Newest first in the list: A is the older one.
  const [a, b] = ticked.length === 2 ? [ticked[1], ticked[0]] : [ticked[0], null];
  const clear = button("clear", () => { choice.ticked = []; draw(); }, { class: "quiet" });
  if (!b) return put(compare, h("span", null, "A: ", h("b", null, a.graph), " ", h("span", { class: "mono" }, a.id)), h("span", { class: "soft" }, "Tick another run to compare."), clear);
  const names = h("span", { class: "runs-pair" }, "A: ", h("span", { class: "mono" }, a.id), "  B: ", h("span", { class: "mono" }, b.id));
  const address = app.page.live?.compare;
  if (address) {
    const query = `${address}${address.includes("?") ? "&" : "?"}a=${encodeURIComponent(a.id)}&b=${encodeURIComponent(b.id)}`;
    return put(compare, names, h("a", { href: query, class: "button runs-go" }, "Compare"), clear);
  }
  const command = compareCommand(a, b);
  put(compare, names, h("code", { class: "runs-command" }, command), copyButton("copy the command", command), clear);
}

/**
 * Return the command that compares two runs, from the commands that show each of them.
 * @param {ListedRun} a
 * @param {ListedRun} b
 */
export function compareCommand(a, b) {
  const [first, second] = [a, b].map((row) => row.command.replace(VIEW, ""));
  // The option that names the store is the same in both, and is given once, at the end.
  const option = / --(?:store|out) .*$/u.exec(second)?.[0] ?? "";
  const words = option && first.endsWith(option) ? first.slice(0, -option.length) : first;
  return `${VIEW}${words} ${second}`;
}

/**
 * Handle a key of the list: j and k move, Enter opens, x ticks.
 * @param {string} key
 * @param {ListedRun[]} rows
 * @param {Choice} choice
 * @param {() => void} draw
 * @param {HTMLElement} body
 */
function pressedInList(key, rows, choice, draw, body) {
  if (rows.length === 0) return false;
  const at = rows.findIndex((row) => row.id === choice.current);
  if (key === "j" || key === "k") {
    const next = key === "j" ? Math.min(rows.length - 1, at + 1) : Math.max(0, at - 1);
    choice.current = rows[next].id;
    for (const row of body.children) row.classList.toggle("current", row.getAttribute("data-id") === choice.current);
    const row = /** @type {HTMLElement | undefined} */ (body.children[next]);
    /** @type {HTMLElement | null | undefined} */ (row?.querySelector(".runs-name"))?.focus({ preventScroll: true });
    row?.scrollIntoView({ block: "nearest" });
    return true;
  }
  if (key === "x" && at >= 0 && rows[at].kind === "run" && rows[at].status !== "damaged") {
    tickRow(rows[at].id, choice);
    draw();
    return true;
  }
  if (key === "f") {
    const failed = rows.find((row) => row.status === "failed");
    if (!failed) return false;
    choice.current = failed.id;
    draw();
    body.querySelector("tr.current")?.scrollIntoView({ block: "nearest" });
    return true;
  }
  if (key !== "Escape" || choice.ticked.length === 0) return false;
  choice.ticked = [];
  draw();
  return true;
}
