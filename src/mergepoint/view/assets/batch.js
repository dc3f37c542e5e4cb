// @ts-check
/** The page of a batch: its figures, its failures by kind, and its results, of any number. */

import { batchCharts, batchHead, tally } from "./batch_figures.js";
import { add, announce, button, copyButton, h, put, spoken, virtualList } from "./dom.js";
import { count, many, moment, money, oneLine, short } from "./format.js";
import { statusBadge, statusMark } from "./labels.js";
import { sortButton, sortOf, sortedBy, statusChips } from "./lists.js";
import { shellWord } from "./requests.js";

/**
 * @typedef {import("./modules").App} App
 * @typedef {import("./page").Batch} Batch
 * @typedef {import("./page").BatchRow} BatchRow
 * @typedef {import("./page").BatchFailure} BatchFailure
 * @typedef {{type: string, path: string, number: number, messages: Map<string, number>}} FailureKind
 */

const BATCH_ROW = 32;
const NARROW_BATCH_ROW = 56;
const KINDS = 5; // kinds of failures, and messages of each, until a person asks for more
const MESSAGES = 2;
const MORE_MESSAGES = 50;
const PRINTED = 2000;

/**
 * What the person has chosen; it outlives new data. `kind` is a type and path of failures, `message`
 * one of its messages ("" for all). `allOf` is the kind of which more messages are shown.
 * @typedef {{
 *   search: string, statuses: Set<string>, kind: string, message: string, allKinds: boolean, allOf: string,
 *   sorted: string, direction: 1 | -1, opened: string,
 * }} BatchChoice
 */

/** @type {import("./lists").Column<BatchRow>[]} */
const RESULT_COLUMNS = [
  { name: "status", label: "Status", value: (row) => row.status, first: -1 },
  { name: "id", label: "ID", value: (row) => row.id, first: 1 },
  { name: "result", label: "Result", value: (row) => row.text, first: 1 },
  { name: "calls", label: "Calls", value: (row) => row.calls, first: -1, numeric: true },
  { name: "tokens", label: "Tokens", value: (row) => row.input_tokens + row.output_tokens, first: -1, numeric: true },
  { name: "cost", label: "Cost", value: (row) => row.cost, first: -1, numeric: true },
  { name: "attempts", label: "Attempts", value: (row) => row.attempts, first: -1, numeric: true },
  { name: "ended", label: "Ended", value: (row) => row.ended, first: -1, numeric: true },
];

/**
 * @param {App} app
 * @returns {import("./modules").Screen}
 */
export function batchScreen(app) {
  /** @type {BatchChoice} */
  const choice = { search: "", statuses: new Set(), kind: "", message: "", allKinds: false, allOf: "", sorted: "", direction: -1, opened: "" };
  const narrow = matchMedia("(max-width: 720px)").matches;
  const rowHeight = narrow ? NARROW_BATCH_ROW : BATCH_ROW;
  const top = h("div", { class: "batch-top" });
  const failures = h("section", { class: "batch-failures", "aria-labelledby": "batch-failures" });
  const charts = h("section", { class: "batch-charts", "aria-label": "Charts" });
  const chips = h("div", { class: "runs-chips", role: "group", "aria-label": "Status" });
  const summary = h("p", { class: "soft batch-summary", role: "status" });
  const head = h("div", { class: "batch-row batch-row-head", role: "row", "aria-rowindex": 1 });
  const detail = h("section", { class: "batch-detail", "aria-label": "The selected result" });
  const printed = h("table", { class: "batch-printed" });
  const search = h("input", {
    type: "search",
    placeholder: "Search results",
    "aria-label": "Search in ID, the first words of the text, and the error",
    on: { input: () => { choice.search = search.value; draw(); } },
  });
  const list = virtualList({ count: 0, rowHeight, props: { class: "batch-list", role: "rowgroup" }, render: drawnRow });
  const table = h("div", { class: "batch-table panel", role: "table", "aria-label": "Results" }, h("div", { role: "rowgroup" }, head), list.element);
  const element = h("div", { class: "batch" }, top, failures, charts,
    h("div", { class: "batch-tools" }, h("h2", null, "Results"), search, chips, summary), table, printed, detail);

  /** @type {BatchRow[]} */
  let rows = [];
  const texts = new SearchedTexts();

  /** @returns {Batch} */
  const batch = () => /** @type {Batch} */ (app.page.batch);

  /** @param {number} at */
  function drawnRow(at) {
    const row = resultRow(batch(), rows[at], at, choice.opened === rows[at].id, () => open(rows[at].id));
    row.style.height = `${rowHeight}px`;
    return row;
  }

  /** Draw what depends on the data. */
  function refresh() {
    keepingFocus(element, () => {
      put(top, ...batchHead(batch()));
      put(charts, ...batchCharts(batch()));
      charts.hidden = charts.childElementCount === 0;
      const all = batch().rows;
      // A column that says the same in every row takes room from the others.
      table.classList.toggle("batch-free", all.every((row) => row.cost === null) || all.every((row) => row.cost === 0));
      table.classList.toggle("batch-tried-once", all.every((row) => row.attempts <= 1));
      draw();
    });
  }

  /** Draw what depends on the choice, too. */
  function draw() {
    keepingFocus(element, () => {
      rows = chosenResults(batch(), choice, texts);
      drawFailures(failures, batch(), choice, draw);
      drawResultHead(head, choice, draw);
      put(chips, statusChips(statusesOf(batch().rows), choice.statuses, draw));
      put(summary, summaryOfResults(rows, batch(), choice), filtered(choice) && " ", filtered(choice) && button("show all", clear, { class: "quiet", data: { key: "clear" } }));
      table.setAttribute("aria-rowcount", String(rows.length + 1));
      list.element.style.height = `${Math.min(Math.max(rows.length, 1), narrow ? 8 : 16) * rowHeight + 2}px`;
      list.update(rows.length);
      drawDetail();
    });
  }

  function clear() {
    Object.assign(choice, { search: "", kind: "", message: "" });
    choice.statuses.clear();
    search.value = "";
    draw();
    search.focus({ preventScroll: true });
  }

  /** @param {string} id */
  function open(id) {
    choice.opened = choice.opened === id ? "" : id;
    keepingFocus(element, () => list.redraw());
    drawDetail();
    if (choice.opened) announce(`${id}: its details are below the results`);
  }

  function drawDetail() {
    const row = choice.opened ? batch().rows.find((one) => one.id === choice.opened) : undefined;
    detail.hidden = !row;
    put(detail, ...(row ? detailOfResult(batch(), row, () => open(row.id)) : []));
  }

  /**
   * Open the next row that is shown, or the one before, and scroll to it.
   * @param {number} step
   */
  function move(step) {
    const at = rows.findIndex((row) => row.id === choice.opened);
    const next = Math.min(rows.length - 1, Math.max(0, at + step));
    show(next);
  }

  /** @param {number} at */
  function show(at) {
    if (!rows[at]) return;
    if (choice.opened !== rows[at].id) open(rows[at].id);
    list.scrollTo(at);
    table.scrollIntoView({ block: "nearest" });
    /** @type {HTMLElement | null | undefined} */ (list.row(at)?.querySelector(".batch-id"))?.focus({ preventScroll: true });
  }

  list.element.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    move(step);
  });
  addEventListener("beforeprint", () => put(printed, ...printedResults(batch(), rows)));
  addEventListener("afterprint", () => put(printed));

  refresh();
  // Only now the list is in the document and knows its height.
  requestAnimationFrame(() => list.redraw());
  return { element, refresh, key };

  /** @param {string} key */
  function key(key) {
    if (key === "j" || key === "k") move(key === "j" ? 1 : -1);
    else if (key === "f") {
      const failed = rows.findIndex((row) => row.status === "failed");
      if (failed < 0) announce("No result that is shown failed");
      else show(failed);
    } else if (key === "Escape" && choice.opened) open(choice.opened);
    else if (key === "Escape" && filtered(choice)) clear();
    else return false;
    return true;
  }
}

/** The texts in which a row is searched, in lower case, made when they are first needed. */
class SearchedTexts {
  constructor() {
    /** @type {WeakMap<BatchRow, string>} */
    this.known = new WeakMap();
  }

  /**
   * @param {Batch} batch
   * @param {BatchRow} row
   */
  of(batch, row) {
    let text = this.known.get(row);
    if (text === undefined) {
      const error = batch.failures[row.failure];
      text = [row.id, row.text, error?.type, error?.path, error?.message].join("\n").toLowerCase();
      this.known.set(row, text);
    }
    return text;
  }
}

/**
 * Draw a part of the page again; a control in it that had the focus has it afterwards.
 * @param {HTMLElement} element
 * @param {() => void} draw
 */
function keepingFocus(element, draw) {
  const before = document.activeElement;
  const { key, status } = before instanceof HTMLElement && element.contains(before) ? before.dataset : { key: "", status: "" };
  draw();
  if (before?.isConnected) return;
  const named = key ? `[data-key="${CSS.escape(key)}"]` : status ? `[data-status="${status}"]` : "";
  if (named) /** @type {HTMLElement | null} */ (element.querySelector(named))?.focus({ preventScroll: true });
}

/** @param {BatchRow[]} rows */
function statusesOf(rows) {
  /** @type {Map<string, number>} */
  const statuses = new Map();
  for (const row of rows) statuses.set(row.status, (statuses.get(row.status) ?? 0) + 1);
  return statuses;
}

/** @param {BatchFailure} failure */
function kindOf(failure) {
  return `${failure.type}\n${failure.path}`;
}

/** @param {BatchChoice} choice */
function filtered(choice) {
  return choice.search !== "" || choice.kind !== "" || choice.statuses.size > 0;
}

/**
 * @param {Batch} batch
 * @param {BatchChoice} choice
 * @param {SearchedTexts} texts
 */
function chosenResults(batch, choice, texts) {
  const words = choice.search.toLowerCase().split(/\s+/u).filter(Boolean);
  // Each error is looked at once, and not in each row.
  const wanted = batch.failures.map((one) => kindOf(one) === choice.kind && (!choice.message || one.message === choice.message));
  const found = batch.rows.filter((row) =>
    (choice.statuses.size === 0 || choice.statuses.has(row.status)) &&
    (choice.kind === "" || wanted[row.failure]) &&
    words.every((word) => texts.of(batch, row).includes(word)));
  const column = RESULT_COLUMNS.find((one) => one.name === choice.sorted);
  return column ? sortedBy(found, column, choice.direction) : found;
}

/**
 * @param {BatchRow[]} rows
 * @param {Batch} batch
 * @param {BatchChoice} choice
 */
function summaryOfResults(rows, batch, choice) {
  const all = batch.rows.length;
  if (all === 0) return batch.status === "running" ? "There are no results yet." : "There are no results.";
  if (rows.length === 0) return `None of ${many(all, "result")} matches.`;
  if (!filtered(choice)) return many(all, "result");
  const { calls, cost } = tally(rows);
  return [`${count(rows.length)} of ${many(all, "result")}`, many(calls, "call"), cost ? money(cost) : ""].filter(Boolean).join(" · ");
}

/**
 * Return the failures by error type and path, the most frequent first.
 * @param {Batch} batch
 */
function failureKinds(batch) {
  const numbers = batch.failures.map(() => 0);
  for (const row of batch.rows) if (row.failure >= 0) numbers[row.failure] += 1;
  /** @type {Map<string, FailureKind>} */
  const kinds = new Map();
  batch.failures.forEach((failure, at) => {
    const { type, path, message } = failure;
    const kind = kinds.get(kindOf(failure)) ?? { type, path, number: 0, messages: new Map() };
    kind.number += numbers[at];
    kind.messages.set(message, (kind.messages.get(message) ?? 0) + numbers[at]);
    kinds.set(kindOf(failure), kind);
  });
  return [...kinds].sort(([, a], [, b]) => b.number - a.number);
}

/**
 * @param {HTMLElement} section
 * @param {Batch} batch
 * @param {BatchChoice} choice
 * @param {() => void} draw
 */
function drawFailures(section, batch, choice, draw) {
  section.hidden = batch.failures.length === 0;
  if (section.hidden) return put(section);
  const kinds = failureKinds(batch);
  const shown = choice.allKinds ? kinds : kinds.slice(0, KINDS);
  const items = shown.map(([key, kind]) => failureItem(key, kind, choice, draw));
  const rest = kinds.length - shown.length;
  put(section, h("h2", { id: "batch-failures" }, "Failures"), h("ul", null, items),
    rest > 0 && button(`show ${many(rest, "more kind")} of failures`, () => { choice.allKinds = true; draw(); }, { class: "more" }));
}

/**
 * @param {string} key
 * @param {FailureKind} kind
 * @param {BatchChoice} choice
 * @param {() => void} draw
 */
function failureItem(key, kind, choice, draw) {
  const choose = (/** @type {string} */ message) => () => {
    const again = choice.kind === key && choice.message === message;
    Object.assign(choice, again ? { kind: "", message: "" } : { kind: key, message });
    draw();
  };
  const pressed = choice.kind === key;
  const messages = [...kind.messages].sort(([, a], [, b]) => b - a);
  const single = messages.length === 1;
  const name = [h("b", { class: "num" }, count(kind.number)), " ", h("span", { class: "tone-bad" }, kind.type || "unknown error"), kind.path && [" at ", h("code", null, kind.path)]];
  const listed = messages.slice(0, choice.allOf === key ? MORE_MESSAGES : MESSAGES);
  const rest = messages.length - listed.length;
  const more = () => { choice.allOf = key; draw(); };
  return h("li", null,
    button(name, choose(""), { class: "batch-kind", "aria-pressed": String(pressed && !choice.message), title: "Show these results only", data: { key: `kind ${key}` } }),
    single ? h("span", { class: "batch-message" }, oneLine(messages[0][0], 400)) : h("ul", null,
      listed.map(([message, number]) => h("li", null, button([h("span", { class: "num" }, `${count(number)} × `), oneLine(message, 300) || "without a message"], choose(message), { class: "batch-message batch-one", "aria-pressed": String(pressed && choice.message === message), data: { key: `message ${key} ${message}` } }))),
      rest > 0 && h("li", { class: "faint" }, choice.allOf === key ? `and ${many(rest, "more message")}: search for their words` : button(`and ${many(rest, "more message")}`, more, { class: "batch-message batch-one", data: { key: `message ${key} ${messages[0][0]}` } }))));
}

/**
 * @param {HTMLElement} head
 * @param {BatchChoice} choice
 * @param {() => void} draw
 */
function drawResultHead(head, choice, draw) {
  put(head, RESULT_COLUMNS.map((column) => {
    const sort = sortButton(column, choice, draw);
    sort.dataset.key = `column ${column.name}`;
    return h("span", { role: "columnheader", class: `batch-${column.name} ${column.numeric ? "num" : ""}`, "aria-sort": sortOf(column, choice) }, sort);
  }));
}

/**
 * Return the row of a result.
 * @param {Batch} batch
 * @param {BatchRow} row
 * @param {number} at
 * @param {boolean} opened
 * @param {() => void} open
 */
function resultRow(batch, row, at, opened, open) {
  const tokens = row.input_tokens + row.output_tokens;
  const cell = (/** @type {string} */ name, /** @type {import("./modules").Child} */ value, title = "") => h("span", { role: "cell", class: `batch-${name} num`, title }, value);
  return h("div", { class: `batch-row ${opened ? "current" : ""}`, role: "row", "aria-rowindex": at + 2, data: { id: row.id }, on: { click: (/** @type {Event} */ event) => {
    if (!(event.target instanceof Element && event.target.closest("button, a"))) open();
  } } },
  h("span", { role: "cell", class: "batch-status" }, statusMark(row.status)),
  h("span", { role: "cell", class: "batch-id-cell" }, button(row.id || "(no ID)", open, { class: "link mono batch-id", "aria-expanded": String(opened), title: row.id, data: { key: `row ${row.id}` } })),
  h("span", { role: "cell", class: `batch-result ${row.status === "failed" ? "tone-bad" : ""}` }, wordsOfResult(batch, row)),
  cell("calls", count(row.calls)),
  cell("tokens", tokens ? short(tokens) : "0", `${count(row.input_tokens)} in, ${count(row.output_tokens)} out`),
  cell("cost", row.cost === null ? h("span", { class: "faint" }, "unknown") : money(row.cost)),
  cell("attempts", count(row.attempts)),
  cell("ended", row.ended === null ? "" : h("time", { datetime: new Date(row.ended * 1000).toISOString() }, moment(row.ended).slice(11)), moment(row.ended)));
}

/**
 * Return the text of a result, or its error.
 * @param {Batch} batch
 * @param {BatchRow} row
 */
function wordsOfResult(batch, row) {
  const error = batch.failures[row.failure];
  return error ? oneLine(`${error.type}: ${error.message}`, 200) : row.text;
}

/**
 * Return the details of a result: its error, its text, and how the page of its run is opened.
 * @param {Batch} batch
 * @param {BatchRow} row
 * @param {() => void} close
 */
function detailOfResult(batch, row, close) {
  const error = batch.failures[row.failure];
  const facts = [
    many(row.calls, "call"),
    `${count(row.input_tokens)} in, ${count(row.output_tokens)} out tokens`,
    row.cost === null ? "cost unknown" : money(row.cost),
    row.attempts > 1 && `${count(row.attempts)} workers had it`,
    row.ended !== null && moment(row.ended),
  ];
  return [
    h("div", { class: "batch-detail-head" }, h("h3", { class: "mono" }, row.id), statusBadge(row.status), h("span", { class: "soft" }, facts.filter(Boolean).join(" · ")), button("close", close, { class: "quiet batch-close" })),
    error && h("p", { class: "tone-bad" }, error.type, error.path && [" at ", h("code", null, error.path)], error.message && `: ${error.message}`),
    row.text && h("p", { class: "batch-text" }, row.text),
    openingOf(batch, row),
  ];
}

/**
 * Return what opens the page of a result's run.
 * @param {Batch} batch
 * @param {BatchRow} row
 */
function openingOf(batch, row) {
  if (!row.run || !batch.opening) return h("p", { class: "soft" }, "Its run isn't stored, so there is no page with its calls.");
  const { before, after, href } = batch.opening;
  if (href) return h("p", null, h("a", { href: href + encodeURIComponent(row.run) }, "Open the page of its run"), h("span", { class: "soft" }, ", with all calls and the whole text"));
  const command = `${before}${shellWord(row.run)}${after}`;
  return h("p", { class: "runs-command" }, spoken("The command that opens its run: "), h("code", null, command), " ", copyButton("copy", command));
}

/**
 * Return the rows that are printed.
 * @param {Batch} batch
 * @param {BatchRow[]} rows
 */
function printedResults(batch, rows) {
  const body = h("tbody");
  for (const row of rows.slice(0, PRINTED))
    add(body, h("tr", null, h("td", null, statusMark(row.status)), h("td", null, row.id), h("td", null, wordsOfResult(batch, row)), h("td", { class: "num" }, count(row.calls))));
  const rest = rows.length - PRINTED;
  return [h("thead", null, h("tr", null, ["Status", "ID", "Result", "Calls"].map((name) => h("th", null, name)))), body,
    rest > 0 && h("tfoot", null, h("tr", null, h("td", { colspan: 4 }, `and ${many(rest, "more result")}`)))];
}
