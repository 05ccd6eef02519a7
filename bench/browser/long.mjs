// Documents of several lengths in a tab: opens each from the browser's storage, asks, and prints a
// table of what opening took, of steps, and of where the memory is.
//
//     longview kv build book.txt -m needle -c 131072 --budget 1024 --library LIBRARY --device cpu
//     cargo xtask web
//     node bench/browser/long.mjs web web/dist LIBRARY "What is the room number of Grace?"
//
// A software adapter would read such a document for hours, so the native program reads it. What it
// kept goes into the storage of the page, where the page's own documents are, and a new visit opens
// it. The first argument is a folder with `playwright-core`.

import { createReadStream, readFileSync } from "node:fs";
import { stat } from "node:fs/promises";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { extname, join, normalize, resolve } from "node:path";

import { ask, tokenTimes } from "./answer.mjs";

const [work, page, library, question, tokens = "24"] = process.argv.slice(2);
if (question === undefined) throw new Error("arguments: FOLDER PAGE LIBRARY QUESTION [TOKENS]");
const { chromium } = createRequire(resolve(work, "package.json"))("playwright-core");

const TYPES = { ".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css",
  ".wasm": "application/wasm", ".svg": "image/svg+xml", ".json": "application/json" };

/** Serves the page, and the library below `/library/`. */
async function serve() {
  const server = createServer(async (request, response) => {
    const path = normalize(decodeURIComponent(new URL(request.url, "http://localhost").pathname));
    const inLibrary = path.startsWith("/library/");
    const name = path.endsWith("/") ? `${path}index.html` : path;
    const file = inLibrary ? join(library, path.slice("/library/".length)) : join(page, name);
    try {
      const { size } = await stat(file);
      const type = TYPES[extname(file)] ?? "application/octet-stream";
      response.writeHead(200, { "content-type": type, "content-length": size });
      createReadStream(file).pipe(response);
    } catch {
      response.writeHead(404).end();
    }
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  return { server, url: `http://127.0.0.1:${server.address().port}/` };
}

/** What the library holds under a budget that is given, shortest first. */
function documents() {
  const { library: kept } = JSON.parse(readFileSync(join(library, "manifest.json"), "utf8"));
  return kept.documents.flatMap(({ id, name, sessions }) =>
    sessions.flatMap((session) => {
      const budget = /^budget = (\d+)$/m.exec(session.key.policy)?.[1];
      if (budget === undefined) return [];
      const policy = { preset: session.preset, budget: Number(budget), options: {} };
      return [{ ...session, id, name, policy }];
    }),
  ).sort((a, b) => a.n_tokens - b.n_tokens);
}

/** In the page: puts a document where the page keeps those that it read. */
async function store({ id, name, file, n_tokens, bytes, model, fingerprint, policy }) {
  const root = await navigator.storage.getDirectory();
  const all = await root.getDirectoryHandle("documents", { create: true });
  const folder = await all.getDirectoryHandle(id.slice(0, 16), { create: true });
  const put = async (name, body) => {
    const handle = await folder.getFileHandle(name, { create: true });
    await body.pipeTo(await handle.createWritable());
  };
  await put("text.txt", (await fetch(`library/texts/${id}.txt`)).body);
  await put("session.lvs", (await fetch(`library/sessions/${file}.lvs`)).body);
  const meta = { title: name, tokens: n_tokens, total: n_tokens, complete: true, model, fingerprint,
    policy, bytes, savedAt: new Date().toISOString() };
  await put("meta.json", new Blob([JSON.stringify(meta)]).stream());
}

/** In the page: the model's fingerprint in the page's own form, from a document that it read. */
async function fingerprint() {
  const root = await navigator.storage.getDirectory();
  for await (const folder of (await root.getDirectoryHandle("documents")).values()) {
    const file = await (await folder.getFileHandle("meta.json")).getFile();
    return JSON.parse(await file.text()).fingerprint;
  }
  throw new Error("the page kept no document");
}

/** Asks, and takes the milliseconds of each token, shortest first, from what the page shows. */
async function decode(tab) {
  await ask(tab, question);
  const times = await tokenTimes(tab, Number(tokens));
  const steps = times.slice(1).map(([n, at], i) => (at - times[i][1]) / (n - times[i][0]));
  const answer = await tab.locator(".exchange .answer").first().innerText();
  return { steps: steps.sort((a, b) => a - b), answer };
}

const { server, url } = await serve();
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"],
});
console.log("| tokens | file | opened in | a token, median (least, most) | answer |");
console.log("|---|---|---|---|---|");
for (const document of documents()) {
  const tab = await browser.newPage();
  tab.on("pageerror", (error) => console.error(error.message));
  const idle = () => tab.waitForSelector('body[data-task="none"]', { timeout: 0 });
  await tab.goto(url);
  await tab.getByText("5 layers, 2 KV heads").waitFor({ timeout: 0 });
  await idle();
  await tab.locator("#text").fill("The room number of Anna is 10001. ".repeat(20));
  await tab.getByRole("button", { name: "Read the document" }).click();
  await tab.getByRole("button", { name: "Another document" }).waitFor({ timeout: 0 });
  await idle();
  await tab.evaluate(store, { ...document, fingerprint: await tab.evaluate(fingerprint) });
  await tab.reload();
  await tab.getByText("5 layers, 2 KV heads").waitFor({ timeout: 0 });
  await idle();
  await tab.getByText("Choose model and memory").click();
  await tab.locator("#context").selectOption(String(document.context));
  await tab.locator("#model-load").click();
  await idle();
  await tab.getByText("5 layers, 2 KV heads").waitFor({ timeout: 0 });
  await tab.locator("#budget-number").fill(String(document.policy.budget));
  await tab.locator("#budget-number").blur();
  const open = tab.getByRole("button", { name: `Open ${document.name}` });
  await open.waitFor({ timeout: 60_000 });
  const start = performance.now();
  await open.click();
  await tab.getByText("opened without reading").waitFor({ timeout: 0 });
  await idle();
  const opened = (performance.now() - start) / 1000;
  const { steps, answer } = await decode(tab);
  const s = (ms) => (ms / 1000).toFixed(2);
  const median = steps[Math.floor(steps.length / 2)];
  console.log(`| ${document.n_tokens.toLocaleString("en")} | ${Math.round(document.bytes / 1e6)} MB ` +
    `| ${opened.toFixed(1)} s | ${s(median)} s (${s(steps[0])}, ${s(steps.at(-1))}) | ${answer.trim()} |`);
  await tab.close();
}
await browser.close();
server.close();
process.exit(0);
