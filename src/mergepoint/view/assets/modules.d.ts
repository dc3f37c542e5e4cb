/** What the modules of the page offer each other. */
import type { Page, Run, Call, Index } from "./page";

/** One open page: its data, and what is selected. Screens keep no other state. */
export interface App {
  page: Page;
  /** The run that is shown; in a session the run of the selected turn. Unset if the page has none. */
  run: Run;
  /** Index of the selected call, -1 for none. */
  selected: Index;
  tab: string;
  /** Tabs of the screen, in the order of their digits; a screen sets them when it is made. */
  tabs: string[];
  text(id: number | null): string;
  /** Select a call of the run, scroll to it and show its X-ray; -1 closes the X-ray. */
  select(call: Index): void;
  /** Select the call at a path, or the first one below it; returns whether there is one. */
  selectPath(path: string): boolean;
  open(tab: string): void;
  /** Show a run of the page, by its index in page.runs. */
  show(run: Index): void;
  /**
   * Replace the page's data by newer data of the same page (live.js calls it), and refresh the
   * screens. What is selected, by path, and scroll positions stay.
   */
  replace(page: Page): void;
}

/** A screen draws itself into an element; `selected` is called whenever the selection changes. */
export interface Screen {
  element: HTMLElement;
  selected?(call: Index): void;
  /** Another tab was opened: `app.tab`. */
  opened?(): void;
  /** Another run, or other data (live page): draw again without losing scroll positions. */
  refresh?(): void;
  /** Handle a key that the page doesn't know; returns whether it did. */
  key?(key: string): boolean;
}

/**
 * Of live.js: the line that says whether the page is live. main.js puts it into the page's head,
 * and does nothing if there is none, in a file.
 */
export type LiveStatus = (app: App) => HTMLElement | null;

/**
 * Of gate.js: the form that answers a waiting gate. The X-ray of a call puts it below the question,
 * and does nothing if there is none: in a file, or if the call isn't a waiting gate. The same
 * element is returned for the same gate, so that a half-written answer outlives a refresh.
 */
export type GateForm = (app: App, call: Index) => HTMLElement | null;

/** What an element can contain. Texts become text nodes, with invisible characters written out. */
export type Child = Node | string | number | null | undefined | false | Child[];
