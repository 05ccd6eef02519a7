#!/usr/bin/env python3
"""`longview serve` beside llama-server: several requests at once, and the first after a restart.

    python3 bench/llama-cpp/server.py --text book.txt
    python3 bench/llama-cpp/server.py --text book.txt --only slots --slot-tokens 4096

Three measurements, each on servers that do nothing else, on loopback:

shared   Longview alone: questions about one document that was read, one at a time and all at once.
slots    Both: prompts that have nothing in common and were read before, as many at once as there
         are slots.
restart  Both: a question about a document was answered, both servers end and start again, and
         another question about it comes. Clients say nothing but what they ask. llama-server reads
         the document again: it keeps no prompts on disk unless its clients save slots.

Programs and models are those of run.py. Answers have --answer tokens, at temperature 0, and go on
where the model would end. Text has to be long enough for all documents.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import run
from run import BIN, WORK, say

QUESTIONS = ["Who speaks here first?", "What is told of the weather?", "Where does it begin?",
             "Which house is named?", "Who is the oldest of them?", "What was lost?",
             "How many people are named?", "What happens at the end?"]


def call(port, path, body=None):
    """What a server answers to JSON, or to a GET without it."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers)
    try:
        with urllib.request.urlopen(request, timeout=3600) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        sys.exit(f"{path}: {error}: {error.read().decode()[:500]}")


@contextmanager
def serving(command):
    """A server on a port of its own, until it is not needed any more."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [str(word) for word in [*command, "--host", "127.0.0.1", "--port", port]]
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(words, stdout=log, stderr=log)
        try:
            while True:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                        break
                except OSError:
                    if server.poll() is not None:
                        log.seek(0)
                        sys.exit(f"{' '.join(words)}\n{log.read().decode()[-3000:]}")
                    time.sleep(0.05)
            yield port
        finally:
            server.terminate()
            server.wait()


class Longview:
    name = "Longview"

    def __init__(self, args, model, tokens, slots):
        folder = args.library / model.stem
        self.command = [args.binary, "serve", "-m", model, "--device", "cpu", "-t", args.threads,
                        "-c", tokens, "--parallel", slots, "--budget", args.budget,
                        "--library", folder, "--no-page"]

    def answer(self, port, prompt, n, slot):
        body = {"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True}
        usage = call(port, "/v1/completions", body)["usage"]
        return usage["completion_tokens"], usage["prompt_tokens_details"]["cached_tokens"]



class LlamaServer:
    """With flash attention, which reads faster."""

    name = "llama-server"
    flash = "on"

    def __init__(self, args, model, tokens, slots):
        # The context is shared out among its slots.
        self.command = [BIN / "llama-server", "-m", model, "-t", args.threads, "-c",
                        tokens * slots, "-np", slots, "-fa", self.flash, "-b", 2048, "-ub", 512]

    def answer(self, port, prompt, n, slot):
        body = {"prompt": prompt, "n_predict": n, "temperature": 0, "ignore_eos": True,
                "cache_prompt": True, "id_slot": slot}
        found = call(port, "/completion", body)
        return found["tokens_predicted"], found["tokens_evaluated"] - found["timings"]["prompt_n"]


class PlainLlamaServer(LlamaServer):
    """Without it: some processors decode faster so."""

    name = "llama-server without flash attention"
    flash = "off"


def at_once(server, port, prompts, n, workers):
    """Tokens a second over all prompts, `workers` at a time; all but the ends are known."""
    ask = lambda item: server.answer(port, item[1], n, item[0])
    start = time.monotonic()
    with ThreadPoolExecutor(workers) as pool:
        answers = list(pool.map(ask, enumerate(prompts)))
    took = time.monotonic() - start
    if any(tokens != n for tokens, _ in answers):
        sys.exit(f"{server.name}: answers of {[tokens for tokens, _ in answers]} tokens, not {n}")
    say(f"{server.name}: {workers} at a time, known {[known for _, known in answers]}")
    return n * len(prompts) / took


def documents(args, port, n, tokens):
    """Parts of the text that have about as many tokens for the model that is served."""
    text = args.text.read_text(encoding="utf-8", errors="replace")
    # A server takes no more than its context: the start of the text says how long a token is.
    start = text[:2 * tokens]
    each = len(start) * tokens // len(call(port, "/tokenize", {"content": start})["tokens"])
    if len(text) < n * each:
        sys.exit(f"--text {args.text}: {len(text):,} characters, about {n * each:,} are needed")
    return [text[i * each:(i + 1) * each] for i in range(n)]


def shared(args, model):
    n = len(QUESTIONS)
    server = Longview(args, model, args.document + args.answer + 512, n)
    with serving(server.command) as port:
        document, = documents(args, port, 1, args.document)
        say(f"reading {args.document:,} tokens")
        server.answer(port, document, 1, 0)
        prompts = [f"{document}\n{question}" for question in QUESTIONS]
        rates = {workers: [] for workers in (1, n)}
        for _ in range(args.repetitions):
            for workers, rate in rates.items():
                rate.append(at_once(server, port, prompts, args.answer, workers))
    one, many = (max(rate) for rate in rates.values())
    print(f"| {n} chats over {args.document:,} tokens | {one:.1f} tokens/s one at a time | "
          f"{many:.1f} at once | {many / one:.2f} |", flush=True)


def slots(args, model):
    rates, cut = {}, None
    for kind in (LlamaServer, PlainLlamaServer, Longview):
        server = kind(args, model, args.slot_tokens + args.answer + 512, args.slots)
        with serving(server.command) as port:
            cut = cut or documents(args, port, args.slots, args.slot_tokens)
            for slot, prompt in enumerate(cut):
                say(f"{server.name}: reading prompt {slot + 1} of {args.slots}")
                server.answer(port, prompt, 1, slot)
            prompts = [f"{prompt}\n{QUESTIONS[0]}" for prompt in cut]
            turns = range(args.repetitions)
            rates[kind] = max(at_once(server, port, prompts, args.answer, args.slots)
                              for _ in turns)
    ours, theirs = rates.pop(Longview), max(rates.values())
    all_theirs = ", ".join(f"{kind.name} {rate:.1f}" for kind, rate in rates.items())
    print(f"| {args.slots} prompts of {args.slot_tokens:,} tokens | {all_theirs} tokens/s | "
          f"Longview {ours:.1f} | {ours / theirs:.2f} |", flush=True)


def question(document, words):
    content = f"{document}\n\n{words}"
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 1, "temperature": 0}


def restart(args, model):
    took, document = {}, None
    for kind in (Longview, LlamaServer):
        server = kind(args, model, args.slot_tokens + 512, 1)
        if kind is Longview:
            # What llama-server forgets anyway need not be read first.
            with serving(server.command) as port:
                document, = documents(args, port, 1, args.slot_tokens)
                say(f"reading {args.slot_tokens:,} tokens")
                call(port, "/v1/chat/completions", question(document, QUESTIONS[1]))
        body = question(document, QUESTIONS[0])
        with serving(server.command) as port:
            start = time.monotonic()
            usage = call(port, "/v1/chat/completions", body)["usage"]
            took[kind] = time.monotonic() - start
            say(f"{server.name}: {took[kind]:.3f} s, {usage}")
    theirs, ours = took[LlamaServer], took[Longview]
    print(f"| first token after a restart, {args.slot_tokens:,} tokens | llama-server "
          f"{theirs:.2f} s | Longview {ours:.3f} s | {theirs / ours:.1f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    measurements = {"shared": shared, "slots": slots, "restart": restart}
    parser.add_argument("--text", type=Path, required=True, help="a long text, such as a book")
    parser.add_argument("--only", default=",".join(measurements), help="which measurements")
    parser.add_argument("--model", default="llama-4x2048", help="a model of run.py")
    parser.add_argument("--weights", default="f16", choices=run.TYPES)
    parser.add_argument("--document", type=int, default=32768, help="tokens of the one document")
    parser.add_argument("--slots", type=int, default=4, help="prompts that run at once")
    parser.add_argument("--slot-tokens", type=int, default=16384, help="tokens of each prompt")
    parser.add_argument("--answer", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--budget", type=int, default=1024, help="tokens that recall attends")
    parser.add_argument("--repetitions", type=int, default=2, help="the fastest counts")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--longview", type=Path, help="measure this binary rather than build one")
    args = parser.parse_args()
    chosen = args.only.split(",")
    if unknown := [name for name in chosen if name not in measurements]:
        parser.error(f"--only {','.join(unknown)}: one of {', '.join(measurements)}")
    WORK.mkdir(parents=True, exist_ok=True)
    run.python()
    run.build_peer(more=["llama-server"])
    args.binary = args.longview.resolve() if args.longview else run.build_longview()
    model = run.models([args.model], [args.weights])[args.model, args.weights]
    print(f"{model.stem}, {args.threads} threads, budget {args.budget}\n")
    print("| what | | | ratio |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as library:
        args.library = Path(library)
        for name in chosen:
            measurements[name](args, model)


if __name__ == "__main__":
    main()
