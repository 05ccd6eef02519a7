// One file from a server into storage: resumed where it stopped, hashed on the way, and kept in
// memory if the browser has no room for it.

import type { Bytes } from "../engine";
import { failure, isQuota } from "./failure";
import { MemoryFile, StoredFile, openToWrite, writeAt } from "./files";
import { type Hasher, hashInto, hasher } from "./hash";

/** What is recorded of a file, in `meta.json`. */
export interface FileRecord {
  url: string;
  /** Bytes in all; null until the server says it. */
  size: number | null;
  /** Bytes that are safely stored. */
  done: number;
  etag: string | null;
  /** What the contents must be; null if nobody said, then it is what was first downloaded. */
  sha256: string | null;
  /** Whether the server (or this page) gave the hash, and not the download itself. */
  given: boolean;
}

export interface DownloadSteps {
  progress(done: number, total: number | null, resumed: number): void;
  /** Writes the record, so that the next visit can go on. */
  keep(): Promise<void>;
  /** There is no room: from here on the file is in memory. */
  noRoom(): void;
  /** Aborted when the visitor stops the download. */
  signal: AbortSignal;
}

/** Bytes between two records. */
const KEEP_EVERY = 4 << 20;
const ATTEMPTS = 4;

/** Where bytes go. */
class Sink {
  private at = 0;
  private memory: MemoryFile | null = null;

  constructor(
    private readonly name: string,
    private readonly handle: FileSystemSyncAccessHandle | null,
    private readonly noRoom: () => void,
  ) {
    if (handle === null) this.memory = new MemoryFile(name);
  }

  get size(): number {
    return this.at;
  }

  get stored(): boolean {
    return this.memory === null;
  }

  write(bytes: Uint8Array): void {
    if (this.memory === null && this.handle !== null) {
      try {
        writeAt(this.handle, bytes, this.at);
        this.at += bytes.length;
        return;
      } catch (error) {
        if (!isQuota(error)) throw error;
        this.memory = this.intoMemory(this.handle);
      }
    }
    this.memory?.append(bytes);
    this.at += bytes.length;
  }

  /** Goes back to `size` bytes, of which all are in place. */
  reset(size: number): void {
    this.at = size;
    if (this.memory === null) this.handle?.truncate(size);
    else if (size === 0) this.memory = new MemoryFile(this.name);
  }

  flush(): void {
    if (this.memory === null) this.handle?.flush();
  }

  /** The file in memory, or null if it is in storage. The handle is closed. */
  end(): MemoryFile | null {
    this.flush();
    this.handle?.close();
    return this.memory;
  }

  private intoMemory(handle: FileSystemSyncAccessHandle): MemoryFile {
    const memory = new MemoryFile(this.name);
    const piece = new Uint8Array(4 << 20);
    for (let at = 0; at < this.at; at += piece.length) {
      const part = piece.subarray(0, Math.min(piece.length, this.at - at));
      handle.read(part, { at });
      memory.append(part);
    }
    handle.truncate(0);
    this.noRoom();
    return memory;
  }
}

/**
 * The file `name` of `dir` (null: memory alone), downloaded as far as it is missing, and checked.
 * Null if the server has no such file.
 */
export async function download(
  dir: FileSystemDirectoryHandle | null,
  name: string,
  record: FileRecord,
  steps: DownloadSteps,
): Promise<Bytes | null> {
  const handle = dir === null ? null : await openToWrite(dir, name);
  const sink = new Sink(name, handle, () => {
    record.done = 0;
    steps.noRoom();
  });
  let hash = await hasher();
  let memory: MemoryFile | null;
  let wasWhole = false;
  try {
    if (handle !== null && record.done > 0 && handle.getSize() >= record.done) {
      sink.reset(record.done);
      const stored = { name, size: record.done, readInto: readFrom(handle) };
      await hashInto(hash, stored, record.done, () => undefined, steps.signal);
      wasWhole = record.done === record.size;
    } else {
      sink.reset(0);
    }
    const transfer = new Transfer(sink, record, steps, hash);
    if (!(await transfer.run())) return null;
    hash = transfer.hash;
  } finally {
    memory = sink.end();
  }
  const hex = hash.hex();
  if (record.sha256 !== null && hex !== record.sha256) {
    if (wasWhole) throw changedInStorage(name);
    if (record.given) throw await wrongContents(record, steps, "another sha-256");
    // What was stored of it is gone, and the other files are of the version before.
    record.done = 0;
    await steps.keep();
    const text = `${record.url} is not what was downloaded first: its sha-256 differs.`;
    throw failure("corrupt-cache", text);
  }
  record.sha256 = hex;
  record.size = sink.size;
  record.done = sink.stored ? sink.size : 0;
  await steps.keep();
  if (memory !== null || dir === null) return memory;
  return StoredFile.open(dir, name);
}

export function changedInStorage(what: string): Error {
  const text = `${what} changed in this browser's storage: its sha-256 differs.`;
  return failure("corrupt-cache", text);
}

/** Also forgets what is known of the file: what its list says may be of another version. */
async function wrongContents(
  record: FileRecord,
  steps: DownloadSteps,
  what: string,
): Promise<Error> {
  Object.assign(record, { size: null, done: 0, etag: null, sha256: null, given: false });
  await steps.keep();
  const not = `${record.url} is not what its list of files says it is (${what}).`;
  return failure("network", `${not} Load the model again.`);
}

function readFrom(handle: FileSystemSyncAccessHandle): Bytes["readInto"] {
  return (at, out) => void handle.read(out, { at });
}

/** The requests for one file. */
class Transfer {
  private resumed: number;
  private keptAt: number;

  constructor(
    private readonly sink: Sink,
    private readonly record: FileRecord,
    private readonly steps: DownloadSteps,
    public hash: Hasher,
  ) {
    this.resumed = sink.size;
    this.keptAt = sink.size;
  }

  /** False if the server has no such file. */
  async run(): Promise<boolean> {
    for (let attempt = 1; ; attempt++) {
      const before = this.sink.size;
      try {
        return await this.request();
      } catch (error) {
        const { signal } = this.steps;
        if (signal.aborted) {
          await this.keep();
          throw failure("cancelled", "The download was stopped. What came is kept.");
        }
        if (error instanceof Error && error.name !== "TypeError") throw error;
        if (this.sink.size > before) attempt = 1;
        if (attempt === ATTEMPTS) {
          await this.keep();
          throw this.stopped(error);
        }
        await new Promise((resume) => {
          setTimeout(resume, 500 * attempt);
          signal.addEventListener("abort", resume, { once: true });
        });
      }
    }
  }

  private async request(): Promise<boolean> {
    const from = this.sink.size;
    if (from > 0 && from === this.record.size) return true;
    const headers: HeadersInit = from > 0 ? { Range: `bytes=${from}-` } : {};
    const response = await fetch(this.record.url, { headers, signal: this.steps.signal });
    if (response.status === 404 || response.status === 410) return false;
    if (response.status === 401 || response.status === 403) {
      const text = `${this.record.url} is not public (status ${response.status}). `;
      throw failure("network", `${text}Use a public model, or pick the files from your disk.`);
    }
    if (response.status === 416) {
      await this.startAgain();
      return this.request();
    }
    if (!response.ok) throw new TypeError(`status ${response.status}`);
    // Servers of single-page sites answer what is missing with their page.
    if (response.headers.get("content-type")?.startsWith("text/html") === true) return false;
    const etag = response.headers.get("etag");
    if (from > 0 && response.status === 206 && this.isOther(etag)) {
      await response.body?.cancel();
      await this.startAgain();
      return this.request();
    }
    if (from > 0 && response.status !== 206) await this.startAgain();
    this.record.etag = etag;
    this.learn(response);
    await this.take(response);
    return true;
  }

  /** Whether the rest may be of another version than what is here already. */
  private isOther(etag: string | null): boolean {
    const { given, etag: before } = this.record;
    // The sha-256 checks the whole; without one, the same ETag alone tells that nothing changed.
    if (given && (before === null || etag === null)) return false;
    return etag === null || etag !== before;
  }

  /** Size and hash, as far as the server says them. */
  private learn(response: Response): void {
    const range = /\/(\d+)$/.exec(response.headers.get("content-range") ?? "")?.[1];
    const length = response.headers.get("content-length");
    const encoded = response.headers.has("content-encoding");
    if (range !== undefined) this.record.size ??= Number(range);
    else if (length !== null && !encoded) this.record.size ??= Number(length);
    const linked = response.headers.get("x-linked-etag") ?? "";
    const hex = /^"?([0-9a-f]{64})"?$/.exec(linked)?.[1];
    if (hex !== undefined && !this.record.given) {
      this.record.sha256 = hex;
      this.record.given = true;
    }
  }

  private async take(response: Response): Promise<void> {
    const reader = response.body?.getReader();
    while (reader !== undefined) {
      const { done, value } = await reader.read();
      if (done) break;
      this.sink.write(value);
      this.hash.update(value);
      this.steps.progress(this.sink.size, this.record.size, this.resumed);
      if (this.sink.size - this.keptAt >= KEEP_EVERY) await this.keep();
    }
    if (this.record.size !== null && this.sink.size < this.record.size) {
      // A connection that breaks is an error of the reader; this body ended as it should.
      const sizes = `${this.sink.size} bytes instead of ${this.record.size}`;
      throw await wrongContents(this.record, this.steps, sizes);
    }
  }

  private async keep(): Promise<void> {
    this.keptAt = this.sink.size;
    if (!this.sink.stored) return;
    this.sink.flush();
    this.record.done = this.sink.size;
    await this.steps.keep();
  }

  private async startAgain(): Promise<void> {
    this.sink.reset(0);
    this.hash = await hasher();
    this.keptAt = 0;
    this.resumed = 0;
    if (!this.record.given) this.record.size = null;
  }

  private stopped(error: unknown): Error {
    const kept = this.sink.stored ? "What came is kept: load the model again to go on." : "";
    const why = error instanceof Error ? error.message : String(error);
    return failure("network", `${this.record.url} could not be downloaded (${why}). ${kept}`);
  }
}
