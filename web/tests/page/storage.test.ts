// Models: how they are downloaded, stored, checked and picked, and what goes wrong on the way.

import assert from "node:assert/strict";
import { test } from "node:test";

import { ask, idle, message, modelLoaded, readSample } from "../support/browser";
import { damage, inWorker, removeStored, stage as openStage, verdicts } from "../support/stage";

const stage = openStage();

test("a damaged model in storage is found and, with consent, downloaded again", async () => {
  const page = await stage.start();
  await page.goto("about:blank");
  await page.goto(stage.server.url);
  await modelLoaded(page);
  assert.match(await page.locator("#model-line").innerText(), /Loaded from this browser's storage/);
  const again = stage.server.requests.filter((path) => path.endsWith(".safetensors")).length;
  assert.equal(again, 1, "the weights were downloaded once");
  // No engine holds the file while it is changed.
  await page.goto(`${stage.server.url}icon.svg`);
  await damage(page, "models", "model.safetensors");
  await page.goto(stage.server.url);
  const text = await message(page, "corrupt-cache");
  assert.match(text, /model\.safetensors of needle \(embedded\) changed/);
  await page.getByRole("button", { name: "Delete it and download again" }).click();
  await modelLoaded(page);
  assert.match(await page.locator("#model-line").innerText(), /Downloaded/);
});

test("a stored file that is missing is downloaded alone", async () => {
  const page = await stage.start();
  await page.goto(`${stage.server.url}icon.svg`);
  await removeStored(page, "models", "tokenizer.json");
  const before = stage.server.requests.length;
  await page.goto(stage.server.url);
  await modelLoaded(page);
  assert.match(await page.locator("#model-line").innerText(), /Downloaded/);
  const files = stage.server.requests.slice(before).filter((path) => path.includes("/model/"));
  assert.deepEqual(files, ["/longview/demo/model/tokenizer.json"]);
});

test("without room a model and a document stay in memory, and the page says so", async () => {
  const page = await stage.visit({ session: { bytes: 3 << 20 } }, (page) =>
    stage.limitStorage(page, 2 << 20),
  );
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
  const deny = "navigator.storage.getDirectory = () => Promise.reject(new Error('no'))";
  const page = await stage.visit({}, (page) => inWorker(page, deny));
  await modelLoaded(page);
  assert.match(await message(page, "no-storage"), /gone when the page is left/);
  await readSample(page, 1000);
  await ask(page, null);
  assert.deepEqual(await verdicts(page), ["✓ This is what the document says."]);
});

test("a broken download goes on where it broke", async () => {
  stage.server.faults.breakAfter.set("model/model.safetensors", 6_000_000);
  const page = await stage.start();
  const ranges = stage.server.requests.filter((path) => path.includes("safetensors bytes="));
  assert.equal(ranges.length, 1);
  assert.match(
    await page.locator("#model-line").innerText(),
    /all 5 files is that of this release/,
  );
});

test("a stopped download goes on at the next visit", async () => {
  stage.server.faults.breakAfter.set("model/model.safetensors", 6_000_000);
  const page = await stage.visit();
  await page.locator("#model-figures", { hasText: "MiB of 8.3 MiB" }).waitFor();
  await page.reload();
  await modelLoaded(page);
  const ranges = stage.server.requests.filter((path) => path.includes("safetensors bytes="));
  assert.ok(ranges.length >= 1, stage.server.requests.join("\n"));
});

test("a file that is not what its server says is refused", async () => {
  stage.server.faults.replace.set("model/config.json", '{"hidden_size": 1, "other": "model"}');
  const page = await stage.visit();
  assert.match(
    await message(page, "network"),
    /config\.json is not what its list of files says it is/,
  );
  stage.server.faults.replace.delete("model/config.json");
  await page.getByRole("button", { name: "Try again" }).click();
  await modelLoaded(page);
});

test("a model by address is kept with its hash, and its documents are its own", async () => {
  const page = await stage.start();
  await readSample(page, 1000);
  await page.getByText("Choose model and memory").click();
  const address = page.getByRole("textbox", { name: "Address of a Hugging Face folder" });
  await address.fill(`${stage.server.url}model`);
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
  const page = await stage.start();
  await page.getByText("Choose model and memory").click();
  const address = page.getByRole("textbox", { name: "Address of a Hugging Face folder" });
  await address.fill(`${stage.server.url}model`);
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
  const page = await stage.start();
  await page.getByText("Choose model and memory").click();
  await page
    .getByRole("textbox", { name: "Address of a Hugging Face folder" })
    .fill(`${stage.server.url}nowhere`);
  await page.getByRole("button", { name: "Load model" }).click();
  assert.match(await message(page, "bad-model"), /nowhere has no config\.json/);
});

test("a folder is loaded from the disk, without a copy", async () => {
  const page = await stage.start();
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
  const page = await stage.visit({}, (page) => {
    page.on("request", (request) => asked.push(request.url()));
    return Promise.resolve();
  });
  await modelLoaded(page);
  await page.context().setOffline(true);
  await readSample(page, 1000);
  await ask(page, null);
  assert.deepEqual(await verdicts(page), ["✓ This is what the document says."]);
  assert.deepEqual(
    asked.filter((url) => !url.startsWith(stage.server.url)),
    [],
  );
});
