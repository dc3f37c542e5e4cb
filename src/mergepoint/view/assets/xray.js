// @ts-check
/** The X-ray of a call: what it saw and how that came, its answer, and where the answer went. */

import { bringing, isOpen, lookup, makerOf, readersOf, seenBy, through } from "./data.js";
import { add, addText, button, copyButton, h, longText, put, spoken } from "./dom.js";
import { MERGE, count, gist, many, money, moment, nameOf, size, time, tokens } from "./format.js";
import { gateForm } from "./gate.js";
import { influenceTable } from "./influence.js";
import { callLink, mergeBadge, pathLink, shortPath, statusBadge } from "./labels.js";
import { isMarkdown, markdown } from "./markdown.js";
import { commandFrom, curlCommand, promptText } from "./requests.js";

/**
 * @typedef {import("./modules").App} App
 * @typedef {import("./page").Call} Call
 * @typedef {import("./page").Index} Index
 * @typedef {import("./dom.js").Child} Child
 */

// Earlier messages of long conversations are shown on demand.
const MOST_CARDS = 12;
const MOST_LINKS = 8;

/**
 * Return the panel.
 * @param {App} app
 * @returns {import("./modules").Screen}
 */
export function xray(app) {
  const element = h("section", { class: "xray", "aria-label": "X-ray of the selected call" });
  const draw = (/** @type {Index} */ call) => {
    element.hidden = call < 0;
    // A new box begins at its top; setting the position of the old one costs a layout of the page.
    put(element, call < 0 ? null : h("div", { class: "x-scroll", tabindex: "-1" }, ...xrayParts(app, call)));
  };
  return {
    element,
    selected: draw,
    refresh() {
      const top = element.firstElementChild?.scrollTop ?? 0;
      draw(app.selected);
      if (element.firstElementChild) element.firstElementChild.scrollTop = top;
    },
  };
}

/**
 * @param {App} app
 * @param {Index} index
 * @returns {Child[]}
 */
function xrayParts(app, index) {
  const call = app.run.calls[index];
  const refused = call.answer === null && call.refused !== null;
  const sections = [
    failureSection(app, call),
    // Whoever looks at a failure wants to see what the model said before what it was asked.
    refused ? answerSection(app, call) : null,
    decisionSection(app, index),
    sawSection(app, index),
    refused ? null : answerSection(app, call),
    influenceSection(app, call),
    toolsSection(app, call),
    insideSection(app, call),
    fateSection(app, index),
    recipeSection(app, call),
    settingsSection(app, call),
  ].filter((one) => one !== null);
  const top = xrayHead(app, index);
  add(top, jumps(sections));
  return [top, ...sections];
}

/**
 * Return links to the sections, which can be far below.
 * @param {HTMLElement[]} sections
 */
function jumps(sections) {
  const jump = (/** @type {HTMLElement} */ one) => {
    const box = one.parentElement;
    const top = box?.firstElementChild?.clientHeight ?? 0;
    // Not scrollIntoView, which would move the page too.
    box?.scrollTo({ top: one.offsetTop - top - 8 });
  };
  return h("nav", { class: "x-jumps", "aria-label": "Parts of the X-ray" }, sections.map((one) =>
    button(one.querySelector("h3")?.textContent ?? "", () => jump(one), { class: "link" })));
}

/**
 * @param {App} app
 * @param {Index} index
 */
function xrayHead(app, index) {
  const call = app.run.calls[index];
  const path = shortPath(app, call.path);
  const command = commandFrom(app, call);
  const facts = [
    call.model,
    time(call.seconds),
    call.waited ? `${time(call.waited)} of it waiting` : "",
    call.usage.input_tokens || call.usage.output_tokens ? `${tokens(call.usage)}` : "",
    call.usage.cost === null ? "" : money(call.usage.cost),
    call.attempts > 1 ? `${call.attempts} attempts` : "",
  ];
  return h("header", { class: "x-head" },
    h("div", { class: "x-title" },
      h("h2", { title: call.path }, nameOf(call.path)),
      statusBadge(call.status),
      call.source === "reused" ? h("span", { class: "badge" }, h("span", { "aria-hidden": "true" }, "↺"), "reused") : null,
      call.kind === "step" ? null : h("span", { class: "badge" }, call.kind),
      button("✕", () => app.select(-1), { class: "quiet x-close", "aria-label": "Close the X-ray", title: "Close (Esc)" })),
    h("p", { class: "mono faint x-path" }, path),
    h("p", { class: "num soft x-facts" }, facts.filter(Boolean).join(" · ")),
    h("div", { class: "x-actions" },
      copyButton("copy prompt", () => promptText(app, call)),
      call.kind === "gate" ? null : copyButton("copy as curl", () => curlCommand(app, call)),
      command ? copyButton("run again from here", command, { title: `Copy: ${command}`, "aria-label": "Copy the command that runs again from here" }) : null),
    command ? h("p", { class: "x-command" }, h("code", { class: "clip", title: command }, command)) : null);
}

/**
 * Return a section with a heading.
 * @param {string} name
 * @param {Child | Child[]} note
 * @param {...(Child | Child[])} content
 */
function xraySection(name, note, ...content) {
  return h("section", { class: `x-section x-${name.toLowerCase().replace(/\W+/gu, "-")}` },
    h("div", { class: "x-section-head" }, h("h3", null, name), note ? h("div", { class: "x-note" }, note) : null), ...content);
}

/**
 * @param {App} app
 * @param {Call} call
 */
function failureSection(app, call) {
  if (!call.error) return null;
  return xraySection("Failure", null,
    h("div", { class: "failure-box" }, h("strong", null, call.error.type), " ", longText(call.error.message, { most: 1500 }),
      call.error.path && call.error.path !== call.path ? h("p", null, "at ", pathLink(app, call.error.path)) : null));
}

// --- What it saw

/**
 * @param {App} app
 * @param {Index} index
 */
function sawSection(app, index) {
  const call = app.run.calls[index];
  const seen = seenBy(app.run, call);
  if (seen.length === 0 && call.reads.length === 0) return null;
  const list = h("ol", { class: "cards" });
  const first = Math.max(0, seen.length - MOST_CARDS);
  for (const one of seen.slice(first)) add(list, xrayCard(app, call, one));
  const earlier = first > 0 ? earlierButton(app, call, seen, first, list) : null;
  const length = seen.reduce((sum, { message }) => sum + app.text(app.run.messages[message].text).length, 0);
  const view = call.view && call.view !== "as_is" ? h("p", { class: "faint" }, `The provider was shown them as "${call.view}".`) : null;
  return xraySection("Saw", `${many(seen.length, "message")}, ${size(length)}`, view, readsOf(app, call), earlier, list);
}

/**
 * @param {App} app
 * @param {Call} call
 * @param {import("./data.js").Seen[]} seen
 * @param {number} first
 * @param {HTMLElement} list
 */
function earlierButton(app, call, seen, first, list) {
  let from = first;
  const more = button(`${count(first)} earlier messages`, () => {
    const next = Math.max(0, from - 50);
    const cards = seen.slice(next, from).map((one) => xrayCard(app, call, one));
    list.prepend(...cards);
    from = next;
    more.textContent = `${count(from)} earlier messages`;
    if (from === 0) more.remove();
  }, { class: "more" });
  return more;
}

/**
 * Return a message as a card, with the merge that brought it.
 * @param {App} app
 * @param {Call} call
 * @param {import("./data.js").Seen} seen
 */
function xrayCard(app, call, { message, place }) {
  const { role, text } = app.run.messages[message];
  const origin = originOf(app, call, message, place);
  const body = app.text(text);
  const fold = longText(body, { most: 1200, class: "card-text" });
  const item = h("li", { class: `card card-${origin.tone}` },
    h("div", { class: "card-head" }, h("span", { class: "card-role" }, role), " ", h("span", { class: "card-from" }, origin.words)),
    fold);
  if (body.length > 240 || body.split("\n", 6).length > 5) {
    fold.classList.add("clamped");
    const more = button("more", () => {
      const open = fold.classList.toggle("clamped") === false;
      more.textContent = open ? "less" : "more";
      more.setAttribute("aria-expanded", String(open));
    }, { class: "link card-more", "aria-expanded": "false" });
    add(item, more);
  }
  return item;
}

/**
 * Return how a message came to a call, in words and as a colour.
 * @param {App} app
 * @param {Call} call
 * @param {Index} message
 * @param {"lead" | "conversation" | "prompt"} place
 * @returns {{tone: string, words: Child[]}}
 */
function originOf(app, call, message, place) {
  if (place === "prompt") return { tone: "own", words: ["the prompt of this call"] };
  if (place === "lead") return { tone: "own", words: ["of this call alone"] };
  const by = app.run.messages[message].by;
  if (by < 0) return { tone: "given", words: ["given to the run"] };
  const passed = through(app.run, message, call.node);
  const { node, merge } = bringing(app.run, passed);
  const maker = makerOf(app.run, message);
  const made = app.run.messages[message].role === "user" ? "prompt of " : "by ";
  const link = maker >= 0 ? callLink(app, maker, nearPath(app, call, app.run.calls[maker].path)) : pathLink(app, app.run.nodes[by].path);
  if (node < 0) return { tone: "own", words: [made, link, " in the same step"] };
  const at = app.run.nodes[node].path === app.run.nodes[by].path ? [] : [" at ", h("span", { class: "mono" }, shortPath(app, app.run.nodes[node].path))];
  return { tone: MERGE[merge].tone, words: [made, link, " ", spoken("came through merge "), mergeBadge(merge), ...at] };
}

/**
 * @param {App} app
 * @param {Call} call
 */
function readsOf(app, call) {
  if (call.reads.length === 0) return null;
  return h("ul", { class: "reads", "aria-label": "Values that the prompt reads" }, call.reads.map((read) => {
    const maker = lookup(app.run).calls.get(read.made_by);
    const same = read.path === read.made_by;
    const from = read.source === "capture"
      ? [maker === undefined ? "captured" : ["by ", callLink(app, maker, nearPath(app, call, read.made_by))], same ? null : [", captured at ", h("span", { class: "mono" }, shortPath(app, read.path))]]
      : read.source === "input" ? "input of the run" : "default";
    const value = read.text === null ? null : app.text(read.text);
    return h("li", null, h("div", { class: "read-head" }, h("code", null, read.key), " ", h("span", { class: "faint" }, from)),
      value === null ? null : h("details", null, h("summary", null, h("span", { class: "clip" }, gist(value, 160))), longText(value, { most: 3000, class: "card-text" })));
  }));
}

/**
 * Return a path as it's called from a call: its name if both are in one block.
 * @param {App} app
 * @param {Call} call
 * @param {string} path
 */
function nearPath(app, call, path) {
  const around = call.path.slice(0, call.path.lastIndexOf("/") + 1);
  return path.startsWith(around) ? path.slice(around.length) : shortPath(app, path);
}

// --- The answer

/**
 * @param {App} app
 * @param {Call} call
 */
function answerSection(app, call) {
  const text = call.answer ?? call.refused;
  if (text === null) return call.status === "answered" ? xraySection("Answer", null, h("p", { class: "faint" }, "no text")) : null;
  const whole = app.text(text);
  const refused = call.answer === null;
  const box = h("div", { class: "answer" });
  const tools = h("span", { class: "x-tools" });
  const raw = () => put(box, refused ? refusedText(whole, call.position) : longText(whole, { class: "raw" }));
  const rendered = () => put(box, longText(whole, { draw: (part) => markdown(part), class: "rendered" }));
  if (!refused && isMarkdown(whole)) {
    const toggle = button("raw", () => {
      const isRaw = toggle.getAttribute("aria-pressed") !== "true";
      toggle.setAttribute("aria-pressed", String(isRaw));
      (isRaw ? raw : rendered)();
    }, { class: "quiet", "aria-pressed": "false" });
    add(tools, toggle);
    rendered();
  } else if (refused || /^\s*[[{<]/u.test(whole)) raw();
  else put(box, longText(whole));
  add(tools, copyButton("copy", whole, { "aria-label": "Copy the answer" }));
  const name = refused ? "Refused answer" : "Answer";
  return xraySection(name, [size(whole.length), tools], box);
}

/**
 * @param {App} app
 * @param {Call} call
 */
function influenceSection(app, call) {
  const table = influenceTable(app, call);
  return table && xraySection("Whose words", null, table);
}

/**
 * Return a refused answer with the position at which it did not parse.
 * @param {string} whole
 * @param {number | null} position
 */
function refusedText(whole, position) {
  if (position === null) return longText(whole, { class: "raw" });
  const at = Math.max(0, Math.min(position, whole.length));
  const before = whole.slice(0, at);
  const line = before.split("\n").length;
  const column = at - before.lastIndexOf("\n");
  const from = Math.max(0, at - 2000);
  const box = h("div", { class: "text raw" });
  if (from > 0) add(box, h("span", { class: "faint" }, `… ${count(from)} characters before\n`));
  addText(box, whole.slice(from, at));
  const here = whole.slice(at, at + 1);
  add(box, h("mark", { class: "parse-error", title: `line ${line}, column ${column}` },
    spoken("here it did not parse: "), h("span", { class: "parse-glyph", "aria-hidden": "true" }, "▸"), here === "" || here === "\n" ? "⏎" : here));
  addText(box, whole.slice(at + (here === "\n" ? 0 : 1), at + 2000));
  if (whole.length > at + 2000) add(box, h("span", { class: "faint" }, `\n… ${count(whole.length - at - 2000)} characters after`));
  return [h("p", { class: "tone-bad" }, `It did not parse at line ${line}, column ${column} (character ${at}).`), box];
}

/**
 * @param {App} app
 * @param {Call} call
 */
function toolsSection(app, call) {
  if (call.rounds.length === 0) return null;
  return xraySection("Tools", many(call.rounds.length, "round"), call.rounds.map((round, at) =>
    h("div", { class: "round" },
      app.text(round.said) ? longText(app.text(round.said), { most: 800 }) : null,
      h("ul", { class: "tool-calls", "aria-label": `Tool calls of round ${at + 1}` }, round.calls.map((tool) =>
        h("li", null,
          h("div", null, lookup(app.run).calls.has(tool.path) ? pathLink(app, tool.path, tool.name) : h("code", null, tool.name),
            tool.failed ? statusBadge("failed") : null),
          longText(app.text(tool.args), { most: 600, class: "raw" }),
          tool.result === null ? h("p", { class: "faint" }, "no result") : longText(app.text(tool.result), { most: 1200, class: "raw tool-result" })))))));
}

/**
 * @param {App} app
 * @param {Call} call
 */
function insideSection(app, call) {
  if (call.inside.length === 0) return null;
  return xraySection("Models inside", many(call.inside.length, "call"), h("ol", { class: "cards" }, call.inside.map((one) =>
    h("li", { class: "card card-own" }, h("div", { class: "card-head" }, h("span", { class: "card-role" }, one.model)),
      longText(app.text(one.prompt), { most: 800, class: "card-text" }),
      one.error ? h("p", { class: "tone-bad" }, one.error) : longText(app.text(one.answer), { most: 1500, class: "card-text inside-answer" })))));
}

/**
 * @param {App} app
 * @param {Index} index
 */
function decisionSection(app, index) {
  const { decision } = app.run.calls[index];
  if (!decision) return null;
  const words = { "": "No decision yet", approve: "Approved", edit: "Edited", reject: "Rejected" }[decision.decision];
  const who = decision.who ? ` by ${decision.who}` : "";
  const when = decision.at === null ? "" : `, ${moment(decision.at)}`;
  return xraySection("Decision", null,
    longText(app.text(decision.question), { most: 1500 }),
    h("p", { class: "decision" }, h("strong", null, words), `${who}${when}`),
    decision.feedback === null ? null : h("blockquote", null, app.text(decision.feedback)),
    gateForm(app, index),
    decision.held.length ? h("details", { open: decision.decision === "" }, h("summary", null, `What it decided on (${many(decision.held.length, "message")})`),
      decision.held.map((text) => longText(app.text(text), { most: 1500, class: "held" }))) : null,
    decision.decision === "edit" && decision.kept.length ? h("details", { open: true }, h("summary", null, "What went on instead"),
      decision.kept.map((text) => longText(app.text(text), { most: 1500, class: "held" }))) : null);
}

// --- Where the answer went

/**
 * @param {App} app
 * @param {Index} index
 */
function fateSection(app, index) {
  const call = app.run.calls[index];
  const readers = readersOf(app.run, call.message);
  const fate = call.fate;
  if (!fate && readers.length === 0) return null;
  const items = h("ul", { class: "fate" });
  if (fate) add(items, endOf(app, fate), ...captures(app, fate), fate.edited.map((path) => h("li", null, "edited at ", pathLink(app, path))));
  if (call.message >= 0) add(items, h("li", { class: "read-by" }, ...callLinks(app, readers, "seen as a message by ", "seen as a message by no call")));
  return xraySection("Fate", null, items);
}

/**
 * @param {App} app
 * @param {import("./page").Fate} fate
 */
function endOf(app, fate) {
  const nodes = app.run.nodes;
  const stop = fate.at >= 0 ? h("span", { class: "mono" }, shortPath(app, nodes[fate.at].path)) : null;
  const by = fate.by ? [" by ", pathLink(app, fate.by)] : "";
  const merges = fate.passed.map((at) => h("li", null, mergeBadge(nodes[at].merge), " ", h("span", { class: "mono" }, shortPath(app, nodes[at].path))));
  const way = merges.length ? h("li", null, h("span", { class: "faint" }, "passed "), h("ol", { class: "passed", "aria-label": "Merges that it passed, innermost first" }, merges)) : null;
  const merge = fate.at >= 0 ? mergeBadge(nodes[fate.at].merge) : null;
  /** @type {{[end: string]: Child[]}} */
  const said = {
    kept: [h("strong", { class: "tone-good" }, "Kept"), " to the end of the run"],
    dropped: [h("strong", { class: "tone-warn" }, "Dropped"), " at ", stop, " ", merge],
    superseded: [h("strong", { class: "tone-warn" }, "Reduced away"), " at ", stop, " ", merge, by],
    rejected: [h("strong", { class: "tone-warn" }, "Rejected"), " at ", stop],
    unfinished: isOpen(app.run) ? [h("strong", null, "Not merged yet"), stop ? " at " : "", stop] : [h("strong", null, "Not merged"), ": the run did not finish ", stop],
    left_out: [h("strong", null, "Skipped"), " at ", stop],
    value: [h("strong", null, "A value"), ", no message: only its key keeps it"],
  };
  return [way, h("li", null, said[fate.end] ?? [fate.end])].filter((one) => one !== null);
}

/**
 * @param {App} app
 * @param {import("./page").Fate} fate
 */
function captures(app, fate) {
  const { calls } = lookup(app.run);
  return fate.captured.map(({ key, path, read_by }) => {
    const readers = read_by.map((one) => calls.get(one) ?? -1).filter((one) => one >= 0);
    return h("li", null, "captured as ", h("code", null, key), " at ", h("span", { class: "mono" }, shortPath(app, path)), ", ",
      ...callLinks(app, readers, "read by ", "read by no call"));
  });
}

/**
 * Return links to calls in a sentence; those over a number are shown on demand.
 * @param {App} app
 * @param {Index[]} calls
 * @param {string} words
 * @param {string} none
 * @returns {Child[]}
 */
function callLinks(app, calls, words, none) {
  if (calls.length === 0) return [h("span", { class: "faint" }, none)];
  const list = h("span", null);
  const show = (/** @type {number} */ most) =>
    put(list, calls.slice(0, most).flatMap((call, at) => [at ? ", " : "", callLink(app, call)]),
      calls.length > most ? [" ", button(`and ${count(calls.length - most)} more`, () => show(Math.min(calls.length, most + 100)), { class: "link" })] : null);
  show(MOST_LINKS);
  return [words, list];
}

/**
 * @param {App} app
 * @param {Call} call
 */
function recipeSection(app, call) {
  const place = call.in_recipe;
  if (!place) return null;
  const wrote = (/** @type {import("./page").Wrote} */ one) => h("li", null, h("span", { class: "mono" }, one.stage), one.wrote.length ? ` wrote ${one.wrote.join(", ")}` : " passed it on");
  return xraySection("In the recipe", null, h("ul", { class: "fate" },
    h("li", null, "stage ", h("span", { class: "mono" }, place.stage), ", Thing ", h("span", { class: "mono" }, place.thing)),
    place.before.length ? h("li", null, "before it", h("ol", null, place.before.map(wrote))) : null,
    place.made ? h("li", null, "with it", h("ul", null, wrote(place.made))) : null,
    place.after.length ? h("li", null, "after it", h("ol", null, place.after.map(wrote))) : null,
    h("li", null, place.results.length ? `in the results ${place.results.join(", ")}` : "in no result")));
}

/**
 * @param {App} app
 * @param {Call} call
 */
function settingsSection(app, call) {
  /** @type {[string, Child][]} */
  const rows = Object.entries(call.params).map(([name, value]) => [name, typeof value === "string" ? value : JSON.stringify(value)]);
  rows.unshift(["model", call.model]);
  rows.push(["tokens", `${tokens(call.usage)}${call.usage.estimated ? " (estimated)" : ""}`]);
  rows.push(["cost", call.usage.cost === null ? "unknown: no price for the model" : money(call.usage.cost)]);
  rows.push(["attempts", String(call.attempts)]);
  if (call.start !== null) rows.push(["asked", moment(app.run.start + call.start)]);
  const errors = call.earlier_errors.map((error) => h("li", null, h("strong", null, error.type), " ", longText(error.message, { most: 400 })));
  return xraySection("Settings", null,
    h("table", { class: "facts" }, h("tbody", null, rows.map(([name, value]) => h("tr", null, h("th", { scope: "row" }, name), h("td", null, value))))),
    errors.length ? h("div", null, h("h4", null, `Earlier attempts that failed`), h("ul", null, errors)) : null);
}
