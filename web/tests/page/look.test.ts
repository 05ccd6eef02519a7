// How the page looks: no violation of accessibility in any state, scheme and width.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import type { Browser, Page } from "playwright-core";

import {
  PHONE,
  SCRIPTED,
  ask,
  launch,
  modelLoaded,
  open,
  overflows,
  picture,
  readSample,
  violations,
} from "../support/browser";
import { type Server, serveFolder } from "../support/server";

let browser: Browser;
let server: Server;

before(async () => {
  browser = await launch();
  server = await serveFolder(SCRIPTED, "/longview/demo/");
  server.faults.replace.set("script.json", JSON.stringify({ software: true }));
});

after(async () => {
  await browser.close();
  await server.close();
});

const LOOKS = [
  { name: "desktop-light", options: { colorScheme: "light" } },
  { name: "desktop-dark", options: { colorScheme: "dark" } },
  { name: "phone-light", options: { colorScheme: "light", viewport: PHONE, hasTouch: true } },
  { name: "phone-dark", options: { colorScheme: "dark", viewport: PHONE, hasTouch: true } },
] as const;

async function checked(page: Page, name: string): Promise<void> {
  await picture(page, name);
  assert.deepEqual(await violations(page), [], name);
  assert.equal(await overflows(page), false, `${name} scrolls sideways`);
}

for (const { name, options } of LOOKS) {
  test(`${name}: no violation before, while and after asking`, async () => {
    const { context, page, errors } = await open(browser, server.url, options);
    await modelLoaded(page);
    await checked(page, `${name}-start`);
    await readSample(page, 2000);
    await page.getByLabel("Compare with full attention").check();
    await ask(page, null);
    await page.getByText("Attended most in the document").first().click();
    await checked(page, `${name}-answer`);
    for (const summary of await page.locator("main summary").all()) {
      const isOpen = await summary.evaluate((element) => element.closest("details")?.open === true);
      if (!isOpen) await summary.click();
    }
    await checked(page, `${name}-all-open`);
    assert.deepEqual(errors, []);
    await context.close();
  });
}

test("an error looks like one, with its buttons", async () => {
  const script = { fail: { open: { code: "no-adapter", message: "No adapter answered." } } };
  server.faults.replace.set("script.json", JSON.stringify(script));
  const { context, page } = await open(browser, server.url, { colorScheme: "light" });
  await page.getByRole("alert").waitFor();
  await checked(page, "message-no-adapter");
  await page.emulateMedia({ colorScheme: "dark" });
  await checked(page, "message-no-adapter-dark");
  await context.close();
});
