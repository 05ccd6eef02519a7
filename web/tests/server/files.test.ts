// End to end: documents as they come, at the page of `longview serve`.

import assert from "node:assert/strict";
import { test } from "node:test";

import type { Page } from "playwright-core";

import { ask, drop, idle, message, readText } from "../support/browser";
import { until } from "../support/stage";
import { visits } from "../support/visits";

const visiting = visits();

const form = (page: Page): Promise<string> => page.locator("#text").inputValue();
const names = (page: Page): Promise<string[]> => page.locator("#saved-lists .name").allInnerTexts();

async function read(page: Page): Promise<void> {
  await page.getByRole("button", { name: "Read the document" }).click();
  await page.getByRole("button", { name: "Another document" }).waitFor();
  await idle(page);
}

test("a text in another code of characters is read all the same", async () => {
  const page = await visiting.visit();
  const latin1 = Array.from(Buffer.from("caf\xe9 and bread, bread and wine", "latin1"));
  await drop(page, [{ name: "menu.txt", body: latin1 }]);
  await page.getByText("café and bread").waitFor();
  await idle(page);
  assert.equal(await page.locator("#notices > *").count(), 0);
});

test("what has no text in it is refused by its name", async () => {
  const page = await visiting.visit();
  await page.locator("#text").fill("Something that was typed.");
  const cases = [
    { file: { name: "empty.txt", body: "" }, said: /empty\.txt: it is empty/ },
    { file: { name: "blank.md", body: " \n \n" }, said: /blank\.md: there is no text in it/ },
    { file: { name: "empty.pdf", body: "" }, said: /empty\.pdf: it is empty/ },
    {
      file: { name: "noise.txt", body: [0, 1, 2, 255, 0] },
      said: /\nnoise\.txt: is a binary file/,
    },
  ];
  for (const { file, said } of cases) {
    await drop(page, [file]);
    await page.locator("#notices", { hasText: file.name }).waitFor();
    assert.match(await message(page, "bad-file"), said);
    assert.match(await message(page, "bad-file"), /^!?\s*This file cannot be read/);
    await idle(page);
    // It takes nothing of what was there.
    assert.equal(await form(page), "Something that was typed.");
  }
  // The next file is told of alone.
  await drop(page, [{ name: "good.txt", body: "The pass key is 48213." }]);
  await page.locator('#notices [data-code="bad-file"]').waitFor({ state: "detached" });
  await until(async () => (await form(page)) === "The pass key is 48213.");
});

test("of several files the first is taken, and the page says so", async () => {
  const page = await visiting.visit();
  await drop(page, [
    { name: "one.txt", body: "First of all." },
    { name: "two.txt", body: "Then the second." },
  ]);
  assert.match(await message(page, "told"), /one\.txt is taken; not two\.txt/);
  await until(async () => (await form(page)) === "First of all.");
});

test("texts of one length have their own names, and an open document shows its own", async () => {
  const page = await visiting.visit();
  for (const [name, body] of [
    ["salt.txt", "The pass key is 11111."],
    ["corn.txt", "The pass key is 22222."],
    ["<b>rye</b>.txt", "The pass key is 33333."],
  ] as const) {
    await drop(page, [{ name, body }]);
    await until(async () => (await form(page)) === body);
    await read(page);
    assert.equal(await page.locator("#document-name").innerText(), name);
    await page.getByRole("button", { name: "Another document" }).click();
  }
  assert.deepEqual((await names(page)).slice(0, 3), ["<b>rye< b>.txt", "corn.txt", "salt.txt"]);
  // The same text again keeps the name that it has.
  await drop(page, [{ name: "other.txt", body: "The pass key is 22222." }]);
  await until(async () => (await form(page)) !== "");
  await read(page);
  assert.equal((await names(page)).filter((name) => /corn|other/.test(name)).join(), "corn.txt");
});

test("a file with a very long name is still of its kind", async () => {
  const page = await visiting.visit();
  await drop(page, [{ name: `${"n".repeat(200)}.html`, body: "<p>The pass key is 44444.</p>" }]);
  await page.locator("#document-line", { hasText: "read in" }).waitFor();
  assert.equal(await page.locator("#view").innerText(), "The pass key is 44444.");
});

test("a large file is read as it is, and one that is too large is called so", async () => {
  const page = await visiting.visit();
  const send = (name: string, bytes: number): Promise<void> =>
    page.evaluate(`{
      const data = new DataTransfer();
      data.items.add(new File([new Uint8Array(${bytes}).fill(65)], "${name}"));
      document.querySelector("#document").dispatchEvent(
        new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
    }`);
  const sent = page.waitForRequest("**/v1/contexts");
  await send("line.txt", 5_000_000);
  assert.match((await sent).headers()["content-type"] ?? "", /^multipart/);
  await message(page, "context-too-long");
  await idle(page);
  assert.equal(await form(page), "");
  await send("huge.txt", 17_000_000);
  const said = await message(page, "bad-file");
  assert.match(said, /larger than what the server takes at once\.\s+Take a smaller document/);
  await idle(page);
});

test("a file that falls anywhere does not take the page's place", async () => {
  const page = await visiting.visit();
  const file = { name: "fell.txt", body: "The pass key is 55555." };
  assert.equal(await drop(page, [file], "#question"), true);
  await until(async () => (await form(page)) === file.body);
  await read(page);
  const next = { name: "next.txt", body: "The pass key is 66666." };
  assert.equal(await drop(page, [next], "#view"), true);
  await page.locator("#text").waitFor();
  await until(async () => (await form(page)) === next.body);
});

test("a text that is too long is called so before and after it is sent", async () => {
  const page = await visiting.visit();
  const text = "A hill and a valley. ".repeat(9000);
  await drop(page, [{ name: "long.txt", body: text }]);
  await page.getByText("More than the context of 8,192 tokens holds").waitFor();
  await page.getByRole("button", { name: "Read the document" }).click();
  const said = await message(page, "context-too-long");
  assert.match(
    said,
    /There are (at least )?\d\d,\d\d\d tokens to read, and the context holds 8,192/,
  );
  assert.doesNotMatch(said, /prompt/);
  await idle(page);
  assert.equal(await form(page), text);
});

test("without a document a question is about none, also after one was open", async () => {
  const page = await visiting.visit();
  await readText(page, "The pass key is 77777.");
  await page.getByRole("button", { name: "Another document" }).click();
  const sent = page.waitForRequest("**/v1/chat/completions");
  await ask(page, "What is the pass key?");
  assert.equal("context_id" in ((await sent).postDataJSON() as object), false);
});

test("a text that runs from the right begins there", async () => {
  const page = await visiting.visit();
  await readText(page, "שלום לעולם");
  const begins = `(() => {
    const block = document.querySelector("#view .block");
    const range = document.createRange();
    range.setStart(block.firstChild, 0);
    range.setEnd(block.firstChild, 1);
    const { left, right } = block.getBoundingClientRect();
    return range.getBoundingClientRect().left > (left + right) / 2;
  })()`;
  assert.equal(await page.evaluate<boolean>(begins), true);
});
