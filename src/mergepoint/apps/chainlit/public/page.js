// What the page adds to Chainlit: the theme of the browser, an editor for plans and programs, a
// composer that waits for words when changes are asked for, and how the threads in the list stand.
(() => {
  "use strict";

  // -- light or dark, as the browser has it until somebody chooses

  const THEME = "vite-ui-theme";
  const dark = matchMedia("(prefers-color-scheme: dark)");

  function follow() {
    if (localStorage.getItem(THEME) !== "system") return;
    document.documentElement.classList.remove("light", "dark");
    document.documentElement.classList.add(dark.matches ? "dark" : "light");
  }

  if (!localStorage.getItem(THEME)) localStorage.setItem(THEME, "system");
  follow();
  dark.addEventListener("change", follow);

  // -- the server's messages to this script

  addEventListener(
    "message",
    (event) => {
      // Other windows can send messages too; Chainlit hands on what is not stopped here.
      if (event.source !== window || event.origin !== location.origin) return;
      const said = event.data;
      if (!said || typeof said !== "object" || !said.mergepoint) return;
      event.stopImmediatePropagation();
      if (said.mergepoint === "edit") edit(said);
      if (said.mergepoint === "mark") {
        marks.set(said.thread, said.mark);
        paint();
      }
    },
    true,
  );

  // -- the editor

  function element(name, properties, ...children) {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  }

  function edit(said) {
    const field = element("textarea", {
      value: said.text,
      spellcheck: !said.code,
      className: said.code ? "code" : "",
    });
    field.setAttribute("aria-label", said.title);
    const problem = element("p", { className: "problem", hidden: true });
    problem.setAttribute("role", "alert");
    const cancel = element("button", { type: "button", textContent: "Cancel" });
    const save = element("button", { type: "submit", textContent: said.save, className: "save" });
    const form = element(
      "form",
      {},
      element("h2", { textContent: said.title }),
      field,
      problem,
      element(
        "footer",
        {},
        element("span", { textContent: "Ctrl+Enter saves, Esc closes" }),
        cancel,
        save,
      ),
    );
    const dialog = element("dialog", { className: "mergepoint-editor" }, form);
    dialog.setAttribute("aria-label", said.title);

    const changed = () => field.value !== said.text;
    const leave = () => {
      if (!changed() || confirm("Discard your changes?")) dialog.close();
    };
    cancel.addEventListener("click", leave);
    dialog.addEventListener("cancel", (event) => {
      event.preventDefault();
      leave();
    });
    dialog.addEventListener("close", () => dialog.remove());
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    });
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      save.disabled = true;
      problem.hidden = true;
      const wrong = await saved(said, field.value);
      save.disabled = false;
      if (!wrong) return dialog.close();
      problem.textContent = wrong;
      problem.hidden = false;
    });
    document.body.append(dialog);
    dialog.showModal();
    field.focus();
    field.setSelectionRange(0, 0);
  }

  // Gives what is wrong with the text, or nothing.
  async function saved(said, text) {
    const { name, payload } = said.action;
    const action = { name, payload: { ...payload, text } };
    try {
      const answer = await post("/project/action", { sessionId: said.sessionId, action });
      return answer.response;
    } catch (error) {
      return `It is not saved: ${error.message}`;
    }
  }

  async function post(path, body) {
    const answer = await fetch(path, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
    });
    if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
    return answer.json();
  }

  // -- how the threads in the list stand

  const marks = new Map();
  let asking = false;
  let queued = false;

  function paint() {
    queued = false;
    const shown = [...document.querySelectorAll("#thread-history li[id^='thread-']")];
    for (const item of shown) {
      const mark = marks.get(item.id.slice("thread-".length)) || "";
      if ((item.dataset.mark || "") !== mark) item.dataset.mark = mark;
    }
    if (shown.some((item) => !marks.has(item.id.slice("thread-".length)))) ask(shown);
  }

  async function ask(shown) {
    if (asking) return;
    asking = true;
    try {
      const pagination = { first: shown.length + 35 };
      const { data } = await post("/project/threads", { pagination, filter: {} });
      for (const one of data) marks.set(one.id, one.metadata?.mark || "");
    } catch {
      // The list stays unmarked; Chainlit itself says that the server is away.
    }
    for (const item of shown) {
      const id = item.id.slice("thread-".length);
      if (!marks.has(id)) marks.set(id, "");
    }
    asking = false;
    paint();
  }

  new MutationObserver(() => {
    if (queued) return;
    queued = true;
    requestAnimationFrame(paint);
  }).observe(document.documentElement, { childList: true, subtree: true });

  // -- words that say what should be different

  document.addEventListener("click", (event) => {
    if (event.target.closest?.("button[id^='mergepoint-replan-']")) {
      setTimeout(() => document.getElementById("chat-input")?.focus(), 0);
    }
  });
})();
