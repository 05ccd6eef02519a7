// One run of `run.py`: opens Chromium, decodes with one program, prints one line of JSON.

import { createReadStream } from "node:fs";
import { stat } from "node:fs/promises";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { extname, join, normalize } from "node:path";

import { ask, tokenTimes } from "./answer.mjs";

const [work, page, gguf, what, tokens, threads] = process.argv.slice(2);
const { chromium } = createRequire(join(work, "package.json"))("playwright-core");

const TYPES = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript",
  ".mjs": "text/javascript",
  ".css": "text/css",
  ".json": "application/json",
  ".svg": "image/svg+xml",
  ".wasm": "application/wasm",
};
const TEXT = "The quick brown fox jumps over the lazy dog near the river bank. ".repeat(5);

// What transformers.js needs beside its modules. Greedy, and the rate leaves the prompt out.
const PEER = `<!doctype html><meta charset="utf-8"><script type="module">
import * as T from "/node_modules/@huggingface/transformers/dist/transformers.min.js";
T.env.allowRemoteModels = false;
T.env.allowLocalModels = true;
T.env.localModelPath = "/models/";
T.env.backends.onnx.wasm.wasmPaths = "/node_modules/onnxruntime-web/dist/";
window.decode = async ({ device, dtype, threads, tokens, text }) => {
  T.env.backends.onnx.wasm.numThreads = threads;
  const tokenizer = await T.AutoTokenizer.from_pretrained("smollm2");
  const model = await T.AutoModelForCausalLM.from_pretrained("smollm2", { device, dtype });
  const times = [];
  // The first call hands over the prompt, the second its first token.
  const streamer = { put: () => times.push(performance.now()), end() {} };
  await model.generate({
    ...tokenizer(text), max_new_tokens: tokens, min_new_tokens: tokens, do_sample: false, streamer,
  });
  return { decode: (1000 * (times.length - 2)) / (times.at(-1) - times[1]), tokens: times.length - 1 };
};
window.ready = true;
</script>`;

/** Serves a folder, isolated from other origins: threads of WebAssembly want that. */
async function serve(folder) {
  const server = createServer(async (request, response) => {
    const path = decodeURIComponent(new URL(request.url, "http://localhost").pathname);
    const headers = {
      "cross-origin-opener-policy": "same-origin",
      "cross-origin-embedder-policy": "require-corp",
    };
    if (path === "/peer.html") {
      response.writeHead(200, { ...headers, "content-type": TYPES[".html"] }).end(PEER);
      return;
    }
    const file = join(folder, normalize(path.endsWith("/") ? `${path}index.html` : path));
    try {
      const { size } = await stat(file);
      const type = TYPES[extname(file)] ?? "application/octet-stream";
      response.writeHead(200, { ...headers, "content-type": type, "content-length": size });
      createReadStream(file).pipe(response);
    } catch {
      response.writeHead(404).end();
    }
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  return { server, url: `http://127.0.0.1:${server.address().port}/` };
}

/** The page: picks the file, reads the text, asks, and takes the rate that it shows. */
async function longview(tab) {
  const idle = () => tab.waitForSelector('body[data-task="none"]', { timeout: 0 });
  await tab.getByText("5 layers, 2 KV heads").waitFor({ timeout: 0 });
  await idle();
  await tab.getByText("Choose model and memory").click();
  await tab.locator("#model-gguf").setInputFiles(gguf);
  await tab.locator("#model-load").click();
  await tab.getByText("Read from your disk").waitFor({ timeout: 0 });
  await idle();
  await tab.locator("#text").fill(TEXT);
  await tab.getByRole("button", { name: "Read the document" }).click();
  await tab.getByRole("button", { name: "Another document" }).waitFor({ timeout: 0 });
  await idle();
  await ask(tab, "Tell a long story about the fox.");
  const times = await tokenTimes(tab, Number(tokens));
  const [first, end] = [times[0], times.at(-1)];
  return { decode: (1000 * (end[0] - first[0])) / (end[1] - first[1]), tokens: end[0] };
}

const own = what === "page";
const { server, url } = await serve(own ? page : work);
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"],
});
const tab = await browser.newPage();
tab.on("pageerror", (error) => console.error(error.message));
await tab.goto(own ? url : `${url}peer.html`);
let result;
if (own) {
  result = await longview(tab);
} else {
  await tab.waitForFunction("window.ready", { timeout: 0 });
  const [device, dtype] = what.split(":");
  const options = { device, dtype, threads: Number(threads), tokens: Number(tokens), text: TEXT };
  result = await tab.evaluate((options) => window.decode(options), options);
}
console.log(JSON.stringify({ what, ...result }));
await browser.close();
server.close();
process.exit(0);
