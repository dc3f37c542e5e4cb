// @ts-check
/** The figures of a batch: its head, the throughput, and how calls and tokens are distributed. */

import { copyButton, h, spoken, svg } from "./dom.js";
import { count, many, moment, money, short, time } from "./format.js";
import { statusBadge } from "./labels.js";

/**
 * @typedef {import("./page").Batch} Batch
 * @typedef {import("./page").BatchRow} BatchRow
 * @typedef {{begin: number, end: number, results: number}} Part A time in which results came.
 * @typedef {{from: number, to: number, done: number, failed: number}} Bin
 * @typedef {{title: string, facts: string, bins: Bin[], axis: [string, string], label: (bin: Bin) => string, breaks?: number[]}} Chart
 */

const BINS = 60;
// Seconds of a bar. Shorter ones show how results were written, in groups, and not how they came.
const WIDTHS = [0.25, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400];

/**
 * Return the head of the page: what the batch is, how far it is, and its totals.
 * @param {Batch} batch
 */
export function batchHead(batch) {
  const { done, failed } = tally(batch.rows);
  const left = batch.inputs === null ? null : batch.inputs - done - failed;
  const known = batch.target ? [h("span", { class: "mono faint batch-id" }, batch.file), batch.id && h("span", { class: "mono faint batch-id" }, batch.id)] : batch.id && h("span", { class: "mono faint batch-id" }, batch.id);
  return [
    h("header", { class: "batch-title" }, h("h1", null, batch.target || batch.file), statusBadge(batch.status), known),
    progressOf(done, failed, left, batch.inputs),
    factsOf(batch),
    batch.notes.map((note) => h("p", { class: "batch-note" }, note)),
  ];
}

/**
 * Return how many inputs are done, failed, and left, as a bar and in words.
 * @param {number} done
 * @param {number} failed
 * @param {number | null} left
 * @param {number | null} inputs
 */
function progressOf(done, failed, left, inputs) {
  const whole = inputs ?? done + failed;
  const parts = [["good", done], ["bad", failed]].map(([tone, number]) => {
    const part = h("span", { class: `batch-part-${tone}` });
    part.style.width = `${whole ? (100 * Number(number)) / whole : 0}%`;
    return part;
  });
  const words = [
    h("b", { class: "tone-good" }, `✓ ${count(done)} done`),
    failed > 0 && h("b", { class: "tone-bad" }, `✕ ${count(failed)} failed`),
    left !== null && left > 0 && h("b", null, `${count(left)} left`),
    h("span", { class: "soft" }, inputs === null ? "number of inputs unknown" : `of ${many(inputs, "input")}`),
  ];
  return h("div", { class: "batch-progress" }, h("div", { class: "batch-bar", "aria-hidden": "true" }, parts), h("p", null, words));
}

/** @param {Batch} batch */
function factsOf(batch) {
  const { calls, input, output, cost, unknown, moved } = tally(batch.rows);
  const parts = activeParts(batch);
  const active = parts.reduce((sum, part) => sum + part.end - part.begin, 0);
  const said = [
    ...timesOf(batch, parts, active),
    fact("Calls", count(calls)),
    fact("Tokens", `${count(input)} in, ${count(output)} out`),
    fact("Cost", costOf(cost, unknown, batch.rows.length)),
    moved > 0 && fact("Moved", `${many(moved, "input")} went to another worker`),
  ];
  const view = batch.commands.view;
  return h("dl", { class: "batch-facts" }, said, view && fact("This page", h("span", null, h("code", null, view), " ", copyButton("copy", view))));
}

/**
 * @param {string} name
 * @param {import("./modules").Child} value
 */
function fact(name, value) {
  return h("div", null, h("dt", null, name), h("dd", null, value));
}

/**
 * @param {Batch} batch
 * @param {Part[]} parts
 * @param {number} active
 */
function timesOf(batch, parts, active) {
  if (parts.length === 0) return [];
  const begin = parts[0].begin;
  const end = parts[parts.length - 1].end;
  const named = batch.starts.length > 0;
  const last = moment(end);
  // The day is said once.
  const until = last.slice(0, 10) === moment(begin).slice(0, 10) ? last.slice(11) : last;
  const span = parts.length > 1 ? `${time(active)} in ${count(parts.length)} calls of the batch` : time(active);
  const results = parts.reduce((sum, part) => sum + part.results, 0);
  // Without a start, the first result only begins the time in which the others came.
  const rate = rateWords((named ? results : results - 1) / active);
  return [
    fact(named ? "Start to last result" : "First to last result", `${moment(begin)} – ${until} (${span})`),
    rate && fact("Throughput", rate),
  ];
}

/**
 * Return a throughput, by the minute if it is low: "45.2/s", "12/min"; "" if there is none.
 * @param {number} rate
 */
function rateWords(rate) {
  if (!Number.isFinite(rate) || rate <= 0) return "";
  if (rate >= 100) return `${count(rate)}/s`;
  return rate >= 1 ? `${rate.toFixed(1)}/s` : `${(rate * 60).toFixed(1)}/min`;
}

/**
 * @param {number} cost
 * @param {number} unknown
 * @param {number} results
 */
function costOf(cost, unknown, results) {
  if (unknown === 0) return money(cost);
  if (cost === 0) return unknown === results ? "unknown" : `unknown for ${many(unknown, "result")}`;
  return `${money(cost)}, unknown for ${many(unknown, "result")}`;
}

/** @param {BatchRow[]} rows */
export function tally(rows) {
  const sums = { done: 0, failed: 0, calls: 0, input: 0, output: 0, cost: 0, unknown: 0, moved: 0 };
  for (const row of rows) {
    sums[row.status] += 1;
    sums.calls += row.calls;
    sums.input += row.input_tokens;
    sums.output += row.output_tokens;
    sums.cost += row.cost ?? 0;
    if (row.cost === null) sums.unknown += 1;
    if (row.attempts > 1) sums.moved += 1;
  }
  return sums;
}

/**
 * Return the times in which results came: from each start of the batch to its last result. Without
 * starts it is one, from the first result on. Pauses between two calls of the batch are no part.
 * @param {Batch} batch
 * @returns {Part[]}
 */
function activeParts(batch) {
  const times = endsOf(batch.rows);
  if (times.length === 0) return [];
  const starts = batch.starts.filter((start) => start <= times[times.length - 1]);
  // What came before the first known start has no start of its own.
  if (starts.length === 0 || times[0] < starts[0]) starts.unshift(times[0]);
  /** @type {Part[]} */
  const parts = [];
  let at = 0;
  starts.forEach((begin, number) => {
    const first = at;
    while (at < times.length && !(times[at] >= starts[number + 1])) at += 1;
    if (at > first) parts.push({ begin, end: times[at - 1], results: at - first });
  });
  return parts;
}

/**
 * Return the times of results in order.
 * @param {BatchRow[]} rows
 */
function endsOf(rows) {
  /** @type {number[]} */
  const times = [];
  for (const row of rows) if (row.ended !== null) times.push(row.ended);
  return times.sort((a, b) => a - b);
}

/**
 * Return the charts for which there are data.
 * @param {Batch} batch
 */
export function batchCharts(batch) {
  const called = batch.rows.filter((row) => row.calls > 0);
  return [
    throughput(batch),
    distribution("Calls per result", called, (row) => row.calls),
    distribution("Tokens per result", called, (row) => row.input_tokens + row.output_tokens),
  ].filter((one) => one !== null).map(chartOf);
}

/**
 * Return results over time, without the pauses between calls of the batch.
 * @param {Batch} batch
 * @returns {Chart | null}
 */
function throughput(batch) {
  const parts = activeParts(batch);
  const active = parts.reduce((sum, part) => sum + part.end - part.begin, 0);
  if (active < WIDTHS[0] * 4) return null;
  const width = WIDTHS.find((seconds) => active / seconds <= BINS) ?? active / BINS;
  const bins = emptyBins(Math.ceil(active / width), 0, width);
  const before = parts.map((_, at) => parts.slice(0, at).reduce((sum, part) => sum + part.end - part.begin, 0));
  for (const row of batch.rows) {
    if (row.ended === null) continue;
    let at = parts.length - 1;
    while (at > 0 && row.ended < parts[at].begin) at -= 1;
    countIn(bins, (before[at] + row.ended - parts[at].begin) / width, row);
  }
  const most = Math.max(...bins.map((bin) => bin.done + bin.failed));
  const begin = moment(parts[0].begin);
  const end = moment(parts[parts.length - 1].end);
  const [from, to] = begin.slice(0, 10) === end.slice(0, 10) ? [11, 19] : [5, 16];
  const breaks = before.slice(1).map((seconds) => seconds / (width * bins.length));
  const paused = breaks.length ? `; dashed: the batch went on after ${many(breaks.length, "pause")}` : "";
  return {
    title: "Results over time",
    facts: `at most ${rateWords(most / width)}, ${time(width)} per bar${paused}`,
    bins,
    axis: [begin.slice(from, to), end.slice(from, to)],
    label: (bin) => `${time(bin.from)} to ${time(bin.to)}`,
    breaks,
  };
}

/**
 * Return how a number is distributed over results; null if it is the same for all.
 * @param {string} title
 * @param {BatchRow[]} rows
 * @param {(row: BatchRow) => number} value
 * @returns {Chart | null}
 */
function distribution(title, rows, value) {
  const values = rows.map(value).sort((a, b) => a - b);
  const [least, most] = [values[0], values[values.length - 1]];
  if (values.length === 0 || least === most) return null;
  // Whole numbers: each bar has the same number of them.
  const width = Math.ceil((most - least + 1) / BINS);
  const bins = emptyBins(Math.ceil((most - least + 1) / width), least, width);
  for (const row of rows) countIn(bins, (value(row) - least) / width, row);
  const at = (/** @type {number} */ share) => values[Math.min(values.length - 1, Math.floor(share * values.length))];
  return {
    title,
    facts: `median ${count(at(0.5))}, 95% at most ${count(at(0.95))}, maximum ${count(most)}`,
    bins,
    axis: [count(least), count(most)],
    label: (bin) => (width === 1 ? count(bin.from) : `${count(bin.from)} to ${count(bin.to - 1)}`),
  };
}

/**
 * @param {number} number
 * @param {number} from
 * @param {number} width
 * @returns {Bin[]}
 */
function emptyBins(number, from, width) {
  return Array.from({ length: Math.max(1, number) }, (_, at) => ({ from: from + at * width, to: from + (at + 1) * width, done: 0, failed: 0 }));
}

/**
 * @param {Bin[]} bins
 * @param {number} at
 * @param {BatchRow} row
 */
function countIn(bins, at, row) {
  const bin = bins[Math.min(bins.length - 1, Math.max(0, Math.floor(at)))];
  bin[row.status] += 1;
}

/** @param {Chart} chart */
function chartOf(chart) {
  const most = Math.max(...chart.bins.map((bin) => bin.done + bin.failed));
  const picture = svg("svg", { class: "batch-bars", viewBox: `0 0 ${chart.bins.length} 100`, preserveAspectRatio: "none", "aria-hidden": "true" });
  chart.bins.forEach((bin, at) => {
    const [done, failed] = [bin.done, bin.failed].map((number) => (94 * number) / most);
    const words = `${chart.label(bin)}: ${count(bin.done)} done${bin.failed ? `, ${count(bin.failed)} failed` : ""}`;
    picture.append(svg("g", null,
      svg("title", null, words),
      svg("rect", { x: at, y: 0, width: 1, height: 100, class: "batch-hit" }),
      svg("rect", { x: at + 0.08, y: 100 - done, width: 0.84, height: done, class: "batch-done" }),
      svg("rect", { x: at + 0.08, y: 100 - done - failed, width: 0.84, height: failed, class: "batch-failed" })));
  });
  for (const share of chart.breaks ?? []) {
    const x = share * chart.bins.length;
    picture.append(svg("line", { x1: x, x2: x, y1: 0, y2: 100, class: "batch-break" }));
  }
  return h("figure", { class: "batch-chart panel" },
    h("figcaption", null, h("h3", null, chart.title), h("span", { class: "faint" }, chart.facts)),
    h("div", { class: "batch-frame" }, h("span", { class: "batch-most faint num", title: "the highest bar" }, spoken("The highest bar has "), short(most), spoken(" results.")), picture),
    h("div", { class: "batch-axis faint num" }, h("span", null, chart.axis[0]), h("span", null, chart.axis[1])));
}
