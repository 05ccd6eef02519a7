// A button that copies a text.

import { button } from "./dom";

/** Copies what `text` says when it is pressed, and tells whether that went well. */
export function copyButton(label: string, text: () => string): HTMLButtonElement {
  const copy = button(
    "Copy",
    () => {
      void copied(text()).then((isDone) => {
        copy.textContent = isDone ? "Copied" : "The browser refuses to copy";
        setTimeout(() => {
          copy.textContent = "Copy";
        }, 1500);
      });
    },
    { class: "quiet", "aria-label": label },
  );
  return copy;
}

/** Addresses without https have no clipboard: there the text is selected and copied as by hand. */
async function copied(text: string): Promise<boolean> {
  if ("clipboard" in navigator) {
    const isDone = await navigator.clipboard.writeText(text).then(
      () => true,
      () => false,
    );
    if (isDone) return true;
  }
  const area = document.createElement("textarea");
  area.className = "visually-hidden";
  area.value = text;
  const before = document.activeElement;
  document.body.append(area);
  area.select();
  // Deprecated, and the only way there.
  // eslint-disable-next-line @typescript-eslint/no-deprecated
  const isDone = document.execCommand("copy");
  area.remove();
  if (before instanceof HTMLElement) before.focus();
  return isDone;
}
