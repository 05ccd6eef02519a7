// The second engine of the page: a server's API. Documents are kept in the server's library, and
// the model is the one that it was started with.

import type {
  Answer,
  ContextMap,
  Device,
  Memory,
  Passage,
  Policy,
  PrefillEnd,
  Question,
  Step,
} from "../engine";
import type { Client, ReadFile, ServerCalls } from "../page/client";
import { RequestError } from "../page/client";
import type {
  Event,
  LoadedModel,
  Name,
  OpenedDocument,
  Params,
  Result,
  SavedDocument,
  Storage,
} from "../protocol";
import { Api, type Json, list, number, object, text } from "./api";
import { Offsets } from "./offsets";

/** The server that this page came from. */
export const connect = (): Client => new ServerClient();

type Send = (event: Event) => void;
type Handlers = { [N in Name]: (params: Params<N>, send: Send) => Promise<Result<N>> };

/** Texts beyond this are not sent only to count their tokens. */
const MOST_COUNTED = 200_000;

/** How often a server is asked whether its model is loaded. */
const RETRY_MS = 1000;

const MOST_NAME = 64;

/** What is open now. */
interface OpenText {
  id: string;
  title: string;
  text: string;
  offsets: Offsets;
}

class ServerClient implements Client {
  readonly server: ServerCalls;
  private readonly api = new Api();
  private props: Json = {};
  private open: OpenText | null = null;
  private known: { document: SavedDocument; textBytes: number }[] = [];
  private memory: Memory = { deviceBytes: 0, hostBytes: 0, wasmBytes: null };
  /** Of what runs and may be stopped. */
  private stopping = new AbortController();
  private readonly handlers: Handlers;

  constructor() {
    this.server = {
      unlock: (key) => {
        this.api.unlock(key);
      },
      hasKey: () => this.api.hasKey(),
      needsKey: () => this.props["needs_key"] === true,
      readFile: (file, event) => this.readFile(file, event),
      close: () => {
        this.open = null;
      },
      pin: async (id, pin) => {
        await this.api.json("POST", `v1/contexts/${encodeURIComponent(id)}`, { pin });
      },
    };
    this.handlers = {
      open: (_, send) => this.connect(send),
      loadModel: () => Promise.resolve(this.model()),
      limitDevice: () => Promise.resolve(null),
      countTokens: (params) => this.countTokens(params.text),
      readDocument: ({ text, title }, send) => this.read(text, title, send),
      continueDocument: (_, send) => this.continueDocument(send),
      ask: (params, send) => this.ask(params, send),
      memory: () => Promise.resolve(this.memory),
      saveDocument: () => Promise.reject(none()),
      openDocument: ({ id }) => this.openDocument(id),
      documentText: ({ id }) => this.text(id),
      deleteDocument: async ({ id }) => {
        await this.api.json("DELETE", `v1/contexts/${encodeURIComponent(id)}`);
        return null;
      },
      deleteModel: () => Promise.reject(none()),
      storage: () => this.storage(),
    };
  }

  call<N extends Name>(
    name: N,
    params: Params<N>,
    event: Send = () => undefined,
  ): Promise<Result<N>> {
    return this.handlers[name](params, event);
  }

  stop(): void {
    this.stopping.abort();
  }

  loseDevice(): void {
    // A server's device is not the page's to lose.
  }

  /** Waits while the server loads its model. */
  private async connect(send: Send): Promise<Device> {
    for (;;) {
      const props = await this.api.json("GET", "props").catch(unlessBusy);
      if (props !== null) {
        this.props = props;
        break;
      }
      const message = "The server is loading its model. The page goes on by itself.";
      send({ event: "notice", code: "busy", message, done: false });
      await new Promise((resume) => setTimeout(resume, RETRY_MS));
    }
    const adapter = text(this.props["build_info"]);
    return { adapter, tier: "", isSoftware: false, maxBufferBytes: 0 };
  }

  private model(): LoadedModel {
    const { props } = this;
    const name = text(props["model"]);
    const chosen = text(props["default_policy"]);
    const policies = list(props["policies"]).map((policy) => ({
      name: text(policy["name"]),
      title: text(policy["title"]),
      description: text(policy["description"]),
      options: Array.isArray(policy["options"]) ? policy["options"].map(text) : [],
      isDefault: text(policy["name"]) === chosen,
    }));
    const options = list(props["policy_options"]).map((option) => ({
      name: text(option["name"]),
      value: text(option["value"]),
      help: text(option["help"]),
    }));
    return {
      name,
      label: name,
      source: props["is_embedded"] === true ? "embedded" : "server",
      checked: "",
      layers: number(props["n_layers"]),
      kvHeads: number(props["n_kv_heads"]),
      queryHeads: 0,
      headDim: 0,
      vocab: 0,
      trainedContext: null,
      weightBytes: 0,
      weightType: "",
      contextTokens: number(props["n_ctx"]),
      fingerprint: name,
      policies,
      options,
    };
  }

  private async countTokens(content: string): Promise<number> {
    if (content.length > MOST_COUNTED) throw none();
    const { tokens } = await this.api.json("POST", "tokenize", { content });
    return Array.isArray(tokens) ? tokens.length : 0;
  }

  private get hasLibrary(): boolean {
    return this.props["has_contexts"] === true;
  }

  private async read(content: string, title: string, send: Send): Promise<PrefillEnd> {
    this.open = { id: "", title, text: content, offsets: new Offsets(content) };
    const name = await this.freeName(title, content);
    return this.build({ text: content, stream: true, ...(name === "" ? {} : { name }) }, send);
  }

  /**
   * A name that no other document has: the server refuses one that is taken. Empty where the server
   * has this very text, which then keeps its name.
   */
  private async freeName(title: string, content: string): Promise<string> {
    // Others may have read and named some since they were listed.
    await this.storage();
    if (await this.isKept(content)) return "";
    const wanted = title.replace(/[\p{Cc}\p{Cf}/\\]+/gu, " ").replace(/^[\s-]+/, "");
    const name = Array.from(wanted).slice(0, 80).join("").trim();
    const taken = new Set(this.known.map(({ document }) => document.title));
    for (let i = 1; name !== ""; i++) {
      const tried = i === 1 ? name : `${name} (${i})`;
      if (!taken.has(tried)) return tried;
    }
    return name;
  }

  private async isKept(content: string): Promise<boolean> {
    const bytes = new TextEncoder().encode(content).length;
    for (const { document, textBytes } of this.known) {
      if (textBytes !== bytes) continue;
      // One of the same length may have another text, or be gone by now.
      const kept = await this.text(document.id).catch(() => null);
      if (kept?.text === content) return true;
    }
    return false;
  }

  private continueDocument(send: Send): Promise<PrefillEnd> {
    if (this.open === null) throw none();
    return this.build({ text: this.open.text, stream: true }, send);
  }

  private async readFile(file: File, send: Send): Promise<ReadFile> {
    const form = new FormData();
    form.append("stream", "true");
    form.append("file", file, shortened(file.name));
    const end = await this.build(form, send);
    if (end.id === undefined) throw new RequestError("cancelled", "It was stopped.");
    const opened = await this.text(end.id);
    this.open = { id: end.id, ...opened, offsets: new Offsets(opened.text) };
    return { ...opened, end };
  }

  /** Has the server read a document; a stop keeps what it has read. */
  private async build(body: Json | FormData, send: Send): Promise<PrefillEnd> {
    if (!this.hasLibrary) {
      const message = "This server was started with --no-library: it reads no documents.";
      throw new RequestError("bad-input", message, "Start it without --no-library.");
    }
    const { signal } = this.begin();
    const since = performance.now();
    const passed = (): number => (performance.now() - since) / 1000;
    let [id, done, total] = ["", 0, 0];
    let last: Json = {};
    try {
      await this.api.events("v1/contexts", body, signal, (event) => {
        last = event;
        id = text(event["id"]) || id;
        const progress = event["prompt_progress"];
        if (progress === undefined) return;
        const { processed, cache, total: all, time_ms } = object(progress);
        [done, total] = [number(processed), number(all)];
        const tokensPerS = (1000 * (done - number(cache))) / Math.max(1, number(time_ms));
        const etaS = tokensPerS > 0 ? (total - done) / tokensPerS : Infinity;
        send({ event: "prefill", done, total, tokensPerS, etaS });
      });
    } catch (error) {
      if (!signal.aborted) throw error;
      this.named(id);
      const known = id === "" ? {} : { id };
      return { tokens: done, total, complete: false, seconds: passed(), ...known };
    }
    this.named(id);
    const tokens = number(last["n_tokens"]);
    return { tokens, total: tokens, complete: true, seconds: passed(), id };
  }

  private named(id: string): void {
    if (this.open !== null && id !== "") this.open.id = id;
  }

  private async openDocument(id: string): Promise<OpenedDocument> {
    // More of it may have been read, or less be left, since it was listed.
    await this.storage();
    const known = this.known.find(({ document }) => document.id === id)?.document;
    const { title, text } = await this.text(id);
    this.open = { id, title, text, offsets: new Offsets(text) };
    const policy: Policy = { preset: this.defaultPolicy() };
    const { tokens, total, complete } = known ?? { tokens: 0, total: 0, complete: false };
    return { id, title, text, policy, tokens, total, complete };
  }

  private async text(id: string): Promise<{ title: string; text: string }> {
    const found = await this.api.json("GET", `v1/contexts/${encodeURIComponent(id)}/text`);
    return { title: text(found["name"]), text: text(found["text"]) };
  }

  private defaultPolicy(): string {
    return text(this.props["default_policy"]);
  }

  private async storage(): Promise<Storage> {
    if (!this.hasLibrary) {
      return { usage: 0, quota: -1, models: [], documents: [] };
    }
    const body = await this.api.json("GET", "v1/contexts");
    this.known = list(body["data"]).map((entry) => ({
      document: this.document(entry),
      textBytes: number(entry["text_bytes"]),
    }));
    const documents = this.known.map(({ document }) => document);
    documents.sort((a, b) => b.savedAt.localeCompare(a.savedAt));
    return {
      usage: number(body["bytes"]),
      quota: number(body["quota_bytes"]),
      models: [],
      documents,
    };
  }

  private document(entry: Json): SavedDocument {
    // The page asks as the server reads where a request does not say: what was read in another way
    // is of no use to it.
    const isOwn = (session: Json): boolean =>
      session["is_served"] === true && session["prefill"] === this.props["prefill"];
    const sessions = list(entry["sessions"]).filter(isOwn);
    const most = (a: Json, b: Json): Json =>
      number(b["n_tokens"]) > number(a["n_tokens"]) ? b : a;
    const session = sessions.reduce(most, {});
    const tokens = number(session["n_tokens"]);
    const total = number(session["n_document"]);
    const sizes = list(entry["sessions"]).map((session) => number(session["bytes"]));
    const bytes = sizes.reduce((a, b) => a + b, number(entry["text_bytes"]));
    const model = text(this.props["model"]);
    const closed =
      entry["is_conversation"] === true ? "A conversation, which is not opened here." : undefined;
    return {
      id: text(entry["id"]),
      title: text(entry["name"]),
      tokens,
      total,
      complete: total > 0 && tokens >= total,
      bytes,
      model,
      fingerprint: model,
      policy: { preset: text(session["policy"]) || this.defaultPolicy() },
      savedAt: new Date(1000 * number(entry["used"])).toISOString(),
      onDisk: true,
      pinned: entry["pinned"] === true,
      ...(closed === undefined ? {} : { closed }),
    };
  }

  private async ask(question: Question, send: Send): Promise<Answer> {
    const { signal } = this.begin();
    const run = new Run(send);
    let last: Json = {};
    let stopped = false;
    try {
      await this.api.events("v1/chat/completions", this.request(question), signal, (event) => {
        last = event;
        run.take(event);
      });
    } catch (error) {
      if (!signal.aborted) throw error;
      stopped = true;
    }
    return this.answer(run, stopped ? {} : last, stopped, question.map !== undefined);
  }

  private request({
    question,
    policy,
    maxTokens,
    temperature,
    map,
    history,
    seed,
  }: Question): Json {
    const turns = (history ?? []).flatMap((turn) => [
      { role: "user", content: turn.question },
      { role: "assistant", content: turn.answer },
    ]);
    const isOfDocument = this.open !== null && this.open.id !== "";
    return {
      messages: [...turns, { role: "user", content: question }],
      ...(isOfDocument ? { context_id: this.open?.id } : {}),
      stream: true,
      stream_options: { include_usage: true },
      return_progress: true,
      max_tokens: maxTokens,
      ...(temperature === undefined ? {} : { temperature }),
      ...(seed === undefined ? {} : { seed }),
      policy: policy.preset,
      ...(policy.budget === undefined ? {} : { budget: policy.budget }),
      ...(policy.options === undefined ? {} : { policy_options: policy.options }),
      longview: { steps: true, passages: isOfDocument, ...(map === undefined ? {} : { map }) },
    };
  }

  /** `isDrawn`: the page shows the map of this answer, and its memory beside it. */
  private answer(run: Run, last: Json, stopped: boolean, isDrawn: boolean): Answer {
    const seen = object(last["longview"]);
    const [deviceBytes, hostBytes] = [number(seen["device_bytes"]), number(seen["host_bytes"])];
    if (isDrawn && !stopped) this.memory = { deviceBytes, hostBytes, wasmBytes: null };
    const place = (passage: Json): Passage => {
      const [start, end] = [number(passage["start"]), number(passage["end"])];
      const units = this.open?.offsets.units(start, end) ?? { start, end };
      return { ...units, weight: number(passage["weight"]) };
    };
    const rate = seen["hit_rate"];
    const [mean, of] = [seen["attended_tokens"], seen["of_tokens"]];
    const hasMean = typeof mean === "number" && typeof of === "number";
    const { firstAfterS } = run;
    return {
      text: run.text,
      tokens: number(object(last["usage"])["completion_tokens"]) || run.tokens,
      seconds: run.seconds,
      // As the server counts: tokens that came at once have no speed here.
      tokensPerS: number(object(last["timings"])["predicted_per_second"]) || run.tokensPerS,
      hitRate: typeof rate === "number" ? rate : null,
      deviceBytes,
      hostBytes,
      finish: stopped ? "stopped" : run.finish,
      passages: list(seen["passages"]).map(place),
      ...(firstAfterS === undefined ? {} : { firstAfterS }),
      ...(hasMean ? { attended: mean, context: of } : {}),
    };
  }

  private begin(): AbortController {
    this.stopping = new AbortController();
    return this.stopping;
  }
}

/** An answer as it comes. */
class Run {
  text = "";
  tokens = 0;
  finish: Answer["finish"] = "end";
  private readonly since = performance.now();
  private first: number | null = null;

  constructor(private readonly send: Send) {}

  get firstAfterS(): number | undefined {
    return this.first === null ? undefined : (this.first - this.since) / 1000;
  }

  get seconds(): number {
    return (performance.now() - this.since) / 1000;
  }

  /** From the first token on: what was read before is the question's and the document's. */
  get tokensPerS(): number {
    if (this.first === null) return 0;
    return (1000 * this.tokens) / Math.max(1, performance.now() - this.first);
  }

  take(event: Json): void {
    const progress = event["prompt_progress"];
    if (progress !== undefined) {
      const { processed, total } = object(progress);
      const [done, all] = [number(processed), number(total)];
      this.send({ event: "prefill", done, total: all, tokensPerS: 0, etaS: 0 });
      return;
    }
    const choice = list(event["choices"])[0];
    if (choice !== undefined) {
      const piece = text(object(choice["delta"])["content"]);
      if (choice["finish_reason"] === "length") this.finish = "length";
      if (piece !== "") this.step({ text: piece, hits: 0, misses: 0 });
      return;
    }
    const seen = object(event["longview"]);
    if (!("hits" in seen)) return;
    this.tokens = number(seen["tokens"]);
    const map = seen["map"];
    this.step({
      text: "",
      hits: number(seen["hits"]),
      misses: number(seen["misses"]),
      ...(map === undefined ? {} : { map: mapOf(object(map)) }),
    });
  }

  private step(part: Omit<Step, "tokens" | "tokensPerS">): void {
    this.first ??= performance.now();
    this.text += part.text;
    this.send({
      event: "step",
      step: { ...part, tokens: Math.max(1, this.tokens), tokensPerS: this.tokensPerS },
    });
  }
}

function mapOf(map: Json): ContextMap {
  const cells = text(map["cells"]);
  const counts = Array.isArray(map["counts"]) ? map["counts"].map(number) : [];
  return {
    cellTokens: number(map["cell_tokens"]),
    kinds: Uint8Array.from(cells, (letter) => letter.charCodeAt(0) - 48),
    counts,
  };
}

function none(): RequestError {
  return new RequestError("bad-input", "A server does not do this.");
}

/** The server cuts names off at 64 characters, and knows a file's kind by how its name ends. */
function shortened(name: string): string {
  const characters = Array.from(name);
  const end = Array.from(/\.\w{1,8}$/.exec(name)?.[0] ?? "");
  if (characters.length <= MOST_NAME) return name;
  return [...characters.slice(0, MOST_NAME - end.length), ...end].join("");
}

function unlessBusy(error: unknown): null {
  if (error instanceof RequestError && error.code === "busy") return null;
  throw error;
}
