// @ts-check
/** The screen of one run: its verdict, the outline, the tabs, and the X-ray. */

import { firstFailure } from "./data.js";
import { add, button, copyButton, h, longText, put } from "./dom.js";
import { drawingTab } from "./drawing.js";
import { many, moment, money, oneLine, time, tokens } from "./format.js";
import { pathLink, statusBadge } from "./labels.js";
import { markdown } from "./markdown.js";
import { outline } from "./outline.js";
import { searchBox } from "./search.js";
import { storyTab } from "./story.js";
import { thingsTab } from "./things.js";
import { timelineTab } from "./timeline.js";
import { xray } from "./xray.js";

/**
 * @typedef {import("./modules").App} App
 * @typedef {import("./modules").Screen} Screen
 * @typedef {import("./page").Usage} Usage
 */

/** @type {{[tab: string]: {label: string, make: (app: App) => Screen | null}}} */
const TABS = {
  story: { label: "Story", make: storyTab },
  timeline: { label: "Timeline", make: timelineTab },
  drawing: { label: "Drawing", make: drawingTab },
  things: { label: "Things", make: thingsTab },
};

/**
 * Return the screen.
 * @param {App} app
 * @returns {Screen}
 */
export function runScreen(app) {
  const top = h("header", { class: "top" });
  const search = searchBox(app);
  const workspace = workspaceOf(app);
  const draw = () => put(top, topOf(app, search.element));
  draw();
  // A failed run opens at its failure, a waiting one at its question; not on a phone, where the
  // X-ray would cover the verdict.
  const isPhone = matchMedia("(max-width: 720px)").matches;
  if (!isPhone && app.selected < 0 && !location.hash.includes("call=")) {
    const { run } = app;
    if (run.failure) app.selected = firstFailure(run);
    else if (run.status === "waiting") app.selected = run.calls.findIndex((call) => call.status === "waiting");
  }
  return {
    element: h("div", { class: "run" }, top, workspace.element),
    selected: workspace.selected,
    opened: workspace.opened,
    refresh() {
      draw();
      search.refresh?.();
      workspace.refresh?.();
    },
  };
}

/**
 * Return outline, tabs and X-ray of the app's run.
 * @param {App} app
 * @returns {Screen}
 */
export function workspaceOf(app) {
  const tree = outline(app);
  const panel = xray(app);
  const tabs = tabsOf(app);
  const side = h("nav", { class: "side panel", "aria-label": "Outline" }, tree.element);
  // On a phone the outline is folded away, above the story.
  const fold = button("Outline", () => {
    const open = element.classList.toggle("shows-outline");
    fold.setAttribute("aria-expanded", String(open));
    if (open) tree.refresh?.();
  }, { class: "quiet fold-outline", "aria-expanded": "false" });
  const element = h("div", { class: "workspace" }, fold, side, tabs.element, panel.element);
  return {
    element,
    selected(call) {
      element.classList.toggle("has-xray", call >= 0);
      panel.selected?.(call);
      // The X-ray is on the screen before the others look for the call.
      requestAnimationFrame(() => setTimeout(() => {
        if (call !== app.selected) return;
        tree.selected?.(call);
        tabs.selected?.(call);
      }));
    },
    opened: tabs.opened,
    refresh() {
      element.classList.toggle("has-xray", app.selected >= 0);
      tree.refresh?.();
      tabs.refresh?.();
      panel.refresh?.();
    },
  };
}

/**
 * @param {App} app
 * @returns {Screen}
 */
function tabsOf(app) {
  /** @type {Map<string, Screen>} */
  let made = new Map();
  const bar = h("div", { class: "tabs", role: "tablist", "aria-label": "Views of the run" });
  const body = h("div", { class: "tab-body", role: "tabpanel", id: "tab-body", tabindex: "-1" });

  function available() {
    const { run } = app;
    return Object.keys(TABS).filter((tab) => (tab !== "things" || run.recipe) && (tab !== "drawing" || run.drawing));
  }

  function drawBar() {
    app.tabs = available();
    if (!app.tabs.includes(app.tab)) app.tab = app.run.recipe ? "things" : app.tabs[0];
    put(bar, app.tabs.map((tab, at) => button([TABS[tab].label, h("kbd", { "aria-hidden": "true" }, at + 1)], () => app.open(tab), {
      role: "tab", id: `tab-${tab}`, "aria-selected": String(tab === app.tab), "aria-controls": "tab-body", class: "tab",
      tabindex: tab === app.tab ? "0" : "-1",
    })));
    body.setAttribute("aria-labelledby", `tab-${app.tab}`);
  }

  function open() {
    drawBar();
    let screen = made.get(app.tab);
    if (!screen) {
      screen = TABS[app.tab].make(app) ?? { element: h("p", { class: "faint" }, "Nothing to show.") };
      made.set(app.tab, screen);
    }
    put(body, screen.element);
    body.className = `tab-body tab-${app.tab}`;
    screen.opened?.();
    screen.selected?.(app.selected);
  }

  bar.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = app.tabs[(app.tabs.indexOf(app.tab) + step + app.tabs.length) % app.tabs.length];
    app.open(next);
    document.getElementById(`tab-${next}`)?.focus();
    event.preventDefault();
  });
  open();
  return {
    element: h("div", { class: "middle" }, bar, body),
    selected: (call) => made.get(app.tab)?.selected?.(call),
    opened: open,
    refresh() {
      const shown = made.get(app.tab);
      const same = available().join() === app.tabs.join();
      // A tab that can't draw itself again is made anew.
      made = new Map(same && shown?.refresh ? [[app.tab, shown]] : []);
      if (same && shown?.refresh) {
        drawBar();
        shown.refresh();
      } else open();
    },
  };
}

/**
 * Return the top: the answers to the first questions about a run.
 * @param {App} app
 * @param {HTMLElement} search
 * @returns {HTMLElement[]}
 */
function topOf(app, search) {
  const { run } = app;
  const line = h("div", { class: "top-line" },
    statusBadge(run.status),
    h("h1", { title: run.id }, run.graph),
    h("span", { class: "mono faint top-id" }, run.id),
    h("span", { class: "faint top-when" }, moment(run.created_at)),
    h("span", { class: "faint top-models" }, run.models.join(", ")),
    search);
  const verdict = h("p", { class: `verdict verdict-${run.status}` }, run.verdict);
  const left = h("div", { class: "top-left" }, verdict, failureBox(app), resultBox(app), run.notes.map((note) => h("p", { class: "note" }, h("span", { "aria-hidden": "true" }, "⚠ "), note)));
  return [line, h("div", { class: "top-grid" }, left, h("div", { class: "top-right" }, usageTable(app), settingsLine(app), commandsLine(app)))];
}

/** @param {App} app */
function failureBox(app) {
  const { failure } = app.run;
  if (!failure) return null;
  return h("div", { class: "failure-box", role: "group", "aria-label": "First failure" },
    h("span", { class: "failure-label" }, "First failure"), " ",
    pathLink(app, failure.path), " ",
    h("strong", null, failure.type), " ",
    h("span", { class: "text" }, oneLine(failure.message, 300)));
}

/** @param {App} app */
function resultBox(app) {
  const { run } = app;
  if (run.result === null) return null;
  const whole = app.text(run.result);
  const clip = h("p", { class: "result-clip" }, oneLine(whole, 330));
  if (whole.length <= 200 && !whole.includes("\n")) return h("div", { class: "result" }, h("span", { class: "result-label" }, "Result"), clip, copyButton("copy", whole, { "aria-label": "Copy the result" }));
  const full = h("div", { class: "result-full", hidden: true });
  const toggle = button("show all", () => {
    if (!full.firstChild) add(full, longText(whole, { draw: (part) => markdown(part) }));
    full.hidden = !full.hidden;
    clip.hidden = !full.hidden;
    toggle.textContent = full.hidden ? "show all" : "show less";
    toggle.setAttribute("aria-expanded", String(!full.hidden));
  }, { class: "quiet", "aria-expanded": "false" });
  return h("div", { class: "result" }, h("span", { class: "result-label" }, "Result"), h("div", null, clip, full), h("span", { class: "x-tools" }, toggle, copyButton("copy", whole, { "aria-label": "Copy the result" })));
}

/** @param {App} app */
function usageTable(app) {
  const { run } = app;
  /** @param {string} label @param {Usage} usage */
  const row = (label, usage) => usage.calls === 0 ? h("tr", null, h("th", { scope: "row" }, label), h("td", { colspan: 3, class: "faint" }, "nothing")) : h("tr", null, h("th", { scope: "row" }, label), h("td", null, many(usage.calls, "call")), h("td", null, `${usage.estimated ? "~" : ""}${tokens(usage)}`),
    h("td", null, usage.cost === null ? h("span", { class: "faint" }, "no price") : money(usage.cost)));
  return h("table", { class: "usage" }, h("caption", { class: "spoken" }, "What was paid now, and what was reused from a record"),
    h("tbody", null, row("paid now", run.paid), row("reused", run.reused),
      run.seconds === null ? null : h("tr", null, h("th", { scope: "row", title: "the time in which calls ran, without waits" }, "time in calls"), h("td", { colspan: 3 }, time(run.seconds)))));
}

/** @param {App} app */
function settingsLine(app) {
  const { run } = app;
  const given = [...run.settings, ...run.inputs.map(({ key, text }) => ({ key: `input ${key}`, text })), ...run.outputs.map(({ key, text }) => ({ key: `captured ${key}`, text }))];
  if (given.length === 0) return null;
  const words = [run.inputs.length ? many(run.inputs.length, "input") : "", run.settings.length ? many(run.settings.length, "setting") : "", run.outputs.length ? many(run.outputs.length, "captured value") : ""];
  const list = h("dl", null);
  const details = h("details", { class: "given" }, h("summary", null, words.filter(Boolean).join(", ")), list);
  let shown = 0;
  const more = button("more", () => show(), { class: "more" });
  const show = () => {
    // Thousands of values would be thousands of elements that nobody looks at.
    for (const { key, text } of given.slice(shown, shown + 100)) add(list, h("dt", { class: "mono" }, key), h("dd", null, longText(app.text(text), { most: 600 })));
    shown = Math.min(given.length, shown + 100);
    more.textContent = `${given.length - shown} more`;
    if (shown < given.length) add(details, more);
    else more.remove();
  };
  details.addEventListener("toggle", () => {
    if (details.open && shown === 0) show();
  });
  return details;
}

/** @param {App} app */
function commandsLine(app) {
  const commands = Object.entries(app.run.commands);
  if (commands.length === 0) return null;
  return h("details", { class: "given" }, h("summary", null, "commands"),
    h("dl", null, commands.map(([purpose, command]) => [h("dt", null, purpose), h("dd", null, h("code", null, command), " ", copyButton("copy", command, { "aria-label": `Copy the command: ${purpose}` }))])));
}
