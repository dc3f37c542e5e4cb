// @ts-check
/** The page: reads its data, makes the screen, and follows the address and the keyboard. */

import { batchScreen } from "./batch.js";
import { compareScreen } from "./compare.js";
import { callAt, firstFailure, makersForCall, parsePage, readersOfCall } from "./data.js";
import { announce, add, button, focusOn, h, isTyping } from "./dom.js";
import { explainScreen } from "./explain.js";
import { many } from "./format.js";
import { liveStatus } from "./live.js";
import { runScreen } from "./run.js";
import { runsScreen } from "./runs.js";
import { sessionScreen } from "./session.js";

/**
 * @typedef {import("./modules").App} App
 * @typedef {import("./modules").Screen} Screen
 * @typedef {import("./page").Page} Page
 */

/** @type {{[screen: string]: (app: App) => Screen}} */
const SCREENS = {
  run: runScreen,
  runs: runsScreen,
  session: sessionScreen,
  compare: compareScreen,
  explain: explainScreen,
  batch: batchScreen,
};

/** Keys and what they do, as the help shows them. */
const KEYS = [
  ["/", "search"],
  ["j  k", "next and previous call"],
  ["f", "the first failure"],
  ["[  ]", "the call whose answer this one saw; the call that saw this answer"],
  ["1 2 3 …", "tabs, from the left"],
  ["Esc", "close the X-ray, the search, or this help"],
  ["?", "this help"],
];

/** Return what the address says: run, tab, and call. */
function address() {
  const said = new URLSearchParams(location.hash.slice(1));
  return { run: said.get("run"), tab: said.get("tab"), call: said.get("call") };
}

/**
 * Return the fragment that leads back to what is shown.
 * @param {App} app
 */
function fragment(app) {
  const parts = new URLSearchParams();
  if (app.run) parts.set("run", app.run.id);
  if (app.tab) parts.set("tab", app.tab);
  if (app.selected >= 0) parts.set("call", app.run.calls[app.selected].path);
  return `#${parts.toString().replaceAll("%2F", "/").replaceAll("+", "%20")}`;
}

/**
 * Return the state of a page. `changed` says which part of it others have to draw again.
 * @param {Page} page
 * @param {(what: "call" | "tab" | "run") => void} changed
 * @returns {App}
 */
function newApp(page, changed) {
  /** @type {App} */
  const app = {
    page,
    run: page.runs[0],
    selected: -1,
    tab: "",
    tabs: [],
    text: (id) => (id === null || id < 0 ? "" : (app.page.texts[id] ?? "")),
    select(call) {
      if (call === app.selected) return;
      app.selected = call;
      changed("call");
    },
    selectPath(path) {
      const call = app.run ? callAt(app.run, path) : -1;
      if (call >= 0) app.select(call);
      return call >= 0;
    },
    open(tab) {
      if (tab === app.tab) return;
      app.tab = tab;
      changed("tab");
    },
    show(run) {
      const next = app.page.runs[run];
      if (!next || next === app.run) return;
      app.run = next;
      app.selected = -1;
      changed("run");
    },
    replace(next) {
      const id = app.run?.id;
      const path = app.selected >= 0 ? app.run.calls[app.selected].path : "";
      app.page = next;
      app.run = next.runs.find((run) => run.id === id) ?? next.runs[0];
      app.selected = path ? callAt(app.run, path) : -1;
      changed("run");
    },
  };
  return app;
}

/**
 * Set run, tab and call from the address.
 * @param {App} app
 */
function follow(app) {
  const { run, tab, call } = address();
  const at = app.page.runs.findIndex((one) => one.id === run);
  if (at >= 0) app.show(at);
  if (tab && (app.tabs.length === 0 || app.tabs.includes(tab))) app.open(tab);
  if (!app.run) return;
  if (!call) app.select(-1);
  else if (!app.selectPath(call)) announce(`The run has no call ${call}`);
}

/**
 * Select what a key says, relative to the selected call; returns whether the key has a meaning.
 * @param {App} app
 * @param {string} key
 */
function moveBy(app, key) {
  const run = app.run;
  if (!run || run.calls.length === 0) return false;
  if (key === "j" || key === "k") {
    const step = key === "j" ? 1 : -1;
    const from = app.selected < 0 && step < 0 ? run.calls.length : app.selected;
    app.select(Math.min(run.calls.length - 1, Math.max(0, from + step)));
    return true;
  }
  if (key === "f") {
    const failed = firstFailure(run);
    if (failed < 0) announce("No call of this run failed");
    else app.select(failed);
    return true;
  }
  if (key !== "[" && key !== "]") return false;
  if (app.selected < 0) return true;
  const call = run.calls[app.selected];
  const next = key === "[" ? makersForCall(run, call).at(-1) : readersOfCall(run, call)[0];
  if (next === undefined) announce(key === "[" ? "It saw no answer of another call" : "No call saw this answer");
  else app.select(next);
  return true;
}

/** Return the help about the keyboard. */
function helpDialog() {
  const rows = KEYS.map(([keys, what]) =>
    h("div", { class: "key-row" }, h("dt", null, keys.split(" ").filter(Boolean).map((key) => h("kbd", null, key))), h("dd", null, what)),
  );
  const dialog = h("dialog", { class: "help", "aria-label": "Keyboard" }, h("h2", null, "Keyboard"), h("dl", null, rows));
  add(dialog, button("Close", () => dialog.close(), { class: "quiet" }));
  return dialog;
}

/** Show the page whose data are in the document. */
function start() {
  const island = document.getElementById("mergepoint-page");
  const page = parsePage(island?.textContent ?? "");
  // The text of the island is as large as the data, and isn't needed twice.
  island?.remove();
  document.title = page.title;

  /** @type {Screen | null} */
  let screen = null;
  let following = false;
  const app = newApp(page, (what) => {
    if (!screen) return;
    if (!following) {
      const next = fragment(app);
      // Every selection is an entry of the history, so that "back" leads to the call before.
      if (next !== location.hash) history.pushState(null, "", next);
    }
    if (what === "run") screen.refresh?.();
    if (what === "tab") screen.opened?.();
    if (what !== "tab") screen.selected?.(app.selected);
  });

  const help = helpDialog();
  const main = h("main", { id: "main", tabindex: "-1" });
  const skip = h("a", { class: "skip", href: "#main", on: { click: (/** @type {Event} */ event) => {
    // The fragment names the call; the link must not replace it.
    event.preventDefault();
    focusOn(main);
  } } }, "Skip to the content");
  const live = h("div", { id: "announcements", class: "spoken", "aria-live": "polite" });
  const foot = h("footer", { class: "foot" },
    h("span", null, `mergepoint ${page.version}`),
    button([h("kbd", null, "?"), " keyboard"], () => help.showModal(), { class: "quiet", "aria-label": "Keyboard help" }));
  add(document.body, skip, liveStatus(app), main, foot, help, live);
  document.body.classList.add(`screen-${page.screen}`);

  following = true;
  const asked = address().call !== null;
  follow(app);
  screen = SCREENS[page.screen](app);
  add(main, screen.element);
  screen.selected?.(app.selected);
  // A screen may select something by itself; only an address leads away from the top.
  if (!asked) requestAnimationFrame(() => setTimeout(() => scrollTo(0, 0)));
  following = false;

  const followAgain = () => {
    following = true;
    follow(app);
    following = false;
  };
  addEventListener("popstate", followAgain);
  addEventListener("hashchange", followAgain);
  document.addEventListener("keydown", (event) => pressed(event, app, /** @type {Screen} */ (screen), help));
  const rows = page.batch ? many(page.batch.rows.length, "result") : many(page.list?.length ?? 0, "run");
  announce(app.run ? app.run.verdict : rows);
  document.body.dataset.ready = "true";
}

/**
 * Handle a key.
 * @param {KeyboardEvent} event
 * @param {App} app
 * @param {Screen} screen
 * @param {HTMLDialogElement} help
 */
function pressed(event, app, screen, help) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  if (event.key === "Escape") {
    if (!screen.key?.("Escape")) app.select(-1);
    return;
  }
  if (isTyping(event)) return;
  if (handle(event.key, app, screen, help)) event.preventDefault();
}

/**
 * @param {string} key
 * @param {App} app
 * @param {Screen} screen
 * @param {HTMLDialogElement} help
 */
function handle(key, app, screen, help) {
  if (key === "?") {
    help.showModal();
    return true;
  }
  if (key === "/") {
    const field = /** @type {HTMLInputElement | null} */ (document.querySelector("input[type=search]"));
    field?.focus();
    field?.select();
    return field !== null;
  }
  if (screen.key?.(key)) return true;
  if (/^[1-9]$/u.test(key) && app.tabs[Number(key) - 1]) {
    app.open(app.tabs[Number(key) - 1]);
    return true;
  }
  return moveBy(app, key);
}

start();
