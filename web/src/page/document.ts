// The document: pasted, dropped, opened or sampled; then read, and shown with marks.

import type { Passage, PrefillEnd, PrefillProgress } from "../engine";
import { RequestError } from "./client";
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
  /** A file came: what was said of the one before it is of no use any more. */
  taking(): void;
  /** What the visitor should know that is no fault. */
  told(title: string, text: string): void;
  /** Where the engine makes text of files itself. */
  readFile?(file: File): void;
}

/** Files that are text as they are, by their names. */
const PLAIN = /\.(txt|md|markdown|text|log|csv|json|tex|rst)$/i;

/**
 * Bytes of a file that goes into the form, where a server can read it without: browsers take half a
 * minute to lay out 5 MB in one line there.
 */
const MOST_IN_FORM = 1 << 20;

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
  private readonly heading = byId("document-name", HTMLElement);
  private readonly goOn = byId("continue", HTMLButtonElement);
  private readonly other = byId("another", HTMLButtonElement);
  private title = "";
  private busy = false;
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
      this.take(file.files);
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

  /** What is in the form. */
  get written(): { text: string; title: string } {
    return { text: this.text.value, title: this.title };
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

  reading(text: string, title: string): void {
    this.heading.textContent = title;
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
    // What is known already has no speed.
    const speed = tokensPerS > 0 ? `, ${rate(tokensPerS)} tokens/s, ${seconds(etaS)} left` : "";
    this.figures.textContent = `${count(done)} of ${count(total)} tokens${speed}`;
  }

  /** `took` is null for a document that came from storage. */
  done(
    { text, title }: { text: string; title: string },
    end: Omit<PrefillEnd, "seconds">,
    took: number | null,
  ): void {
    this.heading.textContent = title;
    this.reader.hidden = false;
    handOver(this.prefill, this.host);
    this.form.hidden = true;
    this.prefill.hidden = true;
    if (took === null) this.view.show(text);
    this.goOn.hidden = end.complete;
    if (end.total === 0) {
      this.line.textContent = "Nothing of it is read yet.";
      return;
    }
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
    this.busy = busy;
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

  /** The first of these files. */
  private take(files: FileList | null): void {
    const [file, ...more] = files ?? [];
    if (file === undefined) return;
    this.actions.taking();
    if (more.length > 0) {
      const left = more.map(({ name }) => name).join(", ");
      this.actions.told("One document at a time", `${file.name} is taken; not ${left}.`);
    }
    void this.open(file).catch((error: unknown) => {
      this.actions.failed(error);
    });
  }

  private async open(file: File): Promise<void> {
    const bytes = await file.arrayBuffer().catch(() => null);
    const knowsMore = this.actions.readFile !== undefined;
    if (bytes === null) {
      throw refused(file, "the browser cannot read it: it is a folder, or not there.");
    }
    if (bytes.byteLength === 0) throw refused(file, "it is empty.");
    const isForForm = PLAIN.test(file.name) && bytes.byteLength <= MOST_IN_FORM;
    const text = isForForm || !knowsMore ? decoded(bytes) : null;
    if (text !== null && text.trim() === "") throw refused(file, "there is no text in it.");
    if (text !== null) this.edit(text, file.name);
    // A server knows other kinds, and other codes of characters.
    else if (knowsMore) this.actions.readFile?.(file);
    else throw refused(file, "it is no text in UTF-8. Save it as plain text and open that.");
  }

  /** Files that fall beside the form, or beside a document, would take the page's place. */
  private acceptDrops(): void {
    const panel = byId("document", HTMLElement);
    const takes = (event: DragEvent): boolean => {
      const isFiles = event.dataTransfer?.types.includes("Files") === true;
      // The pickers of a model's files take files themselves.
      if (event.target instanceof HTMLInputElement && event.target.type === "file") return false;
      const isInside = event.target instanceof Node && panel.contains(event.target);
      return isFiles || (isInside && !this.form.hidden);
    };
    const over = (on: boolean) => (event: DragEvent) => {
      if (!takes(event)) return;
      event.preventDefault();
      panel.classList.toggle("dropping", on);
    };
    window.addEventListener("dragover", over(true));
    window.addEventListener("dragleave", over(false));
    window.addEventListener("drop", (event) => {
      if (!takes(event)) return;
      over(false)(event);
      const files = event.dataTransfer?.files ?? null;
      const text = event.dataTransfer?.getData("text/plain") ?? "";
      if (files === null || files.length === 0) {
        if (text !== "") this.edit(text);
      } else if (this.busy) {
        this.actions.told("One moment", "Drop it again when what runs now has ended.");
      } else {
        if (this.form.hidden) this.actions.another();
        this.take(files);
      }
    });
  }
}

function refused(file: File, why: string): RequestError {
  return new RequestError("bad-file", `${file.name}: ${why}`);
}

/** The text of a file in UTF-8; null where it is something else. */
function decoded(bytes: ArrayBuffer): string | null {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    return text.includes("\0") ? null : text;
  } catch {
    return null;
  }
}
