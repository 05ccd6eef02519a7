// Models: how they are downloaded, stored, checked and picked, and what goes wrong on the way.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { cp, mkdir, mkdtemp, readFile, rm, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { test } from "node:test";

import type { Page } from "playwright-core";

import { ask, idle, message, modelLoaded, readSample } from "../support/browser";
import {
  damage,
  inWorker,
  modelFolder,
  recorded,
  removeStored,
  stage as openStage,
  until,
  verdicts,
} from "../support/stage";

const stage = openStage();

const WEIGHTS = "model/model.safetensors";
const NEEDLE = "../models/needle";

/** Stops the loading that runs. */
async function stop(page: Page): Promise<void> {
  await page.locator("#model-stop").click();
  await page.getByText("No model is loaded.").waitFor();
  await idle(page);
}

/** Requests for the weights, without the first `before` of all requests. */
function weightsAsked(before: number): string[] {
  return stage.server.requests.slice(before).filter((path) => /\.safetensors( |$)/.test(path));
}

async function loadAddress(page: Page, address: string): Promise<void> {
  const choice = page.locator("#model-choice");
  if ((await choice.getAttribute("open")) === null) await choice.locator("summary").click();
  await page.getByRole("textbox", { name: "Address of a Hugging Face folder" }).fill(address);
  await page.locator("#model-load").click();
}

function sha256(bytes: Buffer): string {
  return createHash("sha256").update(bytes).digest("hex");
}

/** Answers as Hugging Face, for any model; `asked` gets the names of files. */
async function serveHub(
  page: Page,
  files: Map<string, Buffer>,
  listed: () => Map<string, string>,
  asked: string[],
): Promise<void> {
  await page.route("https://huggingface.co/**", async (route) => {
    const { pathname } = new URL(route.request().url());
    const headers = { "access-control-allow-origin": "*" };
    if (pathname.startsWith("/api/")) {
      const list = [...files].map(([path, { length }]) => ({
        path,
        size: length,
        lfs: { oid: listed().get(path) },
      }));
      await route.fulfill({ headers, json: list });
      return;
    }
    const name = basename(pathname);
    asked.push(name);
    await route.fulfill({ headers, body: files.get(name) ?? Buffer.of() });
  });
}

test("a damaged model in storage is found and, with consent, downloaded again", async () => {
  const page = await stage.start();
  await page.goto("about:blank");
  await page.goto(stage.server.url);
  await modelLoaded(page);
  assert.match(await page.locator("#model-line").innerText(), /Loaded from this browser's storage/);
  const again = weightsAsked(0).length;
  assert.equal(again, 1, "the weights were downloaded once");
  // No engine holds the file while it is changed.
  await page.goto(`${stage.server.url}icon.svg`);
  await damage(page, "models", "model.safetensors");
  await page.goto(stage.server.url);
  const text = await message(page, "corrupt-cache");
  assert.match(text, /model\.safetensors of needle \(embedded\) changed/);
  await page.getByRole("button", { name: "Delete it and download again" }).click();
  await modelLoaded(page);
  assert.match(await page.locator("#model-line").innerText(), /Downloaded/);
});

test("a stored file that is missing is downloaded alone", async () => {
  const page = await stage.start();
  await page.goto(`${stage.server.url}icon.svg`);
  await removeStored(page, "models", "tokenizer.json");
  const before = stage.server.requests.length;
  await page.goto(stage.server.url);
  await modelLoaded(page);
  assert.match(await page.locator("#model-line").innerText(), /Downloaded/);
  const files = stage.server.requests.slice(before).filter((path) => path.includes("/model/"));
  assert.deepEqual(files, ["/longview/demo/model/tokenizer.json"]);
});

test("without room a model and a document stay in memory, and the page says so", async () => {
  const page = await stage.visit({ session: { bytes: 3 << 20 } }, (page) =>
    stage.limitStorage(page, 2 << 20),
  );
  await modelLoaded(page);
  assert.match(await message(page, "quota"), /no room to store model\.safetensors/);
  await readSample(page, 1000);
  assert.match(await message(page, "quota"), /no room to store this document/);
  await page.getByRole("button", { name: "Another document" }).click();
  await page.getByRole("button", { name: /^Open Sample/ }).click();
  await page.getByText("opened without reading").waitFor();
  await idle(page);
  await ask(page, null);
  assert.deepEqual(await verdicts(page), ["✓ This is what the document says."]);
});

test("without storage everything works in memory, and the page says so", async () => {
  const deny = "navigator.storage.getDirectory = () => Promise.reject(new Error('no'))";
  const page = await stage.visit({}, (page) => inWorker(page, deny));
  await modelLoaded(page);
  assert.match(await message(page, "no-storage"), /gone when the page is left/);
  await readSample(page, 1000);
  await ask(page, null);
  assert.deepEqual(await verdicts(page), ["✓ This is what the document says."]);
});

test("a broken download goes on where it broke", async () => {
  stage.server.faults.breakAfter.set("model/model.safetensors", 6_000_000);
  const page = await stage.start();
  const ranges = stage.server.requests.filter((path) => path.includes("safetensors bytes="));
  assert.equal(ranges.length, 1);
  assert.match(
    await page.locator("#model-line").innerText(),
    /all 5 files is that of this release/,
  );
});

test("a download that a closed page broke off goes on at the next visit", async () => {
  stage.server.faults.stallAfter.set(WEIGHTS, 6_000_000);
  const page = await stage.visit();
  await recorded(page, "models", "model.safetensors");
  stage.server.faults.stallAfter.clear();
  const before = stage.server.requests.length;
  await page.reload();
  await modelLoaded(page);
  const asked = weightsAsked(before);
  assert.match(asked.join(), /^[^,]* bytes=[1-9]\d+-$/);
});

test("a download that stalls can be stopped, and goes on", async () => {
  stage.server.faults.stallAfter.set(WEIGHTS, 6_000_000);
  const page = await stage.visit();
  await page.locator("#model-figures", { hasText: "of 8.3 MiB" }).waitFor();
  await stop(page);
  await recorded(page, "models", "model.safetensors");
  stage.server.faults.stallAfter.clear();
  const before = stage.server.requests.length;
  await page.getByRole("button", { name: "Load model" }).click();
  await modelLoaded(page);
  const asked = weightsAsked(before);
  assert.match(asked.join(), /^[^,]* bytes=[1-9]\d+-$/);
});

test("a download that is tried again can be stopped", async () => {
  // The pauses between two attempts never end.
  const endless = `
    const timeout = self.setTimeout;
    self.setTimeout = (act, ms) => (ms < 500 ? timeout(act, ms) : fetch("../paused"))`;
  stage.server.faults.status.set(WEIGHTS, 503);
  const page = await stage.visit({}, (page) => inWorker(page, endless));
  await until(() => stage.server.requests.some((path) => path.endsWith("/paused")));
  await stop(page);
});

test("the check of a stored model can be stopped", async () => {
  const page = await stage.start();
  // From the first report on, nothing goes on before the stop has come.
  await inWorker(
    page,
    `let checking = false;
    const post = self.postMessage.bind(self);
    self.postMessage = (message, options) => {
      checking ||= message.event?.event === "check";
      post(message, options);
    };
    const stopped = new Promise((stop) => {
      self.addEventListener("message", ({ data }) => data.name === "stop" && stop());
    });
    const timeout = self.setTimeout;
    self.setTimeout = (act, ms) => {
      if (checking) stopped.then(() => timeout(act, ms));
      else timeout(act, ms);
    }`,
  );
  await page.reload();
  await page.locator("#model-what", { hasText: "Checking" }).waitFor();
  await stop(page);
});

test("the look at Hugging Face can be stopped", async () => {
  const page = await stage.start();
  const asked = new Promise<void>((resolve) => {
    void page.route("https://huggingface.co/**", () => {
      resolve();
    });
  });
  await loadAddress(page, "https://huggingface.co/some/model");
  await asked;
  await stop(page);
});

test("without an ETag a download begins anew, since nobody can tell what it was of", async () => {
  const page = await stage.start();
  stage.server.faults.noEtag.add(WEIGHTS);
  stage.server.faults.stallAfter.set(WEIGHTS, 6_000_000);
  const address = `${stage.server.url}model/`;
  await loadAddress(page, address);
  await recorded(page, modelFolder(address), "model.safetensors");
  await stop(page);
  stage.server.faults.stallAfter.clear();
  const before = stage.server.requests.length;
  await page.locator("#model-load").click();
  await page.getByText("gives no sha-256").waitFor();
  const asked = weightsAsked(before);
  // The server's first answer has no ETag; the second has all of the file.
  assert.deepEqual(
    asked.map((path) => path.includes("bytes=")),
    [true, false],
  );
});

test("a changed file of a model that is not complete is not taken for the first one", async () => {
  const page = await stage.start();
  stage.server.faults.stallAfter.set(WEIGHTS, 6_000_000);
  const address = `${stage.server.url}model/`;
  await loadAddress(page, address);
  await recorded(page, modelFolder(address), "model.safetensors");
  await stop(page);
  await damage(page, modelFolder(address), "tokenizer.json");
  stage.server.faults.stallAfter.clear();
  await page.locator("#model-load").click();
  assert.match(await message(page, "corrupt-cache"), /tokenizer\.json changed in this browser/);
  await page.getByRole("button", { name: "Delete it and download again" }).click();
  await page.getByText("gives no sha-256").waitFor();
});

test("a missing file that its server has changed is not mixed with the others", async () => {
  const page = await stage.start();
  const address = `${stage.server.url}model/`;
  await loadAddress(page, address);
  await page.getByText("gives no sha-256").waitFor();
  await page.goto(`${stage.server.url}icon.svg`);
  await removeStored(page, modelFolder(address), "config.json");
  const config = await readFile(join(NEEDLE, "config.json"), "utf8");
  stage.server.faults.replace.set("model/config.json", `${config}\n`);
  await page.goto(stage.server.url);
  await idle(page);
  await loadAddress(page, address);
  assert.match(await message(page, "corrupt-cache"), /config\.json is not what was downloaded/);
});

test("a release that changes a small file alone is downloaded", async () => {
  const page = await stage.start();
  const name = "tokenizer.json";
  const before = await readFile(join(NEEDLE, name));
  const after = Buffer.from(before);
  after[after.lastIndexOf("}")] = 0x20;
  stage.server.faults.replace.set(`model/${name}`, after);
  await page.route("**/worker-*.js", async (route) => {
    const response = await route.fetch();
    await route.fulfill({
      response,
      body: (await response.text()).replace(sha256(before), sha256(after)),
    });
  });
  await page.reload();
  await modelLoaded(page);
  assert.match(
    await page.locator("#model-line").innerText(),
    /Downloaded.*all 5 files is that of this release/,
  );
  const asked = stage.server.requests.filter((path) => path.endsWith(`model/${name}`));
  assert.equal(asked.length, 2);
});

test("the server's newest list of files is the one that counts", async () => {
  const page = await stage.start();
  const names = ["config.json", "tokenizer.json", "model.safetensors"];
  const files = new Map<string, Buffer>();
  for (const name of names) files.set(name, await readFile(join(NEEDLE, name)));
  const asked: string[] = [];
  let listed = new Map([...files].map(([name, bytes]) => [name, sha256(bytes)]));
  listed.set("model.safetensors", sha256(Buffer.from("weights of another version")));
  await serveHub(page, files, () => listed, asked);
  await loadAddress(page, "https://huggingface.co/some/model");
  assert.match(await message(page, "network"), /is not what its list of files says/);
  await idle(page);
  const tokenizer = Buffer.concat([files.get("tokenizer.json") ?? Buffer.of(), Buffer.from(" ")]);
  files.set("tokenizer.json", tokenizer);
  listed = new Map([...files].map(([name, bytes]) => [name, sha256(bytes)]));
  await page.getByRole("button", { name: "Try again" }).click();
  await page.getByText("sha-256 of all 3 files is that of the server's list").waitFor();
  assert.deepEqual(
    names.map((name) => asked.filter((path) => path === name).length),
    [1, 2, 2],
  );
});

test("a file that is not what its server says is refused", async () => {
  stage.server.faults.replace.set("model/config.json", '{"hidden_size": 1, "other": "model"}');
  const page = await stage.visit();
  assert.match(
    await message(page, "network"),
    /config\.json is not what its list of files says it is/,
  );
  stage.server.faults.replace.delete("model/config.json");
  await page.getByRole("button", { name: "Try again" }).click();
  await modelLoaded(page);
});

test("a model by address is kept with its hash, and its documents are its own", async () => {
  const page = await stage.start();
  await readSample(page, 1000);
  await page.getByText("Choose model and memory").click();
  const address = page.getByRole("textbox", { name: "Address of a Hugging Face folder" });
  await address.fill(`${stage.server.url}model`);
  await page.getByRole("button", { name: "Load model" }).click();
  await modelLoaded(page);
  const line = page.locator("#model-line");
  assert.match(await line.innerText(), /^model: .*gives no sha-256/);
  assert.match(await page.locator("#saved").innerText(), /Needs the model needle \(embedded\)/);
  const openDocument = page.getByRole("button", { name: /^Open Sample/ });
  assert.equal(await openDocument.isDisabled(), true);
  await page.locator("#model-load").click();
  await modelLoaded(page);
  await page.getByText("5 against the first download's").waitFor();
});

test("the loaded model cannot be deleted, another can", async () => {
  const page = await stage.start();
  await page.getByText("Choose model and memory").click();
  const address = page.getByRole("textbox", { name: "Address of a Hugging Face folder" });
  await address.fill(`${stage.server.url}model`);
  await page.locator("#model-load").click();
  await page.getByText("gives no sha-256").waitFor();
  await idle(page);
  const remove = async (name: string): Promise<void> => {
    await page.getByRole("button", { name: `Delete ${name}`, exact: true }).click();
    await page.getByRole("button", { name: `Really delete ${name}?` }).click();
  };
  await remove("model");
  assert.match(await message(page, "bad-input"), /This model is loaded/);
  await remove("needle (embedded)");
  await page.getByRole("button", { name: "Load needle (embedded)" }).waitFor({ state: "detached" });
});

test("an address without a model is answered with what is missing", async () => {
  const page = await stage.start();
  await page.getByText("Choose model and memory").click();
  await page
    .getByRole("textbox", { name: "Address of a Hugging Face folder" })
    .fill(`${stage.server.url}nowhere`);
  await page.getByRole("button", { name: "Load model" }).click();
  assert.match(await message(page, "bad-model"), /nowhere has no config\.json/);
});

test("a folder is loaded from the disk, without a copy", async () => {
  const page = await stage.start();
  await page.getByText("Choose model and memory").click();
  await page.locator("#model-files").setInputFiles("../models/needle");
  await page.locator("#model-load").click();
  await page.getByText("Read from your disk").waitFor();
  await idle(page);
  await readSample(page, 1000);
  await ask(page, "What is this document about?");
  assert.match(await page.locator(".answer").innerText(), /quiet valley/);
});

/** Loads picked files as a GGUF model. */
async function pickGguf(page: Page, files: { name: string; bytes: number }[]): Promise<void> {
  const payload = files.map(({ name, bytes }) => {
    const buffer = Buffer.alloc(bytes);
    buffer.write("GGUF");
    return { name, mimeType: "application/octet-stream", buffer };
  });
  await page.getByText("Choose model and memory").click();
  await page.locator("#model-gguf").setInputFiles(payload);
  assert.ok(await page.getByRole("radio", { name: "GGUF file on this disk" }).isChecked());
  await page.locator("#model-load").click();
}

test("a GGUF file is loaded from the disk, and the page says what it is", async () => {
  const page = await stage.start();
  // More than one window of reading.
  await pickGguf(page, [{ name: "small-Q4_1.gguf", bytes: 2_500_000 }]);
  await page.getByText("Read from your disk").waitFor();
  const line = await page.locator("#model-line").innerText();
  assert.match(line, /^small-Q4_1\.gguf: .* 2\.4 MiB of weights in Q4_1/);
  await idle(page);
  await readSample(page, 1000);
  await ask(page, "What is this document about?");
});

test("parts of one GGUF file go together, and several models do not", async () => {
  const page = await stage.start();
  const part = (i: number): string => `m-0000${i}-of-00002.gguf`;
  await pickGguf(page, [
    { name: part(2), bytes: 1000 },
    { name: part(1), bytes: 1000 },
  ]);
  await page.getByText("Read from your disk").waitFor();
  assert.match(await page.locator("#model-line").innerText(), /^m-00001-of-00002\.gguf/);
  await page.locator("#model-gguf").setInputFiles([]);
  await page.locator("#model-load").click();
  const text = await page
    .locator("#model-gguf")
    .evaluate((input) => (input as HTMLInputElement).validationMessage);
  assert.equal(text, "Pick a .gguf file.");
  const two = ["a.gguf", "b.gguf"].map((name) => ({
    name,
    mimeType: "application/octet-stream",
    buffer: Buffer.from("GGUF"),
  }));
  await page.locator("#model-gguf").setInputFiles(two);
  await page.locator("#model-load").click();
  assert.match(await message(page, "bad-input"), /several models: a\.gguf, b\.gguf\. Pick/);
});

test("the address of a GGUF file is answered with what to do", async () => {
  const page = await stage.start();
  await page.getByText("Choose model and memory").click();
  await page
    .getByRole("textbox", { name: "Address of a Hugging Face folder" })
    .fill(`${stage.server.url}model.gguf`);
  await page.getByRole("button", { name: "Load model" }).click();
  assert.match(await message(page, "bad-input"), /download this one, then pick it below/);
});

test("a text that is too large for the engine is refused before it is read", async () => {
  const folder = await mkdtemp(join(tmpdir(), "longview-"));
  await cp(NEEDLE, folder, { recursive: true });
  // Nothing but a length: it takes no room on the disk.
  await truncate(join(folder, "tokenizer.json"), 400_000_001);
  const page = await stage.start();
  await page.getByText("Choose model and memory").click();
  await page.locator("#model-files").setInputFiles(folder);
  await page.locator("#model-load").click();
  const text = await message(page, "bad-model");
  assert.match(text, /tokenizer\.json has 400,000,001 bytes, and at most 400,000,000 are read\./);
  await rm(folder, { recursive: true });
});

test("a picked folder's own files are taken, not those of folders within", async () => {
  const folder = await mkdtemp(join(tmpdir(), "longview-"));
  await cp(NEEDLE, folder, { recursive: true });
  // Whichever the browser lists last.
  for (const within of ["a", "zz"]) {
    await mkdir(join(folder, within));
    await writeFile(join(folder, within, "config.json"), '{"num_hidden_layers": 9}');
  }
  const page = await stage.start();
  await page.getByText("Choose model and memory").click();
  await page.locator("#model-files").setInputFiles(folder);
  await page.locator("#model-load").click();
  await page.getByText("Read from your disk").waitFor();
  assert.match(await page.locator("#model-line").innerText(), /5 layers, 2 KV heads/);
  await rm(folder, { recursive: true });
});

test("no request leaves the site, and after loading the network is not needed", async () => {
  const asked: string[] = [];
  const page = await stage.visit({}, (page) => {
    page.on("request", (request) => asked.push(request.url()));
    return Promise.resolve();
  });
  await modelLoaded(page);
  await page.context().setOffline(true);
  await readSample(page, 1000);
  await ask(page, null);
  assert.deepEqual(await verdicts(page), ["✓ This is what the document says."]);
  assert.deepEqual(
    asked.filter((url) => !url.startsWith(stage.server.url)),
    [],
  );
});
