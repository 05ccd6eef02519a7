// A GGUF file from the disk, as a visitor picks one, through the built page and the wasm engine.

import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { basename, resolve } from "node:path";
import { after, before, test } from "node:test";

import type { Browser } from "playwright-core";

import { DIST, ask, idle, launch, modelLoaded, open, readText } from "../support/browser";
import { type Server, serveFolder } from "../support/server";

const MINUTE = 60_000;

/** The embedded model's weights as blocks. `GGUF` names another model's file to try by hand. */
const FILE =
  process.env["GGUF"] ?? resolve(import.meta.dirname, "../../../target/page/needle-Q8_0.gguf");
const DOCUMENT = "The sun is warm. The room number of Grace is 78217. The grass is green.";

let browser: Browser;
let server: Server;

before(async () => {
  browser = await launch();
  server = await serveFolder(DIST);
});

after(async () => {
  await browser.close();
  await server.close();
});

test("a GGUF file is opened, reads a document and answers", async () => {
  const make = "cargo run -p longview-cli -- quantize -m models/needle -o";
  assert.ok(existsSync(FILE), `${FILE} is missing. Make it: ${make} ${FILE}`);
  const { context, page, errors } = await open(browser, server.url);
  await modelLoaded(page, 2 * MINUTE);
  await page.getByText("Choose model and memory").click();
  await page.locator("#model-gguf").setInputFiles(FILE);
  await page.locator("#model-load").click();
  await page.getByText("Read from your disk").waitFor({ timeout: 5 * MINUTE });
  await idle(page, 5 * MINUTE);
  const line = await page.locator("#model-line").innerText();
  assert.ok(line.startsWith(`${basename(FILE)}: `), line);
  if (process.env["GGUF"] === undefined) {
    assert.match(line, /5 layers, 2 KV heads, 4\.\d MiB of weights in Q8_0/);
  }
  await readText(page, DOCUMENT, 10 * MINUTE);
  await ask(page, "What is the room number of Grace?", 10 * MINUTE);
  const answer = await page.locator(".exchange .answer").first().innerText();
  assert.match(answer, /78217/, await page.locator("#notices").innerText());
  // What it took, for those who try another model.
  console.log(`${line}\n${answer}\n${await page.locator("#memory-line").innerText()}`);
  assert.deepEqual(errors, []);
  await context.close();
});
