// Messages above the page: what happened, what to do, and buttons that do it.

import type { Code } from "../protocol";
import { RequestError, messageOf } from "./client";
import { button, make } from "./dom";
import { MESSAGES, SOFTWARE } from "./messages";

export interface Action {
  text: string;
  act: () => void;
}

type Tone = "error" | "info";

export class Notices {
  constructor(private readonly list: HTMLElement) {}

  /** Shows what an error means. A stop that the visitor asked for is no message. */
  error(error: unknown, ...actions: Action[]): void {
    const known = error instanceof RequestError;
    const code = known ? error.code : "other";
    if (code === "cancelled") return;
    const detail = messageOf(error);
    const advice = known && error.advice !== undefined ? error.advice : MESSAGES[code].advice;
    this.add(code, MESSAGES[code].title, detail, advice, "error", actions);
  }

  /** What the worker says while it works. */
  worker(code: Code, message: string): void {
    // It says what to do in its own words.
    this.add(code, MESSAGES[code].title, message, "", "info", []);
  }

  software(): void {
    this.add("software", "Software adapter", SOFTWARE, "", "info", []);
  }

  info(key: string, title: string, text: string): void {
    this.add(key, title, text, "", "info", []);
  }

  /** Brings the message on top into view, for who is far below it. */
  reveal(): void {
    this.list.firstElementChild?.scrollIntoView({ block: "nearest" });
  }

  clear(...codes: string[]): void {
    for (const element of [...this.list.children]) {
      const key = element.getAttribute("data-code") ?? "";
      if (codes.includes(key)) element.remove();
    }
  }

  private add(
    key: string,
    title: string,
    detail: string,
    advice: string,
    tone: Tone,
    actions: Action[],
  ): void {
    this.clear(key);
    const element = make("div", { class: `notice ${tone}`, "data-code": key });
    element.setAttribute("role", tone === "error" ? "alert" : "status");
    const mark = make(
      "span",
      { class: "mark", "aria-hidden": "true" },
      tone === "error" ? "!" : "i",
    );
    const text = make("div", { class: "text" }, make("strong", {}, title), make("p", {}, detail));
    if (advice !== "") text.append(make("p", { class: "advice" }, advice));
    if (actions.length > 0) {
      const row = make("p", { class: "row" });
      for (const { text, act } of actions) {
        row.append(
          button(text, () => {
            element.remove();
            act();
          }),
        );
      }
      text.append(row);
    }
    const close = button("Dismiss", () => {
      element.remove();
    });
    close.className = "quiet";
    close.setAttribute("aria-label", `Dismiss: ${title}`);
    element.append(mark, text, close);
    // A live region speaks what comes into it; the element goes in whole.
    this.list.prepend(element);
  }
}
