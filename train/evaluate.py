"""Measures a trained model on text and seeds that its training never saw, full attention, greedy.

    python evaluate.py --model MODEL_FOLDER --books FOLDER --hold-out log-school-house.txt

Every question is asked after its document on a copy of one prefill. An answer is right if greedy
decoding gives exactly its tokens. Intervals are Wilson's, 95 %. Results go to stdout as Markdown
and to --out as JSON, one entry at a time, so that a stopped run goes on where it was.
"""

import argparse
import json
import math
import random
import time
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from needle import tasks
from needle.filler import NOISE, read_books

SINKS, RECENT, TOP = 4, 64, 1024

ADJECTIVES = (
    "abrasive bitter candid drowsy elastic frantic glossy hasty icy jagged keen lavish mellow "
    "nimble opaque prickly quaint rustic sullen tepid unruly vivid wistful zesty brittle "
    "cosmic dainty feral"
).split()
NOUNS = (
    "anchor beacon compass dolphin engine fossil gazelle hermit icicle jungle kernel lagoon magnet "
    "nectar otter pebble quarry rocket satchel tundra umbrella vortex walnut yogurt zeppelin acorn "
    "bison cactus dagger ember"
).split()


class NewWords(tasks.Words):
    """Keys in RULER's form: an adjective, a hyphen and a noun; training drew from other lists."""

    def __init__(self):
        pass

    def word(self, rng):
        return rng.choice(NOUNS)

    def keys(self, rng, n):
        pairs = [f"{a}-{b}" for a in ADJECTIVES for b in NOUNS]
        return rng.sample(pairs, n)


class Bench:
    def __init__(self, a):
        self.tokenizer = AutoTokenizer.from_pretrained(a.model)
        dtype = getattr(torch, a.dtype)
        self.model = AutoModelForCausalLM.from_pretrained(a.model, dtype=dtype).eval()
        texts = read_books(a.books)
        held = [Path(a.books, name).read_text(encoding="utf-8") for name in a.hold_out]
        self.book = self.encode("".join(held or texts))
        self.noise = self.encode(NOISE)
        self.words = NewWords()
        self.out = Path(a.out)
        self.results = json.loads(self.out.read_text()) if self.out.exists() else {}

    def encode(self, text):
        return self.tokenizer(text, add_special_tokens=False).input_ids

    def haystack(self, rng, n, noise):
        if noise:
            return np.resize(self.noise, n).tolist()
        at = rng.randrange(len(self.book) - n)
        return self.book[at : at + n]

    def document(self, rng, quizzes, n, noise):
        """Token ids of a document that, with its longest question, has `n` tokens."""
        preface = self.encode("".join(q.preface for q in quizzes))
        needles = [self.encode(s) for q in quizzes for s in q.needles]
        longest = max(
            len(self.encode(x.ask + x.lead + x.answer)) for q in quizzes for x in q.questions
        )
        space = n - 1 - longest - len(preface) - sum(map(len, needles))
        filler = self.haystack(rng, space, noise)
        cuts = sorted(rng.randrange(space + 1) for _ in needles)
        rng.shuffle(needles)
        ids, at = [self.tokenizer.bos_token_id] + preface, 0
        for cut, needle in zip(cuts, needles):
            ids += filler[at:cut] + needle
            at = cut
        return ids + filler[at:]

    @torch.inference_mode()
    def prefill(self, ids, piece=4096):
        cache = DynamicCache()
        for at in range(0, len(ids), piece):
            part = torch.tensor([ids[at : at + piece]])
            self.model(part, past_key_values=cache, logits_to_keep=1)
        return cache

    @torch.inference_mode()
    def right(self, cache, question):
        """Whether greedy decoding answers; the cache is cut back after."""
        asked = self.encode(question.ask + question.lead)
        answer = self.encode(question.answer)
        given = torch.tensor([asked + answer])
        logits = self.model(given, past_key_values=cache).logits[0]
        cache.crop(-len(asked + answer))
        said = logits[len(asked) - 1 : -1].argmax(-1).tolist()
        return said == answer

    def done(self, name, value):
        self.results[name] = value
        self.out.write_text(json.dumps(self.results, indent=1) + "\n")

    def count(self, name, length, make, n_documents):
        """Right answers by kind; `make(rng, i)` gives [(kind, quiz)] of document i."""
        key = f"{name} {length}"
        state = self.results.get(key, {"documents": 0, "seconds": 0.0, "right": {}, "asked": {}})
        while state["documents"] < n_documents:
            i, begun = state["documents"], time.time()
            rng = random.Random(f"{key} {i}")
            quizzes, noise = make(rng, i)
            ids = self.document(rng, [q for _, q in quizzes], length, noise)
            cache = self.prefill(ids)
            for kind, quiz in quizzes:
                for question in quiz.questions:
                    right = self.right(cache, question)
                    state["right"][kind] = state["right"].get(kind, 0) + int(right)
                    state["asked"][kind] = state["asked"].get(kind, 0) + 1
            state["documents"] += 1
            state["seconds"] += time.time() - begun
            self.done(key, state)
            if i % 10 == 9:
                print(
                    f"  {key}: {state['right']} of {state['asked']} {state['seconds']:.0f} s",
                    flush=True,
                )
        return state

    def single(self, rng, i):
        """A passkey and one needle in one document: noise lines (single_1), a book (single_2)."""
        noise = i % 2 == 0
        kind = "single_1" if noise else "single_2"
        quiz = tasks.magic_numbers(rng, self.words, 1, value_digits=7)
        return [("passkey", tasks.passkey(rng, None)), (kind, quiz)], noise

    def four(self, rng, i):
        return [("4 keys", tasks.magic_numbers(rng, self.words, 4, value_digits=7))], False

    def lines(self, rng, i):
        quiz = tasks.lines(rng, self.words, 64, asked=4, value_digits=5, block=False)
        return [("64 lines", quiz)], False

    @torch.inference_mode()
    def perplexity(self, lengths, windows=40, scored=256):
        """Perplexity of the same held-out tokens after contexts of different lengths."""
        if "perplexity" in self.results:
            return self.results["perplexity"]
        rng = random.Random("perplexity")
        ends = [rng.randrange(max(lengths) + scored, len(self.book)) for _ in range(windows)]
        table = {}
        for n in lengths:
            total = 0.0
            for end in ends:
                ids = self.book[end - scored - n : end]
                x = torch.tensor([[self.tokenizer.bos_token_id] + ids])
                logits = self.model(x, logits_to_keep=scored + 1).logits[0, :-1].float()
                y = torch.tensor(ids[-scored:])
                total += torch.nn.functional.cross_entropy(logits, y).item()
            table[str(n)] = math.exp(total / windows)
            print(f"  perplexity after {n} tokens: {table[str(n)]:.2f}", flush=True)
        self.done("perplexity", table)
        return table

    @torch.inference_mode()
    def concentration(self, length, prompts=4):
        """What share of the mass outside sinks and recent tokens the top tokens hold in answers.

        By (layer, KV head): probabilities are averaged over the head's query heads.
        """
        if "concentration" in self.results:
            return self.results["concentration"]
        config = self.model.config
        group = config.num_attention_heads // config.num_key_value_heads
        shares = []
        for i in range(prompts):
            rng = random.Random(f"concentration {i}")
            quizzes, _ = self.four(rng, i)
            ids = self.document(rng, [q for _, q in quizzes], length, noise=False)
            self.model.set_attn_implementation("sdpa")
            cache = self.prefill(ids)
            question = quizzes[0][1].questions[0]
            asked = self.encode(question.ask + question.lead)
            answer = self.encode(question.answer)
            self.model(torch.tensor([asked[:-1]]), past_key_values=cache)
            self.model.set_attn_implementation("eager")
            for token in asked[-1:] + answer[:-1]:
                out = self.model(
                    torch.tensor([[token]]), past_key_values=cache, output_attentions=True
                )
                step = []
                for layer in out.attentions:
                    p = layer[0, :, 0].view(-1, group, layer.shape[-1]).mean(1)
                    far = p[:, SINKS:-RECENT].float()
                    top = far.topk(TOP, dim=-1).values.sum(-1)
                    step.append((top / far.sum(-1).clamp_min(1e-30)).tolist())
                shares.append(step)
            print(f"  concentration: prompt {i + 1} of {prompts}", flush=True)
        table = np.array(shares).mean(0).tolist()
        self.done("concentration", table)
        return table


def wilson(right, asked, z=1.96):
    p, n = right / asked, asked
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return middle - half, middle + half


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--model", required=True)
    p.add_argument("--books", required=True)
    p.add_argument("--hold-out", nargs="*", default=["log-school-house.txt"])
    p.add_argument("--out", default="evaluation.json")
    p.add_argument("--dtype", default="float32", help="of the arithmetic; weights are bf16")
    p.add_argument("--fewer", type=int, default=1, help="divide the number of documents by this")
    p.add_argument(
        "--only", nargs="*", help="names of parts: 4096, 32768, perplexity, concentration"
    )
    a = p.parse_args()
    bench = Bench(a)
    wanted = lambda part: not a.only or part in a.only
    plan = []
    if wanted("4096"):
        plan += [("single", 4096, bench.single, 200), ("four", 4096, bench.four, 50)]
        plan += [("lines", 4096, bench.lines, 50)]
    if wanted("32768"):
        plan += [("single", 32768, bench.single, 50), ("four", 32768, bench.four, 13)]
    rows = []
    for name, length, make, documents in plan:
        state = bench.count(name, length, make, max(1, documents // a.fewer))
        for kind, asked in state["asked"].items():
            right = state["right"][kind]
            low, high = wilson(right, asked)
            rows.append(f"| {length} | {kind} | {right} / {asked} | {low:.1%} to {high:.1%} |")
    if rows:
        print("\n| tokens | task | right | 95 % interval |\n|---|---|---|---|")
        print("\n".join(rows))
    if wanted("perplexity"):
        table = bench.perplexity([512, 1024, 2048, 4096])
        print("\n| context | perplexity |\n|---|---|")
        print("\n".join(f"| {n} | {value:.2f} |" for n, value in table.items()))
    if wanted("concentration"):
        table = bench.concentration(32768)
        print("\n| layer | " + " | ".join(f"KV head {h}" for h in range(len(table[0]))) + " |")
        print("|---" * (len(table[0]) + 1) + "|")
        for i, row in enumerate(table):
            print(f"| {i} | " + " | ".join(f"{x:.1%}" for x in row) + " |")


if __name__ == "__main__":
    main()
