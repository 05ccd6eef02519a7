// What the page of the comparison and its worker say to each other.

import type { Device } from "./engine";

/** Cases of one operation, as `crates/web` reports them. */
export interface ParityResult {
  passed: number;
  failed: number;
  /** Largest error, as a share of the tolerance. */
  worst: number;
  /** What was wrong in the first cases that were. */
  messages: string[];
  /** Cases that cannot run here, and why. */
  notRun: { cases: number; reason: string }[];
}

export interface ParityRequest {
  /** 1 for all cases, n for every n-th. */
  every: number;
  tier: string | null;
}

export type ParityEvent =
  | { kind: "opened"; device: Device; ops: string[] }
  | { kind: "begun"; op: string }
  | { kind: "result"; op: string; result: ParityResult; seconds: number }
  | { kind: "end" }
  | { kind: "failed"; message: string };
