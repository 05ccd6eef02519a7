// Errors that carry a code of the protocol.

import type { Code, Failure } from "../protocol";

const CODES: ReadonlySet<string> = new Set<Code>([
  "no-webgpu",
  "no-adapter",
  "device-lost",
  "out-of-memory",
  "context-too-long",
  "bad-model",
  "bad-session",
  "wrong-model",
  "cancelled",
  "bad-input",
  "other",
  "network",
  "corrupt-cache",
  "quota",
  "no-storage",
  "busy-elsewhere",
]);

/** An Error as the engine throws them: `name` is the code. */
export function failure(code: Code, message: string): Error {
  const error = new Error(message);
  error.name = code;
  return error;
}

export function isFailure(error: unknown, code: Code): boolean {
  return error instanceof Error && error.name === code;
}

/** Whether the browser refused to store more. Its own name, or that of the legacy exception. */
export function isQuota(error: unknown): boolean {
  return error instanceof Error && error.name === "QuotaExceededError";
}

/** Whether another tab holds the file. */
export function isLocked(error: unknown): boolean {
  return error instanceof Error && error.name === "NoModificationAllowedError";
}

export function asFailure(error: unknown): Failure {
  if (!(error instanceof Error)) return { code: "other", message: String(error) };
  if (CODES.has(error.name)) return { code: error.name as Code, message: error.message };
  // What was under way when the visitor pressed Stop.
  if (error.name === "AbortError") return { code: "cancelled", message: "Stopped." };
  if (isQuota(error)) return { code: "quota", message: error.message };
  if (isLocked(error)) {
    const message = "Another tab of this page uses the stored file. Close that tab and try again.";
    return { code: "busy-elsewhere", message };
  }
  // A wasm allocation that fails traps; browsers name a failed ArrayBuffer a RangeError.
  if (error instanceof RangeError && /allocat|memory/i.test(error.message)) {
    return { code: "out-of-memory", message: error.message };
  }
  return { code: "other", message: `${error.name}: ${error.message}` };
}
