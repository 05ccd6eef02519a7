#!/usr/bin/env python3
"""Whether one key's requests tell what another key has asked.

A server with two keys. Alice asks prompts, each with a secret word behind a beginning that is not
secret. Bob then asks prompts of Alice's and others that nobody has asked, in any order: the time to
his first token must not tell which is which. Bob also asks the beginnings: neither an answer of his
nor a file of his may hold a secret. The server is ended in between, so that prompts come from disk.
"""

import argparse
import json
import random
import re
import signal
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request

KEYS = {"alice": "first-key", "bob": "second-key"}
# Contexts that a server keeps in memory.
KEPT = 8


class Server:
    """`longview serve` with the embedded model on a free port."""

    def __init__(self, binary, library):
        keys = [word for pair in KEYS.items() for word in ("--api-key", ":".join(pair))]
        command = [binary, "serve", "--device", "cpu", "--port", "0", "--library", library, *keys]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if found := re.search(r"http://([\d.]+:\d+)", line):
                self.address = found.group(1)
                break
        # What it says later is read, so that it never waits for that.
        threading.Thread(target=self.process.stderr.read, daemon=True).start()
        while True:
            try:
                urllib.request.urlopen(f"http://{self.address}/health").read()
                return
            except urllib.error.HTTPError:
                time.sleep(0.05)

    def ask(self, who, prompt, n=1):
        """The answer, how many tokens were known, and the seconds to it."""
        body = {"prompt": prompt, "max_tokens": n}
        request = urllib.request.Request(
            f"http://{self.address}/v1/completions",
            json.dumps(body).encode(),
            {"authorization": f"Bearer {KEYS[who]}"},
        )
        began = time.perf_counter()
        answer = urllib.request.urlopen(request).read()
        seconds = time.perf_counter() - began
        answer = json.loads(answer)
        known = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return answer["choices"][0]["text"], known, seconds

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def auc(low, high):
    """The share of pairs in which the second is larger; 0.5 tells nothing."""
    pairs = [(a < b) + 0.5 * (a == b) for a in low for b in high]
    return sum(pairs) / len(pairs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--longview", required=True, help="the program")
    parser.add_argument("--prompts", type=int, default=200, help="prompts of each kind")
    args = parser.parse_args()
    rng = random.Random(7)
    places = "mill barn orchard river market church bridge forest garden harbour".split()
    people = "baker miller guest sailor teacher farmer widow captain painter smith".split()

    def prompt():
        line = "The {} number {} went from the {} to the {} at noon."
        pick = lambda: line.format(
            rng.choice(people), rng.randrange(10**6), rng.choice(places), rng.choice(places)
        )
        return " ".join(pick() for _ in range(110))

    library = tempfile.mkdtemp(prefix="longview-isolation-")
    server = Server(args.longview, library)
    known = [prompt() for _ in range(2 * args.prompts)]
    secrets = [f"{rng.randrange(10**12):012}" for _ in known]

    def alice(i):
        text, n_known, _ = server.ask("alice", f"{known[i]} The secret is {secrets[i]}.")
        return n_known

    def bob(asked):
        """Seconds to the first tokens of prompts that Alice asked, and of others."""
        for i in asked:
            for is_known in rng.sample([True, False], 2):
                _, n_known, seconds = server.ask("bob", known[i] if is_known else prompt())
                assert n_known < 16, f"{n_known} tokens were known to Bob"
                times[is_known].append(seconds)

    def check(i):
        found = alice(i)
        assert found > 1000, f"only {found} tokens are known to Alice herself"

    def report(when):
        middle = {kind: sorted(all)[len(all) // 2] * 1e3 for kind, all in times.items()}
        print(
            f"{when}: first token after {middle[True]:.1f} ms where the other key asked it, "
            f"{middle[False]:.1f} ms where nobody did, AUC {auc(times[True], times[False]):.3f}"
        )

    half = args.prompts
    times = {True: [], False: []}
    for i in range(half):
        alice(i)
        bob([i])
        check(i)
    report("in memory")
    times = {True: [], False: []}
    # As many as are kept in memory are written when the server ends.
    for first in range(half, 2 * half, KEPT):
        some = range(first, min(first + KEPT, 2 * half))
        for i in some:
            alice(i)
        server.end()
        server = Server(args.longview, library)
        bob(some)
        check(some[-1])
    report("after a restart")
    says = 0
    for text in known:
        answer, _, _ = server.ask("bob", f"{text} The secret is", n=16)
        says += any(secret in answer for secret in secrets)
    server.end()
    print(f"{says} of {len(known)} answers hold a secret")


if __name__ == "__main__":
    main()
