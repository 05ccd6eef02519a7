// End to end: the page of `longview serve` in Chromium, the embedded model on the CPU.
//
// One visit after another at one server, as one visitor would: tests build on what the ones before
// left in its library.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import type { Browser, BrowserContext, Page } from "playwright-core";

import { sampleDocument } from "../../src/page/sample";
import {
  PHONE,
  ask,
  idle,
  launch,
  open,
  overflows,
  picture,
  readText,
  violations,
} from "../support/browser";
import { type Longview, serveLongview } from "../support/longview";
import { until, verdicts } from "../support/stage";

const TEXT = sampleDocument(3000, 12, 7);

let browser: Browser;
let longview: Longview;
let context: BrowserContext;
let page: Page;
let errors: string[];
/** What the browser's console complains about: refusals by the policy of content among it. */
const complaints: string[] = [];

before(async () => {
  browser = await launch([], []);
  longview = await serveLongview();
  await visit();
});

after(async () => {
  await context.close();
  await browser.close();
  await longview.close();
});

async function visit(options: Parameters<typeof open>[2] = {}): Promise<void> {
  const permissions = ["clipboard-read", "clipboard-write"];
  const listen = (page: Page): Promise<void> => {
    page.on("console", (message) => {
      if (message.type() === "error") complaints.push(message.text());
    });
    return Promise.resolve();
  };
  ({ context, page, errors } = await open(
    browser,
    longview.url,
    { permissions, ...options },
    listen,
  ));
  await page.getByText("5 layers, 2 KV heads").waitFor();
  await idle(page);
}

const answers = (): Promise<string[]> => page.locator(".answer").allInnerTexts();

test("it comes with a strict policy of content, and says which model it has", async () => {
  const response = await fetch(longview.url);
  const policy = response.headers.get("content-security-policy") ?? "";
  assert.match(policy, /default-src 'none'; script-src 'self';/);
  assert.match(policy, /require-trusted-types-for 'script'/);
  assert.match(await page.locator("#model-line").innerText(), /^needle: 5 layers, .* 8,192 tokens/);
  assert.match(await page.locator("#device").innerText(), /^longview \d/);
});

test("a document is read with progress, and listed", async () => {
  await readText(page, TEXT);
  assert.match(await page.locator("#document-line").innerText(), /^[23],\d\d\d tokens, read in/);
  await page.getByRole("button", { name: /^Pin / }).waitFor();
});

test("an answer is right, comes in parts, and has passages and a map", async () => {
  await page.locator("#budget-number").fill("512");
  const watch = `window.seen = new Set(); new MutationObserver(() => {
    window.seen.add(document.querySelector(".answer")?.textContent ?? "");
  }).observe(document.querySelector("#answers"),
    { subtree: true, childList: true, characterData: true })`;
  await page.evaluate(watch);
  await page.getByLabel("Compare with full attention").check();
  await ask(page, null);
  assert.deepEqual(await verdicts(page), [
    "✓ This is what the document says.",
    "✓ This is what the document says.",
  ]);
  const parts = await page.evaluate<number>("window.seen.size");
  assert.ok(parts > 2, `${parts} parts`);
  const [policy, full] = await page.locator(".card h4").allInnerTexts();
  assert.deepEqual([policy, full], ["longview, budget 512", "full"]);
  const said = /this step attends (\d+) of ([\d,]+) tokens/;
  const attended = said.exec(await page.locator("#map-summary").innerText());
  assert.ok(Number(attended?.[1]) <= 512, String(attended));
  assert.notEqual(await page.locator("#cells").getAttribute("height"), "0");
  const first = page.locator(".card").first();
  await first.getByText("Attended most in the document").click();
  await first.locator(".passage").first().waitFor();
  const digits = /\d{5,}/.exec((await answers())[0] ?? "")?.[0] ?? "none";
  await picture(page, "server-answer");
  assert.match(await first.locator(".passages").innerText(), new RegExp(digits));
  // The same place in the text, behind letters that JavaScript counts as two.
  assert.match(await page.locator('mark[data-rank="1"]').innerText(), new RegExp(digits));
  const facts = await first.locator(".facts").innerText();
  assert.match(facts, /KV on the device\s*[\d.]+ [KM]iB/);
});

test("it is asked again, copied, and compared no longer", async () => {
  await page.getByLabel("Compare with full attention").uncheck();
  const [before] = await answers();
  await page.getByRole("button", { name: "Ask again" }).first().click();
  await idle(page);
  assert.deepEqual(await answers(), [before]);
  await page.getByRole("button", { name: /^Copy the answer/ }).click();
  await page.getByText("Copied").waitFor();
  assert.equal(await page.evaluate<string>("navigator.clipboard.readText()"), before);
});

test("a question that goes on from the others sends them", async () => {
  await page.getByLabel("Go on from the questions").check();
  const sent = page.waitForRequest("**/v1/chat/completions");
  await ask(page, "And what is it again?");
  const body = (await sent).postDataJSON() as { messages: { role: string }[] };
  assert.deepEqual(
    body.messages.map(({ role }) => role),
    ["user", "assistant", "user"],
  );
  await page.getByRole("button", { name: "New conversation" }).click();
  assert.equal(await page.locator(".exchange").count(), 0);
  await page.getByLabel("Go on from the questions").uncheck();
});

test("after a reload the document is there, and opens without reading", async () => {
  await page.reload();
  await page
    .locator("#saved")
    .getByRole("button", { name: /^Open / })
    .click();
  await page.getByText("opened without reading").waitFor();
  await idle(page);
  await ask(page, null);
  assert.deepEqual(await verdicts(page), ["✓ This is what the document says."]);
});

test("an answer and a reading stop, and the reading goes on", async () => {
  await page.getByRole("button", { name: "Another document" }).click();
  await page.locator("#text").fill("");
  await page.locator("summary", { hasText: "More options" }).click();
  await page.locator("#max-tokens").fill("4000");
  await page.locator("#policy").selectOption("full");
  await page.getByLabel("Your question").fill("Tell me all.");
  await page.route("**/v1/chat/completions", async (route) => {
    const body = route.request().postDataJSON() as object;
    // The embedded model says little by itself.
    await route.continue({ postData: JSON.stringify({ ...body, ignore_eos: true }) });
  });
  await page.getByRole("button", { name: "Ask", exact: true }).click();
  await page.locator(".figures", { hasText: /\d+ tokens, / }).waitFor();
  await page.getByRole("button", { name: "Stop the answer" }).click();
  await idle(page);
  await page.getByText("Stopped.").waitFor();
  await page.unroute("**/v1/chat/completions");
  const metrics = async (): Promise<string> => (await fetch(`${longview.url}metrics`)).text();
  await until(async () => (await metrics()).includes("llamacpp:requests_processing 0"));

  await page.locator("#text").fill(sampleDocument(7000, 12, 8));
  await page.getByRole("button", { name: "Read the document" }).click();
  await page.locator("#prefill-figures", { hasText: / tokens\/s/ }).waitFor();
  await page.getByRole("button", { name: "Stop, keep what is read" }).click();
  await idle(page);
  assert.match(await page.locator("#document-line").innerText(), /the rest is not read/);
  await page.getByRole("button", { name: "Continue reading" }).click();
  await page.locator("#document-line", { hasText: /^[67],\d\d\d tokens, read in/ }).waitFor();
  await idle(page);
});

test("files of other kinds are dropped, and the server makes text of them", async () => {
  await page.getByRole("button", { name: "Another document" }).click();
  const drop = `{
    const data = new DataTransfer();
    const html = "<h1>Log \\u{1F5D2}</h1><p>The access code of Walter is 40935.</p>";
    data.items.add(new File([html], "log.html", { type: "text/html" }));
    const event = new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
    document.querySelector("#document").dispatchEvent(event);
  }`;
  await page.evaluate(drop);
  await page.getByRole("button", { name: "Another document" }).waitFor();
  await idle(page);
  assert.match(await page.locator("#view").innerText(), /Log .*The access code of Walter/s);
  // Full attention marks nothing: it attends to all.
  await page.locator("#policy").selectOption("longview");
  await ask(page, "What is the access code of Walter?");
  assert.match((await answers())[0] ?? "", /40935/);
  assert.match(await page.locator("mark").first().innerText(), /40935/);
});

test("what documents and models say stays text", async () => {
  await page.getByRole("button", { name: "Another document" }).click();
  const image = '<img src=x onerror="window.hacked = 1">';
  await readText(page, `${image} The access code of Alice is 55123. <script>hacked = 2</script>`);
  await page.route("**/v1/chat/completions", async (route) => {
    const piece = { choices: [{ delta: { content: `${image}<b>bold</b>` } }] };
    const body = `data: ${JSON.stringify(piece)}\n\ndata: {}\n\ndata: [DONE]\n\n`;
    await route.fulfill({ contentType: "text/event-stream", body });
  });
  await ask(page, `${image}?`);
  await page.unroute("**/v1/chat/completions");
  assert.deepEqual(await answers(), [`${image}<b>bold</b>`]);
  assert.equal(await page.locator("#answers img, #view img, #saved img, #answers b").count(), 0);
  assert.equal(await page.evaluate("typeof window.hacked"), "undefined");
  // The browser itself refuses to make elements of text.
  const refused = 'try { document.body.innerHTML += ""; false } catch { true }';
  assert.equal(await page.evaluate<boolean>(refused), true);
});

test("documents are pinned and deleted", async () => {
  const rows = page.locator("#saved-lists li");
  const count = await rows.count();
  const pin = rows.first().getByRole("button", { name: /^Pin / });
  await pin.click();
  await idle(page);
  assert.equal(await pin.getAttribute("aria-pressed"), "true");
  await rows
    .first()
    .getByRole("button", { name: /^Delete/ })
    .click();
  await rows
    .first()
    .getByRole("button", { name: /^Really delete/ })
    .click();
  await idle(page);
  assert.equal(await rows.count(), count - 1);
});

test("nothing was refused or failed in the browser", () => {
  // The picture that an answer would have shown is no request either.
  const refusal = /TrustedHTML|trusted/i;
  assert.deepEqual(
    complaints.filter((text) => !refusal.test(text)),
    [],
  );
  assert.deepEqual(errors, []);
});

test("a server with a key asks for it, and keeps it for the tab", async () => {
  const locked = await serveLongview(["--api-key", "word"]);
  try {
    const { context, page } = await open(browser, locked.url);
    const key = page.getByLabel("Key of this server");
    await key.fill("wrong");
    await key.press("Enter");
    await page.getByRole("alert").waitFor();
    await key.fill("word");
    await key.press("Enter");
    await page.getByText("5 layers, 2 KV heads").waitFor();
    await page.reload();
    await page.getByText("5 layers, 2 KV heads").waitFor();
    assert.equal(await key.isVisible(), false);
    assert.equal(await page.evaluate("localStorage.length"), 0);
    await context.close();
  } finally {
    await locked.close();
  }
});

test("without a library it says so, and the model answers all the same", async () => {
  const bare = await serveLongview(["--no-library"], false);
  try {
    const { context, page, errors } = await open(browser, bare.url);
    await page.getByText("it reads and keeps no documents").waitFor();
    await page.locator("#text").fill("The pass key is 48213.");
    await page.getByRole("button", { name: "Read the document" }).click();
    await page.getByText("Start it without --no-library.").waitFor();
    await page.locator("#text").fill("");
    await ask(page, "The pass key is 48213. What is the pass key?");
    assert.match(await page.locator(".answer").innerText(), /48213/);
    assert.deepEqual(errors, []);
    await context.close();
  } finally {
    await bare.close();
  }
});

const LOOKS = [
  { name: "light", options: { colorScheme: "light" } },
  { name: "dark", options: { colorScheme: "dark" } },
  { name: "phone", options: { colorScheme: "dark", viewport: PHONE, hasTouch: true } },
] as const;

for (const { name, options } of LOOKS) {
  test(`${name}: no violation of accessibility before and after asking`, async () => {
    await context.close();
    await visit({ ...options, bypassCSP: true });
    assert.deepEqual(await violations(page), []);
    await page
      .getByRole("button", { name: /^Open / })
      .last()
      .click();
    await page.getByText("opened without reading").waitFor();
    await idle(page);
    await page.getByLabel("Compare with full attention").check();
    await ask(page, null);
    for (const summary of await page.locator("main summary").all()) await summary.click();
    await picture(page, `server-${name}`);
    assert.deepEqual(await violations(page), []);
    assert.equal(await overflows(page), false);
  });
}
