// The question's form, and the answers under it.

import type { Answer, Passage, Policy, Turn } from "../engine";
import type { Event, LoadedModel } from "../protocol";
import { AnswerCard, exchange } from "./answers";
import { type Client, messageOf } from "./client";
import type { DocumentPanel } from "./document";
import { Announcer, button, byId, find, handOver } from "./dom";
import type { History, KeptAnswer, KeptExchange } from "./history";
import type { MapPanel } from "./map";
import { PolicyPanel, name } from "./policy";
import { type Suggestion, facts, suggestions } from "./questions";
import { askFirst } from "./sure";

const SUGGESTED = 4;
/** The embedded model's answers are one sentence. */
const EMBEDDED_TOKENS = 48;
const OTHER_TOKENS = 256;

/** A question that was asked, and its answer if it has one that is gone on from. */
export interface Asked {
  /** Tells it from what is asked in other tabs. */
  id: string;
  question: string;
  answer: string | null;
  element: HTMLElement;
  /** What is kept of it. */
  kept: KeptAnswer[];
}

export class AskPanel {
  readonly policies = new PolicyPanel();
  private readonly form = byId("ask-form", HTMLFormElement);
  private readonly question = byId("question", HTMLTextAreaElement);
  private readonly suggested = byId("suggested", HTMLElement);
  private readonly answers = byId("answers", HTMLElement);
  private readonly go = byId("ask-button", HTMLButtonElement);
  private readonly halt = byId("ask-stop", HTMLButtonElement);
  private readonly whyNot = byId("why-not", HTMLElement);
  private readonly maxTokens = byId("max-tokens", HTMLInputElement);
  private readonly temperature = byId("temperature", HTMLInputElement);
  private readonly said = new Announcer(byId("said", HTMLElement));
  /** Where the engine knows what was said before. */
  private readonly follow = find("follow", HTMLInputElement);
  private readonly afresh = find("afresh", HTMLButtonElement);
  /** Oldest first. */
  private talk: Asked[] = [];
  /** Where questions outlive the page, and the document that they are kept with. */
  private history: History | null = null;
  private id: string | null = null;
  private known: Suggestion[] = [];
  private embedded = false;
  private stopped = false;
  /** What is asked now. */
  private running: { asked: Asked; cards: AnswerCard[] } | null = null;

  constructor(
    private readonly client: Client,
    private readonly document: DocumentPanel,
    private readonly map: MapPanel,
    /** Lets `ask` run in its turn. */
    private readonly begin: (again: Asked | null) => void,
  ) {
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (!this.go.disabled && this.question.value.trim() !== "") begin(null);
    });
    // The browser cannot show what is wrong with a number that is folded away, and would say
    // nothing. The events do not bubble.
    const open = ({ target }: globalThis.Event): void => {
      unfold(target);
    };
    this.form.addEventListener("invalid", open, { capture: true });
    // What a reload cuts off would be lost, question and all.
    window.addEventListener("pagehide", () => {
      if (this.running !== null) this.keepSoFar(this.running.asked, this.running.cards);
    });
    this.question.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.go.click();
    });
    this.halt.addEventListener("click", () => {
      this.stopped = true;
      client.stop();
    });
    if (this.afresh !== null) {
      // As wherever the page deletes: what is gone cannot be had again.
      const calm = { text: "New conversation", label: "New conversation" };
      const sure = { text: "Delete these questions?", label: "Delete these questions?" };
      askFirst(this.afresh, calm, sure, () => {
        if (this.id !== null) this.history?.forget(this.id);
        this.forget();
        this.question.focus();
      });
    }
  }

  setModel(model: LoadedModel): void {
    this.embedded = model.source === "embedded";
    this.maxTokens.value = String(this.embedded ? EMBEDDED_TOKENS : OTHER_TOKENS);
    // The embedded model reads facts and does not converse.
    if (this.follow !== null) this.follow.checked = !this.embedded;
    this.policies.setModel(model);
  }

  setHistory(history: History): void {
    this.history = history;
  }

  /**
   * Questions for this document, and no answers of the last one, but those that are kept with `id`.
   */
  setDocument(text: string | null, id: string | null = null): void {
    this.forget();
    this.id = id;
    this.known = text === null ? [] : facts(text);
    const few = text === null ? [] : suggestions(text, this.embedded, SUGGESTED);
    this.suggested.hidden = few.length === 0;
    this.suggested.replaceChildren(
      ...few.map(({ question }) =>
        button(question, () => {
          this.question.value = question;
          this.question.focus();
        }),
      ),
    );
    const first = few[0];
    if (first !== undefined) this.question.value = first.question;
    if (id !== null)
      this.history?.read(id).forEach((kept) => {
        this.restore(kept);
      });
    this.setAgain();
  }

  /** Shows a question and its answers as they were. */
  private restore({ id, question, answers }: KeptExchange): void {
    const cards = answers.map(({ policy, answer }) => {
      const card = new AnswerCard(policy);
      this.end(card, question, answer);
      return card;
    });
    const element = this.answers;
    const asked: Asked = { id: id ?? freshId(), question, answer: null, element, kept: answers };
    asked.answer = cards[0]?.said ?? null;
    asked.element = exchange(question, cards, () => {
      this.askAgain(asked);
    });
    this.answers.prepend(asked.element);
    this.talk.push(asked);
  }

  /** Under the settings of now, if they can be. */
  private askAgain(asked: Asked): void {
    if (!this.go.disabled && this.form.reportValidity()) this.begin(asked);
  }

  /** The document is deleted: what is asked about it goes with the page. */
  keepNoMore(): void {
    this.id = null;
  }

  /** Also of answers that broke off, as they do when the page goes. */
  private keepSoFar(asked: Asked, cards: AnswerCard[]): void {
    asked.kept = cards.flatMap((card) => card.soFar);
    this.keep();
  }

  /** Keeps what was answered, where the document is one that can be found again. */
  private keep(): void {
    if (this.id === null) return;
    const kept = this.talk.map(({ id, question, kept }) => ({ id, question, answers: kept }));
    this.history?.write(
      this.id,
      kept.filter(({ answers }) => answers.length > 0),
    );
  }

  /** `reason` says why nothing can be asked now; empty if it can. */
  setState(reason: string, asking: boolean): void {
    if (asking) this.halt.hidden = false;
    handOver(asking ? this.go : this.halt, asking ? this.halt : this.question);
    this.go.disabled = reason !== "" || asking;
    this.halt.hidden = !asking;
    this.whyNot.textContent = asking ? "" : reason;
    this.setAgain();
  }

  private setAgain(): void {
    for (const again of this.answers.querySelectorAll<HTMLButtonElement>("button.again")) {
      again.disabled = this.go.disabled;
    }
    if (this.afresh !== null) {
      this.afresh.hidden = this.talk.length === 0;
      this.afresh.disabled = !this.halt.hidden;
    }
  }

  /** Takes the questions from the page. */
  forget(): void {
    this.talk = [];
    this.answers.replaceChildren();
    this.setAgain();
  }

  /**
   * Asks under the chosen policy, then under full attention if both are wanted; `again` is asked
   * once more, in its place.
   */
  async ask(again: Asked | null): Promise<void> {
    this.stopped = false;
    const question = again?.question ?? this.question.value.trim();
    const chosen = this.policies.policy;
    const policies: Policy[] = [chosen, ...(this.policies.comparing ? [{ preset: "full" }] : [])];
    const cards = policies.map((policy) => new AnswerCard(name(policy)));
    const asked: Asked = again ?? {
      id: freshId(),
      question,
      answer: null,
      element: this.answers,
      kept: [],
    };
    const element = exchange(question, cards, () => {
      this.askAgain(asked);
    });
    if (again === null) {
      this.answers.prepend(element);
      this.talk.push(asked);
    } else {
      handOver(again.element, this.halt);
      again.element.replaceWith(element);
    }
    asked.element = element;
    asked.answer = null;
    this.setAgain();
    // On a small screen it is below what is seen.
    element.scrollIntoView({ block: "nearest" });
    const history = this.before(asked);
    if (history !== undefined && again === null) this.question.value = "";
    // The same draws would say the same again.
    const seed = again === null ? undefined : Math.floor(Math.random() * 2 ** 32);
    this.running = { asked, cards };
    try {
      for (const [i, policy] of policies.entries()) {
        const card = cards[i];
        if (card === undefined) continue;
        if (this.isStopped()) card.fail("it was stopped before.");
        else await this.one(card, question, policy, history, seed);
        if (i === 0) asked.answer = card.said;
      }
    } catch (error) {
      for (const card of cards) card.giveUp();
      throw error;
    } finally {
      this.running = null;
      this.keepSoFar(asked, cards);
    }
  }

  /** What was said before a question; undefined where each question stands alone. */
  private before(asked: Asked): Turn[] | undefined {
    if (this.follow?.checked !== true) return undefined;
    const before = this.talk.slice(0, this.talk.indexOf(asked));
    return before.flatMap(({ question, answer }) =>
      answer === null ? [] : [{ question, answer }],
    );
  }

  /** A stop may come while an answer is awaited. */
  private isStopped(): boolean {
    return this.stopped;
  }

  private async one(
    card: AnswerCard,
    question: string,
    policy: Policy,
    history: Turn[] | undefined,
    seed: number | undefined,
  ): Promise<void> {
    card.begin();
    // Full attention beside a policy would cover what the policy shows.
    const drawn = policy.preset !== "full" || this.policies.policy.preset === "full";
    if (drawn) this.map.begin(name(policy));
    const onEvent = (event: Event): void => {
      if (event.event === "restart") card.restart();
      if (event.event === "prefill") card.reading(event.done, event.total);
      if (event.event !== "step") return;
      card.step(event.step);
      this.said.say(card.spoken);
      if (event.step.map !== undefined) this.map.update(event.step.map);
    };
    const params = {
      question,
      policy,
      maxTokens: Number(this.maxTokens.value),
      temperature: Number(this.temperature.value),
      ...(drawn ? { map: this.map.place } : {}),
      ...(history === undefined ? {} : { history }),
      ...(seed === undefined ? {} : { seed }),
    };
    try {
      const answer = await this.client.call("ask", params, onEvent);
      this.end(card, question, answer);
      this.said.say(`${name(policy)}: ${card.spoken}`);
      if (drawn) this.map.end();
      if (answer.passages.length > 0 && policy.preset !== "full") {
        this.document.mark(answer.passages);
        this.document.view.reveal(1, false);
      }
    } catch (error) {
      card.fail(messageOf(error));
      throw error;
    }
  }

  private end(card: AnswerCard, question: string, answer: Answer): void {
    const expected = this.known.find((fact) => fact.question === question)?.answer ?? null;
    card.end(answer, expected, {
      quote: (passage) => this.document.view.quote(passage),
      show: (passages, rank) => {
        this.show(passages, rank);
      },
    });
  }

  private show(passages: Passage[], rank: number): void {
    this.document.mark(passages);
    this.document.view.reveal(rank, true);
  }
}

function freshId(): string {
  // `randomUUID` is only there at addresses that the browser calls secure.
  return `${Date.now().toString(36)}-${Math.random().toString(36).slice(2)}`;
}

/** Opens what an element is folded into. */
function unfold(target: EventTarget | null): void {
  if (!(target instanceof Element)) return;
  for (let at = target.closest("details"); at !== null;) {
    at.open = true;
    at = at.parentElement?.closest("details") ?? null;
  }
}
