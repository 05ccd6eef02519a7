// What the page does when things go wrong, or are stopped: messages, and ways on.

import assert from "node:assert/strict";
import { after, afterEach, before, beforeEach, test } from "node:test";

import type { Browser, Page } from "playwright-core";

import {
  type Opened,
  SCRIPTED,
  ask,
  idle,
  launch,
  message,
  modelLoaded,
  open,
  picture,
  readSample,
} from "../support/browser";
import { type Server, serveFolder } from "../support/server";

let browser: Browser;
let server: Server;
let opened: Opened;

before(async () => {
  browser = await launch();
});

after(() => browser.close());

beforeEach(async () => {
  server = await serveFolder(SCRIPTED, "/longview/demo/");
});

afterEach(async () => {
  assert.deepEqual(opened.errors, []);
  await opened.context.close();
  await server.close();
});

/** A page whose engine follows `script`, with the embedded model loaded. */
async function start(script: object = {}): Promise<Page> {
  const page = await visit(script);
  await modelLoaded(page);
  return page;
}

async function visit(script: object = {}, prepare?: (page: Page) => Promise<void>): Promise<Page> {
  server.faults.replace.set("script.json", JSON.stringify(script));
  opened = await open(browser, server.url, {}, prepare);
  return opened.page;
}

/** Changes one byte of the first stored file with this name. */
async function damage(page: Page, folder: string, name: string): Promise<void> {
  const script = `(async () => {
    const root = await navigator.storage.getDirectory();
    const find = async (dir) => {
      for await (const [name, entry] of dir.entries()) {
        if (entry.kind === "file" && name === ${JSON.stringify(name)}) return entry;
        const found = entry.kind === "directory" ? await find(entry) : null;
        if (found) return found;
      }
      return null;
    };
    const file = await find(await root.getDirectoryHandle(${JSON.stringify(folder)}));
    const bytes = new Uint8Array(await (await file.getFile()).arrayBuffer());
    bytes[bytes.length - 9] ^= 1;
    const writer = await file.createWritable();
    await writer.write(bytes);
    await writer.close();
  })()`;
  await page.evaluate(script);
}

async function limitStorage(page: Page, bytes: number): Promise<void> {
  const session = await page.context().newCDPSession(page);
  const { origin } = new URL(server.url);
  await session.send("Storage.overrideQuotaForOrigin", { origin, quotaSize: bytes });
}

const verdicts = (page: Page): Promise<string[]> => page.locator(".verdict").allInnerTexts();

test("without WebGPU the page says so and what to do", async () => {
  const page = await visit({}, async (page) => {
    await page.addInitScript("delete Navigator.prototype.gpu");
  });
  const text = await message(page, "no-webgpu");
  assert.match(text, /has no WebGPU/);
  assert.match(text, /Use Chrome or Edge/);
  assert.equal(await page.getByRole("button", { name: "Ask", exact: true }).isDisabled(), true);
  await picture(page, "message-no-webgpu");
});

test("without an adapter the software adapter is offered, and works", async () => {
  const fail = { open: { code: "no-adapter", message: "No adapter answered.", times: 1 } };
  const page = await visit({ fail, software: true });
  assert.match(await message(page, "no-adapter"), /hardware acceleration/);
  await page.getByRole("button", { name: "Try the software adapter" }).click();
  await modelLoaded(page);
  assert.match(await message(page, "software"), /slowly/);
  assert.match(await page.locator("#device").innerText(), /software, slow/);
});

test("a device lost during an answer is opened again and the question asked anew", async () => {
  const page = await start({ fail: { step: { code: "device-lost", message: "It is gone." } } });
  await readSample(page, 1000);
  await ask(page, null);
  assert.match(await message(page, "device-lost"), /opened again/);
  assert.deepEqual(await verdicts(page), ["✓ This is what the document says."]);
});

test("a device lost between questions is opened again", async () => {
  const page = await start();
  await readSample(page, 1000);
  await page.getByText("Diagnostics").click();
  await page.getByRole("button", { name: "Lose the graphics device" }).click();
  await idle(page);
  await ask(page, null);
  assert.match(await message(page, "device-lost"), /nothing has to be read again/);
  assert.deepEqual(await verdicts(page), ["✓ This is what the document says."]);
});

test("a device lost during the prefill goes on where it was", async () => {
  const page = await start({ fail: { prefill: { code: "device-lost", message: "Gone." } } });
  await readSample(page, 2000);
  assert.match(await message(page, "device-lost"), /opened again/);
  assert.match(await page.locator("#document-line").innerText(), /tokens, read in/);
});

test("out of memory names what to make smaller", async () => {
  const message_ = "64 MiB for the device cache were refused.";
  const page = await visit({ fail: { loadModel: { code: "out-of-memory", message: message_ } } });
  const text = await message(page, "out-of-memory");
  assert.match(text, /64 MiB for the device cache were refused/);
  assert.match(text, /shorter context/);
  await page.getByLabel("Context, tokens").selectOption("2048");
  await page.getByRole("button", { name: "Load model" }).click();
  await modelLoaded(page);
  assert.match(await page.locator("#model-line").innerText(), /context 2,048 tokens/);
});

test("a document longer than the context is offered a longer one", async () => {
  const page = await start();
  await page.getByLabel("Length of the sample").selectOption("15000");
  await page.getByRole("button", { name: "Write a sample" }).click();
  await page.getByText("too long for the context").waitFor();
  await page.getByRole("button", { name: "Read the document" }).click();
  assert.match(await message(page, "context-too-long"), /longer than the context/);
  await page.getByRole("button", { name: "Choose a longer context and read it" }).click();
  await page.getByText("tokens, read in").waitFor();
  await idle(page);
  assert.match(await page.locator("#model-line").innerText(), /context 16,384 tokens/);
});

test("a damaged model in storage is found and, with consent, downloaded again", async () => {
  const page = await start();
  await page.goto("about:blank");
  await page.goto(server.url);
  await modelLoaded(page);
  assert.match(await page.locator("#model-line").innerText(), /Loaded from this browser's storage/);
  const again = server.requests.filter((path) => path.endsWith(".safetensors")).length;
  assert.equal(again, 1, "the weights were downloaded once");
  // No engine holds the file while it is changed.
  await page.goto(`${server.url}icon.svg`);
  await damage(page, "models", "model.safetensors");
  await page.goto(server.url);
  const text = await message(page, "corrupt-cache");
  assert.match(text, /model\.safetensors of needle \(embedded\) changed/);
  await page.getByRole("button", { name: "Delete it and download again" }).click();
  await modelLoaded(page);
  assert.match(await page.locator("#model-line").innerText(), /Downloaded/);
});

test("a damaged saved document is refused, and its text can be read again", async () => {
  const page = await start();
  await readSample(page, 1000);
  await damage(page, "documents", "session.lvs");
  await page.reload();
  await modelLoaded(page);
  await page.getByRole("button", { name: /^Open Sample/ }).click();
  assert.match(await message(page, "bad-session"), /wrong checksum/);
  await page.getByRole("button", { name: "Read its text again" }).click();
  await page.getByText("tokens, read in").waitFor();
  await idle(page);
  await ask(page, null);
  assert.deepEqual(await verdicts(page), ["✓ This is what the document says."]);
});

test("the page is not at rest before what was read is saved", async () => {
  const page = await start();
  await page.evaluate(`
    window.tasks = [];
    new MutationObserver(() => tasks.push(document.body.dataset.task)).observe(document.body, {
      attributeFilter: ["data-task"],
    });
  `);
  await readSample(page, 1000);
  const tasks = await page.evaluate<string[]>("tasks");
  assert.ok(tasks.indexOf("reading") < tasks.indexOf("storing"), tasks.join());
  assert.equal(tasks.indexOf("none"), tasks.length - 1, tasks.join());
});

test("a saved document opens after a reload without prefill, and can be deleted", async () => {
  const page = await start({ prefillMs: 5 });
  await readSample(page, 2000);
  await page.reload();
  await modelLoaded(page);
  await page.getByRole("button", { name: /^Open Sample/ }).click();
  await page.getByText("opened without reading").waitFor();
  await idle(page);
  await ask(page, null);
  assert.deepEqual(await verdicts(page), ["✓ This is what the document says."]);
  const drop = page.getByRole("button", { name: /^Delete Sample/ });
  await drop.click();
  await page.getByRole("button", { name: /^Really delete Sample/ }).click();
  await page.getByText("No document is saved yet").waitFor();
});

test("a stopped prefill keeps what is read, answers, and goes on after a reload", async () => {
  // Long enough for a busy machine to press the button in time; fast again after the reload.
  const page = await start({ prefillMs: 500 });
  await page.getByLabel("Length of the sample").selectOption("4000");
  await page.getByRole("button", { name: "Write a sample" }).click();
  await page.getByRole("button", { name: "Read the document" }).click();
  await page.locator("#prefill-figures", { hasText: "tokens/s" }).waitFor();
  await picture(page, "prefill");
  await page.getByRole("button", { name: "Stop, keep what is read" }).click();
  await page.getByText("the rest is not read").waitFor();
  await idle(page);
  await ask(page, null);
  assert.equal(await page.locator(".exchange").count(), 1);
  server.faults.replace.set("script.json", "{}");
  await page.reload();
  await modelLoaded(page);
  await page.getByRole("button", { name: /^Open Sample/ }).click();
  await page.getByText("the rest is not read").waitFor();
  await page.getByRole("button", { name: "Continue reading" }).click();
  await page.getByText("tokens, read in").waitFor();
  await idle(page);
  assert.equal(await page.getByRole("button", { name: "Continue reading" }).isVisible(), false);
});

test("the device's share can be bounded", async () => {
  const page = await start();
  await readSample(page, 2000);
  await page.getByLabel("Limit what the device holds").check();
  await idle(page);
  const slider = page.getByLabel("Keys, values and index on the device");
  await slider.focus();
  for (let i = 0; i < 3; i++) await page.keyboard.press("ArrowLeft");
  await idle(page);
  assert.equal(await page.locator("#limit-value").innerText(), "1.0 MiB");
  await ask(page, null);
  assert.match(await page.locator("#bars").innerText(), /On the device\s+1\.0 MiB/);
});

test("an answer can be stopped", async () => {
  const page = await start({ stepMs: 1000 });
  await readSample(page, 1000);
  await page.getByRole("button", { name: "Ask", exact: true }).click();
  await page.locator(".card .figures", { hasText: "tokens/s" }).waitFor();
  await page.getByRole("button", { name: "Stop the answer" }).click();
  await page.getByText("Stopped.").waitFor();
  await idle(page);
});

test("without room a model and a document stay in memory, and the page says so", async () => {
  const page = await visit({ session: { bytes: 3 << 20 } }, (page) => limitStorage(page, 2 << 20));
  await modelLoaded(page);
  assert.match(await message(page, "quota"), /no room to store model\.safetensors/);
  await readSample(page, 1000);
  assert.match(await message(page, "quota"), /no room to store this document/);
  await page.getByRole("button", { name: "Another document" }).click();
  await page.getByRole("button", { name: /^Open Sample/ }).click();
  await page.getByText("opened without reading").waitFor();
  await idle(page);
  await ask(page, null);
  assert.deepEqual(await verdicts(page), ["✓ This is what the document says."]);
});

test("without storage everything works in memory, and the page says so", async () => {
  const page = await visit({}, async (page) => {
    await page.route("**/worker-*.js", async (route) => {
      const response = await route.fetch();
      const deny = "navigator.storage.getDirectory = () => Promise.reject(new Error('no'));\n";
      await route.fulfill({ response, body: deny + (await response.text()) });
    });
  });
  await modelLoaded(page);
  assert.match(await message(page, "no-storage"), /gone when the page is left/);
  await readSample(page, 1000);
  await ask(page, null);
  assert.deepEqual(await verdicts(page), ["✓ This is what the document says."]);
});

test("a broken download goes on where it broke", async () => {
  server.faults.breakAfter.set("model/model.safetensors", 6_000_000);
  const page = await start();
  const ranges = server.requests.filter((path) => path.includes("safetensors bytes="));
  assert.equal(ranges.length, 1);
  assert.match(
    await page.locator("#model-line").innerText(),
    /all 5 files is that of this release/,
  );
});

test("a stopped download goes on at the next visit", async () => {
  server.faults.breakAfter.set("model/model.safetensors", 6_000_000);
  const page = await visit();
  await page.locator("#model-figures", { hasText: "MiB of 8.3 MiB" }).waitFor();
  await page.reload();
  await modelLoaded(page);
  const ranges = server.requests.filter((path) => path.includes("safetensors bytes="));
  assert.ok(ranges.length >= 1, server.requests.join("\n"));
});

test("a file that is not what its server says is refused", async () => {
  server.faults.replace.set("model/config.json", '{"hidden_size": 1, "other": "model"}');
  const page = await visit();
  assert.match(
    await message(page, "network"),
    /config\.json is not what its list of files says it is/,
  );
  server.faults.replace.delete("model/config.json");
  await page.getByRole("button", { name: "Try again" }).click();
  await modelLoaded(page);
});

test("a model by address is kept with its hash, and its documents are its own", async () => {
  const page = await start();
  await readSample(page, 1000);
  await page.getByText("Choose model and memory").click();
  const address = page.getByRole("textbox", { name: "Address of a Hugging Face folder" });
  await address.fill(`${server.url}model`);
  await page.getByRole("button", { name: "Load model" }).click();
  await modelLoaded(page);
  const line = page.locator("#model-line");
  assert.match(await line.innerText(), /^model: .*gives no sha-256/);
  assert.match(await page.locator("#saved").innerText(), /Needs the model needle \(embedded\)/);
  const openDocument = page.getByRole("button", { name: /^Open Sample/ });
  assert.equal(await openDocument.isDisabled(), true);
  await page.locator("#model-load").click();
  await modelLoaded(page);
  await page.getByText("5 against the first download's").waitFor();
});

test("the loaded model cannot be deleted, another can", async () => {
  const page = await start();
  await page.getByText("Choose model and memory").click();
  const address = page.getByRole("textbox", { name: "Address of a Hugging Face folder" });
  await address.fill(`${server.url}model`);
  await page.locator("#model-load").click();
  await page.getByText("gives no sha-256").waitFor();
  await idle(page);
  const remove = async (name: string): Promise<void> => {
    await page.getByRole("button", { name: `Delete ${name}`, exact: true }).click();
    await page.getByRole("button", { name: `Really delete ${name}?` }).click();
  };
  await remove("model");
  assert.match(await message(page, "bad-input"), /This model is loaded/);
  await remove("needle (embedded)");
  await page.getByRole("button", { name: "Load needle (embedded)" }).waitFor({ state: "detached" });
});

test("an address without a model is answered with what is missing", async () => {
  const page = await start();
  await page.getByText("Choose model and memory").click();
  await page
    .getByRole("textbox", { name: "Address of a Hugging Face folder" })
    .fill(`${server.url}nowhere`);
  await page.getByRole("button", { name: "Load model" }).click();
  assert.match(await message(page, "bad-model"), /nowhere has no config\.json/);
});

test("a folder is loaded from the disk, without a copy", async () => {
  const page = await start();
  await page.getByText("Choose model and memory").click();
  await page.locator("#model-files").setInputFiles("../models/needle");
  await page.getByRole("button", { name: "Load model", exact: true }).click();
  await page.getByText("Read from your disk").waitFor();
  await idle(page);
  await readSample(page, 1000);
  await ask(page, "What is this document about?");
  assert.match(await page.locator(".answer").innerText(), /quiet valley/);
});

test("no request leaves the site, and after loading the network is not needed", async () => {
  const asked: string[] = [];
  const page = await visit({}, (page) => {
    page.on("request", (request) => asked.push(request.url()));
    return Promise.resolve();
  });
  await modelLoaded(page);
  await page.context().setOffline(true);
  await readSample(page, 1000);
  await ask(page, null);
  assert.deepEqual(await verdicts(page), ["✓ This is what the document says."]);
  assert.deepEqual(
    asked.filter((url) => !url.startsWith(server.url)),
    [],
  );
});
