// Writes `native.json`: what the native CPU backend answers about the document of `sample.ts`.
//
// Run by hand after a change of the sample or of the embedded model, from `web/`:
//
//     node --import tsx tests/real/native.ts ../target/release/longview

import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";

import { facts } from "../../src/page/questions";
import { SAMPLE } from "./sample";

const [program] = process.argv.slice(2);
if (program === undefined) throw new Error("name the longview program");

const folder = mkdtempSync(join(tmpdir(), "longview-"));
const file = join(folder, "document.txt");
writeFileSync(file, SAMPLE.text);
const options = Object.entries(SAMPLE.policy.options).flatMap(([name, value]) => [
  `--${name}`,
  value,
]);
const answers = facts(SAMPLE.text).map(({ question }) => {
  const args = [
    ["run", "-m", resolve(import.meta.dirname, "../../../models/needle")],
    ["--device", "cpu", "-c", "8192", "--temp", "0", "--json"],
    ["-f", file, "-p", question, "-n", "48"],
    ["--policy", SAMPLE.policy.preset, "--budget", String(SAMPLE.policy.budget), ...options],
  ];
  const printed = execFileSync(program, args.flat(), { encoding: "utf8" });
  const { text: answer } = JSON.parse(printed) as { text: string };
  return { question, answer: answer.trim() };
});
rmSync(folder, { recursive: true });
writeFileSync(join(import.meta.dirname, "native.json"), `${JSON.stringify(answers, null, 2)}\n`);
