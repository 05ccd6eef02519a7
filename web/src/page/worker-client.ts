// The page's end of the protocol with the worker.

import type { Event, Failure, FromWorker, Name, Params, Result } from "../protocol";
import { type Client, type NoticeListener, RequestError } from "./client";

/** The engine in this browser. */
export function connect(notice: NoticeListener): Client {
  return new WorkerClient(notice);
}

interface Pending {
  resolve: (result: Result<Name>) => void;
  reject: (error: RequestError) => void;
  event: (event: Event) => void;
}

class WorkerClient implements Client {
  private readonly worker: Worker;
  private readonly pending = new Map<number, Pending>();
  private nextId = 1;

  constructor(private readonly notice: NoticeListener) {
    this.worker = new Worker(new URL("../worker.ts", import.meta.url), { type: "module" });
    this.worker.addEventListener("message", ({ data }: MessageEvent<FromWorker>) => {
      this.receive(data);
    });
    this.worker.addEventListener("error", (event) => {
      const message = event.message || "The page's worker could not be loaded. Reload the page.";
      this.failAll({ code: "other", message });
    });
  }

  call<N extends Name>(
    name: N,
    params: Params<N>,
    event: (event: Event) => void = () => undefined,
  ): Promise<Result<N>> {
    const id = this.nextId++;
    return new Promise<Result<N>>((resolve, reject) => {
      // The worker answers a request of name N with a result of N.
      const settle = resolve as (result: Result<Name>) => void;
      this.pending.set(id, { resolve: settle, reject, event });
      this.worker.postMessage({ id, name, params });
    });
  }

  stop(): void {
    this.worker.postMessage({ name: "stop" });
  }

  loseDevice(): void {
    this.worker.postMessage({ name: "loseDevice" });
  }

  private receive(message: FromWorker): void {
    const pending = this.pending.get(message.id);
    if (pending === undefined) return;
    if ("event" in message) {
      const { event } = message;
      if (event.event === "notice") this.notice(event.code, event.message, event.done);
      else pending.event(event);
      return;
    }
    this.pending.delete(message.id);
    if ("failure" in message) {
      pending.reject(new RequestError(message.failure.code, message.failure.message));
    } else {
      pending.resolve(message.result);
    }
  }

  private failAll({ code, message }: Failure): void {
    for (const pending of this.pending.values()) pending.reject(new RequestError(code, message));
    this.pending.clear();
  }
}
