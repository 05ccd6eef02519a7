// Files of the origin private file system (OPFS), and files in memory that take their place where
// the browser has no room. Both are read synchronously, in ranges.

import type { Bytes } from "../engine";
import { count } from "../page/format";
import { failure, isLocked } from "./failure";

/** Pieces of files in memory: small enough that no browser refuses the buffer. */
const PIECE = 32 << 20;

type Folder = FileSystemDirectoryHandle;

interface ModeHandle {
  createSyncAccessHandle(options: { mode: string }): Promise<FileSystemSyncAccessHandle>;
}

/** The root, or null where the browser has none (some private windows, insecure origins). */
export async function root(): Promise<Folder | null> {
  try {
    return await navigator.storage.getDirectory();
  } catch {
    return null;
  }
}

/** The folder at `path`, made if missing. */
export async function folder(from: Folder, ...path: string[]): Promise<Folder> {
  let at = from;
  for (const name of path) at = await at.getDirectoryHandle(name, { create: true });
  return at;
}

export async function existing(from: Folder, name: string): Promise<Folder | null> {
  return from.getDirectoryHandle(name).catch(() => null);
}

export async function folders(from: Folder): Promise<string[]> {
  const names = [];
  for await (const [name, handle] of from.entries())
    if (handle.kind === "directory") {
      names.push(name);
    }
  return names.sort();
}

/** Deletes a file or folder; true if it is gone. */
export async function remove(from: Folder, name: string): Promise<boolean> {
  try {
    await from.removeEntry(name, { recursive: true });
    return true;
  } catch (error) {
    if (isLocked(error)) throw error;
    return error instanceof Error && error.name === "NotFoundError";
  }
}

/** A file opened for writing. Another tab that has it open is an error. */
export async function openToWrite(dir: Folder, name: string): Promise<FileSystemSyncAccessHandle> {
  return (await dir.getFileHandle(name, { create: true })).createSyncAccessHandle();
}

/** Writes all of `bytes` at `at`, or throws: QuotaExceededError where there is no room. */
export function writeAt(handle: FileSystemSyncAccessHandle, bytes: Uint8Array, at: number): void {
  const written = handle.write(bytes, { at });
  // Without room, Chromium throws nothing and returns its error code as an unsigned number.
  if (written !== bytes.length) {
    throw new DOMException("the browser wrote only a part", "QuotaExceededError");
  }
}

export async function writeText(dir: Folder, name: string, text: string): Promise<void> {
  const handle = await openToWrite(dir, name);
  try {
    handle.truncate(0);
    writeAt(handle, new TextEncoder().encode(text), 0);
    handle.flush();
  } finally {
    handle.close();
  }
}

/** The text of a file, or null if there is none. */
export async function readText(dir: Folder, name: string): Promise<string | null> {
  try {
    return await (await (await dir.getFileHandle(name)).getFile()).text();
  } catch {
    return null;
  }
}

export async function readJson(dir: Folder, name: string): Promise<unknown> {
  const text = await readText(dir, name);
  if (text === null) return null;
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return null;
  }
}

/** A stored file, held open. Several tabs may read it where the browser knows the mode. */
export class StoredFile implements Bytes {
  private constructor(
    readonly name: string,
    readonly size: number,
    private readonly handle: FileSystemSyncAccessHandle,
  ) {}

  static async open(dir: Folder, name: string): Promise<StoredFile | null> {
    const file = await dir.getFileHandle(name).catch(() => null);
    if (file === null) return null;
    const options = { mode: "read-only" };
    const handle = await (file as unknown as ModeHandle).createSyncAccessHandle(options);
    return new StoredFile(name, handle.getSize(), handle);
  }

  readInto(at: number, out: Uint8Array): void {
    const read = this.handle.read(out, { at });
    if (read !== out.length) {
      const range = `${at} to ${at + out.length}`;
      throw failure("corrupt-cache", `${this.name}: bytes ${range} cannot be read from storage.`);
    }
  }

  close(): void {
    this.handle.close();
  }
}

/** A file in memory, in pieces. */
export class MemoryFile implements Bytes {
  size = 0;
  private readonly pieces: Uint8Array[] = [];

  constructor(readonly name: string) {}

  /** Copies `bytes` to the end. */
  append(bytes: Uint8Array): void {
    let taken = 0;
    while (taken < bytes.length) {
      const used = this.size % PIECE;
      if (used === 0) this.pieces.push(new Uint8Array(PIECE));
      const last = this.pieces[this.pieces.length - 1];
      if (last === undefined) return;
      const part = bytes.subarray(taken, taken + PIECE - used);
      last.set(part, used);
      taken += part.length;
      this.size += part.length;
    }
  }

  readInto(at: number, out: Uint8Array): void {
    if (at + out.length > this.size) {
      throw failure("bad-input", `${this.name}: bytes up to ${at + out.length} of ${this.size}.`);
    }
    let filled = 0;
    while (filled < out.length) {
      const from = at + filled;
      const piece = this.pieces[Math.floor(from / PIECE)];
      if (piece === undefined) return;
      const part = piece.subarray(from % PIECE, (from % PIECE) + out.length - filled);
      out.set(part, filled);
      filled += part.length;
    }
  }
}

/** Bytes of a picked file that are read at least: each read crosses to another process. */
const WINDOW = 1 << 20;

/** A file that the visitor picked: read from where it lies, never copied. */
export class PickedFile implements Bytes {
  private readonly reader = new FileReaderSync();
  private window: Uint8Array<ArrayBuffer> = new Uint8Array();
  private windowAt = 0;
  readonly name: string;
  readonly size: number;

  constructor(private readonly file: File) {
    this.name = file.name;
    this.size = file.size;
  }

  readInto(at: number, out: Uint8Array): void {
    const end = at + out.length;
    const isWithin = at >= this.windowAt && end <= this.windowAt + this.window.length;
    if (!isWithin) {
      // Rows of a re-ordered matrix are read one by one, and lie close together.
      this.window = this.read(at, Math.min(this.size, Math.max(end, at + WINDOW)));
      this.windowAt = at;
    }
    const from = at - this.windowAt;
    out.set(this.window.subarray(from, from + out.length));
    // What was read in one large piece is not needed twice.
    if (this.window.length > WINDOW) this.window = new Uint8Array();
  }

  private read(at: number, end: number): Uint8Array<ArrayBuffer> {
    const part = this.reader.readAsArrayBuffer(this.file.slice(at, end));
    if (part.byteLength < end - at) {
      throw failure("bad-model", `${this.name} changed on the disk. Pick it again.`);
    }
    return new Uint8Array(part);
  }
}

/** The longest text of a model that the engine reads, its tokenizer, in bytes. */
const MOST_TEXT = 400_000_000;

/** The text of a small file, whatever it lies in. One that is too large is refused unread. */
export function textOf(file: Bytes): string {
  if (file.size > MOST_TEXT) {
    const sizes = `has ${count(file.size)} bytes, and at most ${count(MOST_TEXT)} are read`;
    throw failure("bad-model", `${file.name} ${sizes}.`);
  }
  const bytes = new Uint8Array(file.size);
  file.readInto(0, bytes);
  return new TextDecoder().decode(bytes);
}
