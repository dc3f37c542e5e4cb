// @ts-check
/** The form that answers a waiting gate: approve, edit, or reject with a comment. */

import { add, announce, h, put } from "./dom.js";

/**
 * @typedef {import("./modules").App} App
 * @typedef {import("./page").Call} Call
 * @typedef {{decision: "approve" | "edit" | "reject", text?: string, outputs?: object, feedback?: string}} Answer
 */

/** Forms by run and path: a refresh shows the same one, with what was typed. */
/** Gates that were answered here. */
const sent = /** @type {Set<string>} */ (new Set());
const SENT = "Sent. The run goes on.";
const QUEUED = "An answer was given. The run waits in the queue for a worker.";
const forms = /** @type {Map<string, HTMLFormElement>} */ (new Map());

/** @type {import("./modules").GateForm} */
export const gateForm = (app, at) => {
  const call = app.run.calls[at];
  if (!app.page.live?.answers || call?.kind !== "gate") return null;
  const key = `${app.run.id}\n${call.path}`;
  if (call.status === "waiting" && app.run.status === "queued") return h("p", { role: "status", class: "gate-said" }, QUEUED);
  // A refresh takes the form away: who just sent it is still told that it was taken.
  if (call.status !== "waiting") return sent.has(key) && app.run.status === "running" ? h("p", { role: "status", class: "gate-said" }, SENT) : null;
  const known = forms.get(key) ?? newForm(app, call);
  forms.set(key, known);
  return known;
};

/**
 * Return a field with its label above.
 * @param {string} label
 * @param {string} value
 * @param {string} note
 */
function labeled(label, value, note) {
  const rows = Math.min(16, Math.max(2, value.split("\n").length + Math.floor(value.length / 90)));
  const field = h("textarea", { rows, spellcheck: "true", "aria-description": note });
  field.value = value;
  return { field, element: h("label", null, h("span", null, label, " ", h("span", { class: "soft" }, note)), field) };
}

/**
 * Return the form of a gate.
 * @param {App} app
 * @param {Call} call
 */
function newForm(app, call) {
  const editable = call.decision?.editable;
  const isText = typeof editable?.text === "number";
  const before = isText ? app.text(editable.text) : editable ? app.text(editable.outputs) : "";
  const edit = labeled(isText ? "Answer" : "Outputs", before, isText ? "" : "as JSON");
  const comment = labeled("Comment", "", "why, or what should be different");
  const said = h("p", { role: "status", class: "gate-said" });
  const approve = h("button", { type: "submit", class: "button" }, "Approve");
  const reject = h("button", { type: "button", class: "button" }, "Reject");
  const buttons = h("div", { class: "gate-buttons" }, approve, reject);
  const form = h("form", { class: "gate-form panel", "aria-label": `Decision at ${call.path}` });
  add(form, h("h3", null, "Your decision"), before ? edit.element : null, comment.element, buttons, said);

  const changed = () => edit.field.value.trim() !== before.trim();
  edit.field.addEventListener("input", () => put(approve, changed() ? "Approve with your edit" : "Approve"));

  /** @param {"approve" | "reject"} decision */
  async function decide(decision) {
    try {
      const answer = decisionFrom(decision, changed() ? edit.field.value : null, isText, comment.field.value);
      for (const one of form.elements) if (one instanceof HTMLButtonElement) one.disabled = true;
      put(said, "Sending …");
      await send(app, call.path, answer);
      sent.add(`${app.run.id}\n${call.path}`);
      const taken = app.page.live?.enqueues ? QUEUED : SENT;
      put(said, taken);
      announce(taken);
    } catch (error) {
      put(said, error instanceof Error ? error.message : String(error));
      for (const one of form.elements) if (one instanceof HTMLButtonElement) one.disabled = false;
    }
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    void decide("approve");
  });
  reject.addEventListener("click", () => void decide("reject"));
  return form;
}

/**
 * Return an answer; an approval of a changed text is an edit. Throws for outputs that aren't JSON.
 * @param {"approve" | "reject"} decision
 * @param {string | null} edited
 * @param {boolean} isText
 * @param {string} comment
 * @returns {Answer}
 */
function decisionFrom(decision, edited, isText, comment) {
  const feedback = comment.trim() ? { feedback: comment.trim() } : {};
  if (decision === "reject" || edited === null) return { decision, ...feedback };
  if (isText) return { decision: "edit", text: edited, ...feedback };
  try {
    return { decision: "edit", outputs: JSON.parse(edited), ...feedback };
  } catch (error) {
    throw new Error(`The outputs aren't JSON: ${error instanceof Error ? error.message : error}`);
  }
}

/**
 * Send an answer to the server. Throws with the reason if it isn't taken.
 * @param {App} app
 * @param {string} path
 * @param {Answer} answer
 */
async function send(app, path, answer) {
  const live = app.page.live;
  if (!live) throw new Error("The page has no server.");
  let taken;
  try {
    taken = await fetch(live.answers, {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Mergepoint-Token": live.token },
      body: JSON.stringify({ path, ...answer }),
    });
  } catch {
    throw new Error("The server can't be reached. Start mergepoint view --serve again.");
  }
  if (taken.ok) return;
  const told = await taken.json().catch(() => ({}));
  throw new Error(told.message ?? `The server refused the answer (${taken.status}).`);
}
