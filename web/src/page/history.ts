// Questions and answers that survive a reload: a list for each document, in the storage of this
// browser. What a browser refuses to store is not kept, and the page says so.

import type { Answer, Passage } from "../engine";

/** What was said to one question, under one policy after another. */
export interface KeptExchange {
  /** Tells it from those of other tabs; none where an older page wrote it. */
  id?: string;
  question: string;
  answers: KeptAnswer[];
}

export interface KeptAnswer {
  /** The policy as the page names it. */
  policy: string;
  answer: Answer;
}

const PREFIX = "longview-questions:1:";
/** Documents with questions, and questions of one. */
const MOST_DOCUMENTS = 50;
const MOST_QUESTIONS = 50;
/** UTF-16 units of one list; browsers give a page some five million. */
const MOST_UNITS = 300_000;

/** A list as it is stored. */
interface Entry {
  /** When it was written, in ms since 1970: the oldest go first. */
  at: number;
  talk: KeptExchange[];
}

export class History {
  private readonly storage: Storage | null;
  /** Of exchanges that this tab has read or written: what else is stored is of another one. */
  private readonly seen = new Set<string>();

  /**
   * `storage` gives where to keep them; it may throw, as browsers do that store nothing. Lists of
   * one `model` are not shown for another.
   */
  constructor(
    storage: () => Storage,
    private readonly model: string,
  ) {
    this.storage = usable(storage);
  }

  /** Whether the browser stores anything. */
  get keeps(): boolean {
    return this.storage !== null;
  }

  get isEmpty(): boolean {
    return this.names().length === 0;
  }

  /** What was asked about a document, oldest first. */
  read(document: string): KeptExchange[] {
    const talk = this.stored(document);
    this.see(talk);
    return talk;
  }

  /**
   * Keeps what was asked about a document, the last questions of it where it is too much. What
   * other tabs asked about it stays.
   */
  write(document: string, talk: KeptExchange[]): void {
    if (this.storage === null) return;
    const isOfOthers = ({ id }: KeptExchange): boolean => id !== undefined && !this.seen.has(id);
    const elsewhere = this.stored(document).filter(isOfOthers);
    this.see(talk);
    let kept = [...elsewhere, ...talk].slice(-MOST_QUESTIONS);
    let text = this.text(kept);
    while (text.length > MOST_UNITS && kept.length > 0) {
      kept = kept.slice(Math.ceil(kept.length / 4));
      text = this.text(kept);
    }
    const name = this.name(document);
    if (kept.length === 0) {
      this.drop([name]);
      return;
    }
    const others = this.names().filter((other) => other !== name);
    this.drop(others.slice(MOST_DOCUMENTS - 1));
    // Where the browser has no room, older lists go until there is.
    for (let n = Math.min(others.length, MOST_DOCUMENTS - 1); !this.set(name, text); n--) {
      if (n <= 0) return;
      this.drop(others.slice(n - 1, n));
    }
  }

  /** Forgets what was asked about a document, under whichever model. */
  forget(document: string): void {
    this.drop(this.names().filter((name) => name.endsWith(`:${document}`)));
  }

  forgetAll(): void {
    this.drop(this.names());
  }

  private stored(document: string): KeptExchange[] {
    const text = attempt(() => this.storage?.getItem(this.name(document)) ?? null);
    return text === null ? [] : (entry(text)?.talk ?? []);
  }

  private see(talk: KeptExchange[]): void {
    for (const { id } of talk) if (id !== undefined) this.seen.add(id);
  }

  private name(document: string): string {
    return `${PREFIX}${encodeURIComponent(this.model)}:${document}`;
  }

  private text(talk: KeptExchange[]): string {
    const entry: Entry = { at: Date.now(), talk };
    return JSON.stringify(entry);
  }

  /** Of all lists, the one that was written last first. */
  private names(): string[] {
    const { storage } = this;
    if (storage === null) return [];
    const found = attempt(() => {
      const names = Array.from({ length: storage.length }, (_, i) => storage.key(i) ?? "");
      const own = names.filter((name) => name.startsWith(PREFIX));
      const at = (name: string): number => entry(storage.getItem(name) ?? "")?.at ?? 0;
      return own.map((name) => ({ name, at: at(name) }));
    });
    const lists = found ?? [];
    return lists.sort((a, b) => b.at - a.at).map(({ name }) => name);
  }

  private set(name: string, text: string): boolean {
    return attempt(() => (this.storage?.setItem(name, text), true)) ?? false;
  }

  private drop(names: string[]): void {
    for (const name of names) attempt(() => (this.storage?.removeItem(name), null));
  }
}

/** The storage, if the browser lets the page write to it. */
function usable(storage: () => Storage): Storage | null {
  return attempt(() => {
    const found = storage();
    const name = `${PREFIX}?`;
    found.setItem(name, "");
    found.removeItem(name);
    return found;
  });
}

/** What `work` gives, or null: browsers that store nothing throw. */
export function attempt<T>(work: () => T): T | null {
  try {
    return work();
  } catch {
    return null;
  }
}

/** A list, if it is one: other pages of this address write to the same storage. */
function entry(text: string): Entry | null {
  const value = attempt(() => JSON.parse(text) as unknown);
  if (!isObject(value) || typeof value["at"] !== "number" || !Array.isArray(value["talk"])) {
    return null;
  }
  return { at: value["at"], talk: value["talk"].filter(isExchange) };
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null;
}

function isExchange(value: unknown): value is KeptExchange {
  if (!isObject(value) || typeof value["question"] !== "string") return false;
  if (!["string", "undefined"].includes(typeof value["id"])) return false;
  const answers = value["answers"];
  return Array.isArray(answers) && answers.length > 0 && answers.every(isAnswer);
}

function isAnswer(value: unknown): value is KeptAnswer {
  if (!isObject(value) || typeof value["policy"] !== "string") return false;
  const { answer } = value;
  if (!isObject(answer) || typeof answer["text"] !== "string") return false;
  const numbers = ["tokens", "seconds", "tokensPerS", "deviceBytes", "hostBytes"];
  const hasNumbers = numbers.every((name) => typeof answer[name] === "number");
  const rate = answer["hitRate"];
  const { finish, passages } = answer;
  const isEnd = finish === "end" || finish === "length" || finish === "stopped";
  const hasRate = rate === null || typeof rate === "number";
  const hasMore = ["firstAfterS", "attended", "context"].every((name) => isFigure(answer[name]));
  return (
    hasNumbers &&
    hasRate &&
    isEnd &&
    hasMore &&
    Array.isArray(passages) &&
    passages.every(isPassage)
  );
}

/** A number that may be missing. */
function isFigure(value: unknown): boolean {
  return value === undefined || value === null || typeof value === "number";
}

function isPassage(value: unknown): value is Passage {
  if (!isObject(value)) return false;
  return ["start", "end", "weight"].every((name) => typeof value[name] === "number");
}
