// What the page asks its engine through: the worker with the wasm module, or a server's API. The
// build chooses (`#client` in vite.config.ts).

import type { PrefillEnd } from "../engine";
import type { Code, Event, Name, Params, Result } from "../protocol";

/** A request that failed; `code` says which message to show. */
export class RequestError extends Error {
  constructor(
    readonly code: Code,
    message: string,
    /** What to do, where that is not what the code's message says. */
    readonly advice?: string,
  ) {
    super(message);
  }
}

/** What an error says. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** Gets what is said beside the results. */
export type NoticeListener = (code: Code, message: string, done: boolean) => void;

export interface Client {
  call<N extends Name>(
    name: N,
    params: Params<N>,
    event?: (event: Event) => void,
  ): Promise<Result<N>>;
  /** Ends the prefill, answer or download that runs; what is done is kept. */
  stop(): void;
  /** Destroys the graphics device, as a driver fault would. */
  loseDevice(): void;
  /** What only a server does; undefined where the engine runs in this browser. */
  readonly server?: ServerCalls;
}

/** A document that was read from a file. */
export interface ReadFile {
  title: string;
  text: string;
  end: PrefillEnd;
}

export interface ServerCalls {
  /** Requests have this key from now on, until the tab is closed. */
  unlock(key: string): void;
  /** Whether they have one. */
  hasKey(): boolean;
  /** Whether others with other keys see other documents. */
  needsKey(): boolean;
  /** Reads a file of any kind of which the server can make text. */
  readFile(file: File, event: (event: Event) => void): Promise<ReadFile>;
  /** Questions from now on are about no document. */
  close(): void;
  /** Keeps a document whatever else needs room, or no longer. */
  pin(id: string, pinned: boolean): Promise<void>;
}
