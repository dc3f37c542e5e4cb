// @ts-check
/** Elements. Data reach the page as text nodes only, so that nothing in them is ever executed. */

import { visibleParts } from "./format.js";

/** @typedef {import("./modules").Child} Child */
/** @typedef {{[name: string]: unknown}} Props */

const SVG = "http://www.w3.org/2000/svg";

/**
 * Return an element.
 *
 * Props: `class`, `on` (handlers by event), `data` (dataset), `style` (an object), and attributes;
 * `true` is an empty attribute, `false`, null and undefined are none.
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {Props | null} [props]
 * @param {...(Child | Child[])} children
 * @returns {HTMLElementTagNameMap[T]}
 */
export function h(tag, props, ...children) {
  const element = document.createElement(tag);
  fill(element, props, children);
  return element;
}

/**
 * Return an SVG element; props as for `h`.
 * @template {keyof SVGElementTagNameMap} T
 * @param {T} tag
 * @param {Props | null} [props]
 * @param {...(Child | Child[])} children
 * @returns {SVGElementTagNameMap[T]}
 */
export function svg(tag, props, ...children) {
  const element = /** @type {SVGElementTagNameMap[T]} */ (document.createElementNS(SVG, tag));
  fill(element, props, children);
  return element;
}

/**
 * @param {HTMLElement | SVGElement} element
 * @param {Props | null | undefined} props
 * @param {(Child | Child[])[]} children
 */
function fill(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") element.setAttribute("class", String(value));
    else if (name === "on") {
      for (const [event, handler] of Object.entries(/** @type {{[event: string]: EventListener}} */ (value)))
        element.addEventListener(event, handler);
    } else if (name === "data") Object.assign(element.dataset, value);
    // The page's policy refuses style attributes; properties of a style object are allowed.
    else if (name === "style") Object.assign(element.style, value);
    else if (/^on/iu.test(name)) throw new TypeError(`pass handlers in "on", not as ${name}`);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  add(element, ...children);
}

/**
 * Append children: nodes, or texts whose invisible characters are written out.
 * @param {Node} parent
 * @param {...(Child | Child[])} children
 */
export function add(parent, ...children) {
  for (const child of children) {
    if (Array.isArray(child)) add(parent, ...child);
    else if (child instanceof Node) parent.appendChild(child);
    else if (child !== null && child !== undefined && child !== false) addText(parent, String(child));
  }
}

/**
 * Append a text. Invisible characters (controls, direction marks) are shown in their escaped form.
 * @param {Node} parent
 * @param {string} text
 */
export function addText(parent, text) {
  visibleParts(text).forEach((part, at) => {
    if (at % 2 === 0) {
      if (part) parent.appendChild(document.createTextNode(part));
      return;
    }
    const mark = document.createElement("span");
    mark.className = "hidden-character";
    mark.title = "an invisible character";
    mark.textContent = part;
    parent.appendChild(mark);
  });
}

/**
 * Replace what an element contains.
 * @param {Element} parent
 * @param {...(Child | Child[])} children
 */
export function put(parent, ...children) {
  parent.replaceChildren();
  add(parent, ...children);
}

/**
 * Return a button.
 * @param {Child | Child[]} label
 * @param {(event: MouseEvent) => void} press
 * @param {Props} [props]
 */
export function button(label, press, props = {}) {
  return h("button", { type: "button", ...props, on: { click: press } }, label);
}

/**
 * Return a button that copies a text; it says so for a moment, also to screen readers.
 * @param {string} label
 * @param {string | (() => string)} text
 * @param {Props} [props]
 */
export function copyButton(label, text, props = {}) {
  const made = button(label, async () => {
    const copied = await copy(typeof text === "function" ? text() : text);
    made.textContent = copied ? "copied ✓" : "can't copy here";
    announce(copied ? `${label}: copied` : "The browser doesn't allow copying here");
    setTimeout(() => {
      made.textContent = label;
    }, 1500);
  }, { class: "quiet", ...props });
  return made;
}

/**
 * Copy a text; return whether the browser did.
 * @param {string} text
 */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Without a secure context or a permission there is no clipboard, but a selection can be copied.
    const field = h("textarea", { class: "off-screen", "aria-hidden": "true" });
    field.value = text;
    document.body.appendChild(field);
    field.select();
    const copied = document.execCommand("copy");
    field.remove();
    return copied;
  }
}

/**
 * Say something to screen readers.
 * @param {string} text
 */
export function announce(text) {
  const region = document.getElementById("announcements");
  if (region) region.textContent = text;
}

/**
 * Offer a file for download.
 * @param {string} name
 * @param {string} content
 * @param {string} type
 */
export function download(name, content, type) {
  const address = URL.createObjectURL(new Blob([content], { type }));
  const link = h("a", { href: address, download: name });
  link.click();
  // The download has begun once the click was handled; a second keeps slow disks safe.
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

/**
 * Return whether a key press is meant for a field, where letters are text.
 * @param {Event} event
 */
export function isTyping(event) {
  const target = event.target;
  return target instanceof HTMLElement && (/^(INPUT|TEXTAREA|SELECT)$/u.test(target.tagName) || target.isContentEditable);
}

/**
 * Move the focus to an element that can't have it by itself.
 * @param {HTMLElement} element
 */
export function focusOn(element) {
  if (element.tabIndex < 0 && !element.hasAttribute("tabindex")) element.tabIndex = -1;
  element.focus({ preventScroll: true });
}

/**
 * Return a long text in a block; what is over `most` characters is shown on demand.
 * @param {string} text
 * @param {{most?: number, class?: string, draw?: (text: string) => Child | Child[]}} [options]
 */
export function longText(text, options = {}) {
  const most = options.most ?? 6000;
  const draw = options.draw ?? ((/** @type {string} */ part) => part);
  const box = h("div", { class: `text ${options.class ?? ""}` });
  if (text.length <= most * 1.2) {
    add(box, draw(text));
    return box;
  }
  add(box, draw(cutAt(text, most)));
  const more = button(`show all ${text.length.toLocaleString("en-US")} characters`, () => put(box, draw(text)), { class: "more" });
  add(box, more);
  return box;
}

/**
 * Return the beginning of a text, not cut within a surrogate pair.
 * @param {string} text
 * @param {number} most
 */
export function cutAt(text, most) {
  const last = text.charCodeAt(most - 1);
  return text.slice(0, last >= 0xd800 && last < 0xdc00 ? most - 1 : most);
}

/**
 * A list of any length, of which only the visible rows are elements.
 *
 * `render(i)` returns the element of row i, all of one height. `element` scrolls.
 * @typedef {{
 *   element: HTMLElement,
 *   body: HTMLElement,
 *   update(count: number): void,
 *   scrollTo(row: number): void,
 *   show(count: number, row: number): void,
 *   redraw(): void,
 *   row(at: number): HTMLElement | null,
 * }} VirtualList
 */

/**
 * Return a virtual list.
 * @param {{count: number, rowHeight: number, render: (row: number) => HTMLElement, props?: Props}} options
 * @returns {VirtualList}
 */
export function virtualList({ count, rowHeight, render, props = {} }) {
  const body = h("div", { class: "virtual-body", role: "presentation" });
  const element = h("div", { ...props, class: `virtual ${props.class ?? ""}` }, body);
  let total = count;
  let first = 0;
  let last = -1;
  /** @type {Map<number, HTMLElement>} */
  let rows = new Map();

  function draw() {
    const height = element.clientHeight || 600;
    const from = Math.max(0, Math.floor(element.scrollTop / rowHeight) - 8);
    const to = Math.min(total - 1, Math.ceil((element.scrollTop + height) / rowHeight) + 8);
    if (from === first && to === last) return;
    first = from;
    last = to;
    /** @type {Map<number, HTMLElement>} */
    const next = new Map();
    for (let row = from; row <= to; row++) {
      let one = rows.get(row);
      if (!one) {
        one = render(row);
        one.style.top = `${row * rowHeight}px`;
        body.appendChild(one);
      }
      next.set(row, one);
    }
    for (const [row, one] of rows) if (!next.has(row)) one.remove();
    rows = next;
  }

  function redraw() {
    for (const one of rows.values()) one.remove();
    rows = new Map();
    first = 0;
    last = -1;
    body.style.height = `${total * rowHeight}px`;
    draw();
  }

  element.addEventListener("scroll", draw, { passive: true });
  new ResizeObserver(draw).observe(element);
  body.style.height = `${total * rowHeight}px`;
  return {
    element,
    body,
    update(next) {
      total = next;
      redraw();
    },
    scrollTo(row) {
      const top = row * rowHeight;
      const height = element.clientHeight;
      if (top < element.scrollTop || top + rowHeight > element.scrollTop + height)
        element.scrollTop = Math.max(0, top - Math.max(0, height / 2 - rowHeight));
      draw();
    },
    show(next, row) {
      total = next;
      for (const one of rows.values()) one.remove();
      rows = new Map();
      first = 0;
      last = -1;
      body.style.height = `${total * rowHeight}px`;
      this.scrollTo(row);
    },
    redraw,
    row: (at) => rows.get(at) ?? null,
  };
}

/**
 * Return an element only screen readers get.
 * @param {string} text
 */
export function spoken(text) {
  return h("span", { class: "spoken" }, text);
}
