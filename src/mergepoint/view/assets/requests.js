// @ts-check
/** What a call can be taken away as: a prompt, a command for curl, a command that runs it again. */

import { seenBy } from "./data.js";

/**
 * @typedef {import("./modules").App} App
 * @typedef {import("./page").Call} Call
 */

/**
 * Return the messages of a request with role and content.
 * @param {App} app
 * @param {Call} call
 * @returns {{role: string, content: string}[]}
 */
export function requestMessages(app, call) {
  return seenBy(app.run, call).map(({ message }) => {
    const { role, text } = app.run.messages[message];
    return { role, content: app.text(text) };
  });
}

/**
 * Return the whole prompt as text: each message below its role.
 * @param {App} app
 * @param {Call} call
 */
export function promptText(app, call) {
  return requestMessages(app, call).map(({ role, content }) => `[${role}]\n${content}\n`).join("\n");
}

/**
 * Return a word quoted for a POSIX shell.
 * @param {string} word
 */
export function shellWord(word) {
  return /^[\w@%+=:,./-]+$/u.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

/**
 * Return a command that sends a call's request to a server with OpenAI's chat completions. The key
 * is read from the environment.
 * @param {App} app
 * @param {Call} call
 */
export function curlCommand(app, call) {
  const model = call.model.includes(":") ? call.model.slice(call.model.indexOf(":") + 1) : call.model;
  const body = { model, messages: requestMessages(app, call), ...plainParams(call.params) };
  return [
    'curl "${OPENAI_BASE_URL:-https://api.openai.com/v1}/chat/completions"',
    '-H "Authorization: Bearer $OPENAI_API_KEY"',
    "-H 'Content-Type: application/json'",
    `--data-raw ${shellWord(JSON.stringify(body, null, 1))}`,
  ].join(" \\\n  ");
}

/**
 * Return the parameters that have a value.
 * @param {{[name: string]: unknown}} params
 */
function plainParams(params) {
  return Object.fromEntries(Object.entries(params).filter(([, value]) => value !== null && value !== undefined));
}

/**
 * Return the command that runs the workflow again from a call, with another prompt: answers to
 * requests that stay the same are reused. "" if the run can't be started again.
 * @param {App} app
 * @param {Call} call
 */
export function commandFrom(app, call) {
  const again = app.run.commands["run again"];
  if (!again) return "";
  if (app.run.kind === "recipe" || call.kind === "inner" || call.kind === "tool") return again;
  return `${again} --set ${shellWord(`${call.path}:prompt=...`)}`;
}
