// What the page does when things go wrong, or are stopped: messages, and ways on.

import assert from "node:assert/strict";
import { test } from "node:test";

import { ask, drop, idle, message, modelLoaded, picture, readSample } from "../support/browser";
import { damage, stage as openStage, verdicts } from "../support/stage";

const stage = openStage();

test("without WebGPU the page says so and what to do", async () => {
  const page = await stage.visit({}, async (page) => {
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
  const page = await stage.visit({ fail, software: true });
  assert.match(await message(page, "no-adapter"), /hardware acceleration/);
  await page.getByRole("button", { name: "Try the software adapter" }).click();
  await modelLoaded(page);
  assert.match(await message(page, "software"), /slowly/);
  assert.match(await page.locator("#device").innerText(), /software, slow/);
});

test("a device lost during an answer is opened again and the question asked anew", async () => {
  const page = await stage.start({
    fail: { step: { code: "device-lost", message: "It is gone." } },
  });
  await readSample(page, 1000);
  await ask(page, null);
  assert.match(await message(page, "device-lost"), /opened again/);
  assert.deepEqual(await verdicts(page), ["✓ This is what the document says."]);
});

test("a device lost between questions is opened again", async () => {
  const page = await stage.start();
  await readSample(page, 1000);
  await page.getByText("Diagnostics").click();
  await page.getByRole("button", { name: "Lose the graphics device" }).click();
  await idle(page);
  await ask(page, null);
  assert.match(await message(page, "device-lost"), /nothing has to be read again/);
  assert.deepEqual(await verdicts(page), ["✓ This is what the document says."]);
});

test("a device lost during the prefill goes on where it was", async () => {
  const page = await stage.start({ fail: { prefill: { code: "device-lost", message: "Gone." } } });
  await readSample(page, 2000);
  assert.match(await message(page, "device-lost"), /opened again/);
  assert.match(await page.locator("#document-line").innerText(), /tokens, read in/);
});

test("a device lost before a new document is read is opened again", async () => {
  const page = await stage.start();
  await readSample(page, 1000);
  await page.getByText("Diagnostics").click();
  await page.getByRole("button", { name: "Lose the graphics device" }).click();
  await page.getByRole("button", { name: "Another document" }).click();
  await readSample(page, 2000);
  assert.match(await message(page, "device-lost"), /opened again/);
  await ask(page, null);
  assert.deepEqual(await verdicts(page), ["✓ This is what the document says."]);
});

test("out of memory names what to make smaller", async () => {
  const message_ = "64 MiB for the device cache were refused.";
  const page = await stage.visit({
    fail: { loadModel: { code: "out-of-memory", message: message_ } },
  });
  const text = await message(page, "out-of-memory");
  assert.match(text, /64 MiB for the device cache were refused/);
  assert.match(text, /shorter context/);
  await page.getByLabel("Context, tokens").selectOption("2048");
  await page.getByRole("button", { name: "Load model" }).click();
  await modelLoaded(page);
  assert.match(await page.locator("#model-line").innerText(), /context 2,048 tokens/);
});

test("a document that is not saved outlives a model that cannot be loaded", async () => {
  const failed = { code: "out-of-memory", message: "No room for the context.", after: 1 };
  const page = await stage.start({ fail: { loadModel: failed } });
  await page.getByLabel("Keep it in this browser").uncheck();
  const text = "A text that was pasted and is nowhere else. ".repeat(20);
  await page.locator("#text").fill(text);
  await page.getByRole("button", { name: "Read the document" }).click();
  await page.getByText("tokens, read in").waitFor();
  await idle(page);
  await page.getByText("Choose model and memory").click();
  await page.getByLabel("Context, tokens").selectOption("131072");
  await page.getByRole("button", { name: "Load model" }).click();
  await message(page, "out-of-memory");
  await idle(page);
  assert.equal(await page.locator("#why-not").innerText(), "Load a model first.");
  assert.match(await page.locator("#view").innerText(), /nowhere else/);
  await page.getByLabel("Context, tokens").selectOption("16384");
  await page.getByRole("button", { name: "Load model" }).click();
  await modelLoaded(page);
  assert.equal(await page.locator("#text").inputValue(), text);
  await page.getByRole("button", { name: "Read the document" }).click();
  await page.getByText("tokens, read in").waitFor();
});

test("a saved document is open again once a model is loaded after one that failed", async () => {
  const failed = { code: "out-of-memory", message: "No room for the context.", after: 1 };
  const page = await stage.start({ fail: { loadModel: failed } });
  await readSample(page, 1000);
  await page.getByText("Choose model and memory").click();
  await page.getByRole("button", { name: "Load model" }).click();
  await message(page, "out-of-memory");
  await idle(page);
  await page.getByRole("button", { name: "Load model" }).click();
  await page.getByText("opened without reading").waitFor();
  await idle(page);
  await ask(page, null);
  assert.deepEqual(await verdicts(page), ["✓ This is what the document says."]);
});

test("a document longer than the context is offered a longer one", async () => {
  const page = await stage.start();
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

test("a damaged saved document is refused, and its text can be read again", async () => {
  const page = await stage.start();
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

test("a saved document that cannot be opened leaves the open one as it was", async () => {
  const failed = { code: "out-of-memory", message: "No room for its keys." };
  const page = await stage.start({ fail: { openSession: failed } });
  await readSample(page, 1000);
  await page.getByRole("button", { name: "Another document" }).click();
  await readSample(page, 1000);
  await page.getByRole("button", { name: "Open Sample 1" }).click();
  assert.match(await message(page, "out-of-memory"), /No room for its keys/);
  await idle(page);
  await ask(page, null);
  assert.deepEqual(await verdicts(page), ["✓ This is what the document says."]);
});

test("a document that is read again and fails is not the one before", async () => {
  const fail = {
    openSession: { code: "bad-session", message: "It is damaged." },
    readDocument: { code: "out-of-memory", message: "No room for its keys.", after: 2 },
  };
  const page = await stage.start({ fail });
  await readSample(page, 1000);
  await page.getByRole("button", { name: "Another document" }).click();
  await readSample(page, 1000);
  await page.getByRole("button", { name: "Open Sample 1" }).click();
  await page.getByRole("button", { name: "Read its text again" }).click();
  await message(page, "out-of-memory");
  await idle(page);
  assert.equal(await page.locator("#text").isVisible(), true);
  assert.equal(await page.locator("#why-not").innerText(), "Read a document first.");
});

test("the page is not at rest before what was read is saved", async () => {
  const page = await stage.start();
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
  const page = await stage.start({ prefillMs: 5 });
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

test("a reload opens the saved document of the tab again, and another tab does not", async () => {
  const page = await stage.start();
  await readSample(page, 1000);
  await page.getByRole("button", { name: "Another document" }).click();
  await readSample(page, 2000);
  await page.getByRole("button", { name: /^Open Sample 1/ }).click();
  await page.getByText("opened without reading").waitFor();
  await idle(page);
  for (let i = 0; i < 2; i++) {
    await page.reload();
    await page.getByText("opened without reading").waitFor();
    await idle(page);
    assert.match(await page.locator("#document-name").innerText(), /^Sample 1/);
  }
  await ask(page, null);
  assert.deepEqual(await verdicts(page), ["✓ This is what the document says."]);
  const other = await page.context().newPage();
  await other.goto(stage.server.url);
  await modelLoaded(other);
  assert.equal(await other.locator("#text").isVisible(), true);
  // It is deleted there meanwhile.
  await other.getByRole("button", { name: /^Delete Sample 1/ }).click();
  await other.getByRole("button", { name: /^Really delete Sample 1/ }).click();
  await idle(other);
  await other.close();
  await page.reload();
  const told = await message(page, "gone");
  assert.match(told, /The document that was open is not there any more.*in the list below/s);
  await idle(page);
  assert.equal(await page.locator("#text").isVisible(), true);
  assert.equal(await page.locator("#saved-lists li", { hasText: "Sample 2" }).count(), 1);
});

test("a document that cannot be opened after a reload is not tried at each one", async () => {
  const page = await stage.start();
  await readSample(page, 1000);
  const fail = { openSession: { code: "out-of-memory", message: "No room for its keys." } };
  stage.server.faults.replace.set("script.json", JSON.stringify({ fail }));
  await page.reload();
  assert.match(await message(page, "out-of-memory"), /No room for its keys/);
  await idle(page);
  await page.reload();
  await modelLoaded(page);
  assert.equal(await page.locator("#text").isVisible(), true);
  assert.equal(await page.locator('[data-code="out-of-memory"]').count(), 0);
});

test("a stopped prefill keeps what is read, answers, and goes on after a reload", async () => {
  // Long enough for a busy machine to press the button in time; fast again after the reload.
  const page = await stage.start({ prefillMs: 500 });
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
  stage.server.faults.replace.set("script.json", "{}");
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
  const page = await stage.start();
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

test("the map's text counts tokens where a cell stands for several", async () => {
  const page = await stage.start({ cellTokens: 16 });
  await readSample(page, 1000);
  const tokens = /^([\d,]+) tokens/.exec(await page.locator("#document-line").innerText())?.[1];
  await ask(page, null);
  const summary = page.locator("#map-summary", { hasText: `of ${tokens} tokens: 4 sinks` });
  await summary.waitFor();
  const text = (await summary.innerText()).replace(/,/g, "");
  const number = (what: RegExp): number => Number(what.exec(text)?.[1]);
  const parts = [/(\d+) sinks/, /(\d+) recent/, /(\d+) hits/, /(\d+) misses/].map(number);
  assert.deepEqual(parts.slice(0, 2), [4, 64]);
  assert.equal(
    number(/attends (\d+) of/),
    parts.reduce((a, b) => a + b),
  );
  assert.match(text, /One cell is 16 tokens/);
});

test("passages are quoted as they are, also in a script without spaces", async () => {
  const page = await stage.start();
  const rows = Array.from({ length: 40 }, (_, i) => `第${i}章讲的是山谷里的居民。他们种稻。`);
  const text = `Words before a line's end\nkey-1 ${rows.join("")}`;
  await page.locator("#text").fill(text);
  await page.getByRole("button", { name: "Read the document" }).click();
  await page.getByText("tokens, read in").waitFor();
  await idle(page);
  await ask(page, "What stands for key-1 here?");
  await page.getByText("Attended most in the document").click();
  const first = text.indexOf("\n") + 1;
  const other = Math.floor(text.length / 2);
  assert.deepEqual(await page.locator("button.passage").allInnerTexts(), [
    text.slice(first, first + 60),
    `${text.slice(other, other + 88)}…`,
  ]);
});

test("an answer can be stopped", async () => {
  const page = await stage.start({ stepMs: 1000 });
  await readSample(page, 1000);
  await page.getByRole("button", { name: "Ask", exact: true }).click();
  await page.locator(".card .figures", { hasText: "tokens/s" }).waitFor();
  await page.getByRole("button", { name: "Stop the answer" }).click();
  await page.getByText("Stopped.").waitFor();
  await idle(page);
});

test("a file that is no text is refused by its name, and what was typed stays", async () => {
  const page = await stage.start();
  await page.locator("#text").fill("Something that was typed.");
  await drop(page, [{ name: "menu.txt", body: [99, 97, 102, 233] }], "#question");
  const said = await message(page, "bad-file");
  assert.match(said, /menu\.txt: it is no text in UTF-8/);
  assert.doesNotMatch(said, /Reload/);
  assert.equal(await page.locator("#text").inputValue(), "Something that was typed.");
});

test("a document shows its name while it is read and after", async () => {
  const page = await stage.start();
  await drop(page, [{ name: "<i>hills</i>.txt", body: "A hill. Another hill. A valley." }]);
  await page.locator("#document-line", { hasText: "tokens" }).waitFor();
  await page.getByRole("button", { name: "Read the document" }).click();
  await page.getByText("tokens, read in").waitFor();
  assert.equal(await page.locator("#document-name").innerText(), "<i>hills</i>.txt");
  await idle(page);
});

test("an answer says how much of the context a step attended to", async () => {
  const page = await stage.start();
  await readSample(page, 2000);
  const line = await page.locator("#document-line").innerText();
  const all = /^[\d,]+/.exec(line)?.[0] ?? "";
  await page.getByLabel("Compare with full attention").check();
  await ask(page, null);
  const [policy, full] = await page.locator(".facts").allInnerTexts();
  assert.match(policy ?? "", new RegExp(`Attended in a step, mean\\s+508 of ${all} tokens`));
  assert.match(full ?? "", new RegExp(`Attended in a step, mean\\s+${all} of ${all} tokens`));
  // It has no cache.
  assert.doesNotMatch(full ?? "", /Hits/);
});
