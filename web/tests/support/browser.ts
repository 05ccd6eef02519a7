// Chromium with the software WebGPU adapter, and what all tests do with a page.

import { existsSync, mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";

import { type Browser, type BrowserContext, type Page, chromium } from "playwright-core";

const WEB = resolve(import.meta.dirname, "../..");
export const DIST = join(WEB, "dist");
export const SCRIPTED = join(WEB, "tests/dist");
const RESULTS = join(WEB, "test-results");

const BROWSERS = ["/usr/bin/chromium", "/usr/bin/google-chrome", "/usr/bin/chromium-browser"];

const FLAGS = ["--no-sandbox", "--disable-background-networking"];
const WEBGPU = [
  "--enable-unsafe-webgpu",
  "--use-webgpu-adapter=swiftshader",
  // With this extension of Vulkan the software adapter compiles a store for every word of workgroup
  // memory, 0.2 ms each, which is most of what it compiles. Without it the browser writes zeros in
  // a loop, as it does on adapters that lack the extension.
  "--disable-dawn-features=use_vulkan_zero_initialize_workgroup_memory_extension",
];

/** The browser that `CHROMIUM` names, or the system's. None is an error: nothing is skipped. */
export async function launch(more: string[] = [], webgpu = WEBGPU): Promise<Browser> {
  const executablePath = process.env["CHROMIUM"] ?? BROWSERS.find((path) => existsSync(path));
  if (executablePath === undefined) {
    throw new Error("no Chromium found; install the package chromium or set CHROMIUM to its path");
  }
  return chromium.launch({ executablePath, args: [...FLAGS, ...webgpu, ...more] });
}

/**
 * Milliseconds that a click or a picture may take, four times the library's own: beside what CI
 * compiles and computes on two slow cores, a picture of a whole page has taken more than 30 s.
 */
const PATIENCE = 120_000;

export const DESKTOP = { width: 1280, height: 900 };
export const PHONE = { width: 390, height: 844 };

export interface Opened {
  context: BrowserContext;
  page: Page;
  /** Errors of the page's scripts, which no test expects. */
  errors: string[];
}

/** A fresh page with storage of its own. */
export async function open(
  browser: Browser,
  url: string,
  options: Parameters<Browser["newContext"]>[0] = {},
  prepare: (page: Page) => Promise<void> = () => Promise.resolve(),
): Promise<Opened> {
  const context = await browser.newContext({ viewport: DESKTOP, ...options });
  context.setDefaultTimeout(PATIENCE);
  const page = await context.newPage();
  const errors: string[] = [];
  page.on("pageerror", (error) => errors.push(error.message));
  await prepare(page);
  await page.goto(url);
  return { context, page, errors };
}

/** Keeps a picture of the whole page as an artefact. */
export async function picture(page: Page, name: string): Promise<void> {
  mkdirSync(RESULTS, { recursive: true });
  // Blocks of the document that are far from the viewport are not laid out.
  await page.evaluate("scrollTo(0, 0), new Promise((end) => setTimeout(end, 150))");
  await page.screenshot({ path: join(RESULTS, `${name}.png`), fullPage: true });
}

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

interface Violation {
  id: string;
  help: string;
  nodes: { target: string[]; failureSummary: string }[];
}

/** What axe finds wrong on the page as it is, one line each. */
export async function violations(page: Page): Promise<string[]> {
  await page.evaluate(AXE);
  // A string: the bundler of the tests would put helpers into a function that the page lacks.
  const script = "axe.run(document).then((results) => results.violations)";
  const found: Violation[] = await page.evaluate(script);
  return found.flatMap(({ id, help, nodes }) =>
    nodes.map(
      ({ target, failureSummary }) => `${id}: ${help}: ${target.join()}: ${failureSummary}`,
    ),
  );
}

/** Whether the page can be scrolled sideways. */
export async function overflows(page: Page): Promise<boolean> {
  const script = "document.documentElement.scrollWidth > document.documentElement.clientWidth";
  return page.evaluate<boolean>(script);
}

/** Waits until nothing runs. */
export async function idle(page: Page, timeout = 20_000): Promise<void> {
  await page.waitForSelector('body[data-task="none"]', { timeout });
}

/** Waits until the embedded model is loaded. */
export async function modelLoaded(page: Page, timeout = 60_000): Promise<void> {
  await page.getByText("5 layers, 2 KV heads").waitFor({ timeout });
  await idle(page, timeout);
}

/** Puts a text into the form and reads it. */
export async function readText(page: Page, text: string, timeout = 20_000): Promise<void> {
  await page.locator("#text").fill(text);
  await page.getByRole("button", { name: "Read the document" }).click();
  await page.getByRole("button", { name: "Another document" }).waitFor({ timeout });
  await idle(page, timeout);
}

/** Writes a sample and reads it. */
export async function readSample(page: Page, tokens: number, timeout = 20_000): Promise<void> {
  await page.getByLabel("Length of the sample").selectOption(String(tokens));
  await page.getByRole("button", { name: "Write a sample" }).click();
  await page.getByRole("button", { name: "Read the document" }).click();
  await page.getByRole("button", { name: "Another document" }).waitFor();
  await idle(page, timeout);
}

/** Asks, and waits for the answer's end. */
export async function ask(page: Page, question: string | null, timeout = 20_000): Promise<void> {
  if (question !== null) await page.getByLabel("Your question").fill(question);
  await page.getByRole("button", { name: "Ask", exact: true }).click();
  await idle(page, timeout);
}

/** The title of the message on top, or null. */
export async function message(page: Page, code: string): Promise<string> {
  const notice = page.locator(`#notices [data-code="${code}"]`);
  await notice.waitFor();
  return notice.innerText();
}

/** A file as a test makes it: its text, or its bytes. */
export interface Made {
  name: string;
  body: string | number[];
}

/** Lets files fall on what `selector` names; says whether the page took them from the browser. */
export async function drop(page: Page, files: Made[], selector = "#document"): Promise<boolean> {
  const script = `(() => {
    const data = new DataTransfer();
    for (const { name, body } of ${JSON.stringify(files)}) {
      data.items.add(new File([typeof body === "string" ? body : new Uint8Array(body)], name));
    }
    const send = (kind) => document.querySelector(${JSON.stringify(selector)}).dispatchEvent(
      new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true }));
    return [send("dragover"), send("drop")].every((isLeft) => !isLeft);
  })()`;
  return page.evaluate<boolean>(script);
}
