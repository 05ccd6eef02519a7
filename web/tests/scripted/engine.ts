// An engine that follows a script: what the page does can be tested without a device.
//
// Takes the place of the wasm module in `vite build --mode scripted`. The test's server answers
// `script.json`, which says what shall go wrong and how long things take.

import {
  type Answer,
  type Bytes,
  CELL,
  type ContextMap,
  type Engine,
  type Runtime as EngineRuntime,
  type Policy,
  type PrefillEnd,
  type PrefillStep,
  type Question,
  type Step,
} from "../../src/engine";

interface Script {
  /** Error code by method, thrown `times` times (1 unless told) behind `after` calls (0). */
  fail?: Record<string, { code: string; message: string; times?: number; after?: number }>;
  /** Milliseconds of a prefill step and of a decode step. */
  prefillMs?: number;
  stepMs?: number;
  software?: boolean;
  /** The context that the model has room for. */
  session?: { bytes: number };
  /** Tokens that a cell of the context map stands for; 1 unless told. */
  cellTokens?: number;
  /** What every question is answered with, in pieces of so many characters (4 unless told). */
  answer?: string;
  pieceChars?: number;
}

const CHUNK = 128;
const HEADER = "scripted session ";

/** One token is about this many characters here. */
const CHARS = 4;

let script: Script = {};

const pause = (ms: number): Promise<void> => new Promise((resume) => setTimeout(resume, ms));

function failing(method: string): void {
  const wanted = script.fail?.[method];
  if (wanted === undefined || wanted.times === 0) return;
  if (wanted.after !== undefined && wanted.after > 0) {
    wanted.after -= 1;
    return;
  }
  wanted.times = (wanted.times ?? 1) - 1;
  throw coded(wanted.code, wanted.message);
}

function coded(code: string, message: string): Error {
  return Object.assign(new Error(message), { name: code });
}

class ScriptedRuntime implements EngineRuntime {
  private contextTokens = 0;
  private deviceBytes = 2 << 20;
  private text = "";
  private tokens = 0;
  private isLost = false;
  private weights: Bytes[] = [];

  device(): ReturnType<EngineRuntime["device"]> {
    const isSoftware = script.software ?? false;
    const adapter = isSoftware ? "SwiftShader" : "Scripted GPU";
    return { adapter, tier: "f16", isSoftware, maxBufferBytes: 2 ** 31 };
  }

  policies(): ReturnType<EngineRuntime["policies"]> {
    return [
      {
        name: "full",
        title: "-",
        description: "Attends all tokens.",
        options: ["dense-layers"],
        isDefault: false,
      },
      {
        name: "longview",
        title: "Longview",
        description: "Recalls tokens, and the means of the rest.",
        options: ["sinks", "recent", "cluster-tokens", "cluster-segment", "iterations"],
        isDefault: true,
      },
      {
        name: "streaming-llm",
        title: "StreamingLLM",
        description: "Attends the first and the last tokens alone.",
        options: ["sinks", "recent"],
        isDefault: false,
      },
    ];
  }

  policyOptions(): ReturnType<EngineRuntime["policyOptions"]> {
    return ["sinks", "recent", "cluster-tokens", "cluster-segment", "iterations"].map((name) => ({
      name,
      value: "<TOKENS>",
      help: `What ${name} stands for.`,
    }));
  }

  async loadModel(
    model: Parameters<EngineRuntime["loadModel"]>[0],
    progress: (done: number, total: number) => void,
  ): ReturnType<EngineRuntime["loadModel"]> {
    failing("loadModel");
    const total = model.weights.reduce((sum, file) => sum + file.size, 0);
    let done = 0;
    const piece = new Uint8Array(1 << 20);
    for (const file of model.weights) {
      for (let at = 0; at < file.size; at += piece.length) {
        const part = piece.subarray(0, Math.min(piece.length, file.size - at));
        file.readInto(at, part);
        done += part.length;
        progress(done, total);
      }
    }
    await pause(0);
    this.weights = model.weights;
    this.contextTokens = model.contextTokens;
    this.text = "";
    const isGguf = model.weights.some((file) => file.name.endsWith(".gguf"));
    const config = JSON.parse(model.texts["config.json"] ?? "{}") as Record<string, number>;
    return {
      name: model.name,
      layers: config["num_hidden_layers"] ?? 0,
      kvHeads: config["num_key_value_heads"] ?? 0,
      queryHeads: config["num_attention_heads"] ?? 0,
      headDim: 64,
      vocab: config["vocab_size"] ?? 0,
      trainedContext: null,
      weightBytes: total,
      weightType: isGguf ? "Q4_1" : "BF16",
      contextTokens: model.contextTokens,
      fingerprint: `${model.name} ${total}`,
    };
  }

  limitDeviceBytes(bytes?: number): void {
    this.deviceBytes = bytes ?? 2 << 20;
  }

  countTokens(text: string): number {
    return Math.ceil(text.length / CHARS);
  }

  async readDocument(text: string, _: Policy, step: PrefillStep): Promise<PrefillEnd> {
    const total = this.countTokens(text);
    if (total > this.contextTokens) {
      const message = `${total} tokens do not fit a context of ${this.contextTokens}.`;
      throw coded("context-too-long", message);
    }
    this.text = "";
    this.tokens = 0;
    failing("readDocument");
    if (this.isLost) {
      // The worst that the real engine does: there is no document then, neither this nor the last.
      this.isLost = false;
      throw coded("device-lost", "The device was lost before anything was read.");
    }
    this.text = text;
    return this.continueDocument(step);
  }

  async continueDocument(step: PrefillStep): Promise<PrefillEnd> {
    if (this.text === "") throw coded("bad-input", "there is no document yet: read one first");
    this.reopen();
    const total = this.countTokens(this.text);
    const start = performance.now();
    while (this.tokens < total) {
      await pause(script.prefillMs ?? 1);
      failing("prefill");
      this.tokens = Math.min(total, this.tokens + CHUNK);
      const left = ((total - this.tokens) / CHUNK) * 0.03;
      const more = step({ done: this.tokens, total, tokensPerS: 4200, etaS: left });
      if (!more) break;
    }
    return { ...this.end(), seconds: (performance.now() - start) / 1000 };
  }

  async ask(question: Question, step: (step: Step) => boolean): Promise<Answer> {
    this.reopen();
    failing("ask");
    const { policy, maxTokens } = question;
    const words = scripted() ?? this.words(question.question).slice(0, maxTokens);
    let text = "";
    const isEnd = script.answer !== undefined || words.length < maxTokens;
    let finish: Answer["finish"] = isEnd ? "end" : "length";
    for (const [i, word] of words.entries()) {
      await pause(script.stepMs ?? 2);
      if (i === 1) failing("step");
      text += word;
      const map = question.map === undefined ? {} : { map: contextMap(this.kinds(policy, i)) };
      const hits = 100 + 20 * i;
      if (!step({ text: word, tokens: i + 1, tokensPerS: 38.2, hits, misses: 100, ...map })) {
        finish = "stopped";
        break;
      }
    }
    const recalls = policy.preset !== "full";
    return {
      text,
      tokens: words.length,
      seconds: words.length / 38.2,
      tokensPerS: 38.2,
      attended: recalls ? 508.4 : this.tokens,
      context: this.tokens,
      hitRate: recalls ? 0.483 : null,
      deviceBytes: recalls ? this.deviceBytes : this.tokens * 2560,
      hostBytes: this.tokens * 2560,
      finish,
      passages: this.passages(question.question),
    };
  }

  memory(): ReturnType<EngineRuntime["memory"]> {
    const hostBytes = this.tokens * 2560;
    return { deviceBytes: Math.min(this.deviceBytes, hostBytes), hostBytes, wasmBytes: 12 << 20 };
  }

  async saveSession(write: (bytes: Uint8Array) => void): Promise<void> {
    failing("saveSession");
    await pause(0);
    write(new TextEncoder().encode(HEADER + String(this.tokens).padStart(8, "0")));
    const body = new Uint8Array(script.session?.bytes ?? 4096).fill(7);
    for (let at = 0; at < body.length; at += 1 << 20) write(body.subarray(at, at + (1 << 20)));
  }

  async openSession(session: Bytes, text: string): ReturnType<EngineRuntime["openSession"]> {
    failing("openSession");
    await pause(0);
    const head = new Uint8Array(HEADER.length + 8);
    const body = new Uint8Array(session.size - head.length);
    session.readInto(0, head);
    session.readInto(head.length, body);
    const header = new TextDecoder().decode(head);
    if (!header.startsWith(HEADER) || body.some((byte) => byte !== 7)) {
      throw coded("bad-session", "block 0 has a wrong checksum.");
    }
    this.text = text;
    this.tokens = Number(header.slice(HEADER.length));
    return this.end();
  }

  loseDevice(): void {
    this.isLost = true;
  }

  free(): void {
    this.text = "";
  }

  /** As the real engine: a loss that it finds at a call's start is no error. */
  private reopen(): void {
    if (!this.isLost) return;
    this.isLost = false;
    this.weights[0]?.readInto(0, new Uint8Array(8));
  }

  private end(): { tokens: number; total: number; complete: boolean } {
    const total = this.countTokens(this.text);
    return { tokens: this.tokens, total, complete: this.tokens === total };
  }

  /** The number that stands behind the name asked for, or a sentence. */
  private words(question: string): string[] {
    const name = / for ([\w-]+) | line ([\w-]+)\?| the ([a-z]+ (?:number|code) of \w+)\?/.exec(
      question,
    );
    const key = name?.[1] ?? name?.[2] ?? name?.[3];
    const value = key === undefined ? undefined : this.valueOf(key);
    const said = question.replace(/^.*?is the/, "The").replace("?", "");
    if (value !== undefined) return `${said} is ${value}.`.split(/(?=[ .\d])/);
    return "The document tells of a quiet valley and of those who live there .".split(/(?= )/);
  }

  private valueOf(key: string): string | undefined {
    const at = this.text.indexOf(`${key} is`) + 1 || this.text.indexOf(`${key}:`) + 1;
    return at === 0 ? undefined : /\d+/.exec(this.text.slice(at))?.[0];
  }

  private passages(question: string): Answer["passages"] {
    const name = / for ([\w-]+) | line ([\w-]+)\?| the ([a-z]+ (?:number|code) of \w+)\?/.exec(
      question,
    );
    const at = this.text.indexOf(name?.[1] ?? name?.[2] ?? name?.[3] ?? "\u0000");
    const first = at < 0 ? 0 : at;
    const end = Math.min(this.text.length, first + 60);
    const other = Math.floor(this.text.length / 2);
    return [
      { start: first, end, weight: 0.41 },
      { start: other, end: Math.min(this.text.length, other + 120), weight: 0.08 },
    ];
  }

  /** Sinks, recent tokens, and runs of hits and misses that move from step to step. */
  private kinds(policy: Policy, step: number): Uint8Array<ArrayBuffer> {
    const kinds = new Uint8Array(this.tokens);
    if (policy.preset === "full") return kinds.fill(3).fill(1, 0, 4).fill(2, -64);
    for (let i = 0; i < kinds.length; i++) {
      const run = Math.floor(i / 8) * 2654435761;
      const draw = ((run >>> 0) / 2 ** 32 + step * 0.13) % 1;
      if (draw < 0.1) kinds[i] = 3;
      else if (draw < 0.14) kinds[i] = 4;
      else if (draw < 0.25) kinds[i] = 5;
    }
    return kinds.fill(1, 0, 4).fill(2, -64);
  }
}

/** The answer of the script, in pieces. */
function scripted(): string[] | null {
  const { answer, pieceChars = CHARS } = script;
  if (answer === undefined) return null;
  const pieces = [];
  for (let at = 0; at < answer.length; at += pieceChars) {
    pieces.push(answer.slice(at, at + pieceChars));
  }
  return pieces;
}

/** Cells of several tokens show the most telling of them. */
function contextMap(tokens: Uint8Array<ArrayBuffer>): ContextMap {
  const cellTokens = script.cellTokens ?? 1;
  const kinds = new Uint8Array(Math.ceil(tokens.length / cellTokens));
  const counts = [0, 0, 0, 0, 0, 0, 0];
  const { notAttended, held, recent, sink, hit, drawn, miss } = CELL;
  const telling = [notAttended, held, recent, sink, hit, drawn, miss];
  const weight = telling.map((_, kind) => telling.findIndex((other) => other === kind));
  const weigh = (kind: number): number => weight[kind] ?? 0;
  tokens.forEach((kind, i) => {
    counts[kind] = (counts[kind] ?? 0) + 1;
    const cell = Math.floor(i / cellTokens);
    if (weigh(kind) > weigh(kinds[cell] ?? 0)) kinds[cell] = kind;
  });
  return { cellTokens, kinds, counts };
}

export default async function init(): Promise<void> {
  const response = await fetch(new URL("../script.json", self.location.href));
  script = (await response.json()) as Script;
}

export const Runtime: Engine = {
  async open() {
    failing("open");
    await pause(0);
    return new ScriptedRuntime();
  },
};
