// A static server as plain as they come: no special headers, one folder below one path.

import { readFile } from "node:fs/promises";
import { type IncomingMessage, type ServerResponse, createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { extname, join, normalize } from "node:path";

const TYPES: Record<string, string> = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript",
  ".css": "text/css",
  ".json": "application/json",
  ".svg": "image/svg+xml",
  ".wasm": "application/wasm",
};

/** What a test changes about the answers, by path below the base. */
export interface Faults {
  /** Answers with this instead of a file. */
  replace: Map<string, string | Buffer>;
  /** Breaks the connection behind this many bytes, once. */
  breakAfter: Map<string, number>;
  /** Sends nothing behind this many bytes, and keeps the connection open. */
  stallAfter: Map<string, number>;
  /** Answers with this status and no file. */
  status: Map<string, number>;
  /** Sends no ETag. */
  noEtag: Set<string>;
}

export interface Server {
  /** Where the page is, with a slash at the end. */
  url: string;
  faults: Faults;
  /** Every request so far: path and, if asked for, its range. */
  requests: string[];
  close(): Promise<void>;
}

/** Serves `folder` below `base` on a free port. */
export async function serveFolder(folder: string, base = "/"): Promise<Server> {
  const faults: Faults = {
    replace: new Map(),
    breakAfter: new Map(),
    stallAfter: new Map(),
    status: new Map(),
    noEtag: new Set(),
  };
  const requests: string[] = [];
  const answer = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    const path = decodeURIComponent(new URL(request.url ?? "/", "http://host").pathname);
    const { range } = request.headers;
    requests.push(range === undefined ? path : `${path} ${range}`);
    if (!path.startsWith(base)) {
      response.writeHead(404).end();
      return;
    }
    const name = path.slice(base.length) || "index.html";
    const status = faults.status.get(name);
    if (status !== undefined) {
      response.writeHead(status).end();
      return;
    }
    const replaced = faults.replace.get(name);
    const file = join(folder, normalize(`/${name}`));
    const body = replaced ?? (await readFile(file).catch(() => null));
    if (body === null) {
      response.writeHead(404).end();
      return;
    }
    send(response, Buffer.from(body), name, range, faults);
  };
  const server = createServer((request, response) => {
    void answer(request, response);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  const close = async (): Promise<void> => {
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  };
  return { url: `http://127.0.0.1:${port}${base}`, faults, requests, close };
}

function send(
  response: ServerResponse,
  body: Buffer,
  name: string,
  range: string | undefined,
  faults: Faults,
): void {
  const from = Number(/^bytes=(\d+)-$/.exec(range ?? "")?.[1] ?? 0);
  const part = body.subarray(from);
  const headers: Record<string, string | number> = {
    "content-type": TYPES[extname(name)] ?? "application/octet-stream",
    "content-length": part.length,
    ...(faults.noEtag.has(name) ? {} : { etag: `"${body.length}"` }),
  };
  if (range !== undefined) {
    headers["content-range"] = `bytes ${from}-${body.length - 1}/${body.length}`;
  }
  response.writeHead(range === undefined ? 200 : 206, headers);
  const stall = faults.stallAfter.get(name);
  if (stall !== undefined) {
    response.write(part.subarray(0, stall));
    return;
  }
  const limit = faults.breakAfter.get(name);
  if (limit === undefined) {
    response.end(part);
    return;
  }
  faults.breakAfter.delete(name);
  response.write(part.subarray(0, limit), () => setTimeout(() => response.destroy(), 200));
}
