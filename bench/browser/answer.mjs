// What both benches of the page do with an answer.

/**
 * When an answer's tokens were shown, up to `wanted` of them: pairs of how many and the time in
 * milliseconds. Each step changes the line "N tokens, R tokens/s".
 */
export function tokenTimes(tab, wanted) {
  return tab.evaluate(async (wanted) => {
    const times = [];
    let last = 0;
    for (;;) {
      const line = [...document.querySelectorAll(".exchange .figures")].at(-1)?.textContent ?? "";
      const count = Number(/^(\d+) tokens/.exec(line)?.[1] ?? 0);
      if (count > last) {
        times.push([count, performance.now()]);
        last = count;
      }
      if (last >= wanted || (last > 1 && document.body.dataset.task === "none")) return times;
      await new Promise((next) => setTimeout(next, 5));
    }
  }, wanted);
}

/** Asks a question about the document that is open. */
export async function ask(tab, question) {
  await tab.getByLabel("Your question").fill(question);
  await tab.getByRole("button", { name: "Ask", exact: true }).click();
}
