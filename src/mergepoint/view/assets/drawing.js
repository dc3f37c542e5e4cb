// @ts-check
/** The tab "Drawing": the graph of a run, with the statuses of its nodes. */

import { callAt, lookup } from "./data.js";
import { h, put, svg } from "./dom.js";
import { STATUS } from "./format.js";
import { shortPath } from "./labels.js";

/**
 * @typedef {import("./modules").App} App
 */

// Whatever isn't listed is left out: scripts, foreign content, references to other places.
const ELEMENTS = new Set(["svg", "g", "rect", "path", "text", "tspan", "circle", "ellipse", "polyline", "polygon", "line", "title", "desc"]);
const ATTRIBUTES = new Set([
  "aria-labelledby", "class", "cx", "cy", "d", "data-path", "dominant-baseline", "fill", "fill-opacity", "font-family", "font-size",
  "font-style", "font-weight", "height", "id", "letter-spacing", "opacity", "points", "r", "role", "rx", "ry", "stroke",
  "stroke-dasharray", "stroke-linecap", "stroke-linejoin", "stroke-opacity", "stroke-width", "text-anchor", "transform", "viewBox",
  "width", "x", "x1", "x2", "y", "y1", "y2",
]);

/**
 * Return an element of a parsed drawing with the parts that draw, or null.
 * @param {Element} source
 * @returns {SVGElement | null}
 */
function copied(source) {
  if (!ELEMENTS.has(source.localName)) return null;
  const made = svg(/** @type {"g"} */ (source.localName));
  for (const { name, value } of source.attributes) {
    // Classes of the drawing mustn't meet those of the page. Colours and the like can refer to addresses, which nothing
    // of ours does.
    if (ATTRIBUTES.has(name) && !/url\s*\(/iu.test(value)) made.setAttribute(name, name === "class" ? `drawn-${value}` : value);
  }
  for (const child of source.childNodes) {
    if (child instanceof Text) made.appendChild(document.createTextNode(child.data));
    else if (child instanceof Element) {
      const one = copied(child);
      if (one) made.appendChild(one);
    }
  }
  return made;
}

/**
 * Return a drawing as an element, or null if it isn't valid.
 * @param {string} text
 * @returns {SVGElement | null}
 */
export function drawingElement(text) {
  // A handler would never run, but the page's policy would complain of it in the console.
  const quiet = text.replace(/<[^>]*>/gu, (tag) => tag.replace(/(\s)on(\w+\s*=)/giu, "$1data-off-$2"));
  const parsed = new DOMParser().parseFromString(quiet, "image/svg+xml");
  return parsed.querySelector("parsererror") || parsed.documentElement.localName !== "svg" ? null : copied(parsed.documentElement);
}

/**
 * Return the tab; null if the run has no drawing.
 * @param {App} app
 * @returns {import("./modules").Screen | null}
 */
export function drawingTab(app) {
  if (!app.run.drawing) return null;
  const element = h("div", { class: "drawing" });
  let drawn = "";

  /** @param {Event} event */
  function press(event) {
    const group = event.target instanceof Element ? event.target.closest("[data-path]") : null;
    if (!group) return;
    if (event instanceof KeyboardEvent && event.key !== "Enter" && event.key !== " ") return;
    app.selectPath(group.getAttribute("data-path") ?? "");
    event.preventDefault();
    event.stopPropagation();
  }
  element.addEventListener("click", press);
  element.addEventListener("keydown", press);

  function draw() {
    if (drawn === app.run.drawing) {
      paint(app, element);
      return;
    }
    drawn = app.run.drawing;
    const made = drawingElement(drawn);
    if (made) {
      // It has buttons now; an image may not have any.
      made.setAttribute("role", "group");
      put(element, made);
      paint(app, element);
    } else put(element, h("p", { class: "faint" }, "The drawing isn't valid SVG, so it isn't shown."));
  }

  draw();
  return {
    element,
    selected: (call) => paint(app, element, call),
    refresh: draw,
  };
}

/**
 * Give each node of a drawing its status, and mark the selected one.
 * @param {App} app
 * @param {HTMLElement} element
 */
function paint(app, element, selected = app.selected) {
  const { nodes } = lookup(app.run);
  const chosen = selected >= 0 ? app.run.calls[selected].path : "";
  for (const group of element.querySelectorAll("[data-path]")) {
    const path = group.getAttribute("data-path") ?? "";
    const at = nodes.get(path);
    const status = at === undefined ? "" : app.run.nodes[at].status;
    const words = STATUS[status]?.word ?? "";
    group.setAttribute("class", `d-node ${status ? `d-${STATUS[status]?.tone ?? "dim"}` : ""} ${path === chosen ? "is-selected" : ""}`);
    group.setAttribute("data-status", status);
    const mark = badge(group, status);
    // A button mustn't contain others: that of a block is its badge.
    const press = group.querySelector("[data-path]") ? mark : group;
    if (!press || callAt(app.run, path) < 0) continue;
    press.setAttribute("role", "button");
    press.setAttribute("tabindex", "0");
    press.setAttribute("aria-label", [shortPath(app, path), words].filter(Boolean).join(", "));
  }
}

/**
 * Put the glyph of a status at the corner of a node.
 * @param {Element} group
 * @param {string} status
 * @returns {SVGElement | null}
 */
function badge(group, status) {
  group.querySelector(":scope > .d-badge")?.remove();
  const box = group.querySelector(":scope > rect");
  if (!box || !status) return null;
  const { glyph } = STATUS[status];
  const x = Number(box.getAttribute("x")) + Number(box.getAttribute("width"));
  const y = Number(box.getAttribute("y"));
  const mark = svg("g", { class: "d-badge" },
    svg("circle", { cx: x, cy: y, r: 7.5 }), svg("text", { x, y: y + 3.5, "text-anchor": "middle", "font-size": 10, "aria-hidden": "true" }, glyph));
  group.appendChild(mark);
  return mark;
}
