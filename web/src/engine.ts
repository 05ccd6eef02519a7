// The interface of the engine, as `crates/web` exports it through wasm-bindgen, and what both
// engines of the page, that one and a server's (`src/server`), take and give.
//
// Every promise is rejected with an Error whose `name` is a code and whose `message` says what is
// wrong and what to do.

/** What can go wrong, as `Error.name`. */
export type EngineCode =
  | "no-webgpu"
  | "no-adapter"
  | "device-lost"
  | "out-of-memory"
  | "context-too-long"
  | "bad-model"
  | "bad-session"
  | "wrong-model"
  | "cancelled"
  | "bad-input"
  | "other";

/** A policy by the names of `longview policies`. */
export interface Policy {
  preset: string;
  /** Tokens that a KV head attends in a step. */
  budget?: number;
  options?: Record<string, string>;
}

/** A file that is read in ranges. `readInto` fills all of `out` or throws. */
export interface Bytes {
  name: string;
  size: number;
  readInto(at: number, out: Uint8Array): void;
}

export interface Device {
  adapter: string;
  tier: string;
  isSoftware: boolean;
  maxBufferBytes: number;
}

export interface PolicyInfo {
  name: string;
  /** Where it was published; "-": nowhere. */
  title: string;
  /** What a step attends under it. */
  description: string;
  options: string[];
  /** Whether it is chosen where nothing is said. */
  isDefault: boolean;
}

/** An option of a policy: its name, what may be said, and what it does. */
export interface OptionInfo {
  name: string;
  value: string;
  help: string;
}

export interface ModelInput {
  name: string;
  /** The small files that exist: config.json, tokenizer.json and so on. */
  texts: Record<string, string>;
  weights: Bytes[];
  contextTokens: number;
}

export interface ModelInfo {
  name: string;
  layers: number;
  kvHeads: number;
  queryHeads: number;
  headDim: number;
  vocab: number;
  trainedContext: number | null;
  weightBytes: number;
  /** How most of them are stored: BF16, F16, Q4_1 and so on. */
  weightType: string;
  contextTokens: number;
  fingerprint: string;
}

export interface PrefillProgress {
  done: number;
  total: number;
  tokensPerS: number;
  etaS: number;
}

export interface PrefillEnd {
  tokens: number;
  total: number;
  complete: boolean;
  seconds: number;
  /** Where it is kept already, without the page's doing. */
  id?: string;
}

/** What a cell of the context map is in one step. */
export const CELL = {
  notAttended: 0,
  sink: 1,
  recent: 2,
  hit: 3,
  miss: 4,
  held: 5,
  drawn: 6,
} as const;

/** One byte a cell, each a value of `CELL`, for one KV head of one layer. */
export interface ContextMap {
  cellTokens: number;
  kinds: Uint8Array;
  /**
   * Tokens of each value of `CELL`. A cell of several tokens shows the most telling of them, so
   * they cannot be counted from the cells.
   */
  counts: number[];
}

export interface Step {
  /** What is new since the last step. */
  text: string;
  /** Of the answer so far; 0 while the question goes in. */
  tokens: number;
  /** Of all steps, those of the question too. */
  tokensPerS: number;
  /** Of this step. */
  hits: number;
  misses: number;
  map?: ContextMap;
}

/** A part of the document, in UTF-16 offsets of its text. */
export interface Passage {
  start: number;
  end: number;
  /** Share of the attention mass. */
  weight: number;
}

export interface Answer {
  text: string;
  tokens: number;
  seconds: number;
  tokensPerS: number;
  hitRate: number | null;
  deviceBytes: number;
  hostBytes: number;
  finish: "end" | "length" | "stopped";
  passages: Passage[];
  /** When the first token came, where the engine tells. */
  firstAfterS?: number;
  /** Tokens that a step attended to, the mean over steps, layers and KV heads, where it tells. */
  attended?: number | null;
  /** Tokens that there were. */
  context?: number;
}

export interface Question {
  question: string;
  policy: Policy;
  maxTokens: number;
  temperature?: number;
  map?: { layer: number; head: number };
  /** What was said before, oldest first; an engine that takes every question back has none. */
  history?: Turn[];
  /** Of the draws, where the engine takes one. */
  seed?: number;
}

/** A question and what was answered. */
export interface Turn {
  question: string;
  answer: string;
}

export interface Memory {
  deviceBytes: number;
  hostBytes: number;
  /** Null where the engine is not in this browser. */
  wasmBytes: number | null;
}

export type PrefillStep = (progress: PrefillProgress) => boolean;

export interface Runtime {
  device(): Device;
  policies(): PolicyInfo[];
  policyOptions(): OptionInfo[];
  loadModel(model: ModelInput, progress: (done: number, total: number) => void): Promise<ModelInfo>;
  /** Bounds keys, values and index on the device, from the next document or question on. */
  limitDeviceBytes(bytes?: number): void;
  countTokens(text: string): number;
  readDocument(text: string, policy: Policy, progress: PrefillStep): Promise<PrefillEnd>;
  continueDocument(progress: PrefillStep): Promise<PrefillEnd>;
  ask(question: Question, step: (step: Step) => boolean): Promise<Answer>;
  memory(): Memory;
  saveSession(write: (bytes: Uint8Array) => void): Promise<void>;
  openSession(
    session: Bytes,
    text: string,
    policy: Policy,
  ): Promise<{ tokens: number; total: number; complete: boolean }>;
  loseDevice(): void;
  free(): void;
}

/** What the page uses of the wasm module. */
export interface Engine {
  open(options: { adapter: "default" | "software"; tier?: string }): Promise<Runtime>;
}
