#!/usr/bin/env python3
"""How long an answer waits for its next token while another prompt is read.

    python3 bench/stall.py --longview target/release/longview --text book.txt
    python3 bench/stall.py --longview target/release/longview --text book.txt --known

`longview serve -m needle` on loopback. One client streams a long answer; another one sends the
text as a prompt. Time between two tokens of the first, from the second's request to its answer.
With --known the text was read before under the server's policy, and --policy is asked for: what the
first one waits for is the index of a known beginning. Only the standard library is needed.
"""

import argparse
import json
import socket
import statistics
import subprocess
import threading
import time
import urllib.request


def call(port, body):
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", data,
                                     {"Content-Type": "application/json"})
    return urllib.request.urlopen(request, timeout=3600)


def begin(args):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [args.longview, "serve", "-m", "needle", "-c", args.context, "--device", "cpu",
             "--no-library", "--max-stall", args.max_stall, "--port", port]
    words += ["--log", "debug"] if args.log else []
    log = open(args.log, "wb") if args.log else subprocess.DEVNULL
    server = subprocess.Popen([str(word) for word in words], stdout=subprocess.DEVNULL, stderr=log)
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return server, port
        except OSError:
            if server.poll() is not None:
                raise SystemExit(f"{args.longview} serve ended at once")
            time.sleep(0.05)


def stream(port, times):
    """An answer as long as the context allows; the time of each token."""
    body = {"prompt": "It was", "max_tokens": 30000, "ignore_eos": True, "stream": True}
    with call(port, body) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                times.append(time.perf_counter())


def measure(args):
    text = open(args.text, encoding="utf-8").read()[:args.chars]
    server, port = begin(args)
    try:
        prompt = {"prompt": text + " What is it?", "max_tokens": 4}
        if args.known:
            call(port, {**prompt, "prompt": text + " Who is it?"}).read()
        times = []
        threading.Thread(target=stream, args=(port, times), daemon=True).start()
        while len(times) < 50:
            time.sleep(0.01)
        if args.policy:
            prompt |= {"policy": args.policy, "budget": args.budget}
        began = time.perf_counter()
        with call(port, prompt) as answer:
            usage = json.load(answer)["usage"]
        ended = time.perf_counter()
    finally:
        server.kill()
    return began, ended, times, usage


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--longview", required=True, help="the program")
    parser.add_argument("--text", required=True, help="a file of text")
    parser.add_argument("--chars", type=int, default=110_000, help="as much of it is read")
    parser.add_argument("--context", type=int, default=40_000)
    parser.add_argument("--max-stall", type=int, default=200, help="in ms")
    parser.add_argument("--policy", help="of the second request")
    parser.add_argument("--budget", type=int, default=512, help="with --policy")
    parser.add_argument("--known", action="store_true", help="the text was read before")
    parser.add_argument("--log", help="what the server says of rounds that took longer")
    args = parser.parse_args()
    began, ended, times, usage = measure(args)
    inside = [b - a for a, b in zip(times, times[1:]) if b > began and a < ended]
    if len(inside) < 20:
        raise SystemExit(f"only {len(inside)} tokens came meanwhile: a longer text is needed")
    limit = args.max_stall / 1000
    parts = statistics.quantiles(inside, n=100)
    longer = sum(wait > limit for wait in inside) / len(inside)
    known = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    print(f"prompt of {usage['prompt_tokens']} tokens, {known} of them known, "
          f"{args.policy or 'the policy of the server'}: answered after {ended - began:.1f} s")
    print(f"{len(inside)} waits: median {parts[49] * 1000:.0f} ms, 99th percentile "
          f"{parts[98] * 1000:.0f} ms, longest {max(inside) * 1000:.0f} ms, "
          f"{100 * longer:.1f} % longer than {args.max_stall} ms")


if __name__ == "__main__":
    main()
