// @ts-check
/** The screen of a session: the conversation, the events of a turn, and the X-ray of a call. */

import { lookup } from "./data.js";
import { add, button, copyButton, h, longText, put, spoken } from "./dom.js";
import { many, moment, oneLine, time, usageLine } from "./format.js";
import { statusBadge } from "./labels.js";
import { isMarkdown, markdown } from "./markdown.js";
import { xray } from "./xray.js";

/**
 * @typedef {import("./modules").App} App
 * @typedef {import("./page").Session} Session
 * @typedef {import("./page").Turn} Turn
 * @typedef {import("./page").SessionEntry} SessionEntry
 * @typedef {import("./page").Run} Run
 * @typedef {import("./page").Index} Index
 */

/** What each kind of event looks like; programs and outputs are set in a fixed width. */
const EVENTS = /** @type {{[kind: string]: {glyph: string, fixed?: boolean}}} */ ({
  plan: { glyph: "☰" },
  decision: { glyph: "◆" },
  program: { glyph: "⌘", fixed: true },
  output: { glyph: "▤", fixed: true },
  answer: { glyph: "●" },
  error: { glyph: "✕" },
  other: { glyph: "·" },
});

/** Characters of a message in the conversation, and of an event, before the rest is folded. */
const MOST_SAID = 1200;
const MOST_EVENT = 4000;

/**
 * @param {App} app
 * @returns {import("./modules").Screen}
 */
export function sessionScreen(app) {
  const session = () => /** @type {Session} */ (app.page.session);
  const panel = xray(app);
  const top = h("header", { class: "session-top" });
  const said = h("ol", { class: "session-turns" });
  const events = h("section", { class: "session-events panel", "aria-label": "Events of the turn" });
  const element = h("div", { class: "session" }, top,
    h("div", { class: "session-body" }, h("nav", { class: "session-said", "aria-label": "Conversation" }, said), events, panel.element));
  const body = /** @type {HTMLElement} */ (element.lastElementChild);

  let at = firstShown(app, session());

  /** @param {number} next */
  function show(next) {
    at = next;
    const run = session().turns[at]?.run ?? -1;
    if (run >= 0 && app.page.runs[run] !== app.run) app.show(run);
    else {
      app.select(-1);
      draw();
    }
    said.querySelector("[aria-current=true]")?.scrollIntoView({ block: "nearest" });
  }

  function draw() {
    put(top, headOf(session()));
    put(said, session().turns.map((turn, index) => saidIn(app, turn, index === at, () => show(index))));
    drawEvents();
  }

  function drawEvents() {
    const turn = session().turns[at];
    put(events, ...(turn ? eventsOf(app, turn) : [h("p", { class: "soft" }, "Nothing has been said yet.")]));
    markSelected(app, events);
  }

  draw();
  return {
    element,
    selected(call) {
      body.classList.toggle("has-xray", call >= 0);
      panel.selected?.(call);
      markSelected(app, events);
    },
    refresh() {
      const { turns } = session();
      // A turn without a run isn't in the address: it stays until a run is chosen.
      const shown = turns[at];
      if (!shown || (shown.run >= 0 && app.page.runs[shown.run] !== app.run)) {
        at = Math.max(0, turns.findIndex((turn) => turn.run >= 0 && app.page.runs[turn.run] === app.run));
      }
      draw();
      panel.refresh?.();
    },
    key(key) {
      const { turns } = session();
      if (key !== "n" && key !== "p") return false;
      const next = Math.min(turns.length - 1, Math.max(0, at + (key === "n" ? 1 : -1)));
      if (next !== at) show(next);
      return true;
    },
  };
}

/**
 * Return the turn to begin with: that of the address, or the last one.
 * @param {App} app
 * @param {Session} session
 */
function firstShown(app, session) {
  if (!location.hash.includes("run=")) {
    const last = session.turns.at(-1);
    if (last && last.run >= 0) app.show(last.run);
    return session.turns.length - 1;
  }
  return session.turns.findIndex((turn) => turn.run >= 0 && app.page.runs[turn.run] === app.run);
}

/**
 * @param {Session} session
 * @returns {import("./dom.js").Child[]}
 */
function headOf(session) {
  const facts = session.facts.length;
  const commands = Object.entries(session.commands ?? {});
  return [
    h("h1", null, session.title || session.id),
    h("p", { class: "soft" }, "session ", h("span", { class: "mono" }, session.id), ` · began ${moment(session.created_at).slice(0, 16)} · ${many(session.turns.length, "turn")}`),
    h("div", { class: "session-tools" }, commands.map(([purpose, command]) => copyButton(`copy: ${purpose}`, command, { title: command }))),
    ...session.notes.map((note) => h("p", { class: "session-note" }, note)),
    facts > 0 && h("p", { class: "spoken" }, many(facts, "remembered fact")),
  ];
}

/**
 * Return a turn as it was said: message and answer.
 * @param {App} app
 * @param {Turn} turn
 * @param {boolean} current
 * @param {() => void} show
 */
function saidIn(app, turn, current, show) {
  const user = app.text(turn.user);
  const label = `Turn ${turn.number}`;
  const name = button([label, spoken(`: ${oneLine(user, 60)}`)], show, { class: "link session-number" });
  const item = h("li", { class: `session-turn ${current ? "current" : ""}`, "aria-current": current ? "true" : null, on: {
    click: (/** @type {Event} */ event) => {
      // A click to copy words or to unfold a text isn't meant for the turn.
      if (event.target instanceof Element && event.target.closest("button, a")) return;
      if (!String(getSelection()).length) show();
    },
  } }, h("div", { class: "session-line" }, name, turn.status !== "done" && statusBadge(turn.status)));
  if (user) add(item, longText(user, { most: MOST_SAID, class: "session-user" }));
  if (turn.answer !== null) add(item, prose(app.text(turn.answer), MOST_SAID, "session-answer"));
  return item;
}

/**
 * Return the events of a turn, in the order in which they happened.
 * @param {App} app
 * @param {Turn} turn
 * @returns {import("./dom.js").Child[]}
 */
function eventsOf(app, turn) {
  const run = turn.run >= 0 ? app.page.runs[turn.run] : null;
  const first = turn.entries.find((entry) => entry.at !== null)?.at ?? null;
  const facts = turn.number === 0 ? [] : (app.page.session?.facts ?? []).filter((fact) => fact.source === `turn ${turn.number}`);
  return [
    h("header", { class: "session-events-head" },
      h("h2", null, `Turn ${turn.number}`), statusBadge(turn.status),
      run && h("span", { class: "num faint" }, [time(run.seconds), usageLine(run.paid)].filter(Boolean).join(" · ")),
      run?.commands?.view && copyButton("copy: the whole run", run.commands.view, { title: run.commands.view })),
    run && run.failure && h("p", { class: "tone-bad" }, run.verdict),
    h("ol", { class: "session-list" }, turn.entries.map((entry) => eventOf(app, run, entry, first))),
    turn.entries.length === 0 && h("p", { class: "soft" }, "The record has no events of this turn."),
    facts.length > 0 && h("div", { class: "session-facts" }, h("h3", null, "Remembered"), h("ul", null, facts.map((fact) => h("li", null, app.text(fact.text))))),
  ];
}

/**
 * @param {App} app
 * @param {Run | null} run
 * @param {SessionEntry} entry
 * @param {number | null} first The time of the turn's first event.
 */
function eventOf(app, run, entry, first) {
  const { glyph, fixed: isCode } = EVENTS[entry.kind] ?? EVENTS.other;
  // The text of an edited program is a program too.
  const fixed = isCode || entry.title.startsWith("Program edited");
  const call = run ? callOf(run, entry) : -1;
  const tone = entry.ok === false ? "tone-bad" : entry.ok === true && entry.kind !== "answer" ? "tone-good" : "";
  const text = app.text(entry.text);
  const title = call >= 0
    ? button(entry.title, () => app.select(app.selected === call ? -1 : call), { class: "link session-title", "data-call": String(call), "aria-pressed": "false", title: `X-ray of ${entry.path}` })
    : h("span", { class: "session-title" }, entry.title);
  const since = entry.at !== null && first !== null && entry.at > first ? `+${time(entry.at - first)}` : "";
  return h("li", { class: `session-event kind-${entry.kind}`, "data-call": call >= 0 ? String(call) : null, on: {
    click: (/** @type {Event} */ event) => {
      if (call < 0 || (event.target instanceof Element && event.target.closest("button, a"))) return;
      if (!String(getSelection()).length) app.select(call);
    },
  } },
  h("span", { class: `session-glyph ${tone}`, "aria-hidden": "true" }, glyph),
  h("div", { class: "session-line" }, title, outcomeOf(entry), entry.who && h("span", { class: "badge" }, entry.who),
    entry.at !== null && h("time", { class: "num faint", datetime: new Date(entry.at * 1000).toISOString(), title: moment(entry.at) }, moment(entry.at).slice(11), " ", since)),
  text && (fixed ? longText(text, { most: MOST_EVENT, class: "mono session-fixed" }) : prose(text, MOST_EVENT, "session-text")));
}

/**
 * Return what a model or a person wrote; Markdown is laid out.
 * @param {string} text
 * @param {number} most Characters before the rest is folded.
 * @param {string} name The class of the element.
 */
function prose(text, most, name) {
  const laidOut = isMarkdown(text);
  return longText(text, { most, class: laidOut ? `${name} session-markdown` : name, draw: laidOut ? markdown : undefined });
}

/**
 * Return whether something worked, where that isn't in the title.
 * @param {SessionEntry} entry
 */
function outcomeOf(entry) {
  if (entry.kind !== "output" || entry.ok === null) return null;
  return h("span", { class: `badge ${entry.ok ? "tone-good" : "tone-bad"}` }, entry.ok ? "worked" : "failed");
}

/**
 * Return the call of an event, or -1. A function that only takes the program out of an answer is
 * passed over: its maker is the model's call.
 * @param {Run} run
 * @param {SessionEntry} entry
 * @returns {Index}
 */
function callOf(run, entry) {
  const { calls } = lookup(run);
  const at = entry.path ? (calls.get(entry.path) ?? -1) : -1;
  if (at < 0 || entry.kind !== "program" || run.calls[at].kind !== "call") return at;
  const makers = run.calls[at].reads.map((read) => calls.get(read.made_by)).filter((call) => call !== undefined);
  return makers.length === 1 ? makers[0] : at;
}

/**
 * Mark the events of the selected call.
 * @param {App} app
 * @param {HTMLElement} events
 */
function markSelected(app, events) {
  for (const event of events.querySelectorAll("li[data-call]")) {
    const current = app.selected >= 0 && event.getAttribute("data-call") === String(app.selected);
    event.classList.toggle("current", current);
    event.querySelector("button[data-call]")?.setAttribute("aria-pressed", String(current));
    if (current) event.scrollIntoView({ block: "nearest" });
  }
}
