// The policy's controls: preset, budget and further options.

import type { OptionInfo, Policy, PolicyInfo } from "../engine";
import type { LoadedModel } from "../protocol";
import { byId, make } from "./dom";

export class PolicyPanel {
  private readonly preset = byId("policy", HTMLSelectElement);
  private readonly title = byId("policy-title", HTMLElement);
  private readonly budget = byId("budget", HTMLInputElement);
  private readonly exact = byId("budget-number", HTMLInputElement);
  private readonly options = byId("options", HTMLTextAreaElement);
  private readonly names = byId("option-names", HTMLElement);
  private readonly compare = byId("compare", HTMLInputElement);
  private policies: PolicyInfo[] = [];
  private known: OptionInfo[] = [];

  constructor() {
    this.preset.addEventListener("change", () => {
      this.options.value = "";
      this.describe();
    });
    this.budget.addEventListener("input", () => {
      this.exact.value = this.budget.value;
    });
    this.exact.addEventListener("input", () => {
      if (this.exact.value !== "") this.budget.value = this.exact.value;
    });
    this.options.addEventListener("input", () => {
      this.check();
    });
  }

  setModel(model: LoadedModel): void {
    this.policies = model.policies;
    this.known = model.options;
    const fallback = this.policies.find(({ isDefault }) => isDefault)?.name ?? "";
    const chosen = this.preset.value === "" ? fallback : this.preset.value;
    this.preset.replaceChildren(
      ...this.policies.map(({ name }) => make("option", { value: name }, name)),
    );
    this.preset.value = chosen;
    if (this.preset.selectedIndex < 0) this.preset.selectedIndex = 0;
    const most = Math.min(model.contextTokens, 8192);
    this.budget.max = String(most);
    const fair = model.contextTokens > 8192 ? 1024 : 512;
    this.exact.value = String(Math.min(fair, most));
    this.budget.value = this.exact.value;
    this.options.value = "";
    this.describe();
  }

  get comparing(): boolean {
    return this.compare.checked && this.preset.value !== "full";
  }

  get policy(): Policy {
    const preset = this.preset.value;
    const budget = Number(this.exact.value);
    const options = parse(this.options.value);
    return {
      preset,
      ...(preset !== "full" && budget > 0 ? { budget } : {}),
      ...(Object.keys(options).length > 0 ? { options } : {}),
    };
  }

  /** Shows the policy that a reopened document was read under. */
  set policy({ preset, budget, options }: Policy) {
    this.preset.value = preset;
    if (budget !== undefined) this.exact.value = this.budget.value = String(budget);
    const lines = Object.entries(options ?? {}).map(([name, value]) => `${name} = ${value}`);
    this.options.value = lines.join("\n");
    this.describe();
  }

  /** The browser says what is wrong with the options before a question is asked with them. */
  private check(): void {
    const isWrong = (line: string): boolean => line.trim() !== "" && line.indexOf("=") < 1;
    const wrong = this.options.value.split("\n").find(isWrong)?.trim();
    this.options.setCustomValidity(
      wrong === undefined ? "" : `“${wrong}” is no option: write each as name = value.`,
    );
  }

  private describe(): void {
    this.check();
    const info = this.policies.find(({ name }) => name === this.preset.value);
    const { description = "", title = "-" } = info ?? {};
    // Full attention is nobody's paper.
    this.title.textContent = title === "-" ? description : `${description} (${title})`;
    const known = this.known.filter((option) => info?.options.includes(option.name));
    this.names.replaceChildren(
      ...known.flatMap(({ name, value, help }) => [
        make("dt", {}, make("b", {}, name), ` ${value}`),
        make("dd", {}, help),
      ]),
    );
    const full = this.preset.value === "full";
    this.budget.disabled = this.exact.disabled = full;
    this.compare.disabled = full;
  }
}

function parse(text: string): Record<string, string> {
  const options: Record<string, string> = {};
  for (const line of text.split("\n")) {
    const at = line.indexOf("=");
    if (at > 0) options[line.slice(0, at).trim()] = line.slice(at + 1).trim();
  }
  return options;
}

/** A policy in few words. */
export function name({ preset, budget }: Policy): string {
  return budget === undefined ? preset : `${preset}, budget ${budget}`;
}
