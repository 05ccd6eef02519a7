// End to end: answers in Markdown under the policy of content that the server sends.

import assert from "node:assert/strict";
import { test } from "node:test";

import { ask } from "../support/browser";
import { visits } from "../support/visits";

const visiting = visits();

const ANSWER = `## Of &eacute; &amp; &hellip;

**bold** and [a link](https://example.org/) and ![a picture](https://example.org/x.png)

| a | b |
|---|---|
| 1 | \`<img src=x onerror="hacked = 1">\` |

<img src=x onerror="hacked = 2"><script>hacked = 3</script> [no](javascript:hacked=4)

\`\`\`html
<script>hacked = 5</script>
\`\`\`
`;

test("the browser refuses nothing of what Markdown becomes", async () => {
  const page = await visiting.visit();
  const complaints: string[] = [];
  const asked: string[] = [];
  page.on("console", (message) => complaints.push(message.text()));
  page.on("request", (request) => asked.push(request.url()));
  await page.route("**/v1/chat/completions", async (route) => {
    const pieces = ANSWER.match(/[^]{1,7}/g) ?? [];
    const events = pieces.map((content) => ({ choices: [{ delta: { content } }] }));
    const lines = [...events, {}].map((event) => `data: ${JSON.stringify(event)}\n\n`);
    await route.fulfill({
      contentType: "text/event-stream",
      body: `${lines.join("")}data: [DONE]\n\n`,
    });
  });
  await ask(page, "What does it say?");
  const answer = page.locator(".answer");
  assert.equal(await answer.locator("h5").innerText(), "Of é & …");
  assert.equal(await answer.locator("strong").innerText(), "bold");
  assert.equal(await answer.locator("a").count(), 1);
  assert.equal(await answer.locator("td code").innerText(), '<img src=x onerror="hacked = 1">');
  assert.equal(await answer.locator("pre").innerText(), "<script>hacked = 5</script>");
  assert.match(await answer.innerText(), /<script>hacked = 3<\/script> no/);
  assert.equal(await page.locator("#answers :is(img, script, iframe)").count(), 0);
  assert.equal(await page.evaluate("typeof window.hacked"), "undefined");
  assert.deepEqual(complaints, []);
  assert.equal(asked.filter((url) => url.includes("example.org")).length, 0);
});
