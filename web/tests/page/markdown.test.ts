// Answers in Markdown: what becomes of each construct, of hostile ones, and of those that grow.

import assert from "node:assert/strict";
import { test } from "node:test";

import type { Page } from "playwright-core";

import { steady } from "../../src/page/growing";
import { PHONE, ask, idle, overflows, picture, readText, violations } from "../support/browser";
import { stage as openStage } from "../support/stage";

const stage = openStage();

const QUESTION = "What does it say?";

/** Asks a page whose engine answers so, and returns what the answer became. */
async function answered(answer: string, script: object = {}): Promise<Page> {
  const page = await stage.start({ answer, ...script });
  await readText(page, "A quiet valley, and those who live there.");
  await ask(page, QUESTION, 60_000);
  return page;
}

/** Attributes that the stylesheet and screen readers need are left out. */
async function made(page: Page): Promise<string> {
  const html = await page.evaluate<string>("document.querySelector('.answer').innerHTML");
  return html
    .replace(/ (?:tabindex|role|aria-label|type|scope|rel|target)="[^"]*"/g, "")
    .replace(/<div class="head">.*?<\/div>/g, "");
}

const EVERYTHING = `# Results

The *first* of **all** and ***both***: \`a < b\`, &eacute; &amp; &copy; &nosuchname;.
A second line.\\
A third, <https://example.org/x?a=1&b=2> and [a link](http://example.org "title") and [mail][m].

### Steps

1. one
2. two
   - inner \`code\`
   - last

7. seven

> A quote
> of two lines.
>
> > and one inside

| Name | Count | Share |
|:-----|------:|:-----:|
| a    | 1     | **x** |
| b \\| c | 22 | 3 |

\`\`\`python
def main():
    return "<b>"
\`\`\`

    indented

---

![a picture](https://example.org/x.png) and [none](ftp://example.org/).

[m]: mailto:someone@example.org
`;

test("every construct of Markdown becomes its element", async () => {
  const page = await answered(EVERYTHING);
  const wanted = [
    "<h5>Results</h5>",
    "<p>The <em>first</em> of <strong>all</strong> and <em><strong>both</strong></em>: ",
    "<code>a &lt; b</code>, é &amp; © &amp;nosuchname;.\nA second line.<br>A third, ",
    '<a href="https://example.org/x?a=1&amp;b=2">https://example.org/x?a=1&amp;b=2</a> and ',
    '<a href="http://example.org/">a link</a> and ',
    '<a href="mailto:someone@example.org">mail</a>.</p>',
    "<h6>Steps</h6>",
    "<ol><li><p>one</p></li>",
    "<li><p>two</p><ul><li>inner <code>code</code></li><li>last</li></ul></li>",
    "<li><p>seven</p></li></ol>",
    "<blockquote><p>A quote\nof two lines.</p>",
    "<blockquote><p>and one inside</p></blockquote></blockquote>",
    '<div class="scrolls"><table><thead><tr><th class="to-left">Name</th>',
    '<th class="to-right">Count</th><th class="to-center">Share</th></tr></thead><tbody>',
    '<tr><td class="to-left">a</td><td class="to-right">1</td>',
    '<td class="to-center"><strong>x</strong></td></tr>',
    '<tr><td class="to-left">b | c</td><td class="to-right">22</td>',
    '<td class="to-center">3</td></tr></tbody></table></div>',
    '<div class="code"><pre><code>def main():\n    return "&lt;b&gt;"</code></pre></div>',
    '<div class="code"><pre><code>indented</code></pre></div>',
    "<hr>",
    "<p>a picture and none.</p>",
  ];
  assert.equal(await made(page), wanted.join(""));
  const link = page.locator(".answer a").first();
  assert.equal(await link.getAttribute("rel"), "noopener noreferrer nofollow");
  assert.equal(await link.getAttribute("target"), "_blank");
});

test("Markdown looks right, light and dark, and is no violation", async () => {
  const page = await answered(EVERYTHING);
  for (const colorScheme of ["light", "dark"] as const) {
    await page.emulateMedia({ colorScheme });
    await picture(page, `markdown-${colorScheme}`);
    assert.deepEqual(await violations(page), []);
  }
  await page.setViewportSize(PHONE);
  await picture(page, "markdown-phone");
  assert.deepEqual(await violations(page), []);
  assert.equal(await overflows(page), false);
});

test("code is copied as it is, and the answer as it was written", async () => {
  const page = await answered(EVERYTHING);
  await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
  const clipboard = (): Promise<string> => page.evaluate("navigator.clipboard.readText()");
  await page.getByRole("button", { name: "Copy the code: def main():" }).click();
  await page.getByText("Copied").waitFor();
  assert.equal(await clipboard(), 'def main():\n    return "<b>"');
  await page.getByRole("button", { name: /^Copy the answer/ }).click();
  await page.locator(".card > .head button", { hasText: "Copied" }).waitFor();
  assert.equal(await clipboard(), EVERYTHING.trim());
  assert.equal(await page.locator("#said").getAttribute("aria-live"), "polite");
});

test("an answer that is no Markdown keeps its lines", async () => {
  const page = await answered("one\ntwo\n\n3 * 4 * 5 = 60, snake_case_name, 2 < 3");
  assert.equal(await made(page), "<p>one\ntwo</p><p>3 * 4 * 5 = 60, snake_case_name, 2 &lt; 3</p>");
  const text = await page.locator(".answer").innerText();
  assert.match(text, /^one\ntwo\n/);
});

test("what is hostile in an answer is text, and nothing is fetched or run", async () => {
  const hostile = `<img src="x" onerror="hacked = 1"> <script>hacked = 2</script>

<script>hacked = 3</script>

<iframe srcdoc="<script>parent.hacked = 4</script>"></iframe>

[one](javascript:hacked=5) [two](java&#10;script:hacked=6) [three](data:text/html,x) [four](/etc)
[five](  JaVaScRiPt:hacked=7) <javascript:hacked=8> [six][s] ![seven](https://example.org/seven.png)
<b onclick="hacked = 9">**bold**</b> [![eight](https://example.org/eight.png)](https://example.org/)

[s]: javascript:hacked=10`;
  const page = await stage.visit({ answer: hostile });
  const asked: string[] = [];
  page.on("request", (request) => asked.push(request.url()));
  await idle(page);
  await readText(page, "A quiet valley.");
  await ask(page, QUESTION);
  const kinds = await page.evaluate<string[]>(
    "[...new Set([...document.querySelectorAll('.answer *')].map((e) => e.localName))].sort()",
  );
  assert.deepEqual(kinds, ["a", "p", "strong"]);
  const links = page.locator(".answer a");
  assert.equal(await links.count(), 1);
  assert.equal(await links.getAttribute("href"), "https://example.org/");
  assert.equal(await links.innerText(), "eight");
  const text = await page.locator(".answer").innerText();
  for (const part of [
    '<img src="x" onerror="hacked = 1"> <script>hacked = 2</script>',
    "<iframe srcdoc=",
    "one two three four",
    "six seven",
    '<b onclick="hacked = 9">bold</b>',
  ]) {
    assert.ok(text.includes(part), `${part}: ${text}`);
  }
  assert.equal(await page.evaluate("typeof hacked"), "undefined");
  assert.deepEqual(
    asked.filter((url) => url.includes("example.org")),
    [],
  );
});

const DEEP = {
  quotes: ">".repeat(10_000),
  "quotes with a word": `${"> ".repeat(10_000)}word`,
  "lists in a line": `${"- ".repeat(10_000)}word`,
  "lists in lines": Array.from({ length: 140 }, (_, i) => `${"  ".repeat(i)}- item`).join("\n"),
  stars: "*".repeat(10_000),
  "stars around words": `${"*a ".repeat(10_000)}${"b* ".repeat(10_000)}`,
  "stars in words": "**a*".repeat(2_500),
  underscores: "_a ".repeat(5_000),
  brackets: "[".repeat(10_000),
  "brackets that close": `${"[".repeat(5_000)}a${"]".repeat(5_000)}`,
  links: "[a](".repeat(2_500),
  backticks: Array.from({ length: 140 }, (_, i) => "`".repeat(i + 1)).join(" "),
  tables: `${"|".repeat(5_000)}\n${"|-".repeat(5_000)}`,
  references: "&".repeat(10_000),
  spaces: `a${" ".repeat(10_000)}b`,
  definitions: "[a]: b\n".repeat(1_500),
};

for (const [name, answer] of Object.entries(DEEP)) {
  test(`${name}, thousands of them: the page goes on at once`, async () => {
    const page = await stage.start({ answer, pieceChars: 5_000 });
    await readText(page, "A quiet valley.");
    const watch = `window.longest = 0;
      new PerformanceObserver((list) => {
        for (const { duration } of list.getEntries()) longest = Math.max(longest, duration);
      }).observe({ type: "longtask" });`;
    await page.evaluate(watch);
    await ask(page, QUESTION);
    await page.evaluate("new Promise((done) => setTimeout(done, 100))");
    const longest = await page.evaluate<number>("longest");
    console.log(`${name}: the longest task took ${Math.round(longest)} ms`);
    assert.ok(longest < 5_000, `${longest} ms`);
    const depth = await page.evaluate<number>(`(() => {
      let most = 0;
      for (const element of document.querySelectorAll(".answer *")) {
        let depth = 0;
        for (let at = element; !at.matches(".answer"); at = at.parentElement) depth += 1;
        most = Math.max(most, depth);
      }
      return most;
    })()`);
    assert.ok(depth < 80, `${depth} elements deep`);
  });
}

/** A long answer of all kinds. */
const LONG = EVERYTHING.replace("[m]: mailto:someone@example.org\n", "")
  .repeat(40)
  .slice(0, 20_000);

/** Counts tasks that keep the page busy, frames, and how often an answer is drawn. */
const WATCH = `window.tasks = [];
  new PerformanceObserver((list) => {
    for (const { duration } of list.getEntries()) tasks.push(duration);
  }).observe({ type: "longtask" });
  window.draws = window.frames = 0;
  const count = () => { frames += 1; requestAnimationFrame(count); };
  requestAnimationFrame(count);
  const isDrawn = ({ target }) => (target.parentElement ?? target).closest(".answer") !== null;
  new MutationObserver((all) => { if (all.some(isDrawn)) draws += 1; }).observe(
    document.querySelector("#answers"),
    { subtree: true, childList: true, characterData: true },
  );`;

/** Asks a page whose engine answers so in 500 steps; `during` runs while they come. */
async function grown(answer: string, during: (page: Page) => Promise<void>): Promise<Page> {
  const page = await stage.start({ answer, pieceChars: 40, stepMs: 4 });
  await readText(page, "A quiet valley.");
  await page.evaluate(WATCH);
  await page.getByLabel("Your question").fill(QUESTION);
  await page.getByRole("button", { name: "Ask", exact: true }).click();
  await during(page);
  await idle(page, 60_000);
  type Seen = [number[], number, number];
  const [tasks, draws, frames] = await page.evaluate<Seen>("[tasks, draws, frames]");
  const longest = Math.round(Math.max(0, ...tasks));
  console.log(`${answer.length} characters: ${tasks.length} long tasks, the longest ${longest} ms`);
  assert.ok(longest < 2_000, `${longest} ms`);
  assert.ok(draws <= frames + 5, `${draws} draws in ${frames} frames`);
  return page;
}

test("a long answer stays smooth while it grows, and ends as if it had come at once", async () => {
  let early: string[] = [];
  const page = await grown(LONG, async (page) => {
    await page.waitForFunction("document.querySelectorAll('.answer > *').length > 60");
    await page.evaluate(
      "window.early = [...document.querySelectorAll('.answer > *')].slice(0, 40)",
    );
    early = await page.evaluate<string[]>("early.map((element) => element.textContent)");
  });
  // What was whole by then was not made anew, also not at the end.
  assert.equal(await page.evaluate("early.every((element) => element.isConnected)"), true);
  assert.deepEqual(await page.evaluate("early.map((element) => element.textContent)"), early);
  const html = await made(page);
  await page.context().close();
  const whole = await answered(LONG, { pieceChars: 20_000 });
  assert.equal(await made(whole), html);
});

const OF_ONE_BLOCK = {
  paragraph: "The *quick* **brown** fox `jumps` over the [lazy](https://example.org) dog. ",
  list: "- The *quick* **brown** fox `jumps` over the [lazy](https://example.org) dog.\n",
  table: "| fox | dog |\n|---|---|\n| the **quick** | the *lazy* |\n",
  code: "```js\nfox.jumps(over, dog);\n",
};

for (const [name, part] of Object.entries(OF_ONE_BLOCK)) {
  test(`a long ${name} stays smooth too, though it is one block`, async () => {
    // What opens a block comes once.
    const lines = part.split("\n");
    const more =
      name === "table" ? `${lines[2] ?? ""}\n` : name === "code" ? `${lines[1] ?? ""}\n` : part;
    const page = await grown((part + more.repeat(1_500)).slice(0, 20_000), () => Promise.resolve());
    assert.equal(await page.locator(".answer > *").count(), 1);
  });
}

test("what is half written does not look like something else", async () => {
  const shown: [string, string][] = [
    // An item of a list is no underline of a heading before it.
    ["Intro:\n-", "Intro:\n"],
    ["Intro:\n- a", "Intro:\n- a"],
    ["1. a\n2", "1. a\n"],
    ["42", "42"],
    ["so **bold", "so **bold**"],
    ["so **bold*", "so **bold**"],
    ["so **bold** and", "so **bold** and"],
    ["so **", "so "],
    ["2 ** 3", "2 ** 3"],
    ["call `", "call "],
    ["call `main(", "call `main(`"],
    ["see [this](https://exam", "see this"],
    ["see [this](https://example.org)", "see [this](https://example.org)"],
    ["| a | b", ""],
    ["| a | b |\n|--", ""],
    ["| a | b |\n|---|---|\n| 1", "| a | b |\n|---|---|\n| 1"],
    ["```py\na = [`", "```py\na = [`"],
    ["```py\na\n``", "```py\na"],
  ];
  for (const [text, wanted] of shown) assert.equal(steady(text), wanted, text);
  // On the page: no heading comes and goes.
  const answer = "Intro:\n- one\n- two\n\n| a | b |\n|---|---|\n| **1** | 2 |\n\nThe **end** of it";
  const page = await stage.start({ answer, pieceChars: 1, stepMs: 25 });
  await readText(page, "A quiet valley.");
  await page.evaluate(`window.seen = new Set();
    new MutationObserver(() => {
      for (const { localName } of document.querySelectorAll(".answer *")) seen.add(localName);
      if (/\\*\\*|\\|/.test(document.querySelector(".answer").textContent)) seen.add("sign");
    }).observe(document.querySelector("#answers"), {
      subtree: true, childList: true, characterData: true,
    });`);
  await ask(page, QUESTION, 60_000);
  const wanted = ["div", "li", "p", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"];
  assert.deepEqual(await page.evaluate("[...seen].sort()"), wanted);
});

test("headings leave no hole in the outline", async () => {
  const page = await answered("### a\n\n## b\n\n#### c\n\n# d\n\n###### e");
  assert.equal(await made(page), "<h5>a</h5><h5>b</h5><h6>c</h6><h5>d</h5><h6>e</h6>");
});
