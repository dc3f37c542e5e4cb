// @ts-check
/** The screen "explain": a run before it is paid. */

import { bringing, seenBy, through } from "./data.js";
import { add, button, h, put } from "./dom.js";
import { count, MERGE, money, nameOf, range } from "./format.js";

/**
 * @typedef {import("./modules").App} App
 * @typedef {import("./page").Run} Run
 * @typedef {import("./page").Call} Call
 * @typedef {import("./page").Plan} Plan
 */

/** Rows that are made at once; more come when they are asked for. */
const PLANNED_ROWS = 500;

/**
 * Return the prediction of a run: totals, warnings, each step with its prompt, and what it will see.
 * @param {App} app
 * @returns {import("./modules").Screen}
 */
export function explainScreen(app) {
  const element = h("div", { class: "explain" });
  /** @type {Map<number, HTMLElement>} */
  const rows = new Map();
  const panel = h("aside", { class: "explain-sees panel", "aria-label": "What the step will see" });

  function draw() {
    rows.clear();
    const { run } = app;
    const plan = run.plan;
    put(element,
      h("header", { class: "explain-head" },
        h("h1", null, app.page.title),
        h("p", { class: "explain-verdict" }, run.verdict),
        plan ? planTotals(plan) : null,
        plan ? h("p", { class: "faint" }, `Basis: ${plan.basis}. Retries aren't counted.`) : null),
      plan ? planWarnings(app, plan) : null,
      h("div", { class: "explain-body" }, plannedSteps(app, rows), panel),
      plan ? planCaptures(plan) : null);
    selected(app.selected);
  }

  /** @param {number} call */
  function selected(call) {
    for (const [at, row] of rows) row.classList.toggle("is-selected", at === call);
    rows.get(call)?.scrollIntoView({ block: "nearest" });
    put(panel, call < 0 ? h("p", { class: "faint" }, "Choose a step to see its messages.") : plannedSees(app, call));
    panel.classList.toggle("is-empty", call < 0);
    // What scrolls takes the focus, so that the keyboard can scroll it; what doesn't is no stop of Tab.
    for (const one of [panel, .../** @type {NodeListOf<HTMLElement>} */ (panel.querySelectorAll(".explain-text"))]) {
      if (one.scrollHeight > one.clientHeight) one.tabIndex = 0;
      else one.removeAttribute("tabindex");
    }
  }

  draw();
  return { element, selected, refresh: draw };
}

/**
 * @param {Plan} plan
 */
function planTotals(plan) {
  const cost = plan.cost === null ? "unknown" : range(plan.cost, money);
  /** @type {[string, string][]} */
  const shown = [
    ["model calls", range(plan.calls)],
    ["tokens in", range(plan.input_tokens)],
    ["tokens out", range(plan.output_tokens)],
    ["cost", cost],
  ];
  return h("dl", { class: "explain-totals" },
    shown.map(([name, value]) => h("div", { class: "panel" }, h("dt", { class: "faint" }, name), h("dd", { class: "num" }, value))));
}

/**
 * @param {App} app
 * @param {Plan} plan
 */
function planWarnings(app, plan) {
  if (plan.warnings.length === 0) return null;
  return h("section", { class: "explain-warnings panel", "aria-label": "Warnings" },
    h("h2", null, "Before you run it"),
    h("ul", null, plan.warnings.map((one) =>
      h("li", null, one.path ? [plannedLink(app, one.path), " "] : null, one.message))));
}

/**
 * Return a link to the step at a path.
 * @param {App} app
 * @param {string} path
 */
function plannedLink(app, path) {
  return button(path, () => app.selectPath(path), { class: "link mono" });
}

/**
 * Return the table of steps in the outline of the tree.
 * @param {App} app
 * @param {Map<number, HTMLElement>} rows
 */
function plannedSteps(app, rows) {
  const { run } = app;
  const longest = Math.max(1, ...run.calls.map((call) => call.planned?.input_tokens[1] ?? call.planned?.input_tokens[0] ?? 0));
  const calls = new Map(run.calls.map((call, at) => [call.path, at]));
  const body = h("tbody");
  let next = 0;

  function more() {
    const end = Math.min(run.nodes.length, next + PLANNED_ROWS);
    for (; next < end; next++) {
      const node = run.nodes[next];
      const at = calls.get(node.path) ?? -1;
      add(body, at < 0 ? plannedHeading(run, next) : plannedRow(app, at, next, longest, rows));
    }
  }
  more();
  const rest = button("Show more steps", () => {
    more();
    if (next >= run.nodes.length) rest.remove();
  }, { class: "more" });
  const head = ["step", "sees", "prompt", "tokens", "calls", "cost"];
  return h("div", { class: "explain-steps panel" },
    h("table", null,
      h("thead", null, h("tr", null, head.map((name) => h("th", { scope: "col" }, name)))),
      body),
    next < run.nodes.length ? rest : null);
}

/**
 * Return how deep a node is in the outline.
 * @param {Run} run
 * @param {number} at
 */
function plannedDepth(run, at) {
  let depth = 0;
  for (let above = run.nodes[at].parent; above >= 0; above = run.nodes[above].parent) depth++;
  return depth;
}

/**
 * @param {Run} run
 * @param {number} at
 */
function plannedHeading(run, at) {
  const node = run.nodes[at];
  const merge = MERGE[node.merge] ?? MERGE[""];
  const name = h("span", { style: { paddingLeft: `${plannedDepth(run, at) * 14}px` } }, nameOf(node.path));
  return h("tr", { class: "explain-block" },
    h("th", { scope: "row", colspan: 6 }, name,
      merge.word ? h("span", { class: `badge merge-${merge.tone}`, title: `merge: ${merge.word}` }, merge.glyph, " ", merge.word) : null));
}

/**
 * @param {App} app
 * @param {number} at
 * @param {number} node
 * @param {number} longest
 * @param {Map<number, HTMLElement>} rows
 */
function plannedRow(app, at, node, longest, rows) {
  const { run } = app;
  const call = run.calls[at];
  const { planned } = call;
  const asks = planned !== null && planned.input_tokens[1] !== 0;
  const name = button(nameOf(call.path), () => app.select(at), { class: "link", title: call.path });
  const made = h("tr", { class: "explain-step" },
    h("th", { scope: "row" }, h("span", { style: { paddingLeft: `${plannedDepth(run, node) * 14}px` } }, name)),
    h("td", { class: "num" }, call.kind === "gate" ? "decision" : run.nodes[node].kind === "stage" ? "" : count(seenBy(run, call).length)),
    h("td", null, asks ? plannedBar(planned.input_tokens, longest) : null),
    h("td", { class: "num" }, asks ? range(planned.input_tokens) : ""),
    h("td", { class: "num" }, planned && asks ? range(planned.times) : ""),
    h("td", { class: "num" }, planned && asks ? (planned.cost === null ? "?" : money(planned.cost)) : ""));
  rows.set(at, made);
  return made;
}

/**
 * Return a bar: full up to the least, light up to the most.
 * @param {import("./page").Range} tokens
 * @param {number} longest
 */
function plannedBar([least, most], longest) {
  const share = (/** @type {number} */ n) => `${Math.max(0.5, (100 * n) / longest)}%`;
  return h("span", { class: "explain-bar", "aria-hidden": "true" },
    h("span", { class: "explain-most", style: { width: share(most ?? longest) } }),
    h("span", { class: "explain-least", style: { width: share(least) } }));
}

/**
 * Return what a step will see: a card for each message, with its maker and the merge that brings it.
 * @param {App} app
 * @param {number} at
 */
function plannedSees(app, at) {
  const { run } = app;
  const call = run.calls[at];
  const facts = [call.model || "no model", call.planned ? `about ${range(call.planned.output_tokens)} tokens of answer` : ""];
  const messages = seenBy(run, call);
  return [
    h("h2", { class: "mono" }, call.path),
    h("p", { class: "faint" }, facts.filter(Boolean).join(" · ")),
    call.reads.length ? h("p", null, "Reads ", call.reads.map((read, number) => [
      number ? ", " : "", h("code", null, read.key), read.made_by ? [" of ", plannedLink(app, read.made_by)] : ` (${read.source})`])) : null,
    run.nodes[call.node].kind === "stage" ? h("p", { class: "faint" }, "What a stage sees depends on its items.") : messages.length ? h("ol", { class: "explain-cards" }, messages.map((seen) => plannedCard(app, call, seen))) : h("p", { class: "faint" }, "It sees no message."),
  ];
}

/**
 * @param {App} app
 * @param {Call} call
 * @param {import("./data").Seen} seen
 */
function plannedCard(app, call, seen) {
  const { run } = app;
  const message = run.messages[seen.message];
  const by = message.by < 0 || seen.place !== "conversation" ? null : run.nodes[message.by].path;
  const brought = by === null ? null : bringing(run, through(run, seen.message, call.node));
  const merge = brought ? (MERGE[brought.merge] ?? MERGE[""]) : null;
  const places = { lead: message.role === "system" ? "system message, this call only" : "example, this call only", prompt: "its own prompt", conversation: "given to the run" };
  const text = app.text(message.text);
  return h("li", { class: "panel" },
    h("div", { class: "explain-card-head" },
      h("span", { class: "badge" }, message.role),
      by === null ? h("span", { class: "soft" }, places[seen.place]) : plannedLink(app, by),
      merge?.word ? h("span", { class: `badge merge-${merge.tone}` }, merge.glyph, " ", merge.word) : null),
    h("div", { class: "text explain-text", role: "group", "aria-label": `${message.role} message` }, text));
}

/**
 * @param {Plan} plan
 */
function planCaptures(plan) {
  if (plan.captures.length === 0) return null;
  const unread = plan.captures.filter((one) => one.read_by.length === 0);
  return h("section", { class: "explain-captures panel", "aria-label": "Captures" },
    h("h2", null, `Captures: ${count(plan.captures.length)}${unread.length ? `; never read: ${count(unread.length)}` : ", all read"}`),
    h("table", null,
      h("thead", null, h("tr", null, ["key", "written by", "read by"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", null, plan.captures.map((one) => h("tr", null,
        h("th", { scope: "row" }, h("code", null, one.key)),
        h("td", { class: "mono" }, one.path),
        h("td", { class: one.read_by.length ? "mono" : "tone-warn" }, one.read_by.length ? one.read_by.join(", ") : "nothing: a result"))))));
}
