/**
 * The data of a page: what mergepoint.view writes into its JSON island, and what the modules read.
 *
 * Each text is stored once, in `texts`, and each message once per run; a conversation is a chain of
 * `states`, so that 10,000 calls that see each other's messages need no quadratic space.
 */

/** Index into `texts` of the page. */
export type TextId = number;
/** Index into a list of the run: `nodes`, `messages`, `states` or `calls`. -1 means none. */
export type Index = number;

export interface Page {
  format: "mergepoint.view/1";
  screen: "run" | "runs" | "compare" | "session" | "explain" | "batch";
  title: string;
  version: string;
  texts: string[];
  /** One run; two (A, B) in a comparison; one per turn in a session; none in a list. */
  runs: Run[];
  session?: Session;
  comparison?: Comparison;
  list?: ListedRun[];
  batch?: Batch;
  /** Served by `mergepoint view --serve`: the page may ask the server that it came from. */
  live?: Live;
}

/** Addresses begin with "/", on the server that the page came from. */
export interface Live {
  /**
   * The page's data as JSON. A request with the ETag of the data that the page has (`etag`) is
   * answered with 304 if nothing changed.
   */
  data: string;
  etag: string;
  /**
   * Server-sent events of this page, or "" if it doesn't change: "changed" with `{"etag": ...}`,
   * upon which the page fetches `data` if the ETag differs, and "ended" once the run has ended.
   */
  events: string;
  /** Takes the answers at gates as POST, or "" if they can't be given here. */
  answers: string;
  /** Whether a run whose gate is answered waits in a queue for a worker. */
  enqueues: boolean;
  /** Token that answers have to bring along, in the header `X-Mergepoint-Token`. */
  token: string;
  /** The list of runs; "" on the list itself. */
  list: string;
  /** Compares two runs, whose ids are added as the queries `a` and `b`. */
  compare: string;
}

export type Status =
  | "queued" | "running" | "done" | "rejected" | "waiting" | "failed" | "interrupted"
  | "unfinished" | "damaged" | "planned";
export type NodeStatus =
  | "done" | "failed" | "running" | "waiting" | "rejected" | "left_out" | "not_reached" | "planned";
export type Merge = "all_messages" | "last_response" | "none";

export interface Usage {
  calls: number;
  input_tokens: number;
  output_tokens: number;
  /** USD; null if no price is known. */
  cost: number | null;
  /** True if some cost or token count is an estimate or unknown. */
  estimated: boolean;
}

export interface Value { key: string; text: TextId }

/** `answer` is what the model said, if it said something that could not be used. */
export interface Failure { path: string; type: string; message: string; answer?: TextId }

export interface Run {
  id: string;
  /** The workflow as the user named it: a name or file without folders. */
  graph: string;
  kind: "tree" | "recipe";
  status: Status;
  /** One sentence: how it ended, how many calls, time, tokens, cost. */
  verdict: string;
  created_at: string;
  /** Seconds since the epoch of the first call; times of nodes and calls are relative to it. */
  start: number;
  /** Seconds in which calls ran, without pauses; null without calls. */
  seconds: number | null;
  seed: number;
  models: string[];
  inputs: Value[];
  outputs: Value[];
  result: TextId | null;
  failure: Failure | null;
  /** What was paid for in this run, and what was taken from the record instead. */
  paid: Usage;
  reused: Usage;
  /** Options and settings that the run was started with (`--set`, `--without`, the model). */
  settings: Value[];
  /** Shell commands, by purpose: "show", "resume", "view", "run again". Absent if impossible. */
  commands: { [purpose: string]: string };
  /** Notes about the record: cut, repaired, older format, masked values. */
  notes: string[];
  /** Pre-order: a node's descendants follow it. Loops have one node per iteration. */
  nodes: TreeNode[];
  messages: Message[];
  states: State[];
  /** In tree order; calls of recipes and tools after the call or stage that they belong to. */
  calls: Call[];
  /** SVG of the graph; elements of a node carry data-path. "" if there is none. */
  drawing: string;
  recipe: RecipeData | null;
  /** Predictions of a run that hasn't started (status "planned"); else null. */
  plan: Plan | null;
}

export interface TreeNode {
  path: string;
  kind: "step" | "call" | "gate" | "block" | "loop" | "iteration" | "recipe" | "stage" | "thing";
  parent: Index;
  merge: Merge | "";
  parallel: boolean;
  capture: string;
  status: NodeStatus;
  /** Seconds since `start` of the run; null if nothing in it ran. */
  start: number | null;
  end: number | null;
  /** Model calls in it, answered live or reused; failed attempts. */
  calls: number;
  reused: number;
  failed: number;
  input_tokens: number;
  output_tokens: number;
  cost: number | null;
  /** Siblings with equal shapes have the same number, so that they can be folded together. */
  shape: number;
}

/** A message of the conversation, or of one request only (system, example, prompt). */
export interface Message {
  role: "system" | "user" | "assistant" | "tool";
  text: TextId;
  /** The node that made it; -1 if it was given to the run. */
  by: Index;
}

/** A conversation is a chain: the state before its last message, and that message. */
export type State = [before: Index, message: Index];

export interface Call {
  path: string;
  /** Its own node, or the nearest above it (calls of tools, of functions, of recipes). */
  node: Index;
  kind: "step" | "call" | "tool" | "gate" | "inner";
  status: "answered" | "failed" | "left_out" | "waiting" | "running" | "rejected" | "planned";
  model: string;
  source: "live" | "reused";
  start: number | null;
  seconds: number;
  /** Seconds that it waited for its turn or for retries, of `seconds`; 0 if unknown. */
  waited: number;
  attempts: number;
  /** How the provider was shown the messages: "as_is", "alternate", ... */
  view: string;
  params: { [name: string]: unknown };
  /** System messages and examples of this call alone. */
  lead: Index[];
  /** The conversation that it saw before its prompt; -1 if empty or unknown. */
  state: Index;
  prompt: Index;
  reads: Read[];
  /** The answer's text; null if there is none. */
  answer: TextId | null;
  /** The answer as a message of the conversation, if it became one. */
  message: Index;
  /** A refused answer in full, and the character at which it did not parse; null if unknown. */
  refused: TextId | null;
  position: number | null;
  error: Failure | null;
  earlier_errors: Failure[];
  fate: Fate | null;
  usage: Usage;
  rounds: ToolRound[];
  /** Models that a function called. */
  inside: { model: string; prompt: TextId; answer: TextId; error: string }[];
  decision: Decision | null;
  /** The purpose of a recipe's call. */
  in_recipe: InRecipe | null;
  /** Predicted: see Plan. */
  planned: PlannedCall | null;
}

export interface Read {
  key: string;
  source: "input" | "capture" | "default";
  /** Path of the node that captured it, and of the call whose answer it is; "" if none. */
  path: string;
  made_by: string;
  text: TextId | null;
}

/** Where an answer went. Who saw it as a message follows from the states. */
export interface Fate {
  end: "kept" | "dropped" | "superseded" | "rejected" | "unfinished" | "left_out" | "value";
  /** The nodes whose merges it passed, innermost first. */
  passed: Index[];
  /** The node at whose merge it ended; -1 if it was kept to the end. */
  at: Index;
  /** Path of the call whose answer superseded it; "" if none. */
  by: string;
  captured: { key: string; path: string; read_by: string[] }[];
  edited: string[];
}

export interface ToolRound {
  said: TextId;
  calls: { name: string; args: TextId; path: string; result: TextId | null; failed: boolean }[];
}

export interface Decision {
  question: TextId;
  decision: "" | "approve" | "edit" | "reject";
  feedback: TextId | null;
  /** Who decided and when (seconds since the epoch); "" and null if unknown. */
  who: string;
  at: number | null;
  held: TextId[];
  kept: TextId[];
  /** What an edit can replace, while the gate waits: the last response, and outputs as JSON. */
  editable?: { text: TextId | null; outputs: TextId | null };
}

export interface InRecipe {
  stage: string;
  thing: string;
  /** What stages wrote before, with this answer, and after it. */
  before: Wrote[];
  made: Wrote | null;
  after: Wrote[];
  results: string[];
}
export interface Wrote { stage: string; thing: string; wrote: string[]; calls: string[] }

export interface RecipeData {
  stages: { id: string; path: string; came: number; left: number; failed: number }[];
  /** All Things that the lineage knows, results last in the order of the output. */
  things: ThingRow[];
  /** In the order in which Things left their stages. */
  lineage: (Wrote & { parents: string[]; drafted: boolean })[];
  stopped: string;
  reasons: string[];
}
export interface ThingRow {
  id: string;
  content: TextId | null;
  props: { [name: string]: unknown };
  parents: string[];
  /** Whether it is a result, and if not, where it ended and why. */
  end: "result" | "failed" | "dropped" | "consumed" | "unfinished";
  stage: string;
  why: string;
  score: number | null;
  /** True if the content changed after the score was given. */
  stale: boolean;
}

/** Ranges are [least, most]; the same twice if exact, most null if there is no limit. */
export type Range = [least: number, most: number | null];
export interface Plan {
  calls: Range;
  input_tokens: Range;
  output_tokens: Range;
  cost: [least: number, most: number | null] | null;
  /** What the lengths of answers are based on. */
  basis: string;
  warnings: { path: string; message: string }[];
  captures: { key: string; path: string; read_by: string[] }[];
}
export interface PlannedCall { input_tokens: Range; output_tokens: Range; times: Range; cost: number | null }

export interface ListedRun {
  id: string;
  graph: string;
  status: Status;
  input: string;
  result: string;
  models: string[];
  seconds: number | null;
  calls: number;
  failed: number;
  reused: number;
  tokens: number;
  cost: number | null;
  created_at: string;
  /** Address of its page, relative to this one; "" if there is none yet. */
  href: string;
  /** The command that makes the page. */
  command: string;
  kind: "run" | "session";
}

/** The results file of a batch. Times are seconds since the epoch. */
export interface Batch {
  /** Id of the batch, and its tree or recipe as it was named; "" if they aren't known. */
  id: string;
  target: string;
  /** The results file, as it was named. */
  file: string;
  /** "unfinished": inputs are left, and no process runs them. */
  status: "running" | "done" | "failed" | "unfinished";
  /** Number of inputs; null if it isn't known. */
  inputs: number | null;
  /** When the batch was started and continued; none if it isn't known. */
  starts: number[];
  notes: string[];
  /** Shell commands, by purpose: "view". */
  commands: { [purpose: string]: string };
  /**
   * How the page of a run is opened: the words before and after its id in a command, and on a server
   * the address before its id, else "". Null if the journals of the runs aren't there.
   */
  opening: { before: string; after: string; href: string } | null;
  /** Each error once, in the order of the results. */
  failures: BatchFailure[];
  /** One per input, in the order of the file. */
  rows: BatchRow[];
}
export interface BatchFailure {
  type: string;
  path: string;
  message: string;
}
export interface BatchRow {
  id: string;
  status: "done" | "failed";
  /** The first words of its text; the run's page has the whole. */
  text: string;
  calls: number;
  input_tokens: number;
  output_tokens: number;
  /** USD; null if it isn't known. */
  cost: number | null;
  /** Number of workers that got the input. */
  attempts: number;
  ended: number | null;
  /** Index into `failures`; -1 if it is done. */
  failure: Index;
  /** Id of its run; "" if the run isn't stored. */
  run: string;
}

export interface Comparison {
  /** Path of the first call that differs, in the order in which the calls of A ran; null: none. */
  first_divergence: string | null;
  /** What differed there: "prompt", "conversation", "params", "model", "inputs", "answer", "only_a", "only_b". */
  reason: string;
  sentence: string;
  /** Aligned by path, in the order of the trees. */
  rows: ComparedCall[];
  /** What differs in options and settings. */
  settings: { key: string; a: string; b: string }[];
}
export interface ComparedCall {
  path: string;
  /** "freed": equal in itself, but it saw something that changed before it. */
  kind: "same" | "changed" | "freed" | "only_a" | "only_b";
  why: string[];
  /** The node whose different message or capture it saw first; "" if unknown. */
  because?: string;
  a: Index;
  b: Index;
}

export interface Session {
  id: string;
  title: string;
  created_at: string;
  facts: { text: TextId; source: string }[];
  turns: Turn[];
  notes: string[];
  /** Shell commands, by purpose: "show", "resume", "view", "export". Absent if impossible. */
  commands: { [purpose: string]: string };
}
export interface Turn {
  number: number;
  user: TextId;
  answer: TextId | null;
  status: Status;
  /** In the order in which they happened. */
  entries: SessionEntry[];
  /** Index into `runs` of the page; -1 if the turn's journal is gone. */
  run: Index;
}
export interface SessionEntry {
  kind: "plan" | "decision" | "program" | "output" | "answer" | "error" | "other";
  title: string;
  text: TextId;
  /** "model", "user", "policy", "sandbox", ... */
  who: string;
  at: number | null;
  ok: boolean | null;
  /** Path of the call in the turn's run; "" if none. */
  path: string;
}
