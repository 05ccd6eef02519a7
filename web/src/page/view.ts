// The document as the visitor reads it, with the passages of an answer marked.
//
// The text is cut into blocks that the browser lays out only when they come near the viewport
// (content-visibility), so a text of millions of characters scrolls.

import type { Passage } from "../engine";
import { make } from "./dom";

/** Characters of a block, about. */
const BLOCK = 1500;

interface Block {
  start: number;
  end: number;
  element: HTMLElement;
  marked: boolean;
}

/** Marks within one block; `rank` counts from 1. */
interface Mark {
  start: number;
  end: number;
  rank: number;
}

export class DocumentView {
  private text = "";
  private blocks: Block[] = [];

  constructor(private readonly host: HTMLElement) {}

  show(text: string): void {
    this.text = text;
    this.blocks = cut(text).map(({ start, end }) => {
      const element = make("p", { class: "block" }, text.slice(start, end));
      return { start, end, element, marked: false };
    });
    this.host.replaceChildren(...this.blocks.map((block) => block.element));
    this.host.scrollTop = 0;
  }

  /** Marks these passages, and no others. */
  mark(passages: Passage[]): void {
    const marks = passages
      .map(({ start, end }, i) => ({ start, end, rank: i + 1 }))
      .sort((a, b) => a.start - b.start);
    for (const block of this.blocks) {
      const inside = marks.filter((mark) => mark.start < block.end && mark.end > block.start);
      if (inside.length === 0 && !block.marked) continue;
      block.marked = inside.length > 0;
      block.element.replaceChildren(...this.marked(block, inside));
    }
  }

  /** Scrolls to a passage; `focus` moves the keyboard there too. */
  reveal(rank: number, focus: boolean): void {
    const mark = this.host.querySelector<HTMLElement>(`mark[data-rank="${rank}"]`);
    if (mark === null) return;
    for (const other of this.host.querySelectorAll("mark.now")) other.classList.remove("now");
    mark.classList.add("now");
    this.center(mark);
    // Blocks that came into view are laid out now, and may be higher than was assumed.
    requestAnimationFrame(() => {
      this.center(mark);
    });
    if (focus) mark.focus({ preventScroll: true });
  }

  private center(mark: HTMLElement): void {
    const above = mark.getBoundingClientRect().top - this.host.getBoundingClientRect().top;
    this.host.scrollTop += above - this.host.clientHeight / 2;
  }

  /** A passage, shortened; it begins and ends with a sentence, in any script. */
  quote({ start, end }: Passage): string {
    const words = this.text.slice(start, end).replace(/\s+/g, " ").trim();
    // Never between the halves of a pair.
    const characters = Array.from(words);
    if (characters.length <= 90) return words;
    return `${characters.slice(0, 88).join("").trim()}…`;
  }

  private marked(block: Block, marks: Mark[]): (Node | string)[] {
    const parts: (Node | string)[] = [];
    let at = block.start;
    for (const mark of marks) {
      const start = Math.max(at, mark.start);
      const end = Math.min(block.end, mark.end);
      if (end <= start) continue;
      parts.push(this.text.slice(at, start));
      const element = make("mark", { "data-rank": String(mark.rank), tabindex: "-1" });
      element.append(make("sup", {}, String(mark.rank)), this.text.slice(start, end));
      parts.push(element);
      at = end;
    }
    parts.push(this.text.slice(at, block.end));
    return parts;
  }
}

/** Blocks that end behind a line, else behind a sentence, else behind a word. */
function cut(text: string): { start: number; end: number }[] {
  const blocks = [];
  let start = 0;
  while (start < text.length) {
    let end = Math.min(text.length, start + BLOCK);
    if (end < text.length) {
      const from = start + BLOCK / 2;
      const signs = ["\n", ". ", " "].map((sign) => text.lastIndexOf(sign, end - 2) + sign.length);
      end = signs.find((at) => at > from) ?? end;
      // Never between the halves of a pair.
      const code = text.charCodeAt(end - 1);
      if (code >= 0xd800 && code < 0xdc00) end += 1;
    }
    blocks.push({ start, end });
    start = end;
  }
  return blocks;
}
