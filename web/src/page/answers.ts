// Answers as cards: one question, one or two policies beside each other.

import type { Answer, Passage, Step } from "../engine";
import { copyButton } from "./copy";
import { button, make } from "./dom";
import { bytes, count, percent, rate, seconds } from "./format";
import { Growing } from "./growing";
import type { KeptAnswer } from "./history";

export interface Quotes {
  quote(passage: Passage): string;
  show(passages: Passage[], rank: number): void;
}

/** A growing answer is not drawn for so many times as long as it took to draw it. */
const IDLE_SHARE = 4;

/** One policy's answer, growing. */
export class AnswerCard {
  readonly element: HTMLElement;
  private readonly body = make("div", { class: "answer" });
  private readonly growing = new Growing(this.body);
  private readonly figures = make("p", { class: "figures" }, "waiting");
  private readonly verdict = make("p", { class: "verdict" });
  private readonly title: HTMLElement;
  private text = "";
  private tokens = 0;
  private tokensPerS = 0;
  private readonly since = performance.now();
  private answer: Answer | null = null;
  private hasFailed = false;
  private hits = 0;
  private misses = 0;
  private frame = 0;
  /** What is drawn no sooner leaves the page most of its time. */
  private drawAfter = 0;

  constructor(private readonly policy: string) {
    this.title = make("div", { class: "head" }, make("h4", {}, policy));
    const parts = [this.title, this.body, this.verdict, this.figures];
    this.element = make("div", { class: "card" }, ...parts);
  }

  get spoken(): string {
    return this.text.trim();
  }

  /** What may be gone on from: nothing where it failed. */
  get said(): string | null {
    return this.answer !== null && this.spoken !== "" ? this.spoken : null;
  }

  /** What is worth keeping: an answer that has not ended is as if it were stopped now. */
  get soFar(): KeptAnswer[] {
    if (this.answer !== null) return [{ policy: this.policy, answer: this.answer }];
    if (this.spoken === "") return [];
    const answer: Answer = {
      text: this.text,
      tokens: this.tokens,
      seconds: (performance.now() - this.since) / 1000,
      tokensPerS: this.tokensPerS,
      hitRate: null,
      deviceBytes: 0,
      hostBytes: 0,
      finish: "stopped",
      passages: [],
    };
    return [{ policy: this.policy, answer }];
  }

  begin(): void {
    this.figures.textContent = "reading the question";
  }

  /** How far what comes before the answer was read. */
  reading(done: number, total: number): void {
    this.figures.textContent = `reading, ${count(done)} of ${count(total)} tokens`;
  }

  restart(): void {
    this.text = "";
    this.hits = this.misses = 0;
    this.draw(false);
  }

  step(step: Step): void {
    this.text += step.text;
    this.tokens = step.tokens;
    this.tokensPerS = step.tokensPerS;
    this.hits += step.hits;
    this.misses += step.misses;
    const looked = this.hits + this.misses;
    const share = looked > 0 ? `, ${percent(this.hits / looked)} hits` : "";
    const done = step.tokens === 0 ? "reading the question" : `${step.tokens} tokens`;
    this.figures.textContent = `${done}, ${rate(step.tokensPerS)} tokens/s${share}`;
    if (this.frame === 0) this.frame = requestAnimationFrame(this.onFrame);
  }

  /** `expected` is what the document says, if the page can tell. */
  end(answer: Answer, expected: string | null, quotes: Quotes): void {
    this.text = answer.text;
    this.answer = answer;
    this.draw(true);
    const list = make("dl", { class: "facts" });
    for (const [name, value] of factsOf(answer)) {
      list.append(make("div", {}, make("dt", {}, name), make("dd", {}, value)));
    }
    this.figures.replaceWith(list);
    if (expected !== null) this.judge(answer.text.includes(expected), expected);
    const ending = ENDINGS[answer.finish];
    if (ending !== null) this.element.append(make("p", { class: "hint" }, ending));
    if (answer.passages.length > 0) this.passages(answer.passages, quotes);
    this.title.append(copyButton(`Copy the answer of ${this.policy}`, () => this.spoken));
  }

  /** It is not asked any more, after another has failed. */
  giveUp(): void {
    if (this.answer === null && !this.hasFailed) this.fail("the one before failed.");
  }

  /** What there is of the answer stays. */
  fail(reason: string): void {
    this.hasFailed = true;
    this.draw(true);
    this.body.hidden = this.spoken === "";
    this.figures.textContent = `${this.body.hidden ? "No answer" : "It broke off"}: ${reason}`;
  }

  private judge(right: boolean, expected: string): void {
    this.verdict.classList.add(right ? "right" : "wrong");
    this.verdict.textContent = right
      ? "✓ This is what the document says."
      : `✗ The document says ${expected}.`;
  }

  private passages(passages: Passage[], quotes: Quotes): void {
    const items = passages.map((passage, i) => {
      const go = button(quotes.quote(passage), () => {
        quotes.show(passages, i + 1);
      });
      go.className = "passage";
      return make("li", {}, go, make("span", { class: "hint" }, percent(passage.weight)));
    });
    const list = make("ol", { class: "passages" }, ...items);
    const title = make("summary", {}, "Attended most in the document");
    this.element.append(make("details", {}, title, list));
  }

  private readonly onFrame = (): void => {
    if (performance.now() < this.drawAfter) this.frame = requestAnimationFrame(this.onFrame);
    else this.draw(false);
  };

  private draw(isWhole: boolean): void {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    const since = performance.now();
    this.growing.draw(this.spoken, isWhole);
    const now = performance.now();
    this.drawAfter = now + IDLE_SHARE * (now - since);
  }
}

/** What is said of how an answer ended, where that is not by itself. */
const ENDINGS: Record<Answer["finish"], string | null> = {
  end: null,
  length:
    "Cut off: it is as long as “Longest answer” under More options allows, or the context is full.",
  stopped: "Stopped.",
};

/** Figures of an answer; those that its engine did not tell are left out. */
function factsOf(answer: Answer): [string, string][] {
  const { tokens, deviceBytes, hostBytes, hitRate, firstAfterS } = answer;
  const { attended = null, context = 0 } = answer;
  const facts: [string, string][] = [
    ["Tokens", `${count(tokens)} in ${seconds(answer.seconds)}`],
    ["Tokens/s", rate(answer.tokensPerS)],
  ];
  if (firstAfterS !== undefined) facts.splice(1, 0, ["First token after", seconds(firstAfterS)]);
  if (attended !== null && context > 0) {
    facts.push(["Attended in a step, mean", `${count(attended)} of ${count(context)} tokens`]);
  }
  if (hitRate !== null) facts.push(["Hits in the device cache", percent(hitRate)]);
  if (deviceBytes + hostBytes > 0) {
    facts.push(["KV on the device", bytes(deviceBytes)]);
    facts.push(["KV in host memory", bytes(hostBytes)]);
  }
  return facts;
}

/** Characters of a question: whoever pastes a text as one does not want to scroll past it. */
const MOST_SHOWN = 300;

/** A question with its cards, to be put in front of earlier ones, and a button to ask it again. */
export function exchange(question: string, cards: AnswerCard[], again: () => void): HTMLElement {
  const more = button("Ask again", again, {
    class: "quiet again",
    title: "With the settings of now",
  });
  more.setAttribute("aria-label", `Ask again: ${question.slice(0, MOST_SHOWN)}`);
  const characters = Array.from(question);
  const isLong = characters.length > MOST_SHOWN;
  const shown = isLong ? `${characters.slice(0, MOST_SHOWN).join("")}…` : question;
  const title = make("div", { class: "head" }, make("h3", {}, shown), more);
  const whole = make("details", {}, make("summary", {}, "The whole question"));
  whole.append(make("p", { class: "whole" }, question));
  const body = make("div", { class: cards.length > 1 ? "cards pair" : "cards" });
  body.append(...cards.map((card) => card.element));
  return make("article", { class: "exchange" }, title, ...(isLong ? [whole] : []), body);
}
