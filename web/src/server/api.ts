// Requests to the server that this page came from: JSON, events, errors, and the key.

import { RequestError } from "../page/client";
import { count } from "../page/format";
import { attempt } from "../page/history";
import type { Code } from "../protocol";

/** Of this tab alone: it is gone when the tab is closed, and no other page can read it. */
const KEY = "longview-key";

/** What a header can carry. Keys have nothing else, and the browser makes no request with it. */
const SENDABLE = /^[\x20-\x7e]*$/;

/** A JSON object of the server, read with care: its fields may be of another type. */
export type Json = Record<string, unknown>;

export function object(value: unknown): Json {
  return typeof value === "object" && value !== null ? (value as Json) : {};
}

export function list(value: unknown): Json[] {
  return Array.isArray(value) ? value.map(object) : [];
}

export function number(value: unknown): number {
  return typeof value === "number" ? value : 0;
}

export function text(value: unknown): string {
  return typeof value === "string" ? value : "";
}

/** Codes of the server that mean something of their own to the page, and what to do about them. */
const CODES: Record<string, { code: Code; advice?: string }> = {
  context_length_exceeded: {
    code: "context-too-long",
    advice:
      "Take a shorter text, begin a new conversation, or start the server with a longer context " +
      "(--ctx-size).",
  },
  context_not_found: { code: "gone" },
  unreadable_file: { code: "bad-file" },
  queue_full: { code: "busy" },
  loading: { code: "busy", advice: "The model is being loaded. Try again in a moment." },
  device_lost: { code: "busy", advice: "The device is being opened again. Ask again in a moment." },
  stopping: { code: "unreachable" },
  engine_ended: { code: "unreachable" },
  no_space: {
    code: "quota",
    advice: "Delete documents of the server, or start it with a larger library.",
  },
  body_too_large: {
    code: "bad-file",
    advice: "Take a smaller document, or start the server with a larger --max-body.",
  },
};

/** What an error of the server is to the page. */
function failure(body: unknown, status: number): RequestError {
  const error = object(object(body)["error"]);
  const known = CODES[text(error["code"])];
  const { code, advice } = known ?? { code: status < 500 ? "bad-input" : "other", advice: "" };
  return new RequestError(code, worded(error, code, status), advice);
}

/** What the server says of an error; where that is meant for programs, in words for people. */
function worded(error: Json, code: Code, status: number): string {
  const message = text(error["message"]) || `The server answered with status ${status}.`;
  if (code === "gone") return "It was deleted, here or elsewhere, or had to make room for others.";
  if (error["code"] === "body_too_large") return "It is larger than what the server takes at once.";
  if (code === "bad-file") return message.replace(/^file: /, "");
  const [tokens, room] = [number(error["n_prompt_tokens"]), number(error["n_ctx"])];
  if (code !== "context-too-long" || tokens === 0) return message;
  // Of a long text it has counted only as many as it takes to know.
  const least = message.includes("at least") ? "at least " : "";
  return (
    `There are ${least}${count(tokens)} tokens to read, and the context holds ${count(room)} ` +
    "with the answer. Nothing was cut off."
  );
}

function refused(hasKey: boolean): RequestError {
  const message = hasKey
    ? "It does not know the key that was typed."
    : "It answers nobody who has none.";
  return new RequestError("unauthorized", message);
}

export class Api {
  /** A browser that stores nothing keeps it until the page is left. */
  private key = attempt(() => sessionStorage.getItem(KEY));

  unlock(key: string): void {
    this.key = key;
    attempt(() => (sessionStorage.setItem(KEY, key), null));
  }

  hasKey(): boolean {
    return this.key !== null;
  }

  /** Forgets a key that opens nothing: a reload would send it again. */
  private locked(): RequestError {
    const hasKey = this.hasKey();
    this.key = null;
    attempt(() => (sessionStorage.removeItem(KEY), null));
    return refused(hasKey);
  }

  async json(method: string, path: string, body?: Json): Promise<Json> {
    const response = await this.send(method, path, body);
    return object(await response.json().catch(() => null));
  }

  /**
   * Calls `event` with each event of the answer, until it ends; `signal` lets go of it. An error
   * that comes as an event is thrown.
   */
  async events(
    path: string,
    body: Json | FormData,
    signal: AbortSignal,
    event: (event: Json) => void,
  ): Promise<void> {
    const response = await this.send("POST", path, body, signal);
    const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
    if (reader === undefined) return;
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read().catch((error: unknown) => {
        throw signal.aborted ? error : unreachable();
      });
      if (done) break;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop() ?? "";
      for (const part of parts) {
        const data = /^data: (.*)$/m.exec(part)?.[1];
        if (data === "[DONE]") return;
        if (data === undefined) continue;
        const json = object(JSON.parse(data));
        if ("error" in json) throw failure(json, 500);
        event(json);
      }
    }
    throw unreachable();
  }

  private async send(
    method: string,
    path: string,
    body?: Json | FormData,
    signal?: AbortSignal,
  ): Promise<Response> {
    const { key } = this;
    if (key !== null && !SENDABLE.test(key)) throw this.locked();
    const headers: Record<string, string> = {};
    if (key !== null) headers["authorization"] = `Bearer ${key}`;
    if (body !== undefined && !(body instanceof FormData)) {
      headers["content-type"] = "application/json";
    }
    // Beside the page, whatever path a proxy has put it at.
    const response = await fetch(new URL(path, document.baseURI), {
      method,
      headers,
      body: body instanceof FormData ? body : body === undefined ? null : JSON.stringify(body),
      signal: signal ?? null,
      cache: "no-store",
      credentials: "same-origin",
    }).catch((error: unknown) => {
      throw signal?.aborted === true ? error : unreachable();
    });
    if (response.ok) return response;
    if (response.status === 401) throw this.locked();
    throw failure(await response.json().catch(() => null), response.status);
  }
}

function unreachable(): RequestError {
  return new RequestError("unreachable", "The connection to the server was lost, or refused.");
}
