// The key of a server that wants one. It is kept for this tab alone.

import { byId } from "./dom";

export class KeyPanel {
  private readonly section = byId("key", HTMLElement);
  private readonly input = byId("key-input", HTMLInputElement);
  private readonly change = byId("key-change", HTMLButtonElement);
  private readonly keep = byId("key-keep", HTMLElement);
  private hasKey = false;
  /** Whether the keyboard was here: it goes to the button, once that is there. */
  private wasHere = false;

  constructor(use: (key: string) => void) {
    byId("key-form", HTMLFormElement).addEventListener("submit", (event) => {
      event.preventDefault();
      const key = this.input.value.trim();
      if (key === "") return;
      this.close();
      use(key);
    });
    this.change.addEventListener("click", () => {
      this.open(true);
    });
    byId("key-cancel", HTMLButtonElement).addEventListener("click", () => {
      this.close();
    });
    this.section.addEventListener("keydown", ({ key }) => {
      if (key === "Escape" && !this.keep.hidden) this.close();
    });
  }

  /** The server answers nobody without another one. */
  ask(): void {
    this.open(false);
  }

  /** Whether the server takes the key that requests have: another may take its place. */
  set isInUse(isInUse: boolean) {
    this.hasKey = isInUse;
    this.offer();
  }

  private open(isChange: boolean): void {
    this.section.hidden = false;
    this.keep.hidden = !isChange;
    this.input.focus();
    this.offer();
  }

  private close(): void {
    this.input.value = "";
    this.wasHere = this.section.contains(document.activeElement);
    this.section.hidden = true;
    this.offer();
  }

  private offer(): void {
    if (document.activeElement === this.change) this.wasHere = true;
    this.change.hidden = !this.hasKey || !this.section.hidden;
    if (!this.wasHere || this.change.hidden) return;
    this.wasHere = false;
    this.change.focus();
  }
}
