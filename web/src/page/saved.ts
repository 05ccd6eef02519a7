// What this browser stores: documents that open without prefill, and models.

import type { SavedDocument, SavedModel, Storage } from "../protocol";
import { button, byId, find, make } from "./dom";
import { bytes, count, when } from "./format";
import { askFirst } from "./sure";

export interface SavedActions {
  openDocument(document: SavedDocument): void;
  deleteDocument(document: SavedDocument): void;
  loadModel(model: SavedModel): void;
  deleteModel(model: SavedModel): void;
  /** Where the engine can keep a document from being dropped. */
  pinDocument?: (document: SavedDocument) => void;
}

export class SavedPanel {
  private readonly lists = byId("saved-lists", HTMLElement);
  private readonly line = byId("storage-line", HTMLElement);
  private readonly questions = make("span", { class: "hint" });
  private forgetButton: HTMLButtonElement | null = null;
  private forget = (): void => undefined;
  /** Where the keyboard was in a list when what was pressed there began. */
  private place: { label: string; row: number } | null = null;

  constructor(private readonly actions: SavedActions) {
    this.lists.addEventListener("click", ({ target }) => {
      this.place = target instanceof HTMLElement ? this.placeOf(target) : null;
    });
    const persist = find("persist", HTMLButtonElement);
    if (persist === null) return;
    // Insecure addresses have no storage.
    persist.hidden = !("storage" in navigator);
    persist.addEventListener("click", () => {
      void this.persist(persist);
    });
  }

  /** Questions that this browser keeps beside what the server does; `forget` deletes them. */
  showQuestions(line: string, isEmpty: boolean, forget: () => void): void {
    const host = find("history", HTMLElement);
    if (host === null) return;
    if (this.forgetButton === null) {
      const forget = (): void => {
        this.forget();
      };
      this.forgetButton = this.dropButton("kept questions", forget, "Delete kept questions");
      host.append(this.questions, this.forgetButton);
    }
    this.forget = forget;
    this.questions.textContent = line;
    this.forgetButton.hidden = isEmpty;
  }

  /** What a server keeps: documents alone. */
  showServer(storage: Storage, hasLibrary: boolean, needsKey: boolean): void {
    const { usage, quota, documents } = storage;
    const of = quota > 0 ? ` of ${bytes(quota)}` : "";
    const who = needsKey
      ? "Whoever asks with your key, or one of the same name, sees these."
      : "Whoever may ask this server sees these.";
    this.line.textContent = hasLibrary
      ? `${who} ${bytes(usage)}${of} are used.`
      : "This server was started with --no-library: it reads and keeps no documents.";
    const rows = documents.map((document) => this.document(document, document.fingerprint));
    const none = "No document is kept yet. What is read is kept here.";
    this.place ??= this.placeOf(document.activeElement);
    this.lists.replaceChildren(...(hasLibrary ? section("Documents", rows, none) : []));
  }

  /** Shows nothing: what there is, is somebody else's. */
  clear(): void {
    this.line.textContent = "";
    this.lists.replaceChildren();
  }

  /** `fingerprint` is that of the loaded model; nothing can be opened while `busy`. */
  show(storage: Storage, fingerprint: string | null, busy: boolean): void {
    this.line.textContent =
      storage.quota > 0
        ? `${bytes(storage.usage)} of ${bytes(storage.quota)} that the browser grants are used.`
        : "The browser grants this page no storage; what is kept is gone when the page is left.";
    const documents = storage.documents.map((document) => this.document(document, fingerprint));
    const models = storage.models.map((model) => this.model(model));
    this.lists.replaceChildren(
      ...section("Documents", documents, "No document is saved yet. What is read is kept here."),
      ...section("Models", models, "No model is stored yet."),
    );
    this.setBusy(busy);
  }

  setBusy(busy: boolean): void {
    for (const button of this.lists.querySelectorAll("button")) {
      button.disabled = busy || button.hasAttribute("data-never");
    }
    if (busy || this.place === null) return;
    if (document.activeElement === document.body) this.comeBack(this.place);
    this.place = null;
  }

  private placeOf(element: Element | null): typeof this.place {
    const row = element?.closest("#saved-lists li") ?? null;
    if (element === null || row === null) return null;
    const rows = [...this.lists.querySelectorAll("li")];
    return {
      label: element.getAttribute("aria-label") ?? "",
      row: rows.findIndex((r) => r === row),
    };
  }

  /** Lists are made anew: the keyboard goes to the same button, else to the row that came there. */
  private comeBack({ label, row }: { label: string; row: number }): void {
    const buttons = [...this.lists.querySelectorAll("button")];
    const same = buttons.find((button) => button.getAttribute("aria-label") === label);
    const rows = [...this.lists.querySelectorAll("li")];
    const near = rows[Math.min(row, rows.length - 1)]?.querySelector("button");
    (same ?? near ?? byId("saved-title", HTMLElement)).focus({ preventScroll: true });
  }

  private document(document: SavedDocument, fingerprint: string | null): HTMLElement {
    const { title, tokens, total, complete, model, policy, pinned } = document;
    const part = total > 0 ? `${count(tokens)} of ${count(total)} tokens` : "not read yet";
    const read = complete ? `${count(tokens)} tokens` : part;
    const where = document.onDisk ? "" : ", in memory only";
    const size = `${bytes(document.bytes)}${where}`;
    const facts = `${read}, ${policy.preset}, ${size}, ${when(document.savedAt)}`;
    const open = button("Open", () => {
      this.actions.openDocument(document);
    });
    open.setAttribute("aria-label", `Open ${title}`);
    const fits = document.fingerprint === fingerprint;
    if (!fits) open.setAttribute("data-never", "");
    if (document.closed !== undefined) open.setAttribute("data-never", "");
    const why = document.closed ?? (fits ? "" : `Needs the model ${model}.`);
    const hint = why === "" ? [] : [make("span", { class: "hint" }, why)];
    const pin = this.pinButton(document, pinned);
    const drop = this.dropButton(title, () => {
      this.actions.deleteDocument(document);
    });
    return row(title, facts, [...hint, open, ...pin, drop]);
  }

  private pinButton(document: SavedDocument, pinned: boolean | undefined): HTMLButtonElement[] {
    const act = this.actions.pinDocument;
    if (act === undefined || pinned === undefined) return [];
    const pin = button(pinned ? "Pinned" : "Pin", () => {
      act(document);
    });
    pin.className = "quiet";
    pin.setAttribute("aria-pressed", String(pinned));
    pin.setAttribute("aria-label", `Pin ${document.title}`);
    pin.title = "What is pinned stays when the server needs room";
    return [pin];
  }

  private model(model: SavedModel): HTMLElement {
    const facts = bytes(model.bytes) + (model.complete ? "" : ", not complete");
    const load = button(model.complete ? "Load" : "Go on loading", () => {
      this.actions.loadModel(model);
    });
    load.setAttribute("aria-label", `Load ${model.label}`);
    const drop = this.dropButton(model.label, () => {
      this.actions.deleteModel(model);
    });
    return row(model.label, facts, [load, drop]);
  }

  private dropButton(name: string, act: () => void, text = "Delete"): HTMLButtonElement {
    const drop = make("button", { type: "button", class: "quiet" });
    const sure = { text: "Really delete?", label: `Really delete ${name}?` };
    askFirst(drop, { text, label: `Delete ${name}` }, sure, act);
    return drop;
  }

  private async persist(button: HTMLButtonElement): Promise<void> {
    const granted = await navigator.storage.persist();
    button.textContent = granted
      ? "The browser keeps it until you delete it"
      : "The browser may delete it when the disk is full";
    button.disabled = true;
  }
}

function section(title: string, rows: HTMLElement[], none: string): HTMLElement[] {
  const body =
    rows.length > 0 ? make("ul", { class: "rows" }, ...rows) : make("p", { class: "hint" }, none);
  return [make("h3", {}, title), body];
}

function row(title: string, facts: string, actions: HTMLElement[]): HTMLElement {
  const text = make("div", { class: "text" }, make("span", { class: "name" }, title));
  text.append(make("span", { class: "hint" }, facts));
  return make("li", {}, text, make("div", { class: "row" }, ...actions));
}
