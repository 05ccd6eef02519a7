// Bars of the bytes of keys and values on the device and in host memory.

import type { Memory } from "../engine";
import { byId, find, make } from "./dom";
import { bytes, percent } from "./format";

/** Places of the slider: powers of two, in MiB. */
const MIB = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096];

export class MemoryPanel {
  private readonly limiter: Limiter | null;
  private readonly bars = byId("bars", HTMLElement);
  private readonly line = byId("memory-line", HTMLElement);

  /** `limit` gets the bound that the visitor chose, in bytes; null is none. */
  constructor(limit: (bytes: number | null) => void) {
    this.limiter = find("limited", HTMLInputElement) === null ? null : new Limiter(limit);
  }

  get limit(): number | null {
    return this.limiter?.limit ?? null;
  }

  show({ deviceBytes, hostBytes, wasmBytes }: Memory): void {
    const most = Math.max(deviceBytes, hostBytes, 1);
    this.bars.replaceChildren(
      bar("On the device", deviceBytes, most, "device"),
      bar("In host memory", hostBytes, most, "host"),
    );
    const isNone = deviceBytes + hostBytes === 0;
    const wasm =
      wasmBytes === null
        ? isNone
          ? "Nothing is answered yet."
          : "As of the last answer."
        : `As of the last reading or answer. The engine takes ${bytes(wasmBytes)} of wasm memory.`;
    const part = percent(deviceBytes / Math.max(1, hostBytes));
    const isLess = hostBytes > deviceBytes && deviceBytes > 0;
    const share = isLess ? `The device holds ${part} of what the host does. ` : "";
    this.line.textContent = share + wasm;
  }
}

/** The slider of what the device may hold. */
class Limiter {
  private readonly limited = byId("limited", HTMLInputElement);
  private readonly slider = byId("limit", HTMLInputElement);
  private readonly value = byId("limit-value", HTMLOutputElement);

  constructor(limit: (bytes: number | null) => void) {
    this.slider.max = String(MIB.length - 1);
    this.slider.value = "3";
    this.slider.addEventListener("input", () => {
      this.describe();
    });
    for (const input of [this.slider, this.limited]) {
      input.addEventListener("change", () => {
        this.describe();
        limit(this.limit);
      });
    }
    this.describe();
  }

  get limit(): number | null {
    return this.limited.checked ? this.chosen() : null;
  }

  private chosen(): number {
    return (MIB[Number(this.slider.value)] ?? 1) * 2 ** 20;
  }

  private describe(): void {
    this.slider.disabled = !this.limited.checked;
    this.value.textContent = this.limited.checked ? bytes(this.chosen()) : "no limit";
    this.slider.setAttribute("aria-valuetext", bytes(this.chosen()));
  }
}

function bar(name: string, value: number, most: number, kind: string): HTMLElement {
  const fill = make("div", { class: `fill ${kind}` });
  fill.style.inlineSize = `${(100 * value) / most}%`;
  const track = make("div", { class: "track", "aria-hidden": "true" }, fill);
  const text = make("p", {}, make("span", {}, name), make("b", {}, bytes(value)));
  return make("div", { class: "bar" }, text, track);
}
