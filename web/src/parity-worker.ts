// Runs the operations' corpus, one operation after another, and reports each.

import type { ParityEvent, ParityRequest } from "./parity-protocol";
import { loadModule } from "./worker/engine";
import { asFailure } from "./worker/failure";

self.addEventListener("message", ({ data }: MessageEvent<ParityRequest>) => {
  void compare(data).catch((error: unknown) => {
    post({ kind: "failed", message: asFailure(error).message });
  });
});

async function compare({ every, tier }: ParityRequest): Promise<void> {
  const { Parity } = await loadModule();
  const parity = await Parity.open(tier === null ? {} : { tier });
  const ops = Parity.ops();
  post({ kind: "opened", device: parity.device(), ops });
  for (const op of ops) {
    post({ kind: "begun", op });
    const start = performance.now();
    const result = await parity.run(op, every);
    post({ kind: "result", op, result, seconds: (performance.now() - start) / 1000 });
  }
  parity.free();
  post({ kind: "end" });
}

function post(event: ParityEvent): void {
  self.postMessage(event);
}
