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
