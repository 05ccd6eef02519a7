// What the tests of the page's behaviour share: a browser for the file, and for each test a server
// and a visit of its own.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { after, afterEach, before, beforeEach } from "node:test";

import type { Browser, Page } from "playwright-core";

import { type Opened, SCRIPTED, launch, modelLoaded, open } from "./browser";
import { type Server, serveFolder } from "./server";

class Stage {
  browser: Browser | null = null;
  private serving: Server | null = null;
  private opened: Opened | null = null;

  get server(): Server {
    assert.ok(this.serving !== null, "no test runs");
    return this.serving;
  }

  /** A page whose engine follows `script`, with the embedded model loaded. */
  async start(script: object = {}): Promise<Page> {
    const page = await this.visit(script);
    await modelLoaded(page);
    return page;
  }

  async visit(script: object = {}, prepare?: (page: Page) => Promise<void>): Promise<Page> {
    assert.ok(this.browser !== null, "no test runs");
    this.server.faults.replace.set("script.json", JSON.stringify(script));
    this.opened = await open(this.browser, this.server.url, {}, prepare);
    return this.opened.page;
  }

  async limitStorage(page: Page, bytes: number): Promise<void> {
    const session = await page.context().newCDPSession(page);
    const { origin } = new URL(this.server.url);
    await session.send("Storage.overrideQuotaForOrigin", { origin, quotaSize: bytes });
  }

  async begin(): Promise<void> {
    this.serving = await serveFolder(SCRIPTED, "/longview/demo/");
  }

  async end(): Promise<void> {
    const { opened, serving } = this;
    this.opened = this.serving = null;
    await opened?.context.close();
    await serving?.close();
    assert.deepEqual(opened?.errors ?? [], []);
  }
}

/** For all tests of a file. */
export function stage(): Stage {
  const stage = new Stage();
  before(async () => {
    stage.browser = await launch();
  });
  after(() => stage.browser?.close());
  beforeEach(() => stage.begin());
  afterEach(() => stage.end());
  return stage;
}

/** Does `code` with the first `file` of this name below the path `folder`, and its folder `dir`. */
async function withStored<T>(page: Page, folder: string, name: string, code: string): Promise<T> {
  const script = `(async () => {
    const root = await navigator.storage.getDirectory();
    const find = async (dir) => {
      for await (const [name, entry] of dir.entries()) {
        if (entry.kind === "file" && name === ${JSON.stringify(name)}) return { dir, file: entry };
        const found = entry.kind === "directory" ? await find(entry) : null;
        if (found) return found;
      }
      return null;
    };
    let top = root;
    for (const part of "${folder}".split("/")) top = await top.getDirectoryHandle(part);
    const { dir, file } = await find(top);
    ${code}
  })()`;
  return page.evaluate<T>(script);
}

/** Changes one byte of a stored file. */
export async function damage(page: Page, folder: string, name: string): Promise<void> {
  const code = `
    const bytes = new Uint8Array(await (await file.getFile()).arrayBuffer());
    bytes[bytes.length - 9] ^= 1;
    const writer = await file.createWritable();
    await writer.write(bytes);
    await writer.close();`;
  await withStored(page, folder, name, code);
}

export async function removeStored(page: Page, folder: string, name: string): Promise<void> {
  await withStored(page, folder, name, "await dir.removeEntry(file.name);");
}

/** The folder of the model with this address. */
export function modelFolder(address: string): string {
  return `models/${createHash("sha256").update(address).digest("hex").slice(0, 16)}`;
}

/** Waits until a stored model's record tells of more than 0 bytes of this file. */
export async function recorded(page: Page, folder: string, name: string): Promise<void> {
  const code = "return JSON.parse(await (await file.getFile()).text()).files";
  await until(async () => {
    type Files = Record<string, { done: number } | undefined>;
    // It is not there yet, or is being written.
    const files = await withStored<Files>(page, folder, "meta.json", code).catch((): Files => ({}));
    return (files[name]?.done ?? 0) > 0;
  });
}

/** Waits for what no event tells of. */
export async function until(condition: () => boolean | Promise<boolean>): Promise<void> {
  for (let i = 0; i < 600; i++) {
    if (await condition()) return;
    await new Promise((resume) => setTimeout(resume, 50));
  }
  throw new Error("it never came to be");
}

/** Runs `code` in the page's worker, before the worker's own. */
export async function inWorker(page: Page, code: string): Promise<void> {
  await page.route("**/worker-*.js", async (route) => {
    const response = await route.fetch();
    await route.fulfill({ response, body: `${code};\n${await response.text()}` });
  });
}

export const verdicts = (page: Page): Promise<string[]> => page.locator(".verdict").allInnerTexts();
