// `longview serve` with the embedded model, as a user starts it.

import { type ChildProcess, spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

export interface Longview {
  /** Where its page is, with a slash at the end. */
  url: string;
  /** What it printed before it served. */
  said: string[];
  close(): Promise<void>;
}

/** Starts the program that `LONGVIEW` names. None is an error: nothing is skipped. */
export async function serveLongview(more: string[] = [], keeps = true): Promise<Longview> {
  const program = process.env["LONGVIEW"];
  if (program === undefined) throw new Error("LONGVIEW names no program: set it to `longview`");
  const library = mkdtempSync(join(tmpdir(), "longview-page-"));
  const words = ["serve", "--device", "cpu", "--port", "0", "--ctx-size", "8192"];
  const kept = keeps ? ["--library", library] : [];
  const child = spawn(program, [...words, ...kept, ...more], {
    stdio: ["ignore", "inherit", "pipe"],
  });
  const lines = createInterface({ input: child.stderr });
  const said: string[] = [];
  const url = await new Promise<string>((resolve, reject) => {
    lines.on("line", (line) => {
      said.push(line);
      const found = /page for people: (http:\S+)/.exec(line)?.[1];
      if (found !== undefined) resolve(found);
    });
    child.on("exit", (code) => {
      reject(new Error(`it ended with ${code ?? "a signal"}: ${said.join("\n")}`));
    });
    child.on("error", reject);
  });
  await loaded(url);
  return { url, said, close: () => end(child, library) };
}

async function loaded(url: string): Promise<void> {
  for (let i = 0; i < 600; i++) {
    const response = await fetch(`${url}health`);
    if (response.ok) return;
    await new Promise((resume) => setTimeout(resume, 100));
  }
  throw new Error("the model is not loaded after a minute");
}

async function end(child: ChildProcess, library: string): Promise<void> {
  await new Promise((resolve) => {
    child.removeAllListeners("exit");
    child.on("exit", resolve);
    child.kill("SIGTERM");
  });
  rmSync(library, { recursive: true, force: true });
}
