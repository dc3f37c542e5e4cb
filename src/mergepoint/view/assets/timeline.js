// @ts-check
/** The tab "Timeline": when calls ran, side by side where they ran in parallel. */

import { lookup } from "./data.js";
import { button, download, h, put } from "./dom.js";
import { STATUS, count, many, money, nameOf, time, tokens } from "./format.js";
import { callLink, shortPath } from "./labels.js";

/**
 * @typedef {import("./modules").App} App
 * @typedef {import("./page").Run} Run
 * @typedef {import("./page").Index} Index
 * @typedef {{call: Index, lane: number, start: number, end: number}} Bar
 * @typedef {{node: Index, lane: number, start: number, end: number}} Band
 */

const LANE = 22;
const AXIS = 22;
const BAND = 18;
const MOST_ROWS = 60;

/**
 * Give intervals lanes, so that those in one lane don't overlap; return the number of lanes.
 * @param {{start: number, end: number, lane: number}[]} intervals In the order of their starts.
 */
export function giveLanes(intervals) {
  /** @type {number[]} */
  const free = [];
  for (const one of intervals) {
    let lane = free.findIndex((end) => end <= one.start + 1e-9);
    if (lane < 0) lane = free.length;
    free[lane] = Math.max(one.end, one.start);
    one.lane = lane;
  }
  return free.length;
}

/**
 * Return the calls that took time, with their lanes.
 * @param {Run} run
 * @returns {{bars: Bar[], lanes: number}}
 */
export function barsOf(run) {
  /** @type {Bar[]} */
  const bars = [];
  run.calls.forEach(({ start, seconds, source, kind }, call) => {
    if (start !== null && source === "live" && kind !== "inner") bars.push({ call, lane: 0, start, end: start + seconds });
  });
  bars.sort((a, b) => a.start - b.start || a.call - b.call);
  return { bars, lanes: giveLanes(bars) };
}

/**
 * Return the nodes below the root as bands above the calls.
 * @param {Run} run
 * @returns {{bands: Band[], lanes: number}}
 */
function bandsOf(run) {
  const { children } = lookup(run);
  /** @type {Band[]} */
  const bands = [];
  for (const node of run.nodes.length ? children[0] : []) {
    const { start, end } = run.nodes[node];
    if (start !== null && end !== null && children[node].length) bands.push({ node, lane: 0, start, end });
  }
  bands.sort((a, b) => a.start - b.start);
  return { bands, lanes: Math.min(4, giveLanes(bands)) };
}

/**
 * Return a run as Chrome trace events, which Perfetto and speedscope open.
 * @param {App} app
 */
export function traceEvents(app) {
  const { run } = app;
  const { bars } = barsOf(run);
  /** @type {object[]} */
  const events = [{ name: "process_name", ph: "M", pid: 1, args: { name: `mergepoint ${run.graph} ${run.id}` } }];
  const micro = (/** @type {number} */ seconds) => Math.round(seconds * 1e6);
  // Blocks of one depth can overlap, so that each depth has lanes of its own, above the calls.
  const depths = blocksByDepth(run);
  let thread = 1;
  depths.forEach((blocks, depth) => {
    const lanes = giveLanes(blocks);
    for (const { node, start, end, lane } of blocks) {
      const { path, merge } = run.nodes[node];
      events.push({ name: nameOf(path), cat: "block", ph: "X", pid: 1, tid: thread + lane, ts: micro(start), dur: micro(end - start), args: { path, merge } });
    }
    for (let lane = 0; lane < lanes; lane++) events.push({ name: "thread_name", ph: "M", pid: 1, tid: thread + lane, args: { name: `blocks, depth ${depth}` } });
    thread += lanes;
  });
  for (const { call, start, end, lane } of bars) {
    const one = run.calls[call];
    const { input_tokens, output_tokens, cost } = one.usage;
    events.push({
      name: nameOf(one.path), cat: "call", ph: "X", pid: 1, tid: thread + lane, ts: micro(start), dur: micro(end - start),
      args: { path: one.path, model: one.model, status: one.status, attempts: one.attempts, waited: one.waited, input_tokens, output_tokens, cost },
    });
  }
  const most = bars.reduce((found, { lane }) => Math.max(found, lane + 1), 0);
  for (let lane = 0; lane < most; lane++) events.push({ name: "thread_name", ph: "M", pid: 1, tid: thread + lane, args: { name: `calls ${lane + 1}` } });
  return { traceEvents: events, displayTimeUnit: "ms" };
}

/**
 * @param {Run} run
 * @returns {Band[][]}
 */
function blocksByDepth(run) {
  const { children } = lookup(run);
  /** @type {Band[][]} */
  const found = [];
  const depths = new Int32Array(run.nodes.length);
  run.nodes.forEach(({ parent, start, end }, node) => {
    depths[node] = parent < 0 ? 0 : depths[parent] + 1;
    if (children[node].length === 0 || start === null || end === null) return;
    (found[depths[node]] ??= []).push({ node, lane: 0, start, end });
  });
  return Array.from(found, (blocks) => (blocks ?? []).sort((a, b) => a.start - b.start));
}

/**
 * Return the tab.
 * @param {App} app
 * @returns {import("./modules").Screen}
 */
export function timelineTab(app) {
  const element = h("div", { class: "timeline" });
  /** @type {Chart | null} */
  let chart = null;
  function make() {
    const { bars, lanes } = barsOf(app.run);
    if (bars.length === 0) {
      put(element, h("p", { class: "faint" }, "No call took time: every answer was reused, or nothing ran."));
      return;
    }
    chart = new Chart(app, bars, lanes);
    put(element, chart.tools(), slowestCalls(app), chart.scroller, chart.tip);
    chart.fit();
  }
  make();
  return {
    element,
    selected: () => chart?.show(app.selected),
    opened: () => chart?.fit(),
    refresh: make,
  };
}

/**
 * Return links to the calls that took longest, which a wide timeline shows as a few pixels.
 * @param {App} app
 */
function slowestCalls(app) {
  const { calls } = app.run;
  const slow = calls.map((_, at) => at).filter((at) => calls[at].kind !== "gate" && calls[at].seconds > 0)
    .sort((a, b) => calls[b].seconds - calls[a].seconds).slice(0, 3);
  return h("p", { class: "t-slowest faint" }, "slowest: ", slow.flatMap((at, place) => [place ? ", " : "",
    callLink(app, at, shortPath(app, calls[at].path)), ` ${time(calls[at].seconds)}`]));
}

/** The canvas with its zoom. Seconds from `from` on are drawn, `scale` pixels each. */
class Chart {
  /**
   * @param {App} app
   * @param {Bar[]} bars
   * @param {number} lanes
   */
  constructor(app, bars, lanes) {
    this.app = app;
    this.bars = bars;
    const { bands, lanes: bandLanes } = bandsOf(app.run);
    this.bands = bands;
    this.top = AXIS + bandLanes * BAND + 4;
    this.lanes = lanes;
    // One row per call is easier to read, as long as they fit on a screen or two.
    this.rows = bars.length <= MOST_ROWS;
    this.fitted = true;
    this.waiting = false;
    this.end = bars.reduce((most, { end }) => Math.max(most, end), 0) || 1;
    this.from = 0;
    this.scale = 100;
    this.canvas = h("canvas", { class: "t-canvas", tabindex: "0", role: "img", "aria-label": `Timeline: ${this.words()}` });
    this.scroller = h("div", { class: "t-scroll" }, this.canvas);
    this.tip = h("div", { class: "t-tip panel", hidden: true, "aria-hidden": "true" });
    this.listen();
    new ResizeObserver(() => (this.fitted ? this.fit() : this.draw())).observe(this.canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  words() {
    const { run } = this.app;
    const waited = run.calls.reduce((sum, call) => sum + call.waited, 0);
    const attempts = run.calls.reduce((sum, call) => sum + Math.max(0, call.attempts - 1), 0);
    return [`${many(this.bars.length, "call")} in ${time(this.end)}`, this.lanes === 1 ? "one at a time" : `up to ${this.lanes} at a time`,
      waited ? `${time(waited)} waiting` : "", attempts ? many(attempts, "retry").replace("retrys", "retries") : ""].filter(Boolean).join(", ");
  }

  tools() {
    const trace = () => download(`${this.app.run.id}.trace.json`, JSON.stringify(traceEvents(this.app)), "application/json");
    return h("div", { class: "tab-tools" },
      h("span", { class: "soft" }, this.words()),
      h("span", { class: "t-legend" }, h("span", { class: "t-key t-live" }), "ran", h("span", { class: "t-key t-waited" }), "waited",
        h("span", { class: "t-key t-retried" }), "retried", h("span", { class: "t-key t-failed" }), "failed"),
      this.rowsButton(),
      button("+", () => this.zoom(1.6), { class: "quiet", "aria-label": "Zoom in" }),
      button("−", () => this.zoom(1 / 1.6), { class: "quiet", "aria-label": "Zoom out" }),
      button("fit", () => this.fit(), { class: "quiet" }),
      button("export trace", trace, { class: "quiet", title: "Chrome trace events, for Perfetto (ui.perfetto.dev) and speedscope" }));
  }

  rowsButton() {
    const toggle = button("rows", () => {
      this.rows = !this.rows;
      toggle.setAttribute("aria-pressed", String(this.rows));
      this.draw();
    }, { class: "quiet", "aria-pressed": String(this.rows), title: "One row per call, instead of one per call at a time" });
    return toggle;
  }

  height() {
    return this.top + (this.rows ? this.bars.length : this.lanes) * LANE + 8;
  }

  width() {
    return this.canvas.clientWidth || 800;
  }

  fit() {
    this.fitted = true;
    this.scale = (this.width() - 16) / this.end;
    this.from = -8 / this.scale;
    this.draw();
  }

  /**
   * @param {number} factor
   * @param {number} [at] The pixel that stays where it is.
   */
  zoom(factor, at = this.width() / 2) {
    this.fitted = false;
    const moment = this.from + at / this.scale;
    const least = (this.width() - 16) / this.end;
    this.scale = Math.min(20_000, Math.max(least, this.scale * factor));
    this.from = moment - at / this.scale;
    this.bound();
  }

  bound() {
    this.fitted = this.fitted && this.scale === (this.width() - 16) / this.end;
    const visible = this.width() / this.scale;
    this.from = Math.max(-8 / this.scale, Math.min(this.end + 8 / this.scale - visible, this.from));
    this.draw();
  }

  /** @param {Index} call */
  show(call) {
    const bar = this.bars.find((one) => one.call === call);
    if (bar && (bar.end < this.from || bar.start > this.from + this.width() / this.scale)) {
      this.from = (bar.start + bar.end) / 2 - this.width() / this.scale / 2;
      this.bound();
    } else this.draw();
  }

  listen() {
    const { canvas } = this;
    let dragged = 0;
    let last = -1;
    canvas.addEventListener("wheel", (event) => {
      // Without a key the wheel scrolls the page, as everywhere.
      if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return;
      event.preventDefault();
      if (event.shiftKey) {
        this.from += (event.deltaY || event.deltaX) / this.scale;
        this.bound();
      } else this.zoom(Math.exp(-event.deltaY / 300), event.offsetX);
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      last = event.clientX;
      dragged = 0;
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (last >= 0 && event.buttons) {
        dragged += Math.abs(event.clientX - last);
        this.from -= (event.clientX - last) / this.scale;
        last = event.clientX;
        this.bound();
      }
      this.hint(event);
    });
    canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
    canvas.addEventListener("pointerup", (event) => {
      last = -1;
      const bar = dragged < 4 ? this.at(event) : null;
      if (bar) this.app.select(bar.call);
    });
    canvas.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const step = this.width() / this.scale / 5;
      if (event.key === "+" || event.key === "=") this.zoom(1.6);
      else if (event.key === "-") this.zoom(1 / 1.6);
      else if (event.key === "0") this.fit();
      else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
        this.from += event.key === "ArrowLeft" ? -step : step;
        this.bound();
      } else return;
      event.preventDefault();
      event.stopPropagation();
    });
  }

  /** @param {MouseEvent} event */
  at(event) {
    const moment = this.from + event.offsetX / this.scale;
    const lane = Math.floor((event.offsetY - this.top) / LANE);
    if (this.rows) return this.bars[lane] ?? null;
    const near = 3 / this.scale;
    return this.bars.find((bar) => bar.lane === lane && bar.start - near <= moment && moment <= bar.end + near) ?? null;
  }

  /** @param {PointerEvent} event */
  hint(event) {
    const bar = this.at(event);
    this.tip.hidden = bar === null;
    if (!bar) return;
    const call = this.app.run.calls[bar.call];
    const waited = call.waited ? `, ${time(call.waited)} of it waiting` : "";
    put(this.tip, h("div", { class: "mono" }, shortPath(this.app, call.path)),
      h("div", { class: "soft" }, `${STATUS[call.status]?.word}: ${time(call.seconds)}${waited}, from ${time(bar.start)} on`),
      h("div", { class: "soft" }, [tokens(call.usage), money(call.usage.cost), call.attempts > 1 ? `${call.attempts} attempts` : ""].filter(Boolean).join(" · ")));
    this.tip.style.left = `${Math.min(event.offsetX + 12, this.width() - 280)}px`;
    this.tip.style.top = `${this.canvas.offsetTop + event.offsetY + 16 - this.scroller.scrollTop}px`;
  }

  /** Draw before the next frame, once. */
  draw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.paint();
    });
  }

  paint() {
    const context = this.canvas.getContext("2d");
    if (!context) return;
    const width = this.width();
    // Browsers draw nothing on a canvas that is too high.
    const height = Math.min(this.height(), 8000);
    const ratio = devicePixelRatio || 1;
    this.canvas.style.height = `${height}px`;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const style = getComputedStyle(this.canvas);
    const color = (/** @type {string} */ name) => style.getPropertyValue(`--${name}`).trim();
    context.clearRect(0, 0, width, height);
    context.font = `11px ${style.fontFamily}`;
    context.textBaseline = "middle";
    this.drawAxis(context, color, width, height);
    this.drawBands(context, color);
    const colors = /** @type {{[name: string]: string}} */ ({});
    for (const name of ["bad", "bad-ground", "warn", "warn-ground", "accent", "accent-ground", "ink", "soft"]) colors[name] = color(name);
    // Of many calls in one pixel, one is enough.
    const drawn = new Int32Array(this.rows ? this.bars.length : this.lanes).fill(-1);
    this.bars.forEach((bar, at) => {
      const row = this.rows ? at : bar.lane;
      const end = Math.floor((bar.end - this.from) * this.scale);
      if (end === drawn[row] && bar.call !== this.app.selected) return;
      drawn[row] = end;
      this.drawBar(context, colors, bar, row, width);
    });
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {(name: string) => string} color
   * @param {number} width
   * @param {number} height
   */
  drawAxis(context, color, width, height) {
    const step = niceStep(90 / this.scale);
    context.strokeStyle = color("line");
    context.fillStyle = color("faint");
    context.lineWidth = 1;
    for (let at = Math.max(0, Math.ceil(this.from / step)) * step; (at - this.from) * this.scale < width; at += step) {
      const x = Math.round((at - this.from) * this.scale) + 0.5;
      context.beginPath();
      context.moveTo(x, AXIS - 4);
      context.lineTo(x, height);
      context.stroke();
      if (x < width - 36) context.fillText(tick(at, step), x + 3, AXIS / 2 - 1);
    }
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {(name: string) => string} color
   */
  drawBands(context, color) {
    for (const { node, lane, start, end } of this.bands) {
      const x = (start - this.from) * this.scale;
      const width = Math.max(1, (end - start) * this.scale - 1);
      if (lane > 3 || x + width < 0 || x > this.width()) continue;
      const y = AXIS + lane * BAND;
      context.fillStyle = color("sunk");
      context.fillRect(x, y, width, BAND - 3);
      context.fillStyle = color("soft");
      write(context, nameOf(this.app.run.nodes[node].path), x + 4, y + (BAND - 3) / 2, width - 8);
    }
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {{[name: string]: string}} colors
   * @param {Bar} bar
   * @param {number} row
   * @param {number} all
   */
  drawBar(context, colors, bar, row, all) {
    const call = this.app.run.calls[bar.call];
    const x = (bar.start - this.from) * this.scale;
    const width = Math.max(2, (bar.end - bar.start) * this.scale - 1);
    if (x + width < 0 || x > all) return;
    const y = this.top + row * LANE;
    const failed = call.status === "failed";
    context.fillStyle = colors[failed ? "bad-ground" : "accent-ground"];
    context.fillRect(x, y, width, LANE - 4);
    // Waiting comes before the answer that was used.
    const waited = Math.min(width, call.waited * this.scale);
    if (waited > 1) {
      context.fillStyle = colors["warn-ground"];
      context.fillRect(x, y, waited, LANE - 4);
    }
    context.fillStyle = colors[failed ? "bad" : call.attempts > 1 ? "warn" : "accent"];
    context.fillRect(x, y, Math.min(3, width), LANE - 4);
    if (this.app.selected === bar.call) {
      context.strokeStyle = colors.accent;
      context.lineWidth = 2;
      context.strokeRect(x, y - 1, width, LANE - 2);
    }
    const name = nameOf(call.path) + (call.attempts > 1 ? ` (${count(call.attempts)} attempts)` : "");
    const middle = y + (LANE - 4) / 2;
    if (!this.rows) {
      context.fillStyle = colors.ink;
      write(context, name, x + 7, middle, width - 10);
      return;
    }
    // In a row of its own the name has room beside the bar.
    const length = context.measureText(name).width;
    context.fillStyle = length < width - 10 ? colors.ink : colors.soft;
    const beside = x + width + 5 + length < all ? x + width + 5 : x - length - 5;
    context.fillText(name, length < width - 10 ? x + 7 : beside, middle);
  }
}

/**
 * Write a name where it fits.
 * @param {CanvasRenderingContext2D} context
 * @param {string} name
 * @param {number} x
 * @param {number} y
 * @param {number} width
 */
function write(context, name, x, y, width) {
  if (width < 18) return;
  // A name that begins left of the view stays readable.
  const shift = Math.max(0, Math.min(-x + 4, width - 40));
  const most = Math.floor((width - shift) / 6.2);
  if (most < 3) return;
  context.fillText(name.length > most ? `${name.slice(0, most - 1)}…` : name, x + shift, y);
}

/**
 * Return a step of an axis: 1, 2 or 5 times a power of ten, at least `least`.
 * @param {number} least
 */
function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((one) => one * power).find((one) => one >= least) ?? 10 * power;
}

/**
 * @param {number} at
 * @param {number} step
 */
function tick(at, step) {
  if (at < 60 && step < 1) return step < 0.001 ? `${(at * 1000).toFixed(2)} ms` : at < 1 ? `${Math.round(at * 1000)} ms` : `${at.toFixed(step < 0.1 ? 2 : 1)} s`;
  return at < 120 ? `${Math.round(at)} s` : `${Math.floor(at / 60)}:${String(Math.round(at % 60)).padStart(2, "0")}`;
}
