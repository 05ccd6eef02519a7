// The page by keyboard alone, and what screen readers get to hear.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import type { Browser, Page } from "playwright-core";

import { SCRIPTED, idle, launch, modelLoaded, open, readSample } from "../support/browser";
import { type Server, serveFolder } from "../support/server";

let browser: Browser;
let server: Server;

before(async () => {
  browser = await launch();
  server = await serveFolder(SCRIPTED);
});

after(async () => {
  await browser.close();
  await server.close();
});

async function start(script: object, options = {}): Promise<Page> {
  server.faults.replace.set("script.json", JSON.stringify(script));
  const { page } = await open(browser, server.url, options);
  await modelLoaded(page);
  return page;
}

const FOCUSED = `(() => {
  const element = document.activeElement;
  const label = element.labels?.[0];
  const shown = element.matches("input[type=file].visually-hidden") ? label : element;
  const style = getComputedStyle(shown);
  return {
    name: element.id || element.textContent.trim(),
    hasOutline: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
  };
})()`;

interface Focused {
  name: string;
  hasOutline: boolean;
}

/** Presses Tab until `name` has the focus; every stop must show its focus. */
async function tabTo(page: Page, name: string): Promise<string[]> {
  const stops: string[] = [];
  for (let i = 0; i < 80; i++) {
    await page.keyboard.press("Tab");
    const focused = await page.evaluate<Focused>(FOCUSED);
    if (focused.name === "") continue;
    assert.ok(focused.hasOutline, `${focused.name} shows no focus`);
    stops.push(focused.name);
    if (focused.name === name) return stops;
  }
  throw new Error(`Tab never reaches ${name}: ${stops.join(", ")}`);
}

test("a document is read and asked by keyboard alone", async () => {
  const page = await start({});
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate("document.activeElement.className"), "skip");
  await tabTo(page, "sample-write");
  await page.keyboard.press("Enter");
  await tabTo(page, "file");
  await tabTo(page, "read");
  await page.keyboard.press("Enter");
  await page.getByRole("button", { name: "Another document" }).waitFor();
  await idle(page);
  assert.equal(await page.evaluate("document.activeElement.id"), "view");
  await tabTo(page, "question");
  await page.keyboard.press("Enter");
  await idle(page);
  assert.equal(await page.locator(".verdict.right").count(), 1);
  await tabTo(page, "Attended most in the document");
  await page.keyboard.press("Enter");
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate("document.activeElement.dataset.rank"), "1");
  const inside = `(() => {
    const mark = document.activeElement.getBoundingClientRect();
    const view = document.querySelector("#view").getBoundingClientRect();
    return mark.top >= view.top && mark.bottom <= view.bottom;
  })()`;
  assert.ok(await page.evaluate<boolean>(inside), "the passage is not in view");
  await tabTo(page, "ask-button");
  await page.keyboard.press("Space");
  await idle(page);
  assert.equal(await page.evaluate("document.activeElement.id"), "question");
  await page.context().close();
});

test("answers are spoken at most once a second, and whole at the end", async () => {
  const page = await start({ stepMs: 60 });
  await readSample(page, 1000);
  await page.evaluate(`(() => {
    window.heard = [];
    const said = document.querySelector("#said");
    new MutationObserver(() => {
      window.heard.push({ at: performance.now(), text: said.textContent });
    }).observe(said, { childList: true });
  })()`);
  for (let i = 0; i < 4; i++) {
    await page.getByRole("button", { name: "Ask", exact: true }).click();
    await idle(page);
  }
  await page.waitForTimeout(1200);
  const heard = await page.evaluate<{ at: number; text: string }[]>("window.heard");
  assert.ok(heard.length >= 2, "nothing was spoken");
  for (const [i, { at }] of heard.entries()) {
    const before = heard[i - 1];
    if (before !== undefined) assert.ok(at - before.at > 900, `${at - before.at} ms between two`);
  }
  assert.match(heard.at(-1)?.text ?? "", /^longview, budget 512: The .* is \d+\.$/);
  assert.equal(await page.locator("#said").getAttribute("aria-live"), "polite");
  await page.context().close();
});

test("progress has its role, name and value", async () => {
  const page = await start({ prefillMs: 250 });
  await page.getByRole("button", { name: "Write a sample" }).click();
  await page.getByRole("button", { name: "Read the document" }).click();
  const bar = page.getByRole("progressbar", { name: "Reading the document" });
  await page.waitForFunction("document.querySelector('#prefill-bar').value > 0.2");
  assert.ok((await bar.evaluate((element: HTMLProgressElement) => element.value)) < 1);
  await idle(page);
  await page.context().close();
});

test("reduced motion moves nothing", async () => {
  const page = await start({}, { reducedMotion: "reduce" });
  await readSample(page, 1000);
  const script = `[...document.querySelectorAll("*")].filter((element) =>
    getComputedStyle(element).transitionDuration.split(",").some((t) => parseFloat(t) > 0)).length`;
  assert.equal(await page.evaluate(script), 0);
  await page.context().close();
});
