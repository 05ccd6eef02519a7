// The form that chooses a model and a context, where the engine is in this browser.

import type { ModelSource } from "../protocol";
import { byId, make } from "./dom";
import { count } from "./format";

const CONTEXTS = [2048, 4096, 8192, 16384, 32768, 65536, 131072];
const DEFAULT_CONTEXT = 8192;

export interface ModelWish {
  source: ModelSource;
  contextTokens: number;
}

export class ModelChoice {
  private readonly form = byId("model-form", HTMLFormElement);
  private readonly url = byId("model-url", HTMLInputElement);
  private readonly files = byId("model-files", HTMLInputElement);
  private readonly gguf = byId("model-gguf", HTMLInputElement);
  private readonly context = byId("context", HTMLSelectElement);

  constructor(load: (wish: ModelWish) => void) {
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

  open(): void {
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
}
