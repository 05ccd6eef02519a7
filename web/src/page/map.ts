// The context map: what each token (or group of tokens) is in the step that is decoded now.

import { CELL, type ContextMap } from "../engine";
import { byId, make } from "./dom";
import { count } from "./format";

interface Kind {
  value: number;
  name: string;
  letter: string;
  variable: string;
  /** How much it tells where several cells share one on the screen. */
  weight: number;
}

const KINDS: Kind[] = [
  kind(CELL.miss, "fetched now (miss)", "M", "--map-miss", 6),
  kind(CELL.drawn, "drawn for those left out (sampled)", "X", "--map-drawn", 5),
  kind(CELL.hit, "attended, was on the device (hit)", "H", "--map-hit", 4),
  kind(CELL.sink, "first tokens (sinks)", "S", "--map-sink", 3),
  kind(CELL.recent, "last tokens (recent)", "R", "--map-recent", 2),
  kind(CELL.held, "in the device cache, not attended now", "D", "--map-held", 1),
  kind(CELL.notAttended, "not attended", "", "--map-none", 0),
];

function kind(value: number, name: string, letter: string, variable: string, weight: number): Kind {
  return { value, name, letter, variable, weight };
}

const BY_VALUE = new Map(KINDS.map((kind) => [kind.value, kind]));
const SIZES = { least: 5, most: 14, height: 260 };

export class MapPanel {
  private readonly canvas = byId("cells", HTMLCanvasElement);
  private readonly summary = byId("map-summary", HTMLElement);
  private readonly layer = byId("layer", HTMLSelectElement);
  private readonly head = byId("head", HTMLSelectElement);
  private map: ContextMap | null = null;
  private policy = "";
  private frame = 0;
  private decoding = false;
  private spokenAt = 0;

  constructor() {
    this.legend();
    const again = (): void => {
      this.legend();
      this.schedule();
    };
    new ResizeObserver(again).observe(byId("map", HTMLElement));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  }

  /** The pickers for a model of these dimensions; the last layer is shown first. */
  setModel(layers: number, kvHeads: number): void {
    const fill = (select: HTMLSelectElement, n: number): void => {
      const numbers = Array.from({ length: n }, (_, i) => String(i));
      select.replaceChildren(...numbers.map((i) => make("option", { value: i }, i)));
    };
    fill(this.layer, layers);
    fill(this.head, kvHeads);
    this.layer.value = String(layers - 1);
    this.head.value = String(kvHeads - 1);
  }

  get place(): { layer: number; head: number } {
    return { layer: Number(this.layer.value), head: Number(this.head.value) };
  }

  /** Begins the map of one answer. */
  begin(policy: string): void {
    this.policy = policy;
    this.map = null;
    this.decoding = true;
    this.spokenAt = 0;
  }

  update(map: ContextMap): void {
    this.map = map;
    this.schedule();
  }

  /** Writes the summary of the last step. */
  end(): void {
    this.decoding = false;
    this.schedule();
  }

  clear(): void {
    this.map = null;
    this.canvas.height = 0;
    this.summary.textContent =
      "While an answer is decoded, each cell shows what its tokens are in this step.";
  }

  private schedule(): void {
    if (this.frame !== 0) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      if (this.map !== null) this.draw(this.map);
    });
  }

  private draw(map: ContextMap): void {
    const style = getComputedStyle(this.canvas);
    const inner = byId("map-summary", HTMLElement).clientWidth;
    const { size, group, columns, rows } = layout(map.kinds.length, inner);
    const scale = window.devicePixelRatio;
    this.canvas.style.width = `${columns * size}px`;
    this.canvas.style.height = `${rows * size}px`;
    this.canvas.width = Math.round(columns * size * scale);
    this.canvas.height = Math.round(rows * size * scale);
    const context = this.canvas.getContext("2d");
    if (context === null) return;
    context.scale(scale, scale);
    const colours = new Map(KINDS.map((k) => [k.value, style.getPropertyValue(k.variable).trim()]));
    const mark = style.getPropertyValue("--map-mark").trim();
    const kinds = grouped(map.kinds, group);
    kinds.forEach((value, i) => {
      const x = (i % columns) * size;
      const y = Math.floor(i / columns) * size;
      cell(context, value, x, y, size - 1, colours.get(value) ?? "", mark);
    });
    this.describe(map, group);
  }

  private describe(map: ContextMap, group: number): void {
    const now = performance.now();
    if (this.decoding && now - this.spokenAt < 1000) return;
    this.spokenAt = now;
    const of = (value: number): number => map.counts[value] ?? 0;
    const parts = [CELL.sink, CELL.recent, CELL.hit, CELL.miss, CELL.drawn].map(of);
    const attended = parts.reduce((a, b) => a + b, 0);
    const all = map.counts.reduce((a, b) => a + b, 0);
    const [sinks = 0, recent = 0, hits = 0, misses = 0, drawn = 0] = parts;
    const sampled = drawn === 0 ? "" : `, ${count(drawn)} drawn for others`;
    const { layer, head } = this.place;
    const per = map.cellTokens * group;
    this.summary.textContent =
      `${this.policy}, layer ${layer}, KV head ${head}: this step attends ` +
      `${count(attended)} of ${count(all)} tokens: ${count(sinks)} sinks, ` +
      `${count(recent)} recent, ${count(hits)} hits, ${count(misses)} misses${sampled}. ` +
      `${count(of(CELL.held))} more are in the device cache. ` +
      `One cell is ${per === 1 ? "one token" : `${count(per)} tokens`}.`;
  }

  private legend(): void {
    const items = KINDS.map((kind) => {
      const swatch = make("canvas", { class: "swatch", "aria-hidden": "true" });
      const scale = window.devicePixelRatio;
      swatch.width = 14 * scale;
      swatch.height = 14 * scale;
      const style = getComputedStyle(this.canvas);
      const context = swatch.getContext("2d");
      context?.scale(scale, scale);
      const [colour, mark] = [kind.variable, "--map-mark"].map((v) =>
        style.getPropertyValue(v).trim(),
      );
      if (context !== null) cell(context, kind.value, 0, 0, 14, colour ?? "", mark ?? "");
      const letter = kind.letter === "" ? [] : [make("b", {}, kind.letter), " "];
      return make("li", {}, swatch, make("span", {}, ...letter, kind.name));
    });
    byId("legend", HTMLElement).replaceChildren(...items);
  }
}

/** The largest cells of which all fit; beyond that several cells of the map become one. */
function layout(n: number, width: number): Record<"size" | "group" | "columns" | "rows", number> {
  const shape = (size: number, group: number): ReturnType<typeof layout> => {
    const columns = Math.max(1, Math.floor(width / size));
    return { size, group, columns, rows: Math.ceil(Math.ceil(n / group) / columns) };
  };
  for (let { most: size } = SIZES; size >= SIZES.least; size--) {
    const fits = shape(size, 1);
    if (fits.rows * size <= SIZES.height) return fits;
  }
  for (let group = 2; ; group *= 2) {
    const fits = shape(SIZES.least, group);
    if (fits.rows * SIZES.least <= SIZES.height) return fits;
  }
}

function grouped(kinds: Uint8Array, group: number): Uint8Array {
  if (group === 1) return kinds;
  const out = new Uint8Array(Math.ceil(kinds.length / group));
  const weight = (value: number): number => BY_VALUE.get(value)?.weight ?? 0;
  kinds.forEach((value, i) => {
    const at = Math.floor(i / group);
    if (weight(value) > weight(out[at] ?? 0)) out[at] = value;
  });
  return out;
}

/** One cell: a colour, and a shape that tells it without colour. */
function cell(
  context: CanvasRenderingContext2D,
  value: number,
  x: number,
  y: number,
  size: number,
  colour: string,
  mark: string,
): void {
  context.fillStyle = colour;
  if (value === CELL.held) {
    // Hollow.
    const edge = Math.max(1, size / 5);
    context.lineWidth = edge;
    context.strokeStyle = colour;
    context.strokeRect(x + edge / 2, y + edge / 2, size - edge, size - edge);
    return;
  }
  context.fillRect(x, y, size, size);
  const [middle, third] = [size / 2, size / 3];
  context.fillStyle = mark;
  context.strokeStyle = mark;
  context.lineWidth = Math.max(1, size / 7);
  if (value === CELL.miss) {
    context.beginPath();
    context.moveTo(x, y + size);
    context.lineTo(x + size, y);
    context.stroke();
  } else if (value === CELL.sink) {
    context.fillRect(x + middle - third / 2, y, third, size);
  } else if (value === CELL.recent) {
    context.fillRect(x, y + middle - third / 2, size, third);
  } else if (value === CELL.drawn) {
    context.fillRect(x + middle - third / 2, y + middle - third / 2, third, third);
  }
}
