// The model's chooser, and the progress of loading it.

import type { Event, LoadedModel, ModelSource } from "../protocol";
import { byId, make } from "./dom";
import { bytes, count } from "./format";

const CONTEXTS = [2048, 4096, 8192, 16384, 32768, 65536, 131072];
const DEFAULT_CONTEXT = 8192;

export interface ModelWish {
  source: ModelSource;
  contextTokens: number;
}

export class ModelPanel {
  private readonly line = byId("model-line", HTMLElement);
  private readonly progress = byId("model-progress", HTMLElement);
  private readonly what = byId("model-what", HTMLElement);
  private readonly bar = byId("model-bar", HTMLProgressElement);
  private readonly figures = byId("model-figures", HTMLElement);
  private readonly form = byId("model-form", HTMLFormElement);
  private readonly url = byId("model-url", HTMLInputElement);
  private readonly files = byId("model-files", HTMLInputElement);
  private readonly gguf = byId("model-gguf", HTMLInputElement);
  private readonly context = byId("context", HTMLSelectElement);
  private startedAt = 0;
  private startedFrom = 0;
  private file = "";

  constructor(load: (wish: ModelWish) => void, stop: () => void) {
    // A folder as a whole, where the browser can; its files one by one where it cannot.
    this.files.webkitdirectory = matchMedia("(pointer: fine)").matches;
    this.context.append(...CONTEXTS.map((n) => make("option", { value: String(n) }, count(n))));
    this.context.value = String(DEFAULT_CONTEXT);
    this.url.addEventListener("focus", () => {
      this.choose("url");
    });
    this.files.addEventListener("change", () => {
      this.choose("files");
    });
    this.gguf.addEventListener("change", () => {
      this.choose("gguf");
    });
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      const wish = this.wish();
      if (wish !== null) load(wish);
    });
    byId("model-stop", HTMLButtonElement).addEventListener("click", stop);
  }

  get contextTokens(): number {
    return Number(this.context.value);
  }

  /** Chooses the least context that holds `tokens`; false if none does. */
  enlarge(tokens: number): boolean {
    const enough = CONTEXTS.find((n) => n >= tokens);
    if (enough === undefined) return false;
    this.context.value = String(enough);
    return true;
  }

  loading(label: string): void {
    this.line.textContent = `Loading ${label}`;
    this.file = "";
    this.progress.hidden = false;
    this.bar.removeAttribute("value");
    this.what.textContent = "Looking for its files";
    this.figures.textContent = "";
  }

  event(event: Event): void {
    if (event.event === "download") {
      this.measure(event.file, event.resumed);
      const { done, total, resumed } = event;
      const kept = resumed > 0 ? ` (${bytes(resumed)} were already here)` : "";
      this.show(`Downloading ${event.file}${kept}`, done, total, this.speed(done));
    } else if (event.event === "check") {
      this.show(`Checking ${event.file} (sha-256)`, event.done, event.total, "");
    } else if (event.event === "weights") {
      this.show("Loading weights onto the device", event.done, event.total, "");
    }
  }

  loaded(model: LoadedModel): void {
    this.progress.hidden = true;
    this.line.replaceChildren(
      make("b", {}, model.label),
      `: ${model.layers} layers, ${model.kvHeads} KV heads, ${bytes(model.weightBytes)} of ` +
        `weights in ${model.weightType}, context ${count(model.contextTokens)} tokens. `,
      make("span", { class: "hint" }, model.checked),
    );
  }

  failed(): void {
    this.progress.hidden = true;
    this.line.textContent = "No model is loaded.";
    byId("model-choice", HTMLDetailsElement).open = true;
  }

  setBusy(busy: boolean): void {
    byId("model-load", HTMLButtonElement).disabled = busy;
  }

  private wish(): ModelWish | null {
    const kind = new FormData(this.form).get("source");
    if (kind === "url") {
      this.url.setCustomValidity(this.url.value === "" ? "Type the address of a folder." : "");
      if (!this.url.reportValidity()) return null;
      return { source: { kind: "url", url: this.url.value }, contextTokens: this.contextTokens };
    }
    if (kind === "files") return this.picked(this.files, "Pick the files of a folder.");
    if (kind === "gguf") return this.picked(this.gguf, "Pick a .gguf file.");
    return { source: { kind: "embedded" }, contextTokens: this.contextTokens };
  }

  private picked(input: HTMLInputElement, missing: string): ModelWish | null {
    const files = [...(input.files ?? [])];
    input.setCustomValidity(files.length === 0 ? missing : "");
    if (!input.reportValidity()) return null;
    return { source: { kind: "files", files }, contextTokens: this.contextTokens };
  }

  private choose(kind: string): void {
    for (const input of [this.url, this.files, this.gguf]) input.setCustomValidity("");
    const radio = this.form.querySelector<HTMLInputElement>(`input[value="${kind}"]`);
    if (radio !== null) radio.checked = true;
  }

  private measure(file: string, resumed: number): void {
    // A download that cannot be resumed starts again.
    if (file === this.file && resumed === this.startedFrom) return;
    this.file = file;
    this.startedAt = performance.now();
    this.startedFrom = resumed;
  }

  private speed(done: number): string {
    const elapsed = (performance.now() - this.startedAt) / 1000;
    return elapsed > 0.5 ? `, ${bytes((done - this.startedFrom) / elapsed)}/s` : "";
  }

  private show(what: string, done: number, total: number | null, more: string): void {
    this.what.textContent = what;
    if (total === null) {
      this.bar.removeAttribute("value");
      this.figures.textContent = `${bytes(done)}${more}`;
      return;
    }
    this.bar.value = total > 0 ? Math.min(1, done / total) : 1;
    this.figures.textContent = `${bytes(done)} of ${bytes(total)}${more}`;
  }
}
