// Documents that were read: text, session (K/V and index) and a record of each.
//
// `documents/<id>/{text.txt, session.lvs, meta.json}`; meta.json is written last, so a folder
// without one is what a closed tab left behind.

import type { Bytes, Policy, Runtime } from "../engine";
import type { SavedDocument } from "../protocol";
import { failure, isLocked, isQuota } from "./failure";
import {
  MemoryFile,
  StoredFile,
  existing,
  folder,
  folders,
  openToWrite,
  readJson,
  readText,
  remove,
  writeAt,
  writeText,
} from "./files";
import { hashText } from "./hash";

/** What the document is, besides its bytes. */
export interface DocumentRecord {
  title: string;
  text: string;
  tokens: number;
  total: number;
  complete: boolean;
  model: string;
  fingerprint: string;
  policy: Policy;
}

interface InMemory {
  meta: SavedDocument;
  text: string;
  session: MemoryFile;
}

type Meta = Omit<SavedDocument, "id" | "onDisk">;

/** The saved documents. */
export class DocumentStore {
  private readonly inMemory = new Map<string, InMemory>();

  constructor(private readonly root: FileSystemDirectoryHandle | null) {}

  /** Saves what `runtime` holds. `noRoom` is called if it is only kept in memory. */
  async save(runtime: Runtime, record: DocumentRecord, noRoom: () => void): Promise<SavedDocument> {
    const { text, ...rest } = record;
    const key = [record.fingerprint, JSON.stringify(record.policy), text].join("\n");
    const id = (await hashText(key)).slice(0, 16);
    const meta: Meta = { ...rest, bytes: 0, savedAt: new Date().toISOString() };
    if (this.root !== null) {
      try {
        return await this.write(this.root, id, meta, text, runtime);
      } catch (error) {
        await this.discard(this.root, id);
        if (!isQuota(error)) throw error;
      }
    }
    noRoom();
    const session = new MemoryFile("session.lvs");
    await runtime.saveSession((bytes) => {
      session.append(bytes);
    });
    const saved = { ...meta, id, bytes: session.size, onDisk: false };
    this.inMemory.set(id, { meta: saved, text, session });
    return saved;
  }

  async list(): Promise<SavedDocument[]> {
    const list = [...this.inMemory.values()].map((document) => document.meta);
    const documents = this.root === null ? null : await existing(this.root, "documents");
    if (documents !== null) {
      for (const id of await folders(documents)) {
        const meta = await readMeta(await folder(documents, id));
        if (meta !== null) list.push({ ...meta, id, onDisk: true });
        else await removeUnlocked(documents, id);
      }
    }
    return list.sort((a, b) => b.savedAt.localeCompare(a.savedAt));
  }

  /** The record and text of a document, and its session opened for `use`. */
  async open<T>(
    id: string,
    use: (meta: SavedDocument, text: string, session: Bytes) => Promise<T>,
  ): Promise<T> {
    const kept = this.inMemory.get(id);
    if (kept !== undefined) return use(kept.meta, kept.text, kept.session);
    const dir = await this.folderOf(id);
    const meta = dir === null ? null : await readMeta(dir);
    const session = dir === null ? null : await StoredFile.open(dir, "session.lvs");
    try {
      const text = dir === null ? null : await readText(dir, "text.txt");
      if (meta === null || session === null || text === null) throw incomplete();
      return await use({ ...meta, id, onDisk: true }, text, session);
    } finally {
      session?.close();
    }
  }

  async text(id: string): Promise<{ title: string; text: string }> {
    const kept = this.inMemory.get(id);
    if (kept !== undefined) return { title: kept.meta.title, text: kept.text };
    const dir = await this.folderOf(id);
    const meta = dir === null ? null : await readMeta(dir);
    const text = dir === null ? null : await readText(dir, "text.txt");
    if (text === null) throw incomplete();
    return { title: meta?.title ?? "", text };
  }

  async delete(id: string): Promise<void> {
    this.inMemory.delete(id);
    const documents = this.root === null ? null : await existing(this.root, "documents");
    if (documents !== null) await remove(documents, id);
  }

  private async folderOf(id: string): Promise<FileSystemDirectoryHandle | null> {
    const documents = this.root === null ? null : await existing(this.root, "documents");
    return documents === null ? null : existing(documents, id);
  }

  private async write(
    root: FileSystemDirectoryHandle,
    id: string,
    meta: Meta,
    text: string,
    runtime: Runtime,
  ): Promise<SavedDocument> {
    const dir = await folder(root, "documents", id);
    // Until the new one is whole, there is none.
    await remove(dir, "meta.json");
    await writeText(dir, "text.txt", text);
    const handle = await openToWrite(dir, "session.lvs");
    let at = 0;
    let refused: unknown = null;
    try {
      handle.truncate(0);
      await runtime.saveSession((bytes) => {
        try {
          writeAt(handle, bytes, at);
        } catch (error) {
          refused = error;
          throw error;
        }
        at += bytes.length;
      });
      handle.flush();
    } catch (error) {
      // The engine may have wrapped what the write threw.
      throw refused ?? error;
    } finally {
      handle.close();
    }
    const saved: Meta = { ...meta, bytes: at };
    await writeText(dir, "meta.json", JSON.stringify(saved));
    return { ...saved, id, onDisk: true };
  }

  private async discard(root: FileSystemDirectoryHandle, id: string): Promise<void> {
    await removeUnlocked(await folder(root, "documents"), id);
  }
}

/** Deletes a folder, unless another tab is at work in it. */
async function removeUnlocked(from: FileSystemDirectoryHandle, name: string): Promise<void> {
  await remove(from, name).catch((error: unknown) => {
    if (!isLocked(error)) throw error;
  });
}

function incomplete(): Error {
  const text = "Parts of this saved document are missing from the browser's storage.";
  return failure("bad-session", text);
}

async function readMeta(dir: FileSystemDirectoryHandle): Promise<Meta | null> {
  const meta = (await readJson(dir, "meta.json")) as Partial<Meta> | null;
  if (typeof meta?.title !== "string" || typeof meta.fingerprint !== "string") return null;
  return meta as Meta;
}
