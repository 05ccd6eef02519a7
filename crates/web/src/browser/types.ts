/** A policy by its name, and what is changed about it. */
export type Policy = { preset: string; budget?: number; options?: Record<string, string> };
/** A file that is read in runs, synchronously: an OPFS access handle, or memory. */
export type Bytes = { name: string; size: number; readInto(at: number, out: Uint8Array): void };
export type OpenOptions = { adapter?: "default" | "software"; tier?: "core" | "f16" | "subgroups" };
export type DeviceInfo = {
  adapter: string;
  tier: string;
  isSoftware: boolean;
  maxBufferBytes: number;
};
export type PolicyInfo = {
  name: string; title: string; description: string; options: string[]; isDefault: boolean;
};
export type PolicyOptionInfo = { name: string; value: string; help: string };
export type ModelFiles = {
  name: string;
  /** Text files by name, those that exist: config.json, tokenizer.json and so on. */
  texts: Record<string, string>;
  /** model.safetensors, or the shards that model.safetensors.index.json names. */
  weights: Bytes[];
  contextTokens: number;
  /** Bytes of keys, values and index that may be on the device. */
  cacheBytes?: number;
};
export type ModelInfo = {
  name: string; layers: number; kvHeads: number; queryHeads: number; headDim: number; vocab: number;
  trainedContext: number | null; weightBytes: number; weightType: string; contextTokens: number;
  /** Tells models, tokenizers and positions apart: a saved session opens where it is the same. */
  fingerprint: string;
};
export type PrefillProgress = { done: number; total: number; tokensPerS: number; etaS: number };
export type ReadState = { tokens: number; total: number; complete: boolean; seconds: number };
export type Question = {
  question: string; policy: Policy; maxTokens: number; temperature?: number;
  map?: { layer: number; head: number };
};
/** A byte for each run of `cellTokens` tokens: 0 not attended, 1 sink, 2 recent, 3 hit, 4 fetched
 *  for this step, 5 not attended but still on the device. `counts` are the tokens of each. */
export type ContextMap = { cellTokens: number; kinds: Uint8Array; counts: number[] };
/** Tokens of the question are steps too, with an empty text. */
export type Step = {
  text: string; tokens: number; tokensPerS: number; hits: number; misses: number; map?: ContextMap;
};
/** A part of the document in UTF-16 units, and its share of the attention. */
export type Passage = { start: number; end: number; weight: number };
export type Answer = {
  text: string; tokens: number; seconds: number; tokensPerS: number;
  attended: number | null; context: number; hitRate: number | null;
  fetchedBytes: number; leftOut: { median: number; most: number; confidence: number } | null;
  deviceBytes: number; hostBytes: number; finish: "end" | "length" | "stopped";
  passages: Passage[];
};
export type Memory = { deviceBytes: number; hostBytes: number; wasmBytes: number };
/** Cases of an op's corpus: how many were right and wrong, the largest error as a share of the
 *  tolerance, what was wrong first, and what could not run and why. */
export type ParityResult = {
  passed: number; failed: number; worst: number; messages: string[];
  notRun: { cases: number; reason: string }[];
};
