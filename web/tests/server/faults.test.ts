// End to end: what goes wrong at the page of `longview serve`, and what visitors do about it.

import assert from "node:assert/strict";
import { test } from "node:test";

import type { Page } from "playwright-core";

import { sampleDocument } from "../../src/page/sample";
import { ask, idle, message, readText } from "../support/browser";
import { serveLongview } from "../support/longview";
import { forgetTalk, openFirst, reopened, visits } from "../support/visits";

const visiting = visits();

const QUESTION = "What is the pass key?";

const exchanges = (page: Page): Promise<string[]> => page.locator(".exchange h3").allInnerTexts();
const focused = (page: Page): Promise<string> =>
  page.evaluate("document.activeElement.getAttribute('aria-label') ?? document.activeElement.id");

/** The documents that the server has. */
async function listed(): Promise<{ id: string; name: string }[]> {
  const { data } = (await visiting.api("GET", "v1/contexts")) as {
    data: { id: string; name: string }[];
  };
  return data;
}

/** What the server would stream as an answer. */
function streamed(...events: object[]): { contentType: string; body: string } {
  const body = events.map((event) => `data: ${JSON.stringify(event)}\n\n`).join("");
  return { contentType: "text/event-stream", body };
}

const said = (content: string): object => ({ choices: [{ delta: { content } }] });

test("a key that no request can carry is refused like any other, and not kept", async () => {
  const locked = await serveLongview(["--api-key", "word"]);
  try {
    const page = await visiting.first(locked.url);
    const key = page.getByLabel("Key of this server");
    await key.waitFor();
    assert.match(await message(page, "unauthorized"), /It answers nobody who has none/);
    await idle(page);
    assert.equal(await page.locator("#why-not").innerText(), "The server is not open yet.");
    assert.equal(await page.locator("#ask-button").isDisabled(), true);
    assert.doesNotMatch(await page.locator("#saved").innerText(), /--no-library/);
    for (const wrong of ["ключ", "\u{1F511}", "swörd", "word "]) {
      await key.fill(wrong);
      await key.press("Enter");
      await idle(page);
      if (wrong === "word ") break;
      const text = await message(page, "unauthorized");
      assert.match(text, /does not know the key that was typed/);
      assert.doesNotMatch(text, /Bearer/);
      assert.equal(await page.locator('[data-code="unreachable"]').count(), 0);
      assert.equal(await key.isVisible(), true, wrong);
      assert.equal(await page.evaluate("sessionStorage.length"), 0);
    }
    await page.getByText("5 layers, 2 KV heads").waitFor();
  } finally {
    await locked.close();
  }
});

test("the page waits for a server that loads its model", async () => {
  let n = 0;
  const loading = { error: { message: "it is loading", type: "server_error", code: "loading" } };
  const page = await visiting.first(visiting.url, async (page) => {
    await page.route("**/props", async (route) => {
      n += 1;
      if (n > 2) await route.continue();
      else await route.fulfill({ status: 503, json: loading });
    });
  });
  await page.getByText("The server is loading its model").waitFor();
  await page.getByText("5 layers, 2 KV heads").waitFor();
  assert.equal(await page.locator("#notices > *").count(), 0);
});

test("a server that is away is tried again, and is said to answer when it does", async () => {
  let away = true;
  const page = await visiting.first(visiting.url, async (page) => {
    await page.route(/\/(props|v1\/contexts)$/, (route) =>
      away ? route.abort() : route.continue(),
    );
  });
  await message(page, "unreachable");
  away = false;
  await page.getByRole("button", { name: "Try again" }).click();
  await page.getByText("5 layers, 2 KV heads").waitFor();
  await idle(page);
  assert.equal(await page.locator("#notices > *").count(), 0);
  away = true;
  await page.locator("#text").fill("The pass key is 12121.");
  await page.getByRole("button", { name: "Read the document" }).click();
  await message(page, "unreachable");
  away = false;
  await readText(page, "The pass key is 12121.");
  assert.equal(await page.locator("#notices > *").count(), 0);
});

test("a document that is deleted elsewhere can be read again from its text", async () => {
  const page = await visiting.visit();
  const text = "The pass key is 23232. Remember it. 23232 is the pass key.";
  await readText(page, text);
  const [first] = await listed();
  await visiting.api("DELETE", `v1/contexts/${first?.id ?? ""}`);
  await ask(page, QUESTION);
  const told = await message(page, "gone");
  assert.match(told, /not on the server any more/);
  assert.doesNotMatch(told, /\/v1\/contexts/);
  assert.equal(await page.locator("#text").inputValue(), text);
  assert.equal(await page.locator("#why-not").innerText(), "Read a document first.");
  assert.equal(await page.locator("#saved-lists li").count(), (await listed()).length);
  await page.getByRole("button", { name: "Read the document" }).click();
  await page.getByRole("button", { name: "Another document" }).waitFor();
  await idle(page);
  assert.equal(await page.locator("#notices > *").count(), 0);
  await ask(page, QUESTION);
  assert.match(await page.locator(".answer").first().innerText(), /23232/);
});

test("lists keep the keyboard's place, and follow what others do", async () => {
  const page = await visiting.visit();
  await readText(page, "The pass key is 34343.");
  const row = page.locator("#saved-lists li").first();
  const pin = row.getByRole("button", { name: /^Pin / });
  const label = (await pin.getAttribute("aria-label")) ?? "";
  await pin.press("Enter");
  await page.locator("#saved-lists [aria-pressed=true]").waitFor();
  await idle(page);
  assert.equal(await focused(page), label);
  await row.getByRole("button", { name: /^Delete / }).press("Enter");
  await row.getByRole("button", { name: /^Really delete / }).press("Escape");
  await row.getByRole("button", { name: /^Delete / }).press("Enter");
  await row.getByRole("button", { name: /^Really delete / }).press("Enter");
  await page.locator("#text").waitFor();
  await idle(page);
  assert.equal(await page.locator("#text").inputValue(), "The pass key is 34343.");
  assert.match(await focused(page), /^Open /);
  const name = "read by a program";
  await visiting.api("POST", "v1/contexts", { text: "The pass key is 45454.", name });
  await page.evaluate("window.dispatchEvent(new Event('focus'))");
  await page.getByRole("button", { name: `Open ${name}` }).waitFor();
});

test("what is read of a document is as it is when it is opened", async () => {
  const text = sampleDocument(600, 4, 31);
  await visiting.api("POST", "v1/contexts", { text, name: "in parts", prefill: "sparse" });
  const page = await visiting.visit();
  const opener = page.getByRole("button", { name: "Open in parts" });
  await opener.click();
  await page.getByText("Nothing of it is read yet.").waitFor();
  await idle(page);
  await visiting.api("POST", "v1/contexts", { text, prefill: "exact" });
  await opener.click();
  await page.getByText("opened without reading").waitFor();
});

test("the list says how much is read of a document that was stopped", async () => {
  const page = await visiting.visit();
  await page.locator("#text").fill(sampleDocument(7000, 8, 33));
  await page.getByRole("button", { name: "Read the document" }).click();
  await page.locator("#prefill-figures", { hasText: / tokens\/s/ }).waitFor();
  await page.getByRole("button", { name: "Stop, keep what is read" }).click();
  await page.locator("#document-line", { hasText: "the rest is not read" }).waitFor();
  const row = page.locator("#saved-lists li").first();
  await row.getByText(/^[\d,]+ of [67],\d\d\d tokens/).waitFor();
});

test("two tabs keep each other's questions about a document", async () => {
  const page = await visiting.visit();
  await readText(page, "The pass key is 56565. Remember it. 56565 is the pass key.");
  const other = await visiting.tab(page);
  await openFirst(other);
  await ask(page, "Asked in the first tab?");
  await ask(other, "Asked in the second tab?");
  await ask(page, "Asked in the first tab again?");
  await reopened(page);
  assert.deepEqual((await exchanges(page)).sort(), [
    "Asked in the first tab again?",
    "Asked in the first tab?",
    "Asked in the second tab?",
  ]);
  // Deleted is deleted, for those that have not shown it.
  await forgetTalk(page);
  await ask(page, "Asked afterwards?");
  await reopened(page);
  assert.deepEqual(await exchanges(page), ["Asked afterwards?"]);
});

test("an answer that a reload cuts off is kept as far as it came", async () => {
  const page = await visiting.visit();
  await readText(page, "The pass key is 67676. Remember it. 67676 is the pass key.");
  await page.route("**/v1/chat/completions", async (route) => {
    const body = route.request().postDataJSON() as object;
    const longer = { ...body, ignore_eos: true, max_tokens: 7000 };
    await route.continue({ postData: JSON.stringify(longer) });
  });
  await page.getByLabel("Your question").fill(QUESTION);
  await page.getByRole("button", { name: "Ask", exact: true }).click();
  await page.locator(".card .figures", { hasText: /\d+ tokens, / }).waitFor();
  await page.locator(".answer", { hasText: /\w/ }).waitFor();
  await reopened(page);
  assert.deepEqual(await exchanges(page), [QUESTION]);
  assert.match(await page.locator(".card").innerText(), /Stopped\./);
});

test("an answer says that it is cut off, how long it took, and what it attended to", async () => {
  const page = await visiting.visit();
  await readText(page, sampleDocument(2000, 8, 32));
  await page.locator("#budget-number").fill("256");
  await page.locator("summary", { hasText: "More options" }).click();
  await page.locator("#max-tokens").fill("3");
  await ask(page, null);
  const card = await page.locator(".card").innerText();
  assert.match(card, /Cut off: it is as long as “Longest answer” under More options allows/);
  assert.match(card, /Tokens\s+3 in [\d.]+ s\s+First token after\s+[\d.]+ s/);
  assert.match(card, /Attended in a step, mean\s+\d+ of [12],\d\d\d tokens/);
  assert.doesNotMatch(card, /Hits in the device cache\s+-/);
});

test("an answer has the speed that the server measured", async () => {
  const page = await visiting.visit();
  const end = {
    choices: [],
    usage: { completion_tokens: 4 },
    timings: { predicted_per_second: 12.5 },
    longview: {},
  };
  // Tokens that come at once would be thousands a second.
  const body = streamed(said("one two "), said("three four"), end);
  const whole = { ...body, body: `${body.body}data: [DONE]\n\n` };
  await page.route("**/v1/chat/completions", (route) => route.fulfill(whole));
  await ask(page, QUESTION);
  assert.match(await page.locator(".card").innerText(), /Tokens\/s\s+12\.5/);
});

test("a text that is asked as a question takes no more room than one", async () => {
  const page = await visiting.visit();
  await page.route("**/v1/chat/completions", (route) => route.fulfill(streamed(said("No."))));
  const question = "A hill and a valley. ".repeat(300).trim();
  await ask(page, question);
  const title = page.locator(".exchange h3");
  assert.equal((await title.innerText()).length, 301);
  await page.getByText("The whole question").click();
  assert.equal(await page.locator(".whole").innerText(), question);
});

test("a stopped answer has no figures that nobody knows", async () => {
  const page = await visiting.visit();
  await page.route("**/v1/chat/completions", () => undefined);
  await page.getByLabel("Your question").fill(QUESTION);
  await page.getByRole("button", { name: "Ask", exact: true }).click();
  await page.getByRole("button", { name: "Stop the answer" }).click();
  await page.getByText("Stopped.").waitFor();
  assert.doesNotMatch(await page.locator(".card").innerText(), /\b0 B\b/);
});

test("a card says why there is no answer, and keeps what came before it broke off", async () => {
  const page = await visiting.visit();
  const failed = { error: { message: "the model made no number", code: "numeric_error" } };
  await page.route("**/v1/chat/completions", (route) => route.fulfill(streamed(failed)));
  await page.getByLabel("Compare with full attention").check();
  await ask(page, QUESTION);
  const figures = page.locator(".card .figures");
  assert.deepEqual(await figures.allInnerTexts(), [
    "No answer: the model made no number",
    "No answer: the one before failed.",
  ]);
  await page.unroute("**/v1/chat/completions");
  await page.route("**/v1/chat/completions", (route) =>
    route.fulfill(streamed(said("The pass "), said("key"))),
  );
  await page.getByLabel("Compare with full attention").uncheck();
  await ask(page, QUESTION);
  assert.equal(await page.locator(".answer").first().innerText(), "The pass key");
  assert.match(await figures.first().innerText(), /^It broke off: The connection/);
});

test("numbers and options that cannot be meant are shown, folded away or not", async () => {
  const page = await visiting.visit();
  const more = page.locator("summary", { hasText: "More options" });
  const isOpen = (): Promise<boolean> =>
    page.locator("#max-tokens").evaluate((element) => element.closest("details")?.open === true);
  const go = page.getByRole("button", { name: "Ask", exact: true });
  await page.getByLabel("Your question").fill(QUESTION);
  const wrong = [
    ["#max-tokens", "", "48"],
    ["#max-tokens", "-3", "48"],
    ["#temperature", "", "0"],
    ["#options", "sinks: 4", "sinks = 4"],
  ] as const;
  for (const [field, value, right] of wrong) {
    if (!(await isOpen())) await more.click();
    await page.locator(field).fill(value);
    await more.click();
    assert.equal(await isOpen(), false);
    await go.click();
    assert.equal(await isOpen(), true, `${field}: ${value}`);
    assert.equal(`#${await focused(page)}`, field);
    assert.equal(await page.locator(".exchange").count(), 0);
    await page.locator(field).fill(right);
  }
  await page.locator("#budget-number").fill("");
  assert.equal(await page.locator("#budget").inputValue(), "512");
  await go.click();
  assert.equal(await page.locator(".exchange").count(), 0);
  await page.locator("#budget-number").fill("300");
  await go.click();
  await idle(page);
  assert.equal(await page.locator(".exchange").count(), 1);
  // What is asked again is asked under the numbers of now.
  await page.locator("#budget-number").fill("0");
  await page.getByRole("button", { name: /^Ask again/ }).click();
  assert.equal(await page.locator(".card h4").innerText(), "longview, budget 300");
});

test("what is asked or fails is in view, also on a small screen", async () => {
  const page = await visiting.visit();
  await page.setViewportSize({ width: 390, height: 500 });
  const isSeen = (selector: string): Promise<boolean> =>
    page.locator(selector).evaluate((element) => {
      const { top, bottom } = element.getBoundingClientRect();
      return top >= 0 && bottom <= window.innerHeight;
    });
  await page.getByLabel("Your question").fill(QUESTION);
  await page.getByLabel("Your question").press("Enter");
  await idle(page);
  assert.equal(await isSeen(".exchange h3"), true);
  await page.route("**/v1/contexts/*", (route) => route.abort());
  await page.getByRole("button", { name: /^Pin / }).first().click();
  await message(page, "unreachable");
  assert.equal(await isSeen('[data-code="unreachable"]'), true);
});

test("nothing is said of memory before there is an answer", async () => {
  const page = await visiting.visit();
  assert.equal(await page.locator("#memory-line").innerText(), "Nothing is answered yet.");
});
