// From characters (Unicode code points), as the server counts, to the units in which JavaScript
// counts: a character beyond U+FFFF is two of them.

/** Every how many characters a place is remembered. */
const EVERY = 4096;

export class Offsets {
  /** Units before character 0, `EVERY`, twice that, and so on; made when first asked. */
  private marks: number[] | null = null;

  constructor(private readonly text: string) {}

  units(start: number, end: number): { start: number; end: number } {
    return { start: this.unit(start), end: this.unit(end) };
  }

  private unit(character: number): number {
    this.marks ??= this.made();
    const at = Math.min(Math.floor(character / EVERY), this.marks.length - 1);
    let unit = this.marks[at] ?? 0;
    for (let left = character - at * EVERY; left > 0 && unit < this.text.length; left--) {
      unit += this.width(unit);
    }
    return unit;
  }

  private made(): number[] {
    const marks = [0];
    let [unit, character] = [0, 0];
    while (unit < this.text.length) {
      unit += this.width(unit);
      character += 1;
      if (character % EVERY === 0) marks.push(unit);
    }
    return marks;
  }

  private width(unit: number): number {
    return (this.text.codePointAt(unit) ?? 0) > 0xffff ? 2 : 1;
  }
}
