// The model that is loaded, and the progress of loading it.

import type { Event, LoadedModel } from "../protocol";
import { byId, make } from "./dom";
import { bytes, count } from "./format";

export class ModelPanel {
  private readonly line = byId("model-line", HTMLElement);
  private readonly progress = byId("model-progress", HTMLElement);
  private readonly what = byId("model-what", HTMLElement);
  private readonly bar = byId("model-bar", HTMLProgressElement);
  private readonly figures = byId("model-figures", HTMLElement);
  private startedAt = 0;
  private startedFrom = 0;
  private file = "";

  constructor(stop: () => void) {
    byId("model-stop", HTMLButtonElement).addEventListener("click", stop);
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
      `: ${model.layers} layers, ${model.kvHeads} KV heads, ${weights(model)}` +
        `context ${count(model.contextTokens)} tokens. `,
      make("span", { class: "hint" }, model.checked),
    );
  }

  failed(): void {
    this.progress.hidden = true;
    this.line.textContent = "No model is loaded.";
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

/** A server does not tell of its weights. */
function weights({ weightBytes, weightType }: LoadedModel): string {
  return weightBytes > 0 ? `${bytes(weightBytes)} of weights in ${weightType}, ` : "";
}
