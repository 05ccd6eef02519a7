// Numbers as people read them.

const INTEGER = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function count(value: number): string {
  return INTEGER.format(value);
}

/** Bytes with a binary unit. */
export function bytes(value: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let left = value;
  while (left >= 1024 && unit < units.length - 1) {
    left /= 1024;
    unit += 1;
  }
  return `${left.toFixed(unit === 0 || left >= 100 ? 0 : 1)} ${units[unit] ?? ""}`;
}

export function rate(tokensPerS: number): string {
  if (!Number.isFinite(tokensPerS) || tokensPerS <= 0) return "-";
  return tokensPerS < 100 ? tokensPerS.toFixed(1) : count(tokensPerS);
}

export function seconds(value: number): string {
  if (!Number.isFinite(value)) return "-";
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 90) return `${Math.round(value)} s`;
  if (value < 5400) return `${Math.round(value / 60)} min`;
  return `${(value / 3600).toFixed(1)} h`;
}

export function percent(share: number): string {
  return `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`;
}

export function when(iso: string): string {
  const date = new Date(iso);
  return date.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
}
