// The document: pasted, dropped, opened or sampled; then read, and shown with marks.

import type { Passage, PrefillEnd, PrefillProgress } from "../engine";
import { byId, find, handOver } from "./dom";
import { count, rate, seconds } from "./format";
import { sampleDocument } from "./sample";
import { DocumentView } from "./view";

export interface DocumentActions {
  read(text: string, title: string): void;
  continue(): void;
  stop(): void;
  another(): void;
  /** The text changed; the page counts its tokens. */
  changed(text: string): void;
  failed(error: unknown): void;
  /** Where the engine makes text of files itself. */
  readFile?(file: File): void;
}

/** Files that are text as they are, by their names. */
const PLAIN = /\.(txt|md|markdown|text|log|csv|json|tex|rst)$/i;

/** Facts of a sample: one in about this many tokens. */
const TOKENS_PER_FACT = 160;

export class DocumentPanel {
  private readonly host = byId("view", HTMLElement);
  readonly view = new DocumentView(this.host);
  private readonly halt = byId("prefill-stop", HTMLButtonElement);
  private readonly form = byId("document-form", HTMLFormElement);
  private readonly text = byId("text", HTMLTextAreaElement);
  private readonly line = byId("document-line", HTMLElement);
  private readonly read = byId("read", HTMLButtonElement);
  private readonly prefill = byId("prefill", HTMLElement);
  private readonly bar = byId("prefill-bar", HTMLProgressElement);
  private readonly figures = byId("prefill-figures", HTMLElement);
  private readonly reader = byId("reader", HTMLElement);
  private readonly goOn = byId("continue", HTMLButtonElement);
  private readonly other = byId("another", HTMLButtonElement);
  private title = "";
  private seed = 1;

  constructor(private readonly actions: DocumentActions) {
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.text.value.trim() === "") return;
      actions.read(this.text.value, this.name());
    });
    this.text.addEventListener("input", () => {
      this.title = "";
      actions.changed(this.text.value);
    });
    byId("sample-write", HTMLButtonElement).addEventListener("click", () => {
      this.sample();
    });
    const file = byId("file", HTMLInputElement);
    file.addEventListener("change", () => {
      void this.open(file.files?.[0]);
      file.value = "";
    });
    this.halt.addEventListener("click", () => {
      actions.stop();
    });
    this.goOn.addEventListener("click", () => {
      actions.continue();
    });
    this.other.addEventListener("click", () => {
      actions.another();
    });
    this.acceptDrops();
    if (actions.readFile !== undefined) {
      this.text.placeholder =
        "Paste a long text, drop a file here (txt, md, html, pdf, docx), or take a sample.";
    }
  }

  get keep(): boolean {
    return find("keep", HTMLInputElement)?.checked ?? false;
  }

  set tokens(text: string) {
    this.line.textContent = text;
  }

  /** Shows the form with this text. */
  edit(text: string, title = ""): void {
    this.text.value = text;
    this.title = title;
    this.form.hidden = false;
    handOver(this.reader, this.text);
    handOver(this.prefill, this.text);
    this.reader.hidden = true;
    this.prefill.hidden = true;
    this.actions.changed(text);
  }

  reading(text: string): void {
    this.view.show(text);
    this.prefill.hidden = false;
    handOver(this.form, this.halt);
    handOver(this.reader, this.halt);
    this.form.hidden = true;
    this.reader.hidden = false;
    this.goOn.hidden = true;
    this.bar.removeAttribute("value");
    this.figures.textContent = "Preparing";
    this.line.textContent = "";
  }

  progress({ done, total, tokensPerS, etaS }: PrefillProgress): void {
    this.bar.value = total > 0 ? done / total : 0;
    if (done === total) {
      this.figures.textContent = `All ${count(total)} tokens are read; building the index`;
      return;
    }
    this.figures.textContent =
      `${count(done)} of ${count(total)} tokens, ${rate(tokensPerS)} tokens/s, ` +
      `${seconds(etaS)} left`;
  }

  /** `took` is null for a document that came from storage. */
  done(text: string, end: Omit<PrefillEnd, "seconds">, took: number | null): void {
    this.reader.hidden = false;
    handOver(this.prefill, this.host);
    this.form.hidden = true;
    this.prefill.hidden = true;
    if (took === null) this.view.show(text);
    this.goOn.hidden = end.complete;
    const tokens = end.complete
      ? `${count(end.tokens)} tokens`
      : `${count(end.tokens)} of ${count(end.total)} tokens, the rest is not read`;
    this.line.textContent =
      took === null ? `${tokens}, opened without reading` : `${tokens}, read in ${seconds(took)}`;
  }

  saved(text: string): void {
    this.line.append(`. ${text}`);
  }

  mark(passages: Passage[]): void {
    this.view.mark(passages);
  }

  setBusy(busy: boolean, hasModel: boolean): void {
    this.read.disabled = busy || !hasModel;
    this.goOn.disabled = busy || !hasModel;
    this.other.disabled = busy;
  }

  private sample(): void {
    const tokens = Number(byId("sample", HTMLSelectElement).value);
    const facts = Math.max(3, Math.min(24, Math.round(tokens / TOKENS_PER_FACT)));
    this.edit(
      sampleDocument(tokens, facts, this.seed),
      `Sample ${this.seed}, about ${count(tokens)} tokens`,
    );
    this.seed += 1;
  }

  private name(): string {
    if (this.title !== "") return this.title;
    const words = this.text.value.trim().replace(/\s+/g, " ");
    return words.length > 48 ? `${words.slice(0, 46)}…` : words;
  }

  private async open(file: File | undefined): Promise<void> {
    if (file === undefined) return;
    if (this.actions.readFile !== undefined && !PLAIN.test(file.name)) {
      this.actions.readFile(file);
      return;
    }
    try {
      const bytes = await file.arrayBuffer();
      this.edit(new TextDecoder("utf-8", { fatal: true }).decode(bytes), file.name);
    } catch (error) {
      const text = `${file.name} is not a text in UTF-8. Save it as plain text and open that.`;
      this.actions.failed(error instanceof TypeError ? new Error(text) : error);
    }
  }

  private acceptDrops(): void {
    const panel = byId("document", HTMLElement);
    const over = (on: boolean) => (event: DragEvent) => {
      if (this.form.hidden) return;
      event.preventDefault();
      panel.classList.toggle("dropping", on);
    };
    panel.addEventListener("dragover", over(true));
    panel.addEventListener("dragleave", over(false));
    panel.addEventListener("drop", (event) => {
      over(false)(event);
      if (this.form.hidden) return;
      const file = event.dataTransfer?.files[0];
      const text = event.dataTransfer?.getData("text/plain") ?? "";
      if (file !== undefined) void this.open(file);
      else if (text !== "") this.edit(text);
    });
  }
}
