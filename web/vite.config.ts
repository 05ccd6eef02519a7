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

/** Where the engine is: in the browser, or behind the API of the server that has the page. */
type Place = "browser" | "server";

/** Leaves in the page what is for this place: `<!-- browser -->` or `<!-- server -->` to `end`. */
function partsFor(place: Place): Plugin {
  const part = /^ *<!-- (browser|server) -->\n(.*?)^ *<!-- end -->\n/gms;
  const chosen = (_: string, of: string, content: string): string => (of === place ? content : "");
  return {
    name: "parts-of-the-page",
    transformIndexHtml: {
      order: "pre",
      handler: (html) => html.replace(part, chosen),
    },
  };
}

const at = (path: string): string => resolve(import.meta.dirname, path);

/** Its own is `innerHTML` in browsers. */
const ENTITIES = { "decode-named-character-reference": at("src/page/entities.ts") };

/** The page of `longview serve`: few files of fixed names, which the program has in it. */
const SERVER = defineConfig({
  base: "./",
  publicDir: false,
  resolve: { alias: { ...ENTITIES, "#client": at("src/server/client.ts") } },
  plugins: [
    partsFor("server"),
    {
      name: "icon-beside-assets",
      transformIndexHtml: (html) => html.replace("./icon.svg", "./assets/icon.svg"),
    },
  ],
  build: {
    target: "es2022",
    outDir: "dist-server",
    emptyOutDir: true,
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    reportCompressedSize: false,
    rolldownOptions: {
      input: ["index.html"],
      output: { entryFileNames: "assets/page.js", assetFileNames: "assets/page.[ext]" },
    },
  },
});

// Relative addresses: the built page works below any path. `--mode scripted` builds the page for
// its tests, with an engine that follows a script instead of the wasm module; `--mode server` the
// page of `longview serve`.
export default defineConfig(({ mode }) => {
  if (mode === "server") return SERVER;
  const scripted = mode === "scripted";
  const engine = scripted ? "tests/scripted/engine.ts" : "pkg/longview_web.js";
  return {
    base: "./",
    resolve: {
      alias: {
        ...ENTITIES,
        "longview-web": at(engine),
        "#client": at("src/page/worker-client.ts"),
      },
    },
    plugins: [embeddedModel(), partsFor("browser")],
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
