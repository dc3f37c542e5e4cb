// @ts-check
/** A served page follows its run: the line that says so, and the data that replace those it has. */

import { parsePage } from "./data.js";
import { h, put } from "./dom.js";

/**
 * @typedef {import("./modules").App} App
 * @typedef {"live" | "ended" | "lost" | "gone"} LiveState
 */

const PAUSE = 300; // milliseconds between two replacements, at least
const SHARE = 3; // pauses are this much longer than the replacement took, so that large runs stay usable
const AGAIN = 3000; // milliseconds until a lost connection is tried again

/** @type {{[state in LiveState]: {glyph: string, words: string, tone: string}}} */
const LIVE_STATES = {
  live: { glyph: "●", words: "live", tone: "live" },
  ended: { glyph: "■", words: "ended", tone: "dim" },
  lost: { glyph: "○", words: "connection lost, trying again", tone: "bad" },
  gone: { glyph: "✕", words: "the server no longer has this page", tone: "bad" },
};

/** @type {import("./modules").LiveStatus} */
export const liveStatus = (app) => {
  const live = app.page.live;
  if (!live) return null;
  const state = h("span", { class: "badge", role: "status", data: { live: "" } });
  const line = h("nav", { class: "live-line", "aria-label": "Server" });
  if (live.list) line.append(h("a", { href: live.list }, "← all runs"));
  if (!live.events) return live.list ? line : null;
  line.append(state);
  followEvents(app, (now) => {
    if (state.dataset.live === now) return;
    const { glyph, words, tone } = LIVE_STATES[now];
    state.dataset.live = now;
    state.className = `badge tone-${tone}`;
    put(state, h("span", { "aria-hidden": "true" }, glyph), words);
  });
  return line;
};

/**
 * Follow the events of a page, and replace its data when they change.
 * @param {App} app
 * @param {(state: LiveState) => void} show
 */
function followEvents(app, show) {
  let wanted = "";
  let busy = false;
  let ended = false;

  /** Fetch until the page has the data that the last event told of. */
  async function update() {
    if (busy) return;
    busy = true;
    try {
      while (wanted && wanted !== app.page.live?.etag) {
        const began = performance.now();
        const now = await fetched(app);
        if (now === "gone") show("gone");
        if (now) break;
        await new Promise((done) => setTimeout(done, Math.max(PAUSE, SHARE * (performance.now() - began))));
      }
    } catch {
      // The server is gone or not reachable; the events say so, and tell of the data once it is back.
      if (!ended) show("lost");
      else setTimeout(update, AGAIN);
    } finally {
      busy = false;
    }
  }

  /** Open the stream of events; the browser opens it again if the connection breaks. */
  function open() {
    const source = new EventSource(app.page.live?.events ?? "");
    source.addEventListener("open", () => show("live"));
    source.addEventListener("changed", (event) => {
      wanted = JSON.parse(/** @type {MessageEvent<string>} */ (event).data).etag;
      void update();
    });
    source.addEventListener("ended", () => {
      ended = true;
      source.close();
      show("ended");
    });
    source.addEventListener("error", () => {
      if (ended) return;
      show("lost");
      // After an answer that isn't a stream of events the browser gives up; a new server may come.
      if (source.readyState === EventSource.CLOSED) setTimeout(open, AGAIN);
    });
  }

  show("live");
  open();
}

/**
 * Replace the page's data by the present ones; returns "same" if they are those, "gone" if there are
 * none.
 * @param {App} app
 * @returns {Promise<"" | "same" | "gone">}
 */
async function fetched(app) {
  const live = app.page.live;
  if (!live) return "same";
  const answer = await fetch(live.data, { headers: { "If-None-Match": live.etag }, cache: "no-store" });
  if (answer.status === 304) return "same";
  if (!answer.ok) return "gone";
  app.replace(parsePage(await answer.text()));
  return "";
}
