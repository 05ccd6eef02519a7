// An answer in Markdown that grows: what will not change any more is neither parsed nor drawn
// again, and what still may is changed where it differs. So a long answer stays smooth, and what is
// selected in it or has the focus keeps it.

import { patch } from "./dom";
import { Builder, parse } from "./markdown";

export class Growing {
  private text = "";
  /** Characters of blocks that will not change, how many elements these are, and headings there. */
  private settled = 0;
  private elements = 0;
  private headings: number[] = [];

  constructor(private readonly host: HTMLElement) {}

  /** Shows `text`. Until it is whole, what its last line may mean is guessed. */
  draw(text: string, isWhole: boolean): void {
    // A link may have its address in a later block: the whole is parsed as one.
    if (isWhole || !text.startsWith(this.text)) this.begin();
    this.text = text;
    const tail = text.slice(this.settled);
    const source = isWhole ? tail : steady(tail);
    const blocks = parse(source);
    const first = isWhole ? 0 : firstOpen(source, (i) => blocks[i]?.position?.start.offset);
    const builder = new Builder(source, blocks, [...this.headings]);
    const made: Node[] = [];
    let closed = 0;
    blocks.forEach((block, i) => {
      if (i === first) {
        closed = made.length;
        this.headings = [...builder.headings];
      }
      const element = builder.block(block);
      if (element !== null) made.push(element);
    });
    patch(this.host, made, this.elements);
    this.elements += closed;
    const start = blocks[first]?.position?.start.offset ?? 0;
    // With what the line begins with: indentation is part of a block.
    if (first > 0) this.settled += source.lastIndexOf("\n", start - 1) + 1;
  }

  private begin(): void {
    this.settled = this.elements = 0;
    this.headings = [];
  }
}

/**
 * The last block with a whole line: those before it are closed, whatever follows. That line may
 * still belong to what follows, and one that is not whole may yet go on with the block before it:
 * `2` behind the list of `1. a` is a paragraph until its dot comes.
 */
function firstOpen(source: string, startOf: (i: number) => number | undefined): number {
  const whole = source.lastIndexOf("\n");
  let first = 0;
  for (let i = 0; ; i++) {
    const start = startOf(i);
    if (start === undefined || start >= whole) return first;
    first = i;
  }
}

/** A line of signs alone: a rule, an underline, a fence, a row of a table, the mark of a list. */
const SIGNS = /^[-=*+_#`~|:> \t]*$/;
const NUMBER = /^[ \t>]*\d{1,9}[.)]?[ \t]*$/;
const FENCE = /^[ \t>]*(?:```|~~~)/;
const ROW = /^[ \t]*\|/;

/**
 * A growing text without what would look like something else a moment later, and with what is
 * begun ended: `**bold` is bold, and a link is its text until its address is there.
 */
export function steady(text: string): string {
  const lines = text.split("\n");
  const isCode = lines.filter((line) => FENCE.test(line)).length % 2 === 1;
  const last = lines.pop() ?? "";
  const before = lines.at(-1);
  const isNumber = before !== undefined && NUMBER.test(last);
  if (isCode) return SIGNS.test(last) ? lines.join("\n") : text;
  // The head of a table is one when the line below it is there.
  const isHead = (line: string | undefined, above: string | undefined): boolean =>
    line !== undefined && ROW.test(line) && (above === undefined || !ROW.test(above));
  if (isHead(last, before)) return ended(lines);
  if (SIGNS.test(last) || isNumber) {
    if (isHead(before, lines.at(-2))) lines.pop();
    return ended(lines);
  }
  return [...lines, mended(last)].join("\n");
}

/** Whole lines, the last of which has its end. */
function ended(lines: string[]): string {
  return lines.length === 0 ? "" : `${lines.join("\n")}\n`;
}

/** A last line with an end to what was begun in it. */
function mended(line: string): string {
  const linked = line.replace(/!?\[([^[\]]*)\]\([^()\s]*$/, "$1");
  // A mark behind a space begins what is not there yet.
  const shown = linked.replace(/(?<=^|\s)[*_`]+$/, "");
  if (shown.split("`").length % 2 === 0) return `${shown}\``;
  const text = shown.replace(/[ \t*]+$/, "");
  const opener = text.lastIndexOf("**");
  if (text.split("**").length % 2 === 1) return shown;
  // Between spaces it is no mark.
  return /\S/.test(text.charAt(opener + 2)) ? `${text}**` : shown;
}
