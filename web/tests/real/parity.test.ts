// The operations' corpus in the browser: its WGSL compiler and adapter against the f64 reference.
//
// A prime share of the cases, at least one of each operation: a software adapter takes seconds for
// the pipelines of one. The native tests run all of them on a WGSL device.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import type { Browser } from "playwright-core";

import {
  DIST,
  PHONE,
  idle,
  launch,
  open,
  overflows,
  picture,
  violations,
} from "../support/browser";
import { type Server, serveFolder } from "../support/server";

const MINUTE = 60_000;

let browser: Browser;
let server: Server;

before(async () => {
  browser = await launch();
  server = await serveFolder(DIST, "/longview/demo/");
});

after(async () => {
  await browser.close();
  await server.close();
});

/** Cells of a row of the table. */
type Row = [op: string, result: string, cases: string, worst: string, s: string, remarks: string];

test("every operation computes right in this browser", async () => {
  const { context, page, errors } = await open(browser, `${server.url}parity.html`);
  await page.getByLabel("Of how many cases").fill(process.env["PARITY_EVERY"] ?? "29");
  await page.getByRole("button", { name: "Compare" }).click();
  await idle(page, 20 * MINUTE);
  const verdict = await page.locator("#said").innerText();
  const rows: Row[] = [];
  for (const row of await page.locator("#rows tr").all()) {
    rows.push((await row.locator("th, td").allInnerTexts()) as Row);
  }
  const seen = rows.map((row) => row.join(" ")).join("\n");
  console.log(`${seen}\n${verdict}`);
  assert.match(verdict, /^This browser computes right: [\d,]+ cases right, 0 wrong/, seen);
  for (const [op, result, cases, worst, , remarks] of rows) {
    assert.equal(result, "right", op);
    assert.ok(Number(cases.replace(/,/g, "")) > 0, op);
    assert.ok(Number(worst) <= 1, `${op}: ${worst}`);
    // No shader reads host memory; nothing else is excused.
    assert.match(remarks, /^(\d+ cases not run: kernels do not read host memory)?$/, op);
  }
  const bar = page.locator("#bar");
  assert.equal(await bar.evaluate((bar) => (bar as HTMLProgressElement).max), rows.length);
  assert.deepEqual(await violations(page), []);
  await picture(page, "parity");
  await page.setViewportSize(PHONE);
  assert.equal(await overflows(page), false);
  assert.deepEqual(errors, []);
  await context.close();
});

test("a run can be stopped, and says so", async () => {
  const { context, page, errors } = await open(browser, `${server.url}parity.html`);
  await page.getByRole("button", { name: "Compare" }).click();
  await page
    .locator("#rows tr")
    .first()
    .waitFor({ timeout: 5 * MINUTE });
  await page.getByRole("button", { name: "Stop" }).click();
  assert.match(await page.locator("#said").innerText(), /^Stopped after \d+ of \d+ operations/);
  await idle(page);
  assert.deepEqual(errors, []);
  await context.close();
});
