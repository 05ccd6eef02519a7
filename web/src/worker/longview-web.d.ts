// The module that wasm-bindgen writes into `pkg/`; Vite resolves the name.
declare module "longview-web" {
  export default function init(): Promise<unknown>;
  export const Runtime: import("../engine").Engine;

  /** The operations' corpus on this browser's device. */
  export class Parity {
    static open(options: { tier?: string }): Promise<Parity>;
    static ops(): string[];
    device(): import("../engine").Device;
    run(op: string, every: number): Promise<import("../parity-protocol").ParityResult>;
    free(): void;
  }
}
