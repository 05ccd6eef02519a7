// Where a model's files come from: this site, a folder on a server, or the visitor's disk.

import { files as embeddedFiles } from "virtual:embedded-model";

import type { Bytes } from "../engine";
import type { Event, ModelSource, SavedModel } from "../protocol";
import { type FileRecord, changedInStorage, download } from "./download";
import { failure, isLocked } from "./failure";
import { PickedFile, StoredFile, existing, folder, folders, readJson, remove } from "./files";
import { textOf, writeText } from "./files";
import { hashInto, hashText, hasher } from "./hash";

/** Files of a folder that are texts. Only the first two must exist. */
const TEXTS = [
  "config.json",
  "tokenizer.json",
  "tokenizer_config.json",
  "generation_config.json",
  "model.safetensors.index.json",
  "chat_template.jinja",
] as const;
const REQUIRED = 2;
const INDEX = "model.safetensors.index.json";
const SINGLE = "model.safetensors";

/** A model's files, ready for the engine. */
export interface ModelFiles {
  name: string;
  label: string;
  texts: Record<string, string>;
  weights: Bytes[];
  checked: string;
}

/** `models/<id>/meta.json`. */
interface Meta {
  label: string;
  url: string;
  /** All files are stored. */
  complete: boolean;
  files: Record<string, FileRecord>;
}

/** What is known of a file before it is downloaded. */
interface Known {
  url: string;
  size: number | null;
  sha256: string | null;
}

export interface ModelSteps {
  send(event: Event): void;
  signal: AbortSignal;
}

/** The models in storage. */
export class ModelStore {
  private open: StoredFile[] = [];
  /** The folder of the model that was loaded last. */
  private loaded = "";

  constructor(private readonly root: FileSystemDirectoryHandle | null) {}

  /** The files of `source`, downloaded as far as they are missing. */
  async files(source: ModelSource, fresh: boolean, steps: ModelSteps): Promise<ModelFiles> {
    this.close();
    if (source.kind === "files") return picked(source.files);
    try {
      return await this.kept(source, fresh, steps);
    } catch (error) {
      // The next load may write to the files that this one opened.
      this.close();
      throw error;
    }
  }

  private async kept(
    source: Exclude<ModelSource, { kind: "files" }>,
    fresh: boolean,
    steps: ModelSteps,
  ): Promise<ModelFiles> {
    const wanted = source.kind === "embedded" ? embedded() : await remote(source.url, steps.signal);
    const dir = await this.folderOf(wanted, fresh);
    const meta = await this.metaOf(dir, wanted);
    if (dir !== null && meta.complete) {
      const files = await this.stored(dir, meta, steps);
      if (files !== null) return { ...this.assemble(files, wanted), checked: checked(meta, true) };
    }
    const files = await this.fetch(dir, meta, wanted, steps);
    return { ...this.assemble(files, wanted), checked: checked(meta, false) };
  }

  async list(): Promise<SavedModel[]> {
    const models = this.root === null ? null : await existing(this.root, "models");
    if (models === null) return [];
    const list: SavedModel[] = [];
    for (const id of await folders(models)) {
      const meta = await readMeta(await folder(models, id));
      if (meta === null) continue;
      const bytes = Object.values(meta.files).reduce((sum, file) => sum + file.done, 0);
      list.push({ id, label: meta.label, url: meta.url, bytes, complete: meta.complete });
    }
    return list;
  }

  /** Deletes a stored model, unless it is loaded: a lost device reads the weights again. */
  async delete(id: string): Promise<void> {
    const models = this.root === null ? null : await existing(this.root, "models");
    if (models === null) return;
    if (id === this.loaded && this.open.length > 0) {
      throw failure("bad-input", "This model is loaded. Load another one first, then delete it.");
    }
    await remove(models, id);
  }

  private close(): void {
    for (const file of this.open) file.close();
    this.open = [];
  }

  private async folderOf(
    wanted: Wanted,
    fresh: boolean,
  ): Promise<FileSystemDirectoryHandle | null> {
    if (this.root === null) return null;
    const models = await folder(this.root, "models");
    const id = (await hashText(wanted.key)).slice(0, 16);
    this.loaded = id;
    if (fresh) await remove(models, id);
    if (wanted.url === EMBEDDED) await this.dropOlder(models, id);
    return folder(models, id, "files").then(() => folder(models, id));
  }

  /** Deletes embedded models of earlier releases. */
  private async dropOlder(models: FileSystemDirectoryHandle, id: string): Promise<void> {
    for (const other of await this.list()) {
      if (other.url !== EMBEDDED || other.id === id) continue;
      // Another tab may still use it: it goes at a later visit.
      await remove(models, other.id).catch((error: unknown) => {
        if (!isLocked(error)) throw error;
      });
    }
  }

  private async metaOf(dir: FileSystemDirectoryHandle | null, wanted: Wanted): Promise<Meta> {
    const meta = dir === null ? null : await readMeta(dir);
    return meta ?? { label: wanted.label, url: wanted.url, complete: false, files: {} };
  }

  /** All files as stored and checked, or null if one is missing. */
  private async stored(
    dir: FileSystemDirectoryHandle,
    meta: Meta,
    steps: ModelSteps,
  ): Promise<Bytes[] | null> {
    const store = await folder(dir, "files");
    const files: StoredFile[] = [];
    for (const [name, record] of Object.entries(meta.files)) {
      const file = await StoredFile.open(store, name);
      if (file === null) {
        // What is missing is downloaded beside them, and that opens them for writing.
        this.close();
        return null;
      }
      this.open.push(file);
      files.push(file);
      const hash = await hasher();
      const report = (done: number): void => {
        steps.send({ event: "check", file: name, done, total: file.size });
      };
      const right = file.size === record.size;
      if (right) await hashInto(hash, file, file.size, report, steps.signal);
      if (!right || hash.hex() !== record.sha256) {
        throw changedInStorage(`${name} of ${meta.label}`);
      }
    }
    return files;
  }

  private async fetch(
    dir: FileSystemDirectoryHandle | null,
    meta: Meta,
    wanted: Wanted,
    steps: ModelSteps,
  ): Promise<Bytes[]> {
    const fetcher = new Fetcher(dir, meta, wanted, steps, this.open);
    const files = await fetcher.texts();
    const index = files.find((file) => file.name === INDEX);
    const names = index === undefined ? [SINGLE] : shards(textOf(index));
    for (const name of names) {
      const file = await fetcher.file(name);
      if (file === null) throw missing(wanted.label, name);
      files.push(file);
    }
    meta.complete = !fetcher.ranOut && dir !== null;
    await fetcher.keep();
    return files;
  }

  private assemble(files: Bytes[], wanted: Wanted): Omit<ModelFiles, "checked"> {
    const texts: Record<string, string> = {};
    const weights: Bytes[] = [];
    for (const file of files) {
      if (file.name.endsWith(".safetensors")) weights.push(file);
      else texts[file.name] = textOf(file);
    }
    return { name: wanted.name, label: wanted.label, texts, weights };
  }
}

/** Downloads the files of one model, one after another. */
class Fetcher {
  ranOut = false;

  constructor(
    private readonly dir: FileSystemDirectoryHandle | null,
    private readonly meta: Meta,
    private readonly wanted: Wanted,
    private readonly steps: ModelSteps,
    private readonly open: StoredFile[],
  ) {}

  async texts(): Promise<Bytes[]> {
    const files: Bytes[] = [];
    for (const [i, name] of TEXTS.entries()) {
      if (this.wanted.names !== null && !this.wanted.names.has(name)) {
        if (i < REQUIRED) throw missing(this.wanted.label, name);
        continue;
      }
      const file = await this.file(name);
      if (file === null && i < REQUIRED) throw missing(this.wanted.label, name);
      if (file !== null) files.push(file);
    }
    return files;
  }

  /** One file, or null if the server does not have it. */
  async file(name: string): Promise<Bytes | null> {
    const known = this.wanted.file(name);
    let record = this.meta.files[name];
    if (record === undefined || isOutdated(record, known)) {
      record = { ...known, done: 0, etag: null, given: known.sha256 !== null };
      this.meta.files[name] = record;
    }
    const store = this.dir === null ? null : await folder(this.dir, "files");
    const file = await download(store, name, record, {
      progress: (done, total, resumed) => {
        this.steps.send({ event: "download", file: name, done, total, resumed });
      },
      keep: () => this.keep(),
      noRoom: () => {
        this.outOfRoom(name);
      },
      signal: this.steps.signal,
    });
    if (file instanceof StoredFile) this.open.push(file);
    if (file === null) {
      const others = Object.entries(this.meta.files).filter(([other]) => other !== name);
      this.meta.files = Object.fromEntries(others);
      if (store !== null) await remove(store, name);
    }
    return file;
  }

  async keep(): Promise<void> {
    if (this.dir === null) return;
    try {
      await writeText(this.dir, "meta.json", JSON.stringify(this.meta));
    } catch {
      // Without the record the next visit downloads again; nothing else depends on it.
      this.ranOut = true;
    }
  }

  private outOfRoom(name: string): void {
    this.ranOut = true;
    const text =
      `The browser has no room to store ${name}. It is kept in memory for this visit ` +
      "and has to be downloaded again next time. To keep it, free storage below or on the disk.";
    this.steps.send({ event: "notice", code: "quota", message: text, done: true });
  }
}

/** Whether the list of files tells of another version than the one that is recorded. */
function isOutdated(record: FileRecord, { size, sha256 }: Known): boolean {
  return (size !== null && size !== record.size) || (sha256 !== null && sha256 !== record.sha256);
}

/** A model that has an address. */
interface Wanted {
  /** What its folder's name is made from. */
  key: string;
  url: string;
  name: string;
  label: string;
  /** The files that exist; null if nobody knows. */
  names: Set<string> | null;
  file(name: string): Known;
}

const EMBEDDED = "embedded";

function embedded(): Wanted {
  const known = new Map(embeddedFiles.map((file) => [file.name, file]));
  return {
    // Any file may be what differs between two releases.
    key: [EMBEDDED, ...embeddedFiles.map((file) => `${file.name}:${file.sha256}`)].join("\n"),
    url: EMBEDDED,
    name: "needle",
    label: "needle (embedded)",
    names: new Set(known.keys()),
    file: (name) => ({
      url: new URL(`../model/${name}`, self.location.href).href,
      size: known.get(name)?.size ?? null,
      sha256: known.get(name)?.sha256 ?? null,
    }),
  };
}

/** The folder behind an address that a visitor typed: a Hugging Face page, or any folder. */
async function remote(address: string, signal: AbortSignal): Promise<Wanted> {
  let url: URL;
  try {
    url = new URL(address.includes("://") ? address : `https://huggingface.co/${address}`);
  } catch {
    throw failure("bad-input", `${address} is no address. Example: ${EXAMPLE}`);
  }
  if (isGguf(url.pathname)) {
    const text = "GGUF files are read from the disk: download this one, then pick it below.";
    throw failure("bad-input", text);
  }
  const hub = /^\/([^/]+\/[^/]+)(?:\/(?:tree|resolve|blob)\/([^/]+))?\/?/.exec(url.pathname);
  if (url.hostname === "huggingface.co" && hub?.[1] !== undefined) {
    return fromHub(url.origin, hub[1], hub[2] ?? "main", signal);
  }
  const base = url.href.replace(/[^/]*\.(json|safetensors)$/, "").replace(/\/*$/, "/");
  const label = decodeURIComponent(base.split("/").at(-2) ?? base);
  const file = (name: string): Known => ({ url: base + name, size: null, sha256: null });
  return { key: base, url: base, name: label, label, names: null, file };
}

const EXAMPLE = "https://huggingface.co/Qwen/Qwen2.5-0.5B-Instruct";

/** Hugging Face lists sizes, and the sha-256 of its large files. */
async function fromHub(
  origin: string,
  name: string,
  revision: string,
  signal: AbortSignal,
): Promise<Wanted> {
  const base = `${origin}/${name}/resolve/${revision}/`;
  const known = new Map<string, Known>();
  const address = `${origin}/api/models/${name}/tree/${revision}`;
  const response = await fetch(address, { signal }).catch(() => null);
  signal.throwIfAborted();
  if (response?.status === 404 || response?.status === 401) {
    const text = `Hugging Face has no public model ${name} (${revision}). Check the address.`;
    throw failure("network", text);
  }
  const list: unknown = response?.ok === true ? await response.json() : [];
  for (const entry of Array.isArray(list) ? (list as HubEntry[]) : []) {
    const sha256 = entry.lfs?.oid ?? null;
    known.set(entry.path, { url: base + entry.path, size: entry.size, sha256 });
  }
  return {
    key: base,
    url: base,
    name,
    label: name,
    names: known.size > 0 ? new Set(known.keys()) : null,
    file: (file) => known.get(file) ?? { url: base + file, size: null, sha256: null },
  };
}

interface HubEntry {
  path: string;
  size: number;
  lfs?: { oid: string };
}

/** The files that a visitor picked. */
function picked(all: File[]): ModelFiles {
  // Folders within the picked one hold other models' files, under the same names.
  const files = all.filter((file) => file.webkitRelativePath.split("/").length <= 2);
  const byName = new Map(files.map((file) => [file.name, file]));
  const parts = files.filter((file) => isGguf(file.name));
  if (parts.length > 0 && !byName.has("config.json")) return gguf(parts);
  const texts: Record<string, string> = {};
  for (const [i, name] of TEXTS.entries()) {
    const file = byName.get(name);
    if (file !== undefined) texts[name] = textOf(new PickedFile(file));
    else if (i < REQUIRED) throw missing("The picked folder", name);
  }
  const index = texts[INDEX];
  const weights = (index === undefined ? [SINGLE] : shards(index)).map((name) => {
    const file = byName.get(name);
    if (file === undefined) throw missing("The picked folder", name);
    return new PickedFile(file);
  });
  const path = files[0]?.webkitRelativePath ?? "";
  const label = path.includes("/") ? path.slice(0, path.indexOf("/")) : "picked files";
  return { name: label, label, texts, weights, checked: PICKED };
}

function isGguf(name: string): boolean {
  return name.toLowerCase().endsWith(".gguf");
}

/** One GGUF file, or the parts of one: config, tokenizer and weights together. */
function gguf(files: File[]): ModelFiles {
  const parts = [...files].sort((a, b) => (a.name < b.name ? -1 : 1));
  const models = [...new Set(parts.map((file) => file.name.replace(PART, "")))];
  const label = parts[0]?.name ?? "";
  if (models.length > 1) {
    const names = parts.map((file) => file.name).join(", ");
    throw failure("bad-input", `These are several models: ${names}. Pick the file of one.`);
  }
  const weights = parts.map((file) => new PickedFile(file));
  return { name: label, label, texts: {}, weights, checked: PICKED };
}

/** What tells the parts of one model apart. */
const PART = /-\d{5}-of-\d{5}(?=\.gguf$)/i;

const PICKED = "Read from your disk; nothing was stored or checked.";

function shards(index: string): string[] {
  const { weight_map: map } = JSON.parse(index) as { weight_map?: Record<string, string> };
  const names = [...new Set(Object.values(map ?? {}))].sort();
  if (names.length === 0) throw failure("bad-model", `${INDEX} names no files.`);
  // A file's name, and no way out of the folder.
  const strange = names.find((name) => !/^[\w.-]+\.safetensors$/.test(name));
  if (strange !== undefined) throw failure("bad-model", `${INDEX} names ${strange}.`);
  return names;
}

function missing(where: string, name: string): Error {
  const text =
    `${where} has no ${name}. Needed are config.json, tokenizer.json and safetensors weights, ` +
    `as in ${EXAMPLE}.`;
  return failure("bad-model", text);
}

function checked(meta: Meta, fromStorage: boolean): string {
  const files = Object.values(meta.files);
  const given = files.filter((file) => file.given).length;
  const what = fromStorage ? "Loaded from this browser's storage. " : "Downloaded. ";
  if (given === files.length) {
    return `${what}sha-256 of all ${given} files is that of ${
      meta.url === EMBEDDED ? "this release" : "the server's list"
    }.`;
  }
  if (!fromStorage && given === 0) {
    return `${what}The server gives no sha-256; today's is checked at each later load.`;
  }
  const own = files.length - given;
  const server = given > 0 ? `${given} against the server's, ` : "";
  return `${what}sha-256 checked: ${server}${own} against the first download's.`;
}

async function readMeta(dir: FileSystemDirectoryHandle): Promise<Meta | null> {
  const meta = (await readJson(dir, "meta.json")) as Partial<Meta> | null;
  if (typeof meta?.files !== "object" || typeof meta.label !== "string") return null;
  return meta as Meta;
}
