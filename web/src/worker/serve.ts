// Runs the page's requests one after another on one engine.

import type {
  Bytes,
  Device,
  Engine,
  Policy,
  PrefillEnd,
  PrefillProgress,
  Runtime,
} from "../engine";
import type {
  Event,
  FromWorker,
  LoadedModel,
  Name,
  OpenedDocument,
  Params,
  Request,
  Result,
  Storage,
  ToWorker,
} from "../protocol";
import { DocumentStore } from "./documents";
import { asFailure, failure, isFailure } from "./failure";
import { root } from "./files";
import { ModelStore } from "./models";

/** Answers requests with the engine that `load` brings. Call once, at the start of a worker. */
export function serve(load: () => Promise<Engine>): void {
  const host = root().then((storage) => new Host(load, storage));
  let last: Promise<unknown> = host;
  self.addEventListener("message", ({ data }: MessageEvent<ToWorker>) => {
    if (data.name === "stop" || data.name === "loseDevice") {
      const { name } = data;
      void host.then((host) => {
        host[name]();
      });
      return;
    }
    last = last.then(async () => {
      await answer(await host, data);
    });
  });
}

async function answer(host: Host, request: Request): Promise<void> {
  const { id } = request;
  const send = (event: Event, transfer: Transferable[] = []): void => {
    post({ id, event }, transfer);
  };
  try {
    post({ id, result: await host.run(request.name, request.params, send) });
  } catch (error) {
    post({ id, failure: asFailure(error) });
  }
}

function post(message: FromWorker, transfer: Transferable[] = []): void {
  self.postMessage(message, { transfer });
}

const LOST =
  "The graphics device was lost (the driver restarted or the system took it). It is being opened " +
  "again, and the weights are loaded again.";
const RECOVERED =
  "The graphics device was lost and opened again. The document is still there; nothing has to be " +
  "read again.";

type Send = (event: Event, transfer?: Transferable[]) => void;
type Handlers = { [N in Name]: (params: Params<N>, send: Send) => Promise<Result<N>> };

/** What is read now. */
interface OpenDocument {
  title: string;
  text: string;
  policy: Policy;
  end: { tokens: number; total: number; complete: boolean };
}

class Host {
  private engine: Engine | null = null;
  private runtime: Runtime | null = null;
  private model: LoadedModel | null = null;
  private document: OpenDocument | null = null;
  /** Of the request that runs. */
  private stopping = new AbortController();
  /** The engine reads weights outside of a load: it opens a lost device again. */
  private isReread = false;
  private onReread: (() => void) | null = null;
  private readonly models: ModelStore;
  private readonly documents: DocumentStore;
  private readonly handlers: Handlers;

  constructor(
    private readonly load: () => Promise<Engine>,
    private readonly storage: FileSystemDirectoryHandle | null,
  ) {
    this.models = new ModelStore(storage);
    this.documents = new DocumentStore(storage);
    this.handlers = {
      open: (params, send) => this.open(params, send),
      loadModel: (params, send) => this.loadModel(params, send),
      limitDevice: ({ bytes }) => {
        this.ready().limitDeviceBytes(bytes ?? undefined);
        return Promise.resolve(null);
      },
      countTokens: ({ text }) => Promise.resolve(this.ready().countTokens(text)),
      readDocument: (params, send) => this.readDocument(params, send),
      continueDocument: (_, send) => this.continueDocument(send),
      ask: (params, send) => this.ask(params, send),
      memory: () => Promise.resolve(this.ready().memory()),
      saveDocument: (_, send) => this.saveDocument(send),
      openDocument: ({ id }, send) => this.openDocument(id, send),
      documentText: ({ id }) => this.documents.text(id),
      deleteDocument: ({ id }) => this.documents.delete(id).then(() => null),
      deleteModel: ({ id }) => this.models.delete(id).then(() => null),
      storage: () => this.stored(),
    };
  }

  stop(): void {
    this.stopping.abort();
  }

  /** Also in the middle of a request, as drivers do. */
  loseDevice(): void {
    this.runtime?.loseDevice();
  }

  async run<N extends Name>(name: N, params: Params<N>, send: Send): Promise<Result<N>> {
    this.stopping = new AbortController();
    this.isReread = false;
    this.onReread = () => {
      send({ event: "notice", code: "device-lost", message: LOST, done: false });
    };
    const result = await this.handlers[name](params, send);
    if (this.wasReread()) {
      send({ event: "notice", code: "device-lost", message: RECOVERED, done: true });
    }
    return result;
  }

  /** A stop may come while the engine is awaited. */
  private isStopped(): boolean {
    return this.stopping.signal.aborted;
  }

  /** Set by the engine's reads while a request runs. */
  private wasReread(): boolean {
    return this.isReread;
  }

  private ready(): Runtime {
    if (this.runtime === null) throw failure("bad-input", "The device is not open yet.");
    return this.runtime;
  }

  private async open({ adapter }: Params<"open">, send: Send): Promise<Device> {
    if (this.storage === null) {
      const message =
        "This browser gives the page no storage (a private window?). Models and documents are " +
        "kept in memory and are gone when the page is left.";
      send({ event: "notice", code: "no-storage", message, done: true });
    }
    if (!("gpu" in navigator)) {
      throw failure("no-webgpu", "This browser has no WebGPU, or does not offer it to this page.");
    }
    this.engine ??= await this.load();
    this.runtime = await this.engine.open({ adapter });
    return this.runtime.device();
  }

  private async loadModel(params: Params<"loadModel">, send: Send): Promise<LoadedModel> {
    const runtime = this.ready();
    this.model = null;
    this.document = null;
    const { signal } = this.stopping;
    const steps = { send, signal };
    const files = await this.models.files(params.source, params.fresh ?? false, steps);
    signal.throwIfAborted();
    const input = {
      name: files.name,
      texts: files.texts,
      weights: files.weights.map((file) => this.watched(file)),
      contextTokens: params.contextTokens,
    };
    const progress = (done: number, total: number): void => {
      send({ event: "weights", done, total });
    };
    const info = await recovering(send, () => runtime.loadModel(input, progress));
    const { label, checked } = files;
    const policies = runtime.policies();
    const options = runtime.policyOptions();
    this.model = { ...info, source: params.source.kind, label, checked, policies, options };
    return this.model;
  }

  /** `file`, telling when it is read although no model is being loaded. */
  private watched(file: Bytes): Bytes {
    const readInto = (at: number, out: Uint8Array): void => {
      if (this.model !== null && !this.isReread) {
        this.isReread = true;
        this.onReread?.();
      }
      file.readInto(at, out);
    };
    return { name: file.name, size: file.size, readInto };
  }

  private async readDocument(params: Params<"readDocument">, send: Send): Promise<PrefillEnd> {
    const runtime = this.ready();
    const { text, title, policy } = params;
    this.document = null;
    const steps = this.prefillSteps(send);
    let begun = false;
    const read = (): Promise<PrefillEnd> =>
      runtime.readDocument(text, policy, (progress) => {
        begun = true;
        return steps(progress);
      });
    // What was read before the loss is in host memory. If that is nothing, the engine may not have
    // this document yet, but none, or the one before.
    const again = (): Promise<PrefillEnd> => (begun ? runtime.continueDocument(steps) : read());
    const result = await recovering(send, read, again);
    this.document = { title, text, policy, end: result };
    return result;
  }

  private async continueDocument(send: Send): Promise<PrefillEnd> {
    const runtime = this.ready();
    const document = this.reading();
    const steps = this.prefillSteps(send);
    const result = await recovering(send, () => runtime.continueDocument(steps));
    document.end = result;
    return result;
  }

  private prefillSteps(send: Send): (progress: PrefillProgress) => boolean {
    return (progress) => {
      send({ event: "prefill", ...progress });
      return !this.isStopped();
    };
  }

  private async ask(params: Params<"ask">, send: Send): Promise<Result<"ask">> {
    const runtime = this.ready();
    this.reading();
    const attempt = (): Promise<Result<"ask">> =>
      runtime.ask(params, (step) => {
        send({ event: "step", step }, step.map === undefined ? [] : [step.map.kinds.buffer]);
        return !this.isStopped();
      });
    return recovering(send, attempt, () => {
      send({ event: "restart" });
      return attempt();
    });
  }

  private reading(): OpenDocument {
    if (this.document === null) throw failure("bad-input", "No document is read yet.");
    return this.document;
  }

  private async saveDocument(send: Send): Promise<Result<"saveDocument">> {
    const runtime = this.ready();
    const { title, text, policy, end } = this.reading();
    const { tokens, total, complete } = end;
    const { label: model, fingerprint } = this.loaded();
    return this.documents.save(
      runtime,
      { title, text, policy, tokens, total, complete, model, fingerprint },
      () => {
        const message =
          "The browser has no room to store this document. It is kept in memory: after a reload " +
          "it has to be read again. To keep it, delete saved documents or models below.";
        send({ event: "notice", code: "quota", message, done: true });
      },
    );
  }

  private loaded(): LoadedModel {
    if (this.model === null) throw failure("bad-input", "No model is loaded yet.");
    return this.model;
  }

  private async openDocument(id: string, send: Send): Promise<OpenedDocument> {
    const runtime = this.ready();
    const model = this.loaded();
    return this.documents.open(id, async (meta, text, session) => {
      if (meta.fingerprint !== model.fingerprint) {
        const message =
          `This document was read by ${meta.model}, and ${model.label} is loaded. Load ` +
          `${meta.model} to open it, or read its text again.`;
        throw failure("wrong-model", message);
      }
      // Until it is open, the engine keeps the document before.
      const { title, policy } = meta;
      const end = await recovering(send, () => runtime.openSession(session, text, policy));
      this.document = { title, text, policy, end };
      return { id, title, text, policy, ...end };
    });
  }

  private async stored(): Promise<Storage> {
    const estimate = this.storage === null ? {} : await navigator.storage.estimate();
    return {
      usage: estimate.usage ?? 0,
      quota: estimate.quota ?? 0,
      models: await this.models.list(),
      documents: await this.documents.list(),
    };
  }
}

/** `attempt`, and once more through `again` if the device is lost: the engine opens a new one. */
async function recovering<T>(
  send: Send,
  attempt: () => Promise<T>,
  again: () => Promise<T> = attempt,
): Promise<T> {
  try {
    return await attempt();
  } catch (error) {
    if (!isFailure(error, "device-lost")) throw error;
    send({ event: "notice", code: "device-lost", message: LOST, done: false });
    const result = await again();
    send({ event: "notice", code: "device-lost", message: RECOVERED, done: true });
    return result;
  }
}
