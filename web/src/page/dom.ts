// Elements by id and by name, typed.

type Child = Node | string;

/** The element with this id. A missing one is a mistake in the page. */
export function byId<T extends HTMLElement>(id: string, type: new () => T): T {
  const found = document.getElementById(id);
  if (!(found instanceof type)) throw new Error(`the page has no ${type.name} #${id}`);
  return found;
}

/** The element with this id, which the page has in one of its builds. */
export function find<T extends HTMLElement>(id: string, type: new () => T): T | null {
  return document.getElementById(id) === null ? null : byId(id, type);
}

/** A new element with attributes and children. */
export function make<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Record<string, string> = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** A button that does `act`. */
export function button(text: string, act: () => void, attributes = {}): HTMLButtonElement {
  const made = make("button", { type: "button", ...attributes }, text);
  made.addEventListener("click", act);
  return made;
}

/**
 * Makes `wanted` the children of `host` behind the first `kept`, and touches only what differs:
 * what stays keeps the focus, the selection and how far it is scrolled.
 */
export function patch(host: Element, wanted: Node[], kept = 0): void {
  const before = [...host.childNodes].slice(kept);
  wanted.forEach((node, i) => {
    const there = before[i];
    if (there === undefined) host.append(node);
    else if (there instanceof Text && node instanceof Text) rewrite(there, node.data);
    else if (
      there instanceof Element &&
      node instanceof Element &&
      there.tagName === node.tagName
    ) {
      takeAttributes(there, node);
      patch(there, [...node.childNodes]);
    } else there.replaceWith(node);
  });
  for (const left of before.slice(wanted.length)) left.remove();
}

/** A text that only grows keeps what is selected of it. */
function rewrite(node: Text, text: string): void {
  if (node.data === text) return;
  if (text.startsWith(node.data)) node.appendData(text.slice(node.data.length));
  else node.data = text;
}

function takeAttributes(element: Element, from: Element): void {
  for (const { name } of [...element.attributes]) {
    if (!from.hasAttribute(name)) element.removeAttribute(name);
  }
  for (const { name, value } of from.attributes) {
    if (element.getAttribute(name) !== value) element.setAttribute(name, value);
  }
}

/** Keeps the keyboard's place: `to` gets the focus if what is about to go away has it. */
export function handOver(from: HTMLElement, to: HTMLElement): void {
  if (from.contains(document.activeElement)) to.focus();
}

/** Says something to screen readers alone, at most once a second; the latest wins. */
export class Announcer {
  private timer: number | null = null;
  private next = "";
  private lastAt = 0;

  constructor(private readonly element: HTMLElement) {}

  say(text: string): void {
    this.next = text;
    if (this.timer !== null) return;
    const wait = Math.max(0, 1000 - (performance.now() - this.lastAt));
    this.timer = window.setTimeout(() => {
      this.timer = null;
      this.lastAt = performance.now();
      this.element.textContent = this.next;
    }, wait);
  }
}
