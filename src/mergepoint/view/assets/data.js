// @ts-check
/** What follows from a page's data: conversations, makers, readers, and the way of a message. */

/**
 * @typedef {import("./page").Page} Page
 * @typedef {import("./page").Run} Run
 * @typedef {import("./page").Call} Call
 * @typedef {import("./page").TreeNode} TreeNode
 * @typedef {import("./page").Merge} Merge
 * @typedef {import("./page").Index} Index
 */

/**
 * Lookups of one run, built once.
 * @typedef {{
 *   calls: Map<string, Index>,
 *   nodes: Map<string, Index>,
 *   children: Index[][],
 *   callsOf: Index[][],
 *   ends: Int32Array,
 *   madeBy: Map<Index, Index>,
 * }} Lookup
 */

/** @type {WeakMap<Run, Lookup>} */
const LOOKUPS = new WeakMap();

/**
 * Return the lookups of a run.
 * @param {Run} run
 * @returns {Lookup}
 */
export function lookup(run) {
  let found = LOOKUPS.get(run);
  if (!found) {
    found = built(run);
    LOOKUPS.set(run, found);
  }
  return found;
}

/**
 * @param {Run} run
 * @returns {Lookup}
 */
function built(run) {
  /** @type {Map<string, Index>} */
  const calls = new Map();
  /** @type {Map<string, Index>} */
  const nodes = new Map();
  /** @type {Map<Index, Index>} */
  const madeBy = new Map();
  /** @type {Index[][]} */
  const children = run.nodes.map(() => []);
  /** @type {Index[][]} */
  const callsOf = run.nodes.map(() => []);
  // Pre-order: the last descendant of a node is the last node before its next sibling.
  const ends = new Int32Array(run.nodes.length);
  run.nodes.forEach((node, at) => {
    nodes.set(node.path, at);
    if (node.parent >= 0) children[node.parent].push(at);
    ends[at] = at;
  });
  for (let at = run.nodes.length - 1; at >= 0; at--) {
    const parent = run.nodes[at].parent;
    if (parent >= 0 && ends[parent] < ends[at]) ends[parent] = ends[at];
  }
  run.calls.forEach((call, at) => {
    if (!calls.has(call.path)) calls.set(call.path, at);
    if (call.node >= 0) callsOf[call.node].push(at);
    if (call.message >= 0) madeBy.set(call.message, at);
  });
  return { calls, nodes, children, callsOf, ends, madeBy };
}

/**
 * Return the messages of a conversation, oldest first.
 * @param {Run} run
 * @param {Index} state
 * @returns {Index[]}
 */
export function conversation(run, state) {
  /** @type {Index[]} */
  const found = [];
  for (let at = state; at >= 0; at = run.states[at][0]) found.push(run.states[at][1]);
  return found.reverse();
}

/**
 * A message of a request: `place` says whether it is a system message or an example of this call,
 * part of the conversation, or its prompt.
 * @typedef {{message: Index, place: "lead" | "conversation" | "prompt"}} Seen
 */

/**
 * Return the messages that a call saw, in the order of the request.
 * @param {Run} run
 * @param {Call} call
 * @returns {Seen[]}
 */
export function seenBy(run, call) {
  /** @type {Seen[]} */
  const found = call.lead.map((message) => ({ message, place: "lead" }));
  for (const message of conversation(run, call.state)) found.push({ message, place: "conversation" });
  if (call.prompt >= 0) found.push({ message: call.prompt, place: "prompt" });
  return found;
}

/**
 * Return a node and its ancestors, innermost first.
 * @param {Run} run
 * @param {Index} node
 * @returns {Index[]}
 */
export function wayUp(run, node) {
  /** @type {Index[]} */
  const found = [];
  for (let at = node; at >= 0; at = run.nodes[at].parent) found.push(at);
  return found;
}

/**
 * Return the nodes at whose merges a message came to a reader, innermost first; none if it was given
 * to the run, or if maker and reader are one node.
 * @param {Run} run
 * @param {Index} message
 * @param {Index} reader The node that sees the message.
 * @returns {Index[]}
 */
export function through(run, message, reader) {
  const maker = run.messages[message].by;
  if (maker < 0) return [];
  const around = new Set(wayUp(run, reader));
  /** @type {Index[]} */
  const passed = [];
  for (const at of wayUp(run, maker)) {
    if (around.has(at)) break;
    passed.push(at);
  }
  return passed;
}

/**
 * Return the merge that says the most about how a message came: the strictest one that it passed.
 * @param {Run} run
 * @param {Index[]} passed
 * @returns {{node: Index, merge: Merge | ""}}
 */
export function bringing(run, passed) {
  const last = passed.filter((at) => run.nodes[at].merge === "last_response").at(-1);
  const node = last ?? passed.at(-1) ?? -1;
  return { node, merge: node < 0 ? "" : run.nodes[node].merge };
}

/**
 * Return the call that made a message, or -1.
 * @param {Run} run
 * @param {Index} message
 * @returns {Index}
 */
export function makerOf(run, message) {
  const found = lookup(run).madeBy.get(message);
  if (found !== undefined) return found;
  // A prompt that became part of the conversation was made by the call that asked it.
  const by = run.messages[message].by;
  return by < 0 ? -1 : (lookup(run).callsOf[by][0] ?? -1);
}

/**
 * Return the calls whose conversation contained a message: one pass over the states.
 * @param {Run} run
 * @param {Index} message
 * @returns {Index[]}
 */
export function readersOf(run, message) {
  if (message < 0) return [];
  const has = new Uint8Array(run.states.length);
  run.states.forEach(([before, last], at) => {
    has[at] = last === message || (before >= 0 && has[before] === 1) ? 1 : 0;
  });
  /** @type {Index[]} */
  const found = [];
  run.calls.forEach((call, at) => {
    if (call.state >= 0 && has[call.state] === 1) found.push(at);
  });
  return found;
}

/**
 * Return the calls that read a call's answer, as a message or as a captured value, in tree order.
 * @param {Run} run
 * @param {Call} call
 * @returns {Index[]}
 */
export function readersOfCall(run, call) {
  const found = new Set(readersOf(run, call.message));
  const { calls } = lookup(run);
  for (const captured of call.fate?.captured ?? []) {
    for (const path of captured.read_by) {
      const at = calls.get(path);
      if (at !== undefined) found.add(at);
    }
  }
  return [...found].sort((a, b) => a - b);
}

/**
 * Return the calls whose answers a call saw or read, in tree order.
 * @param {Run} run
 * @param {Call} call
 * @returns {Index[]}
 */
export function makersForCall(run, call) {
  const { calls, madeBy } = lookup(run);
  /** @type {Set<Index>} */
  const found = new Set();
  for (const message of conversation(run, call.state)) {
    const at = madeBy.get(message);
    if (at !== undefined) found.add(at);
  }
  for (const read of call.reads) {
    const at = calls.get(read.made_by);
    if (at !== undefined) found.add(at);
  }
  return [...found].sort((a, b) => a - b);
}

/**
 * Return whether a run is still going on, or can: what isn't merged yet may be merged later.
 * @param {import("./page").Run} run
 */
export function isOpen(run) {
  return ["queued", "running", "waiting"].includes(run.status);
}

/**
 * Return the first call at or below a path, or -1.
 * @param {Run} run
 * @param {string} path
 * @returns {Index}
 */
export function callAt(run, path) {
  const { calls, nodes, ends } = lookup(run);
  const exact = calls.get(path);
  if (exact !== undefined) return exact;
  const node = nodes.get(path);
  if (node !== undefined) {
    const within = callsIn(run, node);
    if (within.length) return within[0];
  }
  return run.calls.findIndex((call) => call.path.startsWith(`${path}/`) && (node === undefined || call.node <= ends[node]));
}

/**
 * Return the calls of a node and of everything below it, in tree order.
 * @param {Run} run
 * @param {Index} node
 * @returns {Index[]}
 */
export function callsIn(run, node) {
  const { callsOf, ends } = lookup(run);
  /** @type {Index[]} */
  const found = [];
  for (let at = node; at <= ends[node]; at++) found.push(...callsOf[at]);
  return found.sort((a, b) => a - b);
}

/**
 * Return the call that failed first, or -1.
 * @param {Run} run
 * @returns {Index}
 */
export function firstFailure(run) {
  if (run.failure) {
    const at = callAt(run, run.failure.path);
    if (at >= 0) return at;
  }
  return run.calls.findIndex((call) => call.status === "failed");
}

/**
 * Parse the data of the page's island.
 * @param {string} text
 * @returns {Page}
 */
export function parsePage(text) {
  const page = /** @type {Page} */ (JSON.parse(text));
  if (page.format !== "mergepoint.view/1")
    throw new Error(`This page has data of the format ${page.format}, but its script reads mergepoint.view/1.`);
  return page;
}
