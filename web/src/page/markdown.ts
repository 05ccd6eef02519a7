// Answers are Markdown: the parser makes a tree of the text, and this file makes elements of the
// tree, one by one. No text of a model is ever parsed as HTML: tags in it are text.

import type {
  AlignType,
  BlockContent,
  Code,
  Definition,
  DefinitionContent,
  Heading,
  List,
  Nodes,
  PhrasingContent,
  RootContent,
  Table,
  TableRow,
} from "mdast";
import { type Options, fromMarkdown } from "mdast-util-from-markdown";
import { gfmTableFromMarkdown } from "mdast-util-gfm-table";
import { gfmTable } from "micromark-extension-gfm-table";

import { copyButton } from "./copy";
import { make } from "./dom";

/** Beyond this depth the source is shown: browsers lay out thousands of nested boxes badly. */
const MOST_DEPTH = 24;

/** Marks of quotes and lists that a line may begin with: the parser takes their square in time. */
const MOST_MARKS = 200;
const MARKS = /^(?:[ \t]*(?:>|[-*+](?=[ \t])|\d{1,9}[.)](?=[ \t])))*/;

/** Marks of emphasis in one paragraph: of these too. */
const MOST_EMPHASES = 1000;

/** What a link may lead to. */
const SCHEMES = new Set(["http:", "https:", "mailto:"]);

/** The title of a card is an h4. */
const FIRST_LEVEL = 5;

const optionsWithout = (...constructs: string[]): Options => ({
  extensions: [gfmTable(), { disable: { null: constructs } }],
  mdastExtensions: [gfmTableFromMarkdown()],
});
// Without HTML, what looks like it is text, and Markdown in it is Markdown.
const OPTIONS = optionsWithout("htmlFlow", "htmlText");
const PLAIN = optionsWithout("htmlFlow", "htmlText", "attention");

/** The blocks of a text in Markdown. */
export function parse(text: string): RootContent[] {
  if (text.split("\n").some(isTooDeep)) {
    const end = { line: 1, column: 1, offset: text.length };
    const position = { start: { line: 1, column: 1, offset: 0 }, end };
    return [{ type: "paragraph", children: [{ type: "text", value: text }], position }];
  }
  return fromMarkdown(text, isOverdone(text) ? PLAIN : OPTIONS).children;
}

/** Paragraphs end at blank lines and at items of lists, among others. */
const PARAGRAPH_END = /\n(?=[ \t]*(?:\n|[-*+][ \t]))/;

function isOverdone(text: string): boolean {
  if (text.length < MOST_EMPHASES) return false;
  const marks = (part: string): number => part.match(/[*_]+/g)?.length ?? 0;
  return text.split(PARAGRAPH_END).some((part) => marks(part) > MOST_EMPHASES);
}

function isTooDeep(line: string): boolean {
  // Most lines are not looked at twice.
  if (line.length < 2 * MOST_MARKS && !line.startsWith(">".repeat(MOST_MARKS))) return false;
  const marks = MARKS.exec(line)?.[0] ?? "";
  return marks.replace(/[ \t\d]/g, "").length > MOST_MARKS;
}

/** Makes elements of blocks in their order. `source` is the text that they were parsed from. */
export class Builder {
  private readonly definitions: Map<string, Definition>;

  constructor(
    private readonly source: string,
    blocks: RootContent[],
    /** Depths of the headings that what comes next stands under, as they are written. */
    readonly headings: number[] = [],
  ) {
    this.definitions = definitionsOf(blocks);
  }

  /** The element of a block; a definition has none. */
  block(node: RootContent | BlockContent | DefinitionContent, depth = 0): HTMLElement | null {
    if (depth > MOST_DEPTH) return make("p", {}, this.written(node));
    switch (node.type) {
      case "paragraph":
        return make("p", {}, ...this.inline(node.children, depth));
      case "heading":
        return this.heading(node, depth);
      case "blockquote":
        return make("blockquote", {}, ...this.blocks(node.children, depth + 1));
      case "list":
        return this.list(node, depth);
      case "code":
        return codeBlock(node);
      case "table":
        return this.table(node, depth);
      case "thematicBreak":
        return make("hr");
      case "definition":
        return null;
      default:
        return make("p", {}, this.written(node));
    }
  }

  private blocks(nodes: (BlockContent | DefinitionContent)[], depth: number): HTMLElement[] {
    return nodes.flatMap((node) => this.block(node, depth) ?? []);
  }

  /**
   * Headings go below the card's title. One that leaves out a level does not here: the outline of
   * the page has no holes, whatever the answer begins with.
   */
  private heading(node: Heading, depth: number): HTMLElement {
    const { headings } = this;
    while ((headings.at(-1) ?? 0) >= node.depth) headings.pop();
    const tag = headings.length === 0 ? `h${FIRST_LEVEL}` : "h6";
    headings.push(node.depth);
    return make(tag, {}, ...this.inline(node.children, depth));
  }

  private list(list: List, depth: number): HTMLElement {
    const isLoose = list.spread === true || list.children.some(({ spread }) => spread === true);
    const items = list.children.map((item) => {
      const parts = item.children.flatMap((node): (Node | string)[] => {
        // A paragraph of a tight list has no room around it.
        if (node.type === "paragraph" && !isLoose) return this.inline(node.children, depth + 1);
        const element = this.block(node, depth + 1);
        return element === null ? [] : [element];
      });
      return make("li", {}, ...parts);
    });
    if (list.ordered !== true) return make("ul", {}, ...items);
    const { start } = list;
    const from = typeof start === "number" && start !== 1 ? { start: String(start) } : {};
    return make("ol", from, ...items);
  }

  private table({ align, children }: Table, depth: number): HTMLElement {
    const [head, ...rows] = children;
    const table = make("table");
    if (head !== undefined) {
      table.append(make("thead", {}, this.row(head, "th", align ?? [], depth)));
    }
    if (rows.length > 0) {
      table.append(
        make("tbody", {}, ...rows.map((row) => this.row(row, "td", align ?? [], depth))),
      );
    }
    // Who has no mouse scrolls what has the focus.
    return make(
      "div",
      { class: "scrolls", tabindex: "0", role: "group", "aria-label": "Table" },
      table,
    );
  }

  private row(row: TableRow, tag: "th" | "td", align: AlignType[], depth: number): HTMLElement {
    const cells = row.children.map((cell, i) => {
      const side = align[i] ?? null;
      const attributes = {
        ...(tag === "th" ? { scope: "col" } : {}),
        ...(side === null ? {} : { class: `to-${side}` }),
      };
      return make(tag, attributes, ...this.inline(cell.children, depth));
    });
    return make("tr", {}, ...cells);
  }

  private inline(nodes: PhrasingContent[], depth: number): (Node | string)[] {
    return nodes.flatMap((node) => this.phrase(node, depth + 1));
  }

  private phrase(node: PhrasingContent, depth: number): (Node | string)[] {
    if (depth > MOST_DEPTH) return [this.written(node)];
    switch (node.type) {
      case "text":
        return [node.value];
      case "emphasis":
        return [make("em", {}, ...this.inline(node.children, depth))];
      case "strong":
        return [make("strong", {}, ...this.inline(node.children, depth))];
      case "inlineCode":
        return [make("code", {}, node.value)];
      case "break":
        return [make("br")];
      case "link":
        return this.link(node.url, node.children, depth);
      case "linkReference": {
        const { url } = this.definitions.get(node.identifier) ?? { url: "" };
        return this.link(url, node.children, depth);
      }
      // Nothing is fetched that a model names.
      case "image":
      case "imageReference":
        return [node.alt ?? ""];
      default:
        return [this.written(node)];
    }
  }

  private link(url: string, children: PhrasingContent[], depth: number): (Node | string)[] {
    const text = this.inline(children, depth);
    const href = allowed(url);
    if (href === null) return text;
    const attributes = { href, rel: "noopener noreferrer nofollow", target: "_blank" };
    const link = make("a", attributes, ...text);
    if (link.textContent.trim() === "") link.append(url);
    return [link];
  }

  /** What a node was parsed from. */
  private written({ position }: Nodes): string {
    return this.source.slice(position?.start.offset ?? 0, position?.end.offset ?? 0);
  }
}

/** The address, where a link may lead there: it is whole, and of a scheme that runs nothing. */
function allowed(url: string): string | null {
  try {
    const { protocol, href } = new URL(url);
    return SCHEMES.has(protocol) ? href : null;
  } catch {
    return null;
  }
}

function codeBlock({ value, lang }: Code): HTMLElement {
  const code = make("code", {}, value);
  const language = lang ?? "";
  const name = language === "" ? "Code" : `Code, ${language}`;
  // Of several blocks, the first line says which one is copied.
  const first = value.trimStart().split("\n", 1)[0]?.slice(0, 40) ?? "";
  const copy = copyButton(`Copy the code: ${first}`, () => code.textContent);
  const head = make("div", { class: "head" }, make("span", { class: "hint" }, language), copy);
  const scrolls = { tabindex: "0", role: "group", "aria-label": name };
  return make("div", { class: "code" }, head, make("pre", scrolls, code));
}

/** Addresses that links name elsewhere in the text, by their names. The first of a name counts. */
function definitionsOf(blocks: RootContent[]): Map<string, Definition> {
  const found = new Map<string, Definition>();
  const left: Nodes[] = [...blocks].reverse();
  for (let node = left.pop(); node !== undefined; node = left.pop()) {
    if (node.type === "definition" && !found.has(node.identifier)) found.set(node.identifier, node);
    if (node.type === "blockquote" || node.type === "list" || node.type === "listItem") {
      left.push(...[...node.children].reverse());
    }
  }
  return found;
}
