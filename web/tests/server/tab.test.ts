// End to end: what a tab of the page of `longview serve` keeps, and what it lets go of.

import assert from "node:assert/strict";
import { test } from "node:test";

import type { Page } from "playwright-core";

import { ask, idle, message, readText } from "../support/browser";
import { serveLongview } from "../support/longview";
import { forgetTalk, openFirst, reopened, visits } from "../support/visits";

const visiting = visits();

const QUESTION = "What is the pass key?";

const exchanges = (page: Page): Promise<string[]> => page.locator(".exchange h3").allInnerTexts();
const focused = (page: Page): Promise<string> => page.evaluate("document.activeElement.id");

/** Refuses a kind of storage as browsers do that store nothing. */
const refuse =
  (...kinds: string[]) =>
  async (page: Page): Promise<void> => {
    for (const kind of kinds) {
      const get = '{ get() { throw new Error("refused"); } }';
      await page.addInitScript(`Object.defineProperty(window, "${kind}", ${get})`);
    }
  };

test("a reload opens the document of the tab again, with its questions", async () => {
  const page = await visiting.visit();
  await visiting.api("POST", "v1/contexts", { text: "Read later.", name: "used last" });
  await readText(page, "The pass key is 11111. Remember it. 11111 is the pass key.");
  await ask(page, QUESTION);
  const title = await page.locator("#document-name").innerText();
  // Others have been used since.
  await visiting.api("POST", "v1/contexts", { text: "Read last of all.", name: "used after it" });
  await reopened(page);
  assert.equal(await page.locator("#document-name").innerText(), title);
  assert.deepEqual(await exchanges(page), [QUESTION]);
  assert.match(await page.locator("#view").innerText(), /11111/);
  await reopened(page);
  await ask(page, QUESTION);
  assert.equal((await exchanges(page)).length, 2);
  // Another tab has its own.
  const other = await visiting.tab(page);
  assert.equal(await other.locator("#text").isVisible(), true);
  await openFirst(other);
  assert.notEqual(await other.locator("#document-name").innerText(), title);
  await reopened(page);
  assert.equal(await page.locator("#document-name").innerText(), title);
  // What was closed stays closed.
  await page.getByRole("button", { name: "Another document" }).click();
  await page.reload();
  await page.getByText("5 layers, 2 KV heads").waitFor();
  await idle(page);
  assert.equal(await page.locator("#text").isVisible(), true);
});

test("a document that is gone after a reload is said to be, beside the list", async () => {
  const page = await visiting.visit();
  await readText(page, "The pass key is 22222.");
  const opened = await page.evaluate<string>("sessionStorage.getItem('longview-open:1')");
  await visiting.api("DELETE", `v1/contexts/${opened}`);
  await page.reload();
  const told = await message(page, "gone");
  assert.match(told, /The document that was open is not there any more/);
  assert.match(told, /It was deleted, here or elsewhere.*in the list below/s);
  await idle(page);
  assert.equal(await page.locator("#text").isVisible(), true);
  assert.equal(await page.locator("#text").inputValue(), "");
  assert.ok((await page.locator("#saved-lists li").count()) > 0);
  // It is said once.
  await page.reload();
  await page.getByText("5 layers, 2 KV heads").waitFor();
  await idle(page);
  assert.equal(await page.locator("#notices > *").count(), 0);
});

test("a browser that stores nothing at all has the page, and its key", async () => {
  const locked = await serveLongview(["--api-key", "word"]);
  try {
    const page = await visiting.first(locked.url, refuse("sessionStorage", "localStorage"));
    await page.getByLabel("Key of this server").fill("word");
    await page.getByLabel("Key of this server").press("Enter");
    await page.getByText("This browser stores nothing").waitFor();
    await readText(page, "The pass key is 48213. Remember it. 48213 is the pass key.");
    await ask(page, QUESTION);
    assert.match(await page.locator(".answer").innerText(), /48213/);
    await page.reload();
    await page.getByLabel("Key of this server").waitFor();
    assert.equal(await page.locator("#notices > *").count(), 1);
  } finally {
    await locked.close();
  }
});

test("a conversation is deleted by a second click alone", async () => {
  const page = await visiting.visit();
  await readText(page, "The pass key is 44444. Remember it. 44444 is the pass key.");
  await ask(page, QUESTION);
  const fresh = page.getByRole("button", { name: "New conversation" });
  const sure = page.getByRole("button", { name: "Delete these questions?" });
  await fresh.dblclick();
  assert.deepEqual(await exchanges(page), [QUESTION]);
  await sure.press("Escape");
  await fresh.click();
  await page.getByLabel("Your question").focus();
  await fresh.waitFor();
  await reopened(page);
  assert.deepEqual(await exchanges(page), [QUESTION]);
  await forgetTalk(page);
  assert.deepEqual(await exchanges(page), []);
  assert.equal(await focused(page), "question");
  await reopened(page);
  assert.deepEqual(await exchanges(page), []);
  // The button begins again.
  await ask(page, QUESTION);
  await fresh.waitFor();
});

test("a key is changed, and nothing of the one before stays in the tab", async () => {
  const locked = await serveLongview(["--api-key", "ann:first,bob:second"]);
  try {
    const page = await visiting.first(locked.url);
    const key = page.getByLabel("Key of this server");
    const change = page.getByRole("button", { name: "Change key" });
    const use = async (word: string): Promise<void> => {
      await key.fill(word);
      await key.press("Enter");
      await idle(page);
    };
    await key.waitFor();
    assert.equal(await change.isVisible(), false);
    await use("first");
    await page.getByText("5 layers, 2 KV heads").waitFor();
    await readText(page, "The pass key is 55555. Remember it. 55555 is the pass key.");
    await ask(page, QUESTION);
    const stored = `Object.keys(sessionStorage).filter((name) => name !== "longview-key").length`;
    assert.equal(await page.evaluate(stored), 2);

    // Who thinks better of it has lost nothing.
    await change.click();
    assert.equal(await focused(page), "key-input");
    await page.getByRole("button", { name: "Keep the key in use" }).click();
    assert.equal(await focused(page), "key-change");
    await change.press("Enter");
    await key.press("Escape");
    assert.equal(await key.isVisible(), false);
    assert.deepEqual(await exchanges(page), [QUESTION]);

    await change.click();
    await use("second");
    await page.getByText("No document is kept yet").waitFor();
    assert.equal(await focused(page), "key-change");
    assert.equal(await key.isVisible(), false);
    assert.deepEqual(await exchanges(page), []);
    assert.equal(await page.locator("#text").inputValue(), "");
    assert.equal(await page.evaluate(stored), 0);
    assert.doesNotMatch(await page.locator("body").innerText(), /55555/);
    assert.equal(await page.locator("#notices > *").count(), 0);

    // A wrong one opens nothing, and shows nothing of the right one before.
    await readText(page, "The pass key is 66666. Remember it. 66666 is the pass key.");
    await change.click();
    await use("third");
    assert.match(await message(page, "unauthorized"), /does not know the key/);
    assert.equal(await key.isVisible(), true);
    assert.equal(
      await page.getByRole("button", { name: "Keep the key in use" }).isVisible(),
      false,
    );
    assert.equal(await page.locator("#saved-lists li").count(), 0);
    assert.equal(await page.locator("#why-not").innerText(), "The server is not open yet.");
    await use("first");
    await openFirst(page);
    assert.match(await page.locator("#view").innerText(), /55555/);
    assert.deepEqual(await exchanges(page), []);
  } finally {
    await locked.close();
  }
});

test("an answer under the key before ends, and its question is forgotten", async () => {
  const locked = await serveLongview(["--api-key", "ann:first,bob:second"]);
  try {
    const page = await visiting.first(locked.url);
    await page.getByLabel("Key of this server").fill("first");
    await page.getByLabel("Key of this server").press("Enter");
    await page.getByText("5 layers, 2 KV heads").waitFor();
    await idle(page);
    await readText(page, "The pass key is 77777. Remember it. 77777 is the pass key.");
    await page.route("**/v1/chat/completions", async (route) => {
      const body = route.request().postDataJSON() as object;
      const longer = { ...body, ignore_eos: true, max_tokens: 7000 };
      await route.continue({ postData: JSON.stringify(longer) });
    });
    await page.getByRole("button", { name: "Ask", exact: true }).click();
    await page.locator(".card .figures", { hasText: /\d+ tokens, / }).waitFor();
    await page.getByRole("button", { name: "Change key" }).click();
    await page.getByLabel("Key of this server").fill("second");
    await page.getByLabel("Key of this server").press("Enter");
    await page.getByText("No document is kept yet").waitFor();
    await idle(page);
    assert.deepEqual(await exchanges(page), []);
    assert.deepEqual(await page.evaluate("Object.keys(sessionStorage)"), ["longview-key"]);
  } finally {
    await locked.close();
  }
});

test("a server without a key offers to change none", async () => {
  const page = await visiting.visit();
  assert.equal(await page.locator("#key-change").isVisible(), false);
});
