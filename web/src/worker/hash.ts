// SHA-256 of files that come in pieces. WebCrypto hashes only what is in memory as a whole.

import { createSHA256, sha256 } from "hash-wasm";

import type { Bytes } from "../engine";

/** Read at once. */
const PIECE = 4 << 20;

export interface Hasher {
  update(bytes: Uint8Array): void;
  hex(): string;
}

export async function hasher(): Promise<Hasher> {
  const state = await createSHA256();
  state.init();
  return {
    update: (bytes) => void state.update(bytes),
    hex: () => state.digest("hex"),
  };
}

export function hashText(text: string): Promise<string> {
  return sha256(text);
}

/**
 * Reads the first `size` bytes of `file` into `hash`; `progress` gets the bytes done. Throws an
 * AbortError soon after `signal` is aborted.
 */
export async function hashInto(
  hash: Hasher,
  file: Bytes,
  size: number,
  progress: (done: number) => void,
  signal: AbortSignal,
): Promise<void> {
  const piece = new Uint8Array(Math.min(PIECE, size));
  for (let at = 0; at < size; at += piece.length) {
    const part = piece.subarray(0, Math.min(piece.length, size - at));
    file.readInto(at, part);
    hash.update(part);
    progress(at + part.length);
    if (at % (4 * PIECE) !== 0) continue;
    // Lets messages in: one may be a stop.
    await new Promise((resume) => setTimeout(resume, 0));
    signal.throwIfAborted();
  }
}
