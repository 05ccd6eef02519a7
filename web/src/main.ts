// The page: what is open, what runs now, and what follows from it.

import type { Device, Policy, PrefillEnd } from "./engine";
import { AskPanel, type Asked } from "./page/ask";
import { connect } from "#client";

import { RequestError } from "./page/client";
import { DocumentPanel } from "./page/document";
import { byId, find, make } from "./page/dom";
import { bytes, count } from "./page/format";
import { MapPanel } from "./page/map";
import { History } from "./page/history";
import { KeyPanel } from "./page/key";
import { lastOpen, setLastOpen } from "./page/last-open";
import { MemoryPanel } from "./page/memory";
import { ModelPanel } from "./page/model";
import { ModelChoice, type ModelWish } from "./page/model-choice";
import { type Action, Notices } from "./page/notices";
import { SavedPanel } from "./page/saved";
import type { Event, LoadedModel, ModelSource, SavedDocument, SavedModel } from "./protocol";

type Task = "opening" | "loading" | "reading" | "asking" | "storing";

interface OpenDocument {
  title: string;
  text: string;
  policy: Policy;
  tokens: number;
  complete: boolean;
  /** Where it is saved. */
  id: string | null;
}

class App {
  private readonly notices = new Notices(byId("notices", HTMLElement));
  private readonly client = connect((code, message, done) => {
    this.notices.worker(code, message);
    if (code === "device-lost" && done) void this.refreshMemory();
  });
  private readonly map = new MapPanel();
  private readonly memory = new MemoryPanel((bytes) => void this.limit(bytes));
  /** Where the engine is not in this browser. */
  private readonly server = this.client.server;
  private readonly keys =
    this.server &&
    new KeyPanel((key) => {
      // What runs is of the key before.
      this.client.stop();
      this.begin(() => this.unlock(key));
    });
  private readonly models = new ModelPanel(() => {
    this.client.stop();
  });
  private readonly choice =
    this.server === undefined
      ? new ModelChoice((wish) => {
          this.begin(() => this.loadModel(wish, false));
        })
      : null;
  private readonly documents = new DocumentPanel({
    read: (text, title) => {
      this.begin(() => this.read(text, title));
    },
    continue: () => {
      this.begin(() => this.continue());
    },
    stop: () => {
      this.client.stop();
    },
    another: () => {
      this.another();
    },
    changed: (text) => {
      this.countSoon(text);
      // Without a text there may be a question without a document.
      if (this.server !== undefined) this.refresh();
    },
    failed: (error) => {
      this.notices.error(error);
      this.notices.reveal();
    },
    taking: () => {
      this.notices.clear("bad-file", "told", "context-too-long");
    },
    told: (title, text) => {
      this.notices.info("told", title, text);
    },
    ...(this.server && {
      readFile: (file: File) => {
        this.begin(() => this.readFile(file));
      },
    }),
  });
  private readonly asking = new AskPanel(this.client, this.documents, this.map, (again) => {
    this.begin(() => this.ask(again));
  });
  private readonly saved = new SavedPanel({
    openDocument: ({ id }) => {
      this.begin(() => this.openDocument(id));
    },
    deleteDocument: ({ id }) => {
      this.begin(() => this.deleteDocument(id));
    },
    loadModel: (model) => {
      this.begin(() => this.loadSaved(model));
    },
    deleteModel: (model) => {
      this.begin(() => this.deleteModel(model));
    },
    ...(this.server && {
      pinDocument: ({ id, pinned }: SavedDocument) => {
        this.begin(() => this.pinDocument(id, pinned !== true));
      },
    }),
  });
  private task: Task | null = null;
  /** What was begun and has not ended. */
  private waiting = 0;
  private last: Promise<unknown> = Promise.resolve();
  private device: Device | null = null;
  private model: LoadedModel | null = null;
  private source: ModelSource = { kind: "embedded" };
  private document: OpenDocument | null = null;
  private counting = 0;
  private history: History | null = null;
  /** What the tab had open, until that is open again or is not to be; then undefined. */
  private before: string | null | undefined = lastOpen();

  constructor() {
    // Others read and delete documents of the server meanwhile.
    window.addEventListener("focus", () => {
      this.listAnew();
    });
    find("lose", HTMLButtonElement)?.addEventListener("click", () => {
      this.client.loseDevice();
    });
    this.refresh();
  }

  /** Shows what a server has by now, unless that is done anyway. */
  private listAnew(): void {
    if (this.server === undefined || this.device === null || this.isBusy) return;
    void this.refreshStorage().then(() => {
      this.refresh();
    });
  }

  /** Opens the device and loads the embedded model. */
  open(): void {
    this.begin(() => this.start());
  }

  /**
   * Runs what the visitor asked for, after what was asked before it. The page is at rest when all
   * that follows from it has ended: a document that was read is also saved by then.
   */
  private begin(work: () => Promise<unknown>): void {
    this.waiting += 1;
    this.last = this.last
      .then(work)
      .catch((error: unknown) => {
        this.notices.error(error);
      })
      .finally(() => {
        this.waiting -= 1;
        this.refresh();
      });
  }

  /** What the visitor chose; a server has its own. */
  private get contextTokens(): number {
    return this.choice?.contextTokens ?? 0;
  }

  private get isBusy(): boolean {
    return this.waiting > 0;
  }

  private async start(adapter: "default" | "software" = "default"): Promise<void> {
    this.notices.clear("no-webgpu", "no-adapter");
    const line = byId("model-line", HTMLElement);
    const onEvent = (event: Event): void => {
      if (event.event === "notice") line.textContent = event.message;
    };
    const open = (): Promise<Device> => {
      if (this.server !== undefined || "gpu" in navigator) {
        return this.client.call("open", { adapter }, onEvent);
      }
      const text = "This browser has no WebGPU, or does not offer it to this page.";
      return Promise.reject(new RequestError("no-webgpu", text));
    };
    const device = await this.during("opening", open, {
      "no-adapter": {
        text: "Try the software adapter",
        act: () => {
          this.begin(() => this.start("software"));
        },
      },
      unreachable: {
        text: "Try again",
        act: () => {
          this.begin(() => this.start());
        },
      },
    });
    if (device === null) {
      line.textContent =
        this.server === undefined ? "Nothing can be computed here." : "The server is not open yet.";
      if (this.server === undefined) await this.refreshStorage();
      return;
    }
    await this.refreshStorage();
    this.device = device;
    this.showDevice(device);
    await this.loadModel(
      { source: { kind: "embedded" }, contextTokens: this.contextTokens },
      false,
    );
  }

  /** Begins anew with a key of the server; with another one, without what was of the key before. */
  private async unlock(key: string): Promise<void> {
    const { server } = this;
    if (server === undefined) return;
    if (server.hasKey()) {
      this.another();
      this.device = this.model = null;
      this.saved.clear();
    }
    server.unlock(key);
    // Whoever had another key has asked them.
    new History(() => sessionStorage, "").forgetAll();
    this.before = null;
    setLastOpen(null);
    this.notices.clear("unauthorized");
    await this.start();
  }

  /** Runs a task alone; its failure becomes a message with the action for its code. */
  private async during<T>(
    task: Task,
    work: () => Promise<T>,
    actions: Partial<Record<string, Action>> = {},
  ): Promise<T | null> {
    this.task = task;
    this.refresh();
    try {
      const result = await work();
      // It answers again.
      this.notices.clear("unreachable", "busy");
      return result;
    } catch (error) {
      const code = error instanceof RequestError ? error.code : null;
      const action = code === null ? undefined : actions[code];
      if (code === "unauthorized") this.keys?.ask();
      this.notices.error(error, ...(action === undefined ? [] : [action]));
      // A question has the reason below it.
      if (task !== "asking") this.notices.reveal();
      if (code === "gone" && task === "asking") await this.lost();
      return null;
    } finally {
      this.task = null;
      this.refresh();
    }
  }

  /** True if it is loaded now. */
  private async loadModel(wish: ModelWish, fresh: boolean): Promise<boolean> {
    const label = wish.source.kind === "url" ? wish.source.url : `${wish.source.kind} model`;
    this.notices.clear("bad-model", "corrupt-cache", "network", "context-too-long");
    // The document stays: it comes back with the model, also if only a later load succeeds.
    this.model = null;
    this.models.loading(label);
    const onEvent = (event: Event): void => {
      this.models.event(event);
    };
    const model = await this.during(
      "loading",
      () => this.client.call("loadModel", { ...wish, fresh }, onEvent),
      {
        "corrupt-cache": {
          text: "Delete it and download again",
          act: () => {
            this.begin(() => this.loadModel(wish, true));
          },
        },
        network: {
          text: "Try again",
          act: () => {
            this.begin(() => this.loadModel(wish, false));
          },
        },
      },
    );
    if (model === null) {
      this.models.failed();
      this.choice?.open();
      this.asking.setDocument(null);
      await this.refreshStorage();
      return false;
    }
    const open = this.document;
    this.document = null;
    this.model = model;
    this.source = wish.source;
    this.models.loaded(model);
    this.map.setModel(model.layers, model.kvHeads);
    this.asking.setModel(model);
    this.keepQuestions(model);
    this.refresh();
    await this.limit(this.memory.limit);
    await this.refreshStorage();
    await this.refreshMemory();
    await this.reopen(open);
    return true;
  }

  /** Bounds what the device holds; null is no bound. */
  private async limit(bytes: number | null): Promise<void> {
    if (this.model === null) return;
    // Beside what runs: the slider keeps the keyboard's focus.
    await this.client.call("limitDevice", { bytes }).catch((error: unknown) => {
      this.notices.error(error);
    });
  }

  /** What the tab had open before it was loaded anew. */
  private async comeBack(id: string): Promise<boolean> {
    const storage = await this.client.call("storage", {}).catch(() => null);
    if (storage === null) return false;
    const found = storage.documents.find((document) => document.id === id);
    if (found === undefined) {
      const where =
        this.server === undefined
          ? "This browser has stored it no more: it was deleted, or was in memory alone."
          : "It was deleted, here or elsewhere, or had to make room for others.";
      const text = `${where} What there is stands in the list below.`;
      this.notices.info("gone", "The document that was open is not there any more", text);
      return false;
    }
    // The model of the visit before may be another one: it says so in the list.
    if (found.fingerprint !== this.model?.fingerprint || found.closed !== undefined) return false;
    // What brings down an engine in this tab does not do so at every reload.
    if (this.server === undefined) setLastOpen(null);
    return this.openDocument(id);
  }

  /** The document that was open before the model, or the tab, was loaded anew. */
  private async reopen(open: OpenDocument | null): Promise<void> {
    const { before } = this;
    const isBack = open === null && typeof before === "string" && (await this.comeBack(before));
    this.before = undefined;
    if (isBack) return;
    if (open === null) {
      this.countSoon(byId("text", HTMLTextAreaElement).value);
      return;
    }
    this.asking.setDocument(null);
    if (open.id === null || !(await this.openDocument(open.id))) {
      this.documents.edit(open.text, open.title);
    }
  }

  private async read(text: string, title: string): Promise<void> {
    const { policy } = this.asking.policies;
    this.notices.clear("context-too-long", "quota", "bad-input", "bad-file", "gone");
    this.document = null;
    this.documents.reading(text, title);
    this.map.clear();
    this.asking.setDocument(null);
    const longer: Action = {
      text: "Choose a longer context and read it",
      act: () => {
        this.begin(() => this.readLonger(text, title));
      },
    };
    const end = await this.during(
      "reading",
      () => this.client.call("readDocument", { text, title, policy }, this.prefillEvent),
      // A server's context is as long as it was started.
      this.server === undefined ? { "context-too-long": longer } : {},
    );
    if (end === null) {
      this.documents.edit(text, title);
      return;
    }
    const { tokens, complete, id } = end;
    this.document = { title, text, policy, tokens, complete, id: id ?? null };
    await this.afterReading(end);
  }

  /** A file of which the server makes text, and reads it. */
  private async readFile(file: File): Promise<void> {
    const { server } = this;
    if (server === undefined) return;
    const { policy } = this.asking.policies;
    const before = this.documents.written;
    this.notices.clear("context-too-long", "quota", "bad-input", "bad-file", "gone");
    this.document = null;
    this.documents.reading("", file.name);
    this.map.clear();
    this.asking.setDocument(null);
    const read = await this.during("reading", () => server.readFile(file, this.prefillEvent));
    if (read === null) {
      this.documents.edit(before.text, before.title);
      return;
    }
    const { title, text, end } = read;
    const { tokens, complete, id } = end;
    this.document = { title, text, policy, tokens, complete, id: id ?? null };
    this.documents.view.show(text);
    await this.afterReading(end);
  }

  private async pinDocument(id: string, pinned: boolean): Promise<void> {
    await this.during("storing", async () => this.server?.pin(id, pinned));
    await this.refreshStorage();
  }

  private async readLonger(text: string, title: string): Promise<void> {
    const tokens = await this.during("storing", () => this.client.call("countTokens", { text }));
    // Room for a question and its answer.
    if (tokens === null || this.choice?.enlarge(tokens + 512) !== true) {
      this.notices.info("context-too-long", "Too long", "No context of this page holds it.");
      return;
    }
    this.document = null;
    const wish = { source: this.source, contextTokens: this.contextTokens };
    if (await this.loadModel(wish, false)) await this.read(text, title);
    else this.documents.edit(text, title);
  }

  private async continue(): Promise<void> {
    const { document } = this;
    if (document === null) return;
    this.documents.reading(document.text, document.title);
    const end = await this.during("reading", () =>
      this.client.call("continueDocument", {}, this.prefillEvent),
    );
    if (end === null) {
      this.documents.edit(document.text, document.title);
      this.document = null;
      return;
    }
    Object.assign(document, { tokens: end.tokens, complete: end.complete });
    await this.afterReading(end);
  }

  private readonly prefillEvent = (event: Event): void => {
    if (event.event === "prefill") this.documents.progress(event);
  };

  private async afterReading(end: PrefillEnd): Promise<void> {
    const { document } = this;
    if (document === null) return;
    this.documents.done(document, end, end.seconds);
    this.asking.setDocument(document.text, document.id);
    await this.refreshMemory();
    if (end.id !== undefined) {
      await this.refreshStorage();
      if (!end.complete) this.listSoon();
    } else if (this.documents.keep && end.tokens > 0) await this.save(document);
    this.refresh();
  }

  /** A server writes what was read of a stopped document when the page has let go of it. */
  private listSoon(): void {
    window.setTimeout(() => {
      this.listAnew();
    }, 1500);
  }

  private async save(document: OpenDocument): Promise<void> {
    const saved = await this.during("storing", () => this.client.call("saveDocument", {}));
    if (saved === null) return;
    document.id = saved.id;
    this.documents.saved(
      saved.onDisk
        ? `Saved (${bytes(saved.bytes)}): opens after a reload without reading`
        : "In memory only",
    );
    await this.refreshStorage();
  }

  /** True if it is open now. */
  private async openDocument(id: string): Promise<boolean> {
    this.notices.clear("bad-session", "wrong-model", "gone", "bad-file", "context-too-long");
    const fromList = byId("saved", HTMLElement).contains(document.activeElement);
    const again: Action = {
      text: "Read its text again",
      act: () => {
        this.begin(() => this.readAgain(id));
      },
    };
    const opened = await this.during("storing", () => this.client.call("openDocument", { id }), {
      "bad-session": again,
      "context-too-long": again,
    });
    if (opened === null) {
      await this.refreshStorage();
      return false;
    }
    this.document = opened;
    this.documents.done(opened, opened, null);
    if (fromList) byId("view", HTMLElement).focus();
    this.asking.policies.policy = opened.policy;
    this.asking.setDocument(opened.text, opened.id);
    this.map.clear();
    await this.refreshMemory();
    this.refresh();
    return true;
  }

  /** Deletes the damaged session, which the visitor just agreed to, and reads its text. */
  private async readAgain(id: string): Promise<void> {
    const kept = await this.during("storing", () => this.client.call("documentText", { id }));
    if (kept === null) return;
    await this.deleteDocument(id);
    await this.read(kept.text, kept.title);
  }

  private async deleteDocument(id: string): Promise<void> {
    await this.during("storing", () => this.client.call("deleteDocument", { id }));
    if (this.document?.id === id) {
      // An engine in the browser has it in memory all the same.
      this.document.id = null;
      this.asking.keepNoMore();
      if (this.server !== undefined) await this.lost();
    }
    this.history?.forget(id);
    this.showQuestions();
    await this.refreshStorage();
  }

  /** The server has the open document no more. Its text is here, and may be read again. */
  private async lost(): Promise<void> {
    const { document } = this;
    if (document !== null) {
      this.document = null;
      this.asking.keepNoMore();
      this.documents.edit(document.text, document.title);
    }
    await this.refreshStorage();
  }

  private async loadSaved({ url }: SavedModel): Promise<void> {
    const source: ModelSource = url === "embedded" ? { kind: url } : { kind: "url", url };
    await this.loadModel({ source, contextTokens: this.contextTokens }, false);
  }

  private async deleteModel({ id }: SavedModel): Promise<void> {
    await this.during("storing", () => this.client.call("deleteModel", { id }));
    await this.refreshStorage();
  }

  private another(): void {
    this.document = null;
    this.documents.edit("");
    this.asking.setDocument(null);
    this.map.clear();
    this.refresh();
  }

  private async ask(again: Asked | null): Promise<void> {
    this.notices.clear("device-lost", "bad-input", "context-too-long", "gone");
    if (this.document === null) this.server?.close();
    await this.during("asking", () => this.asking.ask(again));
    this.showQuestions();
    await this.refreshMemory();
    // What a question went on from was read for it.
    if (this.server !== undefined && this.document !== null) this.document.complete = true;
  }

  /**
   * Questions about a server's documents are kept in this browser; with a key, which this tab alone
   * has, in this tab. An engine in the browser keeps none.
   */
  private keepQuestions(model: LoadedModel): void {
    const { server } = this;
    if (server === undefined) return;
    const storage = server.hasKey() ? () => sessionStorage : () => localStorage;
    this.history = new History(storage, model.name);
    this.asking.setHistory(this.history);
    this.showQuestions();
  }

  private showQuestions(): void {
    const { history, server } = this;
    if (history === null) return;
    const where = server?.hasKey() === true ? "tab until it is closed" : "browser";
    const line = history.keeps
      ? `Those about documents are kept in this ${where}, and shown when the document is opened.`
      : "This browser stores nothing: they are gone after a reload.";
    this.saved.showQuestions(line, history.isEmpty, () => {
      history.forgetAll();
      this.asking.forget();
      this.showQuestions();
    });
  }

  private countSoon(text: string): void {
    clearTimeout(this.counting);
    this.documents.tokens = "";
    if (text.trim() === "") return;
    this.counting = window.setTimeout(() => {
      const { model } = this;
      if (model === null || this.isBusy || this.document !== null) return;
      const show = (tokens: number): void => {
        const over = tokens > model.contextTokens ? ", too long for the context" : "";
        this.documents.tokens = `${count(tokens)} tokens of ${count(model.contextTokens)}${over}`;
      };
      const fail = (error: unknown): void => {
        // Anything else is not worth a message: reading will say what is wrong.
        if (!(error instanceof RequestError) || error.code !== "context-too-long") return;
        const room = count(model.contextTokens);
        this.documents.tokens = `More than the context of ${room} tokens holds`;
      };
      this.client.call("countTokens", { text }).then(show, fail);
    }, 400);
  }

  private async refreshMemory(): Promise<void> {
    // The figures of the last time stay if they cannot be had.
    const memory = await this.client.call("memory", {}).catch(() => null);
    if (memory !== null) this.memory.show(memory);
  }

  private async refreshStorage(): Promise<void> {
    const storage = await this.client.call("storage", {}).catch(() => null);
    if (storage === null) return;
    const blocked = this.isBusy || this.device === null;
    if (this.server !== undefined)
      this.saved.showServer(storage, storage.quota >= 0, this.server.needsKey());
    else this.saved.show(storage, this.model?.fingerprint ?? null, blocked);
  }

  private refresh(): void {
    const busy = this.isBusy;
    const blocked = busy || this.device === null;
    this.choice?.setBusy(blocked);
    this.documents.setBusy(busy, this.model !== null);
    this.saved.setBusy(blocked);
    this.asking.setState(this.whyNot(), this.task === "asking");
    const lose = find("lose", HTMLButtonElement);
    if (lose !== null) lose.disabled = this.device === null;
    if (this.keys !== undefined) {
      this.keys.isInUse = this.device !== null && this.server?.hasKey() === true;
    }
    if (this.before === undefined) setLastOpen(this.document?.id ?? null);
    document.body.dataset["task"] = this.task ?? (busy ? "next" : "none");
  }

  private whyNot(): string {
    if (this.task === "opening" || this.task === "loading") return "The model is being loaded.";
    if (this.task === "reading") return "The document is being read.";
    const isServer = this.server !== undefined;
    if (this.device === null) {
      return isServer ? "The server is not open yet." : "There is no graphics device.";
    }
    if (this.model === null) return isServer ? "One moment." : "Load a model first.";
    // A server's model answers without a document too.
    const isAlone = isServer && byId("text", HTMLTextAreaElement).value.trim() === "";
    if (this.document === null && isAlone) return this.isBusy ? "One moment." : "";
    if (this.document === null) return "Read a document first.";
    if (this.document.tokens === 0) return "Nothing of the document is read yet.";
    return this.isBusy ? "One moment." : "";
  }

  private showDevice(device: Device): void {
    const badge = (text: string, kind = ""): HTMLElement =>
      make("span", { class: `badge ${kind}` }, text);
    if (this.server !== undefined) {
      byId("device", HTMLElement).replaceChildren(badge(device.adapter));
      return;
    }
    byId("device", HTMLElement).replaceChildren(
      badge(device.adapter),
      badge(`shader level ${device.tier}`),
      ...(device.isSoftware ? [badge("software, slow", "warn")] : []),
    );
    if (device.isSoftware) this.notices.software();
    const facts: [string, string][] = [
      ["Adapter", device.adapter],
      ["Shader level", device.tier],
      ["Largest buffer", bytes(device.maxBufferBytes)],
      ["Browser", navigator.userAgent],
    ];
    byId("diagnostics", HTMLElement).replaceChildren(
      ...facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]),
    );
  }
}

new App().open();
