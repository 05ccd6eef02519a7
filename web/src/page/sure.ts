// A button that deletes: a first click asks, a second does it.

/** What is on the button, and what screen readers say of it. */
export interface Words {
  text: string;
  label: string;
}

/**
 * Lets `button` ask before it does `act`. Whoever goes on to something else, or presses Escape, has
 * not agreed.
 */
export function askFirst(
  button: HTMLButtonElement,
  calm: Words,
  sure: Words,
  act: () => void,
): void {
  const show = ({ text, label }: Words): void => {
    button.textContent = text;
    button.setAttribute("aria-label", label);
  };
  const calmDown = (): void => {
    delete button.dataset["sure"];
    show(calm);
  };
  button.addEventListener("click", ({ detail }) => {
    if (button.dataset["sure"] === "yes") {
      // The second half of a double click has read nothing.
      if (detail > 1) return;
      calmDown();
      act();
      return;
    }
    button.dataset["sure"] = "yes";
    show(sure);
  });
  button.addEventListener("blur", calmDown);
  button.addEventListener("keydown", ({ key }) => {
    if (key === "Escape") calmDown();
  });
  show(calm);
}
