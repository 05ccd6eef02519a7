import { createHash } from "node:crypto";
import { readFileSync, readdirSync } from "node:fs";
import { basename, join, resolve } from "node:path";

import { type Plugin, defineConfig } from "vite";

const MODEL = resolve(import.meta.dirname, "../models/needle");
const VIRTUAL = "virtual:embedded-model";

/** Puts the embedded model's files beside the page, and their sha-256 into it. */
function embeddedModel(): Plugin {
  const names = readdirSync(MODEL).filter((name) => /\.(json|safetensors)$/.test(name));
  const table = names.map((name) => {
    const bytes = readFileSync(join(MODEL, name));
    const sha256 = createHash("sha256").update(bytes).digest("hex");
    return { name, size: bytes.length, sha256 };
  });
  return {
    name: "embedded-model",
    resolveId: (id) => (id === VIRTUAL ? `\0${VIRTUAL}` : null),
    load: (id) => (id === `\0${VIRTUAL}` ? `export const files = ${JSON.stringify(table)};` : null),
    generateBundle() {
      for (const name of names) {
        const source = readFileSync(join(MODEL, name));
        this.emitFile({ type: "asset", fileName: `model/${name}`, source });
      }
    },
    configureServer(server) {
      server.middlewares.use("/model", (request, response, next) => {
        const name = basename(request.url ?? "");
        if (names.includes(name)) response.end(readFileSync(join(MODEL, name)));
        else next();
      });
    },
  };
}

// Relative addresses: the built page works below any path. `--mode scripted` builds the page for
// its tests, with an engine that follows a script instead of the wasm module.
export default defineConfig(({ mode }) => {
  const scripted = mode === "scripted";
  const engine = scripted ? "tests/scripted/engine.ts" : "pkg/longview_web.js";
  return {
    base: "./",
    resolve: { alias: { "longview-web": resolve(import.meta.dirname, engine) } },
    plugins: [embeddedModel()],
    worker: { format: "es", plugins: () => [embeddedModel()] },
    build: {
      target: "es2022",
      outDir: scripted ? "tests/dist" : "dist",
      emptyOutDir: true,
      modulePreload: { polyfill: false },
      assetsInlineLimit: 0,
      reportCompressedSize: false,
      // The comparison needs the real engine.
      rolldownOptions: { input: scripted ? ["index.html"] : ["index.html", "parity.html"] },
    },
  };
});
