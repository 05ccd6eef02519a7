// Loads the wasm module.

import type { Engine } from "../engine";

/** Everything that the module exports. */
export async function loadModule(): Promise<typeof import("longview-web")> {
  const module = await import("longview-web");
  await module.default();
  return module;
}

export async function loadEngine(): Promise<Engine> {
  return (await loadModule()).Runtime;
}
