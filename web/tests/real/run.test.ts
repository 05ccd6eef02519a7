// End to end: the built page, the wasm engine, WebGPU on the browser's software adapter.
//
// One visit after another in one browser profile, as one visitor would: tests build on what the
// ones before left in storage.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";

import type { Browser, BrowserContext, Page } from "playwright-core";

import {
  DIST,
  ask,
  idle,
  launch,
  message,
  modelLoaded,
  open,
  picture,
  readText,
  violations,
} from "../support/browser";
import { type Server, serveFolder } from "../support/server";
import { SAMPLE } from "./sample";

const MINUTE = 60_000;

interface Known {
  question: string;
  answer: string;
}

const native = JSON.parse(
  readFileSync(join(import.meta.dirname, "native.json"), "utf8"),
) as Known[];

let browser: Browser;
let server: Server;
let context: BrowserContext;
let page: Page;
let errors: string[];

before(async () => {
  browser = await launch();
  server = await serveFolder(DIST, "/longview/demo/");
  const opened = await open(browser, server.url);
  ({ context, page, errors } = opened);
});

after(async () => {
  await context.close();
  await browser.close();
  await server.close();
});

/** Asks, and returns what the topmost card of the newest answer says. */
async function answer(question: string): Promise<string> {
  await ask(page, question, 10 * MINUTE);
  const card = page.locator(".exchange").first().locator(".card").first();
  const text = await card.locator(".answer").innerText();
  return text === "" ? `no answer: ${await page.locator("#notices").innerText()}` : text;
}

/** Asks for as few tokens a step as the native program had. */
async function setBudget(): Promise<void> {
  const budget = page.locator("#budget-number");
  await budget.fill(String(SAMPLE.policy.budget));
  await budget.blur();
}

/** Opens a saved document. */
async function reopen(title: string): Promise<void> {
  await page.getByRole("button", { name: `Open ${title}` }).click();
  await page.getByText("opened without reading").waitFor({ timeout: 5 * MINUTE });
  await idle(page, 5 * MINUTE);
}

test("the page opens a device and loads the embedded model", async () => {
  // Beside another browser that compiles every shader, and what CI builds, this takes minutes.
  await modelLoaded(page, 10 * MINUTE);
  const device = await page.locator("#device").innerText();
  assert.match(device, /shader level (core|f16|subgroups)/);
  assert.match(device, /software, slow/);
  assert.match(await message(page, "software"), /slowly/);
  const options = await page.locator("#policy option").allInnerTexts();
  assert.ok(options.includes("full") && options.includes("quest"), options.join());
});

test("a document is read", async () => {
  await readText(page, SAMPLE.text, 10 * MINUTE);
  assert.match(await page.locator("#document-line").innerText(), /^8\d\d tokens, read in/);
  assert.equal(await page.locator("#policy").inputValue(), SAMPLE.policy.preset);
  await setBudget();
});

test("answers by recall and by full attention are the native program's", async () => {
  await page.getByLabel("Compare with full attention").check();
  await page.locator("#layer").selectOption("1");
  await page.locator("#head").selectOption("0");
  const known = native[1];
  assert.ok(known !== undefined);
  assert.equal(await answer(known.question), known.answer);
  const cards = page.locator(".exchange").first().locator(".card");
  assert.deepEqual(await cards.locator("h4").allInnerTexts(), [
    `longview, budget ${SAMPLE.policy.budget}`,
    "full",
  ]);
  assert.deepEqual(await cards.locator(".answer").allInnerTexts(), [known.answer, known.answer]);
  assert.equal(await page.locator(".verdict.right").count(), 2);
  assert.match(await page.locator("#map-summary").innerText(), /layer 1, KV head 0/);
  const attended = /Attended in a step, mean\s+[\d,]+ of [\d,]+ tokens/;
  for (const facts of await cards.locator(".facts").allInnerTexts()) assert.match(facts, attended);
  await page.getByLabel("Compare with full attention").uncheck();
  await picture(page, "real-answer");
  assert.deepEqual(await violations(page), []);
});

test("a lost device is opened again, and the answer is still right", async () => {
  await page.getByText("Diagnostics").click();
  await page.getByRole("button", { name: "Lose the graphics device" }).click();
  await idle(page);
  const [known] = native;
  assert.ok(known !== undefined);
  assert.equal(await answer(known.question), known.answer);
  assert.match(await message(page, "device-lost"), /opened again/);
  await picture(page, "real-recovered");
});

test("after a reload a document that an older release saved opens without prefill", async () => {
  const fixtures = join(import.meta.dirname, "../../../tests/fixtures/saved");
  const session = readFileSync(join(fixtures, "v1.lvs"));
  assert.equal(session[8], 1, "a file of version 1");
  const old = { title: "Of a release before", text: "The pass key is 48213. Remember it. " };
  await page.evaluate(
    async ({ title, text, base64 }) => {
      const root = await navigator.storage.getDirectory();
      const documents = await root.getDirectoryHandle("documents");
      let meta = {};
      for await (const dir of (
        documents as unknown as { values(): AsyncIterable<FileSystemDirectoryHandle> }
      ).values()) {
        const file = await (await dir.getFileHandle("meta.json")).getFile();
        meta = JSON.parse(await file.text()) as object;
      }
      const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
      const policy = { preset: "clusterkv", budget: 64, options: {} };
      const record = { ...meta, title, tokens: 19, total: 19, complete: true, policy };
      const files = { "text.txt": text, "session.lvs": bytes, "meta.json": JSON.stringify(record) };
      const dir = await documents.getDirectoryHandle("of-a-release-before", { create: true });
      for (const [name, content] of Object.entries(files)) {
        const out = await (await dir.getFileHandle(name, { create: true })).createWritable();
        await out.write(content);
        await out.close();
      }
    },
    { ...old, base64: session.toString("base64") },
  );
  await page.reload();
  await modelLoaded(page, 10 * MINUTE);
  assert.match(await page.locator("#model-line").innerText(), /Loaded from this browser's storage/);
  await reopen(old.title);
  assert.match(await answer("What is the pass key?"), /48213/);
});

test("so does the one that was read before, and the answer is right", async () => {
  await reopen(SAMPLE.text.slice(0, 20));
  await setBudget();
  const known = native[2];
  assert.ok(known !== undefined);
  assert.equal(await answer(known.question), known.answer);
  await picture(page, "real-reopened");
});

test("the map, the bars and the passages show what was attended", async () => {
  const summary = await page.locator("#map-summary").innerText();
  const [attended, all] = [...summary.matchAll(/(\d[\d,]*) of (\d[\d,]*) tokens/g)].flatMap(
    ([, a, b]) => [a, b].map((n) => Number(n?.replace(/,/g, ""))),
  );
  assert.ok(attended !== undefined && all !== undefined, summary);
  assert.ok(attended > 0 && attended < all, summary);
  assert.ok(await page.locator("#cells").evaluate((canvas) => canvas.clientHeight > 50));
  assert.match(await page.locator("#bars").innerText(), /In host memory\s+[\d.]+ MiB/);
  const value = /\d+/.exec(native[2]?.answer ?? "")?.[0] ?? "no number";
  const marks = (await page.locator("#view mark").allInnerTexts()).join(" ");
  assert.ok(marks.includes(value), `${value} is not in: ${marks}`);
});

test("a stopped prefill keeps what is read, and goes on", async () => {
  await page.getByRole("button", { name: "Another document" }).click();
  // Nobody notices yet: the document is the first that meets the new device.
  await page.getByText("Diagnostics").click();
  await page.getByRole("button", { name: "Lose the graphics device" }).click();
  await page.locator("#text").fill(SAMPLE.text);
  await page.getByRole("button", { name: "Read the document" }).click();
  await page.locator("#prefill-figures", { hasText: "tokens/s" }).waitFor({ timeout: 5 * MINUTE });
  assert.match(await message(page, "device-lost"), /opened again/);
  await picture(page, "real-prefill");
  await page.getByRole("button", { name: "Stop, keep what is read" }).click();
  await page.getByText("the rest is not read").waitFor({ timeout: 5 * MINUTE });
  await idle(page, 5 * MINUTE);
  const line = await page.locator("#document-line").innerText();
  const [done, total] = [...line.matchAll(/\d[\d,]*/g)].map(([n]) => Number(n.replace(/,/g, "")));
  assert.ok(done !== undefined && total !== undefined && done > 0 && done < total, line);
  // What was read can be asked about: the first fact stands in the first part.
  const [known] = native;
  assert.ok(known !== undefined);
  await ask(page, known.question, 10 * MINUTE);
  assert.equal(await page.locator(".verdict.right").count(), 1);
});

test("a device that is lost while the rest is read is opened again, and it goes on", async () => {
  await page.getByRole("button", { name: "Continue reading" }).click();
  await page.locator("#prefill-figures", { hasText: "tokens/s" }).waitFor({ timeout: 5 * MINUTE });
  await page.getByRole("button", { name: "Lose the graphics device" }).click();
  await page.getByText("tokens, read in").waitFor({ timeout: 10 * MINUTE });
  await idle(page, 5 * MINUTE);
  assert.match(await message(page, "device-lost"), /opened again/);
  const last = native.at(-1);
  assert.ok(last !== undefined);
  await ask(page, last.question, 10 * MINUTE);
  assert.equal(await page.locator(".verdict.right").count(), 1);
});

test("nothing failed unseen", () => {
  assert.deepEqual(errors, []);
});
