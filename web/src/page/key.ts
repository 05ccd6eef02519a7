// The key of a server that wants one. It is kept for this tab alone.

import { byId } from "./dom";

export class KeyPanel {
  private readonly section = byId("key", HTMLElement);
  private readonly input = byId("key-input", HTMLInputElement);

  constructor(use: (key: string) => void) {
    byId("key-form", HTMLFormElement).addEventListener("submit", (event) => {
      event.preventDefault();
      const key = this.input.value.trim();
      if (key === "") return;
      this.input.value = "";
      this.section.hidden = true;
      use(key);
    });
  }

  ask(): void {
    this.section.hidden = false;
    this.input.focus();
  }
}
