// @ts-check
/** The screen of two runs: where they diverge first, what that changed, and every path aligned. */

import { add, button, h, put, spoken, virtualList } from "./dom.js";
import { count, many, moment, money, nameOf, oneLine, time } from "./format.js";
import { statusBadge } from "./labels.js";
import { similarity, wordsDiff } from "./words_diff.js";
import { xray } from "./xray.js";

/**
 * @typedef {import("./modules").App} App
 * @typedef {import("./page").Call} Call
 * @typedef {import("./page").Run} Run
 * @typedef {import("./page").Comparison} Comparison
 * @typedef {import("./page").ComparedCall} ComparedCall
 * @typedef {import("./dom.js").Child} Child
 * @typedef {{comparison: Comparison, row: number, kinds: Set<string>, words: string}} Shown
 */

/** @type {{[kind: string]: {glyph: string, word: string, tone: string, title: string}}} */
const ROW_KINDS = {
  changed: { glyph: "≠", word: "changed", tone: "warn", title: "differs in itself" },
  freed: { glyph: "↝", word: "freed", tone: "live", title: "equal in itself, but it saw something that changed before it" },
  only_a: { glyph: "A", word: "only in A", tone: "bad", title: "the second run has no call here" },
  only_b: { glyph: "B", word: "only in B", tone: "good", title: "the first run has no call here" },
  same: { glyph: "=", word: "same", tone: "dim", title: "the same request and answer" },
};

/** @type {{[reason: string]: string}} */
const ROW_REASONS = {
  not_reached: "not reached", not_in_tree: "not in the tree", max_iterations: "most iterations", max_tool_rounds: "most tool rounds", on_exhausted: "at the last iteration",
};

const COMPARED_FIGURES = ["words", "tokens", "time", "cost"];
const COMPARE_PANELS = ["difference", "a", "b"];
// Less in common than this is another text, whose words side by side say more than their difference.
const ALIKE_ENOUGH = 0.25;
const COMPARED_HEIGHT = 34;
const NARROW_COMPARED_HEIGHT = 56;
// Lists up to this length are as high as their rows, so that they can be printed and searched.
const WHOLE_LIST = 300;

/**
 * Return the screen.
 * @param {App} app
 * @returns {import("./modules").Screen}
 */
export function compareScreen(app) {
  const comparison = /** @type {Comparison} */ (app.page.comparison);
  app.tabs = COMPARE_PANELS;
  if (!COMPARE_PANELS.includes(app.tab)) app.tab = "difference";
  const differ = comparison.rows.some((row) => row.kind !== "same");
  /** @type {Shown} */
  const shown = { comparison, row: -1, words: "", kinds: new Set(Object.keys(ROW_KINDS).filter((kind) => !differ || kind !== "same")) };
  const panel = differencePanel(app, shown, (row) => select(row));
  const list = comparedList(app, shown, (row) => select(row));
  const top = h("header", { class: "compare-top" });
  const draw = () => put(top, comparedRuns(app), divergencePart(app, comparison, (row) => select(row)), comparedTotals(app), comparedSettings(comparison));
  const body = h("div", { class: "compare-body" }, list.element, panel.element);
  const element = h("div", { class: "compare" }, top, body);
  let switching = false;

  /** @param {number} row */
  function select(row) {
    shown.row = row;
    const one = comparison.rows[row];
    const side = !one || (app.tab === "b" && one.b >= 0) || one.a < 0 ? 1 : 0;
    switching = true;
    if (one && (one.a >= 0 || one.b >= 0)) {
      app.show(side);
      app.select(side === 0 ? one.a : one.b);
    } else app.select(-1);
    switching = false;
    element.classList.toggle("has-panel", row >= 0);
    list.selected(row);
    panel.draw();
    // A panel that would begin below the middle of the window is moved up, with its list.
    if (row >= 0 && body.getBoundingClientRect().top > innerHeight / 3) body.scrollIntoView({ block: "start" });
  }

  draw();
  return {
    element,
    selected(call) {
      if (switching) return;
      const side = app.page.runs.indexOf(app.run);
      const row = call < 0 ? -1 : comparison.rows.findIndex((one) => (side === 0 ? one.a : one.b) === call);
      if (row !== shown.row || call < 0) select(row);
      else panel.draw();
    },
    opened: () => (shown.row >= 0 ? select(shown.row) : panel.draw()),
    refresh() {
      if (switching) return;
      shown.comparison = /** @type {Comparison} */ (app.page.comparison);
      draw();
      list.refresh();
      panel.draw();
    },
    key: (key) => compareKey(key, shown, list, select),
  };
}

/**
 * @param {string} key
 * @param {Shown} shown
 * @param {{next: (step: number) => number}} list
 * @param {(row: number) => void} select
 */
function compareKey(key, shown, list, select) {
  if (key === "j" || key === "k") select(list.next(key === "j" ? 1 : -1));
  else if (key === "f") select(shown.comparison.rows.findIndex((row) => row.path === shown.comparison.first_divergence));
  else if (key === "Escape" && shown.row >= 0) select(-1);
  else return false;
  return true;
}

// The top: both runs, the first divergence, totals, settings.

/** @param {App} app */
function comparedRuns(app) {
  return h("div", { class: "compare-heads" }, app.page.runs.map((run, at) =>
    h("section", { class: "panel compare-head", "aria-label": `Run ${"AB"[at]}` },
      h("div", { class: "compare-head-line" }, runLetter(at), h("h1", { title: run.id }, run.graph), statusBadge(run.status)),
      h("p", { class: "faint" }, h("span", { class: "mono" }, run.id), ` · ${moment(run.created_at)}`),
      h("p", { class: "soft" }, run.verdict))));
}

/** @param {number} at */
function runLetter(at) {
  return h("span", { class: `compare-letter compare-${"ab"[at]}`, "aria-hidden": "true" }, "AB"[at]);
}

/**
 * @param {App} app
 * @param {Comparison} comparison
 * @param {(row: number) => void} select
 */
function divergencePart(app, comparison, select) {
  const at = comparison.rows.findIndex((row) => row.path === comparison.first_divergence);
  const row = comparison.rows[at];
  if (!row) return h("section", { class: "panel compare-first compare-equal" }, h("h2", null, "First divergence"), h("p", null, comparison.sentence));
  const rest = comparison.sentence.startsWith(row.path) ? comparison.sentence.slice(row.path.length) : ` ${comparison.sentence}`;
  return h("section", { class: "panel compare-first" },
    h("h2", null, "First divergence"),
    h("p", { class: "compare-sentence" }, button(row.path, () => select(at), { class: "link mono", title: "Show the difference (f)" }), rest),
    divergenceEffect(comparison),
    comparedTexts(app, row));
}

/** @param {Comparison} comparison */
function divergenceEffect(comparison) {
  const number = (/** @type {string} */ kind) => comparison.rows.filter((row) => row.kind === kind).length;
  const first = comparison.rows.find((row) => row.path === comparison.first_divergence)?.kind;
  const changed = number("changed") - (first === "changed" ? 1 : 0);
  const freed = number("freed");
  const alone = number("only_a") + number("only_b");
  const parts = [
    freed ? `${many(freed, "call")} saw something that it changed` : alone ? "" : "No other call saw a difference",
    changed > 0 ? `${count(changed)} more ${changed === 1 ? "differs in itself" : "differ in themselves"}` : "",
    alone ? `${many(alone, "call")} in one run only` : "",
    number("same") ? `${many(number("same"), "call")} ${number("same") === 1 ? "is" : "are"} the same` : "",
  ];
  return h("p", { class: "soft" }, `${parts.filter(Boolean).join("; ")}.`);
}

/** @param {App} app */
function comparedTotals(app) {
  const [a, b] = app.page.runs;
  /** @type {[string, (run: Run) => number | null, (value: number) => string][]} */
  const figures = [
    ["calls", (run) => run.paid.calls + run.reused.calls, count],
    ["reused", (run) => run.reused.calls, count],
    ["tokens in, paid", (run) => run.paid.input_tokens, count],
    ["tokens out, paid", (run) => run.paid.output_tokens, count],
    ["words of answers", (run) => run.calls.reduce((sum, call) => sum + answerWords(app, call), 0), count],
    ["time in calls", (run) => run.seconds, time],
    ["cost", (run) => run.paid.cost, money],
  ];
  const rows = figures.map(([name, figure, write]) => {
    const [before, after] = [figure(a), figure(b)];
    if (!before && !after) return null;
    const told = (/** @type {number | null} */ value) => (value === null ? h("span", { class: "faint" }, "unknown") : write(value));
    return h("tr", null, h("th", { scope: "row" }, name), h("td", null, told(before)), h("td", null, told(after)), h("td", null, before === null || after === null ? "" : changeOf(before, after, write)));
  });
  return h("section", { class: "panel compare-totals" }, h("h2", null, "Totals"),
    h("table", { class: "compare-table num" }, h("thead", null, h("tr", null, h("td"), ["A", "B", "B − A"].map((one) => h("th", { scope: "col" }, one)))), h("tbody", null, rows)));
}

/** @param {Comparison} comparison */
function comparedSettings(comparison) {
  if (comparison.settings.length === 0) return h("section", { class: "panel compare-settings" }, h("h2", null, "Settings"), h("p", { class: "soft" }, "Options, inputs and models are equal."));
  const value = (/** @type {string} */ text) => h("td", { class: "text" }, text ? oneLine(text, 400) : h("span", { class: "faint" }, "not set"));
  return h("section", { class: "panel compare-settings" }, h("h2", null, "Settings that differ"),
    h("table", { class: "compare-table" }, h("thead", null, h("tr", null, h("td"), ["A", "B"].map((one) => h("th", { scope: "col" }, one)))),
      h("tbody", null, comparison.settings.map(({ key, a, b }) => h("tr", null, h("th", { scope: "row" }, key), value(a), value(b))))));
}

// The list of paths.

/**
 * @param {App} app
 * @param {Shown} shown
 * @param {(row: number) => void} select
 */
function comparedList(app, shown, select) {
  const narrow = matchMedia("(max-width: 720px)").matches;
  const rowHeight = narrow ? NARROW_COMPARED_HEIGHT : COMPARED_HEIGHT;
  /** @type {number[]} */
  let rows = [];
  const filters = h("div", { class: "compare-filters", role: "group", "aria-label": "Shown paths" });
  const field = h("input", { type: "search", placeholder: "path", "aria-label": "Search paths" });
  const list = virtualList({ count: 0, rowHeight, render: (at) => comparedRow(app, shown, rows[at], select), props: { class: "compare-rows", role: "list", tabindex: "-1" } });
  const head = h("div", { class: "compare-row compare-row-head faint", "aria-hidden": "true" }, ["", "path", ...COMPARED_FIGURES].map((one) => h("span", null, one)));

  function filter() {
    rows = [];
    shown.comparison.rows.forEach((row, at) => {
      if (shown.kinds.has(row.kind) && row.path.toLowerCase().includes(shown.words)) rows.push(at);
    });
    list.element.style.height = rows.length <= WHOLE_LIST ? `${rows.length * rowHeight}px` : "";
    list.update(rows.length);
    drawFilters();
  }

  function drawFilters() {
    put(filters, Object.entries(ROW_KINDS).map(([kind, { glyph, word, tone, title }]) => {
      const number = shown.comparison.rows.filter((row) => row.kind === kind).length;
      if (number === 0) return null;
      return button([h("span", { class: `tone-${tone}`, "aria-hidden": "true" }, glyph), ` ${word} `, h("span", { class: "num" }, count(number))], () => {
        if (!shown.kinds.delete(kind)) shown.kinds.add(kind);
        filter();
      }, { class: "quiet compare-filter", title, "aria-pressed": String(shown.kinds.has(kind)) });
    }), field);
  }

  field.addEventListener("input", () => {
    shown.words = field.value.trim().toLowerCase();
    const from = field.selectionStart;
    filter();
    field.focus();
    field.setSelectionRange(from, from);
  });
  filter();
  const priced = shown.comparison.rows.some((row) => {
    const [a, b] = comparedSides(app, row);
    return (a?.usage.cost ?? 0) !== (b?.usage.cost ?? 0);
  });
  return {
    element: h("section", { class: `panel compare-list ${priced ? "" : "no-cost"}`, "aria-label": "Paths of both runs" }, filters, head, list.element),
    refresh: filter,
    /** @param {number} row */
    selected(row) {
      list.redraw();
      const at = rows.indexOf(row);
      if (at < 0) return;
      list.scrollTo(at);
      list.row(at)?.scrollIntoView({ block: "nearest" });
    },
    /** @param {number} step */
    next(step) {
      const at = rows.indexOf(shown.row);
      const from = at < 0 && step < 0 ? rows.length : at;
      return rows[Math.min(rows.length - 1, Math.max(0, from + step))] ?? -1;
    },
  };
}

/**
 * @param {App} app
 * @param {Shown} shown
 * @param {number} at
 * @param {(row: number) => void} select
 */
function comparedRow(app, shown, at, select) {
  const row = shown.comparison.rows[at];
  const { glyph, word, tone, title } = ROW_KINDS[row.kind];
  const why = row.kind === "same" ? "" : row.why.map((one) => ROW_REASONS[one] ?? one).join(", ");
  const above = row.path.slice(0, row.path.length - nameOf(row.path).length);
  const because = row.because && row.because !== row.path ? `, of ${row.because}` : "";
  const first = row.path === shown.comparison.first_divergence;
  return h("div", { role: "listitem", class: "compare-item" },
    h("button", { type: "button", class: `compare-row compare-${row.kind}`, "aria-current": at === shown.row ? "true" : null, on: { click: () => select(at) } },
      h("span", { class: `compare-glyph tone-${tone}`, title }, h("span", { "aria-hidden": "true" }, glyph), spoken(word)),
      h("span", { class: "compare-path", title: row.path },
        // Of a long path, the beginning is cut, which is the same in most rows.
        h("span", { class: "faint compare-above" }, h("bdi", { dir: "ltr" }, above)), h("span", { class: "compare-name" }, nameOf(row.path)),
        first ? h("span", { class: "badge tone-warn" }, "first") : null,
        why ? h("span", { class: "faint compare-why", title: `${why}${because}` }, why) : null),
      comparedFigures(app, row).map((one, column) => h("span", { class: `num compare-figure ${one === "=" ? "faint compare-even" : ""}`, data: { unit: COMPARED_FIGURES[column] } }, spoken(COMPARED_FIGURES[column]), one))));
}

/**
 * Return the differences of words, tokens, time and cost; of a call in one run only, its figures.
 * @param {App} app
 * @param {ComparedCall} row
 * @returns {Child[]}
 */
function comparedFigures(app, row) {
  const [a, b] = comparedSides(app, row);
  /** @type {[(call: Call) => number | null, (value: number) => string][]} */
  const figures = [
    [(call) => answerWords(app, call), count],
    [(call) => call.usage.input_tokens + call.usage.output_tokens, count],
    [(call) => call.seconds, time],
    [(call) => call.usage.cost, money],
  ];
  return figures.map(([figure, write]) => {
    const [before, after] = [a ? figure(a) : null, b ? figure(b) : null];
    if (a && b) return before === null || after === null ? "" : changeOf(before, after, write);
    const one = before ?? after;
    return one === null ? "" : h("span", { class: "faint" }, write(one));
  });
}

/**
 * @param {App} app
 * @param {ComparedCall} row
 * @returns {(Call | null)[]}
 */
function comparedSides(app, row) {
  return [row.a, row.b].map((call, at) => (call < 0 ? null : app.page.runs[at].calls[call]));
}

/**
 * Return a difference with its sign; one that rounds to nothing has none.
 * @param {number} before
 * @param {number} after
 * @param {(value: number) => string} write
 */
function changeOf(before, after, write) {
  const words = write(Math.abs(after - before));
  if (words === write(0)) return "=";
  return `${after > before ? "+" : "−"}${words}`;
}

/**
 * @param {App} app
 * @param {Call} call
 */
function answerWords(app, call) {
  return app.text(call.answer).match(/\S+/gu)?.length ?? 0;
}

// The panel of one path: the difference of its texts, and the X-rays of both calls.

/**
 * @param {App} app
 * @param {Shown} shown
 * @param {(row: number) => void} select
 */
function differencePanel(app, shown, select) {
  const rays = xray(app);
  const bar = h("div", { class: "tabs", role: "tablist", "aria-label": "Views of the call" });
  const body = h("div", { class: "compare-panel-body", role: "tabpanel", "aria-label": "The selected call" });
  const element = h("section", { class: "panel compare-panel", "aria-label": "The selected call in both runs", hidden: true },
    h("div", { class: "compare-bar" }, bar, button("✕", () => select(-1), { class: "quiet x-close", "aria-label": "Close", title: "Close (Esc)" })), body);
  const labels = ["Difference", "X-ray of A", "X-ray of B"];

  function draw() {
    const row = shown.comparison.rows[shown.row];
    element.hidden = !row;
    if (!row) return put(body);
    const missing = [false, row.a < 0, row.b < 0];
    const tab = missing[COMPARE_PANELS.indexOf(app.tab)] ? "difference" : app.tab;
    put(bar, COMPARE_PANELS.map((one, at) => button([labels[at], h("kbd", { "aria-hidden": "true" }, at + 1)], () => app.open(one), {
      role: "tab", class: "tab", "aria-selected": String(one === tab), disabled: missing[at],
    })));
    if (tab === "difference") put(body, differenceOf(app, row));
    else {
      rays.selected?.(app.selected);
      put(body, rays.element);
    }
    body.scrollTop = 0;
  }
  return { element, draw };
}

/**
 * @param {App} app
 * @param {ComparedCall} row
 */
function differenceOf(app, row) {
  const { word, title, tone } = ROW_KINDS[row.kind];
  const why = row.why.map((one) => ROW_REASONS[one] ?? one).join(", ");
  return h("div", { class: "compare-difference" },
    h("h2", { class: "mono" }, row.path),
    h("p", { class: "soft" }, h("span", { class: `badge tone-${tone}` }, word), ` ${why || title}`,
      row.because && row.because !== row.path ? [", because of ", h("span", { class: "mono" }, row.because)] : null),
    comparedTexts(app, row));
}

/**
 * Return the texts of both calls side by side, with the words that differ.
 * @param {App} app
 * @param {ComparedCall} row
 */
function comparedTexts(app, row) {
  const calls = comparedSides(app, row);
  if (!calls[0] && !calls[1]) return h("p", { class: "soft" }, "A block has no text of its own: what differs is how it runs or merges.");
  /** @type {[string, (call: Call, run: Run) => string][]} */
  const texts = [
    ["System and examples", (call, run) => call.lead.map((at) => app.text(run.messages[at].text)).join("\n\n")],
    ["Prompt", (call, run) => (call.decision ? app.text(call.decision.question) : call.prompt < 0 ? paramsText(call) : app.text(run.messages[call.prompt].text))],
    ["Answer", (call) => comparedAnswer(app, call)],
  ];
  return texts.map(([name, text]) => {
    const [a, b] = calls.map((call, at) => (call ? text(call, app.page.runs[at]) : null));
    if (!a && !b) return null;
    if (a === b) return h("details", { class: "compare-text" }, h("summary", null, h("h3", null, name), h("span", { class: "x-note" }, "the same in both")), h("div", { class: "text compare-side" }, firstPart(a ?? "")));
    return h("section", { class: "compare-text" }, h("h3", null, name), h("div", { class: "compare-sides" }, ...textSides(a, b)));
  });
}

/**
 * @param {string | null} a
 * @param {string | null} b
 */
function textSides(a, b) {
  const parts = a === null || b === null ? [] : wordsDiff(a, b);
  const alike = parts.length > 0 && similarity(parts) >= ALIKE_ENOUGH;
  return [a, b].map((text, at) => {
    const side = h("div", { class: "text compare-side", "aria-label": `In run ${"AB"[at]}`, role: "group" }, runLetter(at));
    if (text === null) add(side, h("span", { class: "faint" }, " no such call"));
    else if (!alike) add(side, " ", h(parts.length === 0 ? "span" : at === 0 ? "del" : "ins", null, firstPart(text)));
    else add(side, " ", parts.filter((part) => part.kind === "same" || part.kind === (at === 0 ? "removed" : "added")).map((part) => h(part.kind === "same" ? "span" : at === 0 ? "del" : "ins", null, part.text)));
    return side;
  });
}

/** @param {string} text */
function firstPart(text) {
  return text.length > 20_000 ? `${text.slice(0, 20_000)} …` : text;
}

/** @param {Call} call */
function paramsText(call) {
  return Object.keys(call.params).length ? JSON.stringify(call.params, null, 1) : "";
}

/**
 * @param {App} app
 * @param {Call} call
 */
function comparedAnswer(app, call) {
  if (call.decision) return [call.decision.decision, app.text(call.decision.feedback)].filter(Boolean).join(": ");
  if (call.answer !== null) return app.text(call.answer);
  return call.error ? `${call.error.type}: ${call.error.message}` : "";
}
