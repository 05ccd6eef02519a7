// Messages between the page and its worker.
//
// The page sends requests; the worker runs them one after another and answers each once, with a
// result or a failure. Between, it sends events. `stop` alone overtakes what is running.

import type {
  Answer,
  Device,
  EngineCode,
  Memory,
  ModelInfo,
  OptionInfo,
  Policy,
  PolicyInfo,
  PrefillEnd,
  PrefillProgress,
  Question,
  Step,
} from "./engine";

/** What the engine reports, and what the page's own storage does. */
export type Code =
  | EngineCode
  | "network"
  | "corrupt-cache"
  | "quota"
  | "no-storage"
  | "busy-elsewhere"
  // Of a file that is to be a document.
  | "bad-file"
  // Of a server.
  | "gone"
  | "unauthorized"
  | "unreachable"
  | "busy";

/** Where a model comes from. */
export type ModelSource =
  { kind: "embedded" } | { kind: "url"; url: string } | { kind: "files"; files: File[] };

export interface LoadedModel extends ModelInfo {
  source: ModelSource["kind"] | "server";
  /** How the page names it. */
  label: string;
  /** What was checked about its files, as a sentence. */
  checked: string;
  policies: PolicyInfo[];
  options: OptionInfo[];
}

export interface SavedModel {
  id: string;
  label: string;
  url: string;
  bytes: number;
  complete: boolean;
}

export interface SavedDocument {
  id: string;
  title: string;
  tokens: number;
  total: number;
  complete: boolean;
  bytes: number;
  model: string;
  fingerprint: string;
  policy: Policy;
  savedAt: string;
  /** False if it is only kept until the page is left. */
  onDisk: boolean;
  /** Whether it stays whatever else needs room; undefined where that cannot be said. */
  pinned?: boolean;
  /** Why it cannot be opened, if so. */
  closed?: string;
}

export interface Storage {
  usage: number;
  /** 0: not known, or no limit; negative: nothing can be kept. */
  quota: number;
  models: SavedModel[];
  documents: SavedDocument[];
}

export interface OpenedDocument {
  id: string;
  title: string;
  text: string;
  policy: Policy;
  tokens: number;
  total: number;
  complete: boolean;
}

/** Requests with their parameters and results, by name. */
export interface Requests {
  open: { params: { adapter: "default" | "software" }; result: Device };
  loadModel: {
    params: {
      source: ModelSource;
      contextTokens: number;
      /** Delete what is stored of this model first. */
      fresh?: boolean;
    };
    result: LoadedModel;
  };
  /** Null: no bound. */
  limitDevice: { params: { bytes: number | null }; result: null };
  countTokens: { params: { text: string }; result: number };
  readDocument: { params: { text: string; title: string; policy: Policy }; result: PrefillEnd };
  continueDocument: { params: Record<string, never>; result: PrefillEnd };
  ask: { params: Question; result: Answer };
  memory: { params: Record<string, never>; result: Memory };
  saveDocument: { params: Record<string, never>; result: SavedDocument };
  openDocument: { params: { id: string }; result: OpenedDocument };
  /** The text alone, to read it anew. */
  documentText: { params: { id: string }; result: { title: string; text: string } };
  deleteDocument: { params: { id: string }; result: null };
  deleteModel: { params: { id: string }; result: null };
  storage: { params: Record<string, never>; result: Storage };
}

export type Name = keyof Requests;
export type Params<N extends Name> = Requests[N]["params"];
export type Result<N extends Name> = Requests[N]["result"];

export interface Failure {
  code: Code;
  message: string;
}

/** What the worker says while a request runs. */
export type Event =
  | { event: "download"; file: string; done: number; total: number | null; resumed: number }
  | { event: "check"; file: string; done: number; total: number }
  | { event: "weights"; done: number; total: number }
  | ({ event: "prefill" } & PrefillProgress)
  | { event: "step"; step: Step }
  /** The answer so far is void: the question is asked again. */
  | { event: "restart" }
  | { event: "notice"; code: Code; message: string; done: boolean };

/** Answered one after another, in order. */
export type Request = { [N in Name]: { id: number; name: N; params: Params<N> } }[Name];

/** What has no parameters is done at once, whatever runs. */
export type ToWorker = Request | { name: "stop" } | { name: "loseDevice" };

export type FromWorker =
  | { id: number; result: Result<Name> }
  | { id: number; failure: Failure }
  | { id: number; event: Event };
