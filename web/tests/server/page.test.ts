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
import { forgetTalk, openFirst } from "../support/visits";

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
  // It is the embedded one, which does not converse.
  assert.equal(await page.getByLabel("Go on from the questions").isChecked(), false);
  await page.getByText("Whoever may ask this server sees these.").waitFor();
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
  await forgetTalk(page);
  assert.equal(await page.locator(".exchange").count(), 0);
  await page.getByLabel("Go on from the questions").uncheck();
});

test("after a reload the document is there, and opens without reading", async () => {
  await page.getByRole("button", { name: "Another document" }).click();
  await page.reload();
  await page
    .locator("#saved")
    .getByRole("button", { name: /^Open / })
    .click();
  await page.getByText("opened without reading").waitFor();
  await idle(page);
  assert.equal(await page.locator(".exchange").count(), 0);
  await ask(page, null);
  assert.deepEqual(await verdicts(page), ["✓ This is what the document says."]);
});

/** The page anew, with the document that was used last open. */
async function comeBack(): Promise<void> {
  await page.reload();
  await page.getByText("5 layers, 2 KV heads").waitFor();
  await idle(page);
  if (await page.locator("#text").isVisible()) await openFirst(page);
}

test("questions and answers are there after a reload, and are gone on from", async () => {
  await ask(page, "Who walked to the orchard?");
  const [questions, said] = [await page.locator(".exchange h3").allInnerTexts(), await answers()];
  assert.equal(questions.length, 2);
  const passages = await page.locator(".passages").allTextContents();
  assert.ok(passages.length > 0);
  await comeBack();
  assert.deepEqual(await page.locator(".exchange h3").allInnerTexts(), questions);
  assert.deepEqual(await answers(), said);
  assert.deepEqual(await page.locator(".passages").allTextContents(), passages);
  // The page knows the right answer of the one that it suggested.
  assert.deepEqual(await verdicts(page), ["", "✓ This is what the document says."]);
  // Passages still lead to their places.
  await page.getByText("Attended most in the document").last().click();
  await page.locator(".passage").last().click();
  assert.ok((await page.locator("mark").count()) > 0);
  // They are what was said before.
  await page.getByLabel("Go on from the questions").check();
  const sent = page.waitForRequest("**/v1/chat/completions");
  await ask(page, "And then?");
  const body = (await sent).postDataJSON() as { messages: { role: string; content: string }[] };
  assert.equal(body.messages.length, 5);
  assert.equal(body.messages[2]?.content, "Who walked to the orchard?");
  await page.getByLabel("Go on from the questions").uncheck();
  await picture(page, "server-kept-questions");
});

test("kept questions are of their document, and are deleted", async () => {
  await page.getByRole("button", { name: "Another document" }).click();
  assert.equal(await page.locator(".exchange").count(), 0);
  await comeBack();
  assert.equal(await page.locator(".exchange").count(), 3);
  await forgetTalk(page);
  await comeBack();
  assert.equal(await page.locator(".exchange").count(), 0);
  assert.equal(await page.evaluate("localStorage.length"), 0);
  await ask(page, null);
  assert.equal(await page.evaluate("localStorage.length"), 1);
  await page.getByRole("button", { name: "Delete kept questions", exact: true }).click();
  await page.getByRole("button", { name: "Really delete kept questions?" }).click();
  assert.equal(await page.locator(".exchange").count(), 0);
  assert.equal(await page.evaluate("localStorage.length"), 0);
});

test("kept questions have a bound, and what others wrote there is ignored", async () => {
  await ask(page, "Who walked to the orchard?");
  await page.evaluate(`{
    const name = Object.keys(localStorage)[0];
    const talk = JSON.parse(localStorage.getItem(name)).talk;
    const question = "long ".repeat(10_000);
    const many = Array.from({ length: 200 }, () => ({ ...talk[0], question }));
    localStorage.setItem(name, JSON.stringify({ at: 1, talk: many.slice(0, 40) }));
    const entry = (at) => JSON.stringify({ at, talk });
    for (let i = 0; i < 80; i++) localStorage.setItem(name.slice(0, -64) + i, entry(i + 2));
    localStorage.setItem("of another page", "x");
  }`);
  await comeBack();
  assert.equal(await page.locator(".exchange").count(), 40);
  // All of these questions together are longer than the context.
  await page.getByLabel("Go on from the questions").uncheck();
  await ask(page, null);
  const sizes = `Object.entries(localStorage)
    .filter(([name]) => name.startsWith("longview-questions:"))
    .map(([, text]) => text.length)`;
  const stored = await page.evaluate<number[]>(sizes);
  assert.equal(stored.length, 50);
  assert.ok(Math.max(...stored) <= 300_000, `${Math.max(...stored)} units`);
  assert.equal(await page.evaluate("localStorage.getItem('of another page')"), "x");
  const broken = ["{", "[]", '{"at":1}', '{"at":1,"talk":[{"question":1},null,{"question":"q"}]}'];
  for (const text of broken) {
    const write = `for (const name of Object.keys(localStorage))
      localStorage.setItem(name, ${JSON.stringify(text)})`;
    await page.evaluate(write);
    await comeBack();
    assert.equal(await page.locator(".exchange").count(), 0, text);
  }
  await page.evaluate("localStorage.clear()");
  assert.deepEqual(errors, []);
});

test("a browser that stores nothing shows the page all the same", async () => {
  const refuse = async (page: Page): Promise<void> => {
    const script =
      'Object.defineProperty(window, "localStorage", { get() { throw new Error("refused"); } })';
    await page.addInitScript(script);
  };
  const { context, page, errors } = await open(browser, longview.url, {}, refuse);
  await page.getByText("This browser stores nothing").waitFor();
  await page
    .locator("#saved")
    .getByRole("button", { name: /^Open / })
    .first()
    .click();
  await page.getByText("opened without reading").waitFor();
  await idle(page);
  await ask(page, null);
  assert.equal(await page.locator(".exchange").count(), 1);
  assert.equal(await page.getByRole("button", { name: "Delete kept questions" }).count(), 0);
  assert.deepEqual(errors, []);
  await context.close();
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
    await page.getByText("Whoever asks with your key, or one of the same name").waitFor();
    // Questions are as private as the key.
    await readText(page, "The pass key is 48213. Remember it. 48213 is the pass key.");
    await ask(page, "What is the pass key?");
    await page.reload();
    const opener = (page: Page) => page.locator("#saved").getByRole("button", { name: /^Open / });
    await page.locator(".exchange").waitFor();
    const other = await context.newPage();
    await other.goto(locked.url);
    await other.getByLabel("Key of this server").fill("word");
    await other.getByLabel("Key of this server").press("Enter");
    await opener(other).click();
    await other.getByText("opened without reading").waitFor();
    assert.equal(await other.locator(".exchange").count(), 0);
    assert.equal(await page.evaluate("localStorage.length"), 0);
    await context.close();
  } finally {
    await locked.close();
  }
});

test("what was read in another way is not called read", async () => {
  const served = await serveLongview();
  try {
    const build = async (prefill: string): Promise<void> => {
      const body = JSON.stringify({ text: TEXT, prefill });
      const built = await fetch(`${served.url}v1/contexts`, { method: "POST", body });
      assert.equal(built.status, 200, await built.text());
    };
    await build("sparse");
    const { context, page } = await open(browser, served.url);
    const opener = page.locator("#saved").getByRole("button", { name: /^Open / });
    await opener.waitFor();
    assert.match(await page.locator("#saved").innerText(), /not read yet/);
    await build("exact");
    await page.reload();
    await opener.click();
    await page.getByText("opened without reading").waitFor();
    await context.close();
  } finally {
    await served.close();
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
