// The built page in browsers that cannot compute: what the real worker says.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { DIST, launch, message, open, picture, violations } from "../support/browser";
import { type Server, serveFolder } from "../support/server";

let server: Server;

before(async () => {
  server = await serveFolder(DIST);
});

after(() => server.close());

test("a browser without WebGPU is told which browsers have it", async () => {
  // Browsers offer WebGPU and storage to secure addresses alone, and this is none.
  const browser = await launch(["--host-resolver-rules=MAP longview.test 127.0.0.1"]);
  const { page, errors } = await open(browser, server.url.replace("127.0.0.1", "longview.test"));
  assert.equal(await page.evaluate('"gpu" in navigator'), false);
  assert.match(await message(page, "no-webgpu"), /Use Chrome or Edge/);
  assert.deepEqual(await violations(page), []);
  assert.deepEqual(errors, []);
  await browser.close();
});

test("a worker without WebGPU says the same, though the page has it", async () => {
  const browser = await launch();
  const { page } = await open(browser, server.url, {}, async (page) => {
    await page.route("**/worker-*.js", async (route) => {
      const response = await route.fetch();
      const remove = "delete WorkerNavigator.prototype.gpu;\n";
      await route.fulfill({ response, body: remove + (await response.text()) });
    });
  });
  assert.match(await message(page, "no-webgpu"), /Use Chrome or Edge/);
  await browser.close();
});

test("a browser without an adapter is told what to turn on", async () => {
  const browser = await launch([], ["--disable-gpu"]);
  const { page, errors } = await open(browser, server.url);
  assert.match(await message(page, "no-adapter"), /hardware acceleration/);
  await picture(page, "real-no-adapter");
  assert.deepEqual(errors, []);
  await browser.close();
});
