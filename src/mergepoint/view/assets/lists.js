// @ts-check
/** What the lists of runs and of results share: sorted columns, and chips of statuses. */

import { button, h } from "./dom.js";
import { STATUS, count } from "./format.js";

/**
 * A column by which rows are sorted; `first` is the direction of the first click.
 * @template Row
 * @typedef {{name: string, label: string, value: (row: Row) => string | number | null, first: 1 | -1, numeric?: boolean}} Column
 */

/**
 * The column by which rows are sorted, by its name; "" is their own order.
 * @typedef {{sorted: string, direction: 1 | -1}} Sorting
 */

// Made once: a comparison of its own per pair takes seconds for 20,000 rows.
const COLLATOR = new Intl.Collator("en", { numeric: true });

/**
 * Return rows by a column; unknown values are last in both directions.
 * @template Row
 * @param {Row[]} rows
 * @param {Column<Row>} column
 * @param {1 | -1} direction
 */
export function sortedBy(rows, column, direction) {
  const unknown = (/** @type {string | number | null} */ value) => value === null || value === "";
  return [...rows].sort((one, other) => {
    const [a, b] = [column.value(one), column.value(other)];
    if (unknown(a) || unknown(b)) return Number(unknown(a)) - Number(unknown(b));
    if (typeof a === "number" && typeof b === "number") return (a - b) * direction;
    return COLLATOR.compare(String(a), String(b)) * direction;
  });
}

/**
 * Return how a column is sorted, as the value of `aria-sort`.
 * @param {{name: string}} column
 * @param {Sorting} sorting
 */
export function sortOf(column, sorting) {
  if (sorting.sorted !== column.name) return "none";
  return sorting.direction === 1 ? "ascending" : "descending";
}

/**
 * Return the button in the head of a column.
 * @param {{name: string, label: string, first: 1 | -1}} column
 * @param {Sorting} sorting
 * @param {() => void} draw
 */
export function sortButton(column, sorting, draw) {
  const sorted = sorting.sorted === column.name;
  const arrow = sorted ? (sorting.direction === 1 ? " ↑" : " ↓") : "";
  return button([column.label, h("span", { "aria-hidden": "true" }, arrow)], () => {
    if (!sorted) [sorting.sorted, sorting.direction] = [column.name, column.first];
    else if (sorting.direction === column.first) sorting.direction = /** @type {1 | -1} */ (-column.first);
    // The third click leads back to the list's own order.
    else sorting.sorted = "";
    draw();
  }, { class: "runs-sort" });
}

/**
 * Return a button for each status, with the number of its rows.
 * @param {Map<string, number>} statuses
 * @param {Set<string>} chosen
 * @param {() => void} draw
 */
export function statusChips(statuses, chosen, draw) {
  return Object.keys(STATUS).filter((status) => statuses.has(status)).map((status) => {
    const { glyph, word, tone } = STATUS[status];
    return button([h("span", { "aria-hidden": "true" }, `${glyph} `), word, h("span", { class: "runs-count" }, count(statuses.get(status) ?? 0))], () => {
      if (!chosen.delete(status)) chosen.add(status);
      draw();
    }, { class: `runs-chip tone-${tone}`, "aria-pressed": String(chosen.has(status)), "data-status": status });
  });
}
