// The page that compares what this browser computes with exact results.

import type { Device } from "./engine";
import { byId, make } from "./page/dom";
import { count, seconds } from "./page/format";
import type { ParityEvent, ParityRequest, ParityResult } from "./parity-protocol";

const form = byId("form", HTMLFormElement);
const every = byId("every", HTMLInputElement);
const tier = byId("tier", HTMLSelectElement);
const run = byId("run", HTMLButtonElement);
const stop = byId("stop", HTMLButtonElement);
const progress = byId("progress", HTMLDivElement);
const bar = byId("bar", HTMLProgressElement);
const what = byId("what", HTMLLabelElement);
const figures = byId("figures", HTMLSpanElement);
const said = byId("said", HTMLParagraphElement);
const rows = byId("rows", HTMLTableSectionElement);
const badges = byId("device", HTMLDivElement);

let worker: Worker | null = null;
let startedAt = 0;
let ops: string[] = [];
const sum = { passed: 0, failed: 0, notRun: 0, ops: 0 };

/** Shows that something runs, or that nothing does; tests wait for `data-task`. */
function running(is: boolean): void {
  document.body.dataset["task"] = is ? "parity" : "none";
  run.disabled = is;
  stop.hidden = !is;
  progress.hidden = !is;
}

function end(text: string): void {
  if (stop === document.activeElement) run.focus();
  worker?.terminate();
  worker = null;
  running(false);
  run.disabled = false;
  said.textContent = text;
}

function badge(text: string, warns = false): HTMLElement {
  return make("span", { class: warns ? "badge warn" : "badge" }, text);
}

function opened(device: Device, all: string[]): void {
  const name = device.adapter === "" ? "unnamed adapter" : device.adapter;
  badges.replaceChildren(badge(name), badge(`shader level ${device.tier}`));
  if (device.isSoftware) badges.append(badge("software, slow", true));
  ops = all;
  bar.max = all.length;
}

function begun(op: string): void {
  what.textContent = op;
  figures.textContent = `${sum.ops} of ${ops.length} operations`;
}

function finished(op: string, result: ParityResult, took: number): void {
  const { passed, failed, worst, messages, notRun } = result;
  const missing = notRun.reduce((all, { cases }) => all + cases, 0);
  sum.passed += passed;
  sum.failed += failed;
  sum.notRun += missing;
  sum.ops += 1;
  bar.value = sum.ops;
  const [text, kind] =
    failed > 0
      ? [`${count(failed)} wrong`, "bad"]
      : passed > 0
        ? ["right", "good"]
        : ["not run", "warn"];
  const remarks = [
    ...messages,
    ...notRun.map(({ cases, reason }) => `${count(cases)} cases not run: ${reason}`),
  ];
  rows.append(
    make(
      "tr",
      { "data-op": op },
      make("th", { scope: "row" }, op),
      make("td", { class: kind }, text),
      make("td", { class: "number" }, count(passed + failed)),
      make("td", { class: "number" }, passed > 0 ? worst.toFixed(2) : ""),
      make("td", { class: "number" }, took.toFixed(1)),
      make("td", {}, ...remarks.map((remark) => make("p", { class: "hint" }, remark))),
    ),
  );
}

/** The closing line. */
function summary(): string {
  const time = seconds((performance.now() - startedAt) / 1000);
  const { passed, failed, notRun } = sum;
  const verdict = failed === 0 ? "This browser computes right" : "This browser computes wrongly";
  const rest = `${count(notRun)} not run, in ${time}.`;
  return `${verdict}: ${count(passed)} cases right, ${count(failed)} wrong, ${rest}`;
}

function received(event: ParityEvent): void {
  switch (event.kind) {
    case "opened":
      opened(event.device, event.ops);
      break;
    case "begun":
      begun(event.op);
      break;
    case "result":
      finished(event.op, event.result, event.seconds);
      break;
    case "end":
      end(summary());
      break;
    case "failed":
      end(`Stopped: ${event.message}`);
      break;
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  Object.assign(sum, { passed: 0, failed: 0, notRun: 0, ops: 0 });
  rows.replaceChildren();
  bar.value = 0;
  what.textContent = "Opening the graphics device";
  figures.textContent = "";
  said.textContent = "";
  startedAt = performance.now();
  running(true);
  worker = new Worker(new URL("./parity-worker.ts", import.meta.url), { type: "module" });
  worker.addEventListener("message", ({ data }: MessageEvent<ParityEvent>) => {
    received(data);
  });
  worker.addEventListener("error", ({ message }) => {
    end(`Stopped: ${message === "" ? "the worker could not be loaded" : message}`);
  });
  const request: ParityRequest = {
    every: Number(every.value),
    tier: tier.value === "" ? null : tier.value,
  };
  worker.postMessage(request);
});

stop.addEventListener("click", () => {
  end(`Stopped after ${sum.ops} of ${ops.length} operations.`);
});

running(false);
