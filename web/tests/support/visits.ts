// What the tests of the server's page share: a browser and one server for all tests of a file, and
// for each test a visit of its own.

import assert from "node:assert/strict";
import { after, afterEach, before } from "node:test";

import type { Browser, Page } from "playwright-core";

import { type Opened, idle, launch, open } from "./browser";
import { type Longview, serveLongview } from "./longview";

class Visits {
  browser: Browser | null = null;
  serving: Longview | null = null;
  opened: Opened[] = [];

  get url(): string {
    assert.ok(this.serving !== null, "no test runs");
    return this.serving.url;
  }

  /** The page at `url`, with the embedded model. */
  async visit(url = this.url): Promise<Page> {
    const page = await this.first(url);
    await page.getByText("5 layers, 2 KV heads").waitFor();
    await idle(page);
    return page;
  }

  /** The page, whatever it shows. */
  async first(
    url = this.url,
    prepare: (page: Page) => Promise<void> = () => Promise.resolve(),
  ): Promise<Page> {
    assert.ok(this.browser !== null, "no test runs");
    const opened = await open(this.browser, url, {}, prepare);
    this.opened.push(opened);
    return opened.page;
  }

  /** A second tab of the same browser. */
  async tab(page: Page): Promise<Page> {
    const other = await page.context().newPage();
    await other.goto(this.url);
    await other.getByText("5 layers, 2 KV heads").waitFor();
    await idle(other);
    return other;
  }

  /** What a program asks the server. */
  async api(method: string, path: string, body?: object): Promise<unknown> {
    const json = body === undefined ? null : JSON.stringify(body);
    const response = await fetch(`${this.url}${path}`, { method, body: json });
    assert.ok(response.ok, `${path}: ${response.status}`);
    return response.json();
  }

  async end(): Promise<void> {
    const { opened } = this;
    this.opened = [];
    for (const { context } of opened) await context.close();
    for (const { errors } of opened) assert.deepEqual(errors, []);
  }
}

/** For all tests of a file. */
export function visits(): Visits {
  const visits = new Visits();
  before(async () => {
    visits.browser = await launch([], []);
    visits.serving = await serveLongview();
  });
  after(async () => {
    await visits.browser?.close();
    await visits.serving?.close();
  });
  afterEach(() => visits.end());
  return visits;
}

/** Opens the document that was used last. */
export async function openFirst(page: Page): Promise<void> {
  const opener = page.locator("#saved").getByRole("button", { name: /^Open / });
  await opener.first().click();
  await page.getByText("opened without reading").waitFor();
  await idle(page);
}

/** The tab anew: it opens its document by itself. */
export async function reopened(page: Page): Promise<void> {
  await page.reload();
  await page.getByText("opened without reading").waitFor();
  await idle(page);
}

/** Deletes the questions of the open document, which is asked about first. */
export async function forgetTalk(page: Page): Promise<void> {
  await page.getByRole("button", { name: "New conversation" }).click();
  await page.getByRole("button", { name: "Delete these questions?" }).click();
}
