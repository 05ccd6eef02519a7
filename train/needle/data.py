"""Training sequences: token ids, targets, loss weights and positions."""

from dataclasses import dataclass

import numpy as np

from . import tasks
from .tokenizer import BOS, EOS, IM_END, IM_START

# Loss weights by what a token is.
ANSWER, COPY, CHAT_LEAD, LEAD, TEXT, NEEDLE, GIVEN = 8.0, 1.0, 2.0, 0.2, 0.5, 0.15, 0.05
# The tokens of an answer that choose it: what follows is copied.
CHOICE, CHOICE_TOKENS = 24.0, 2


class Row:
    """One sequence under construction; target `i` is what must follow token `i`."""

    def __init__(self):
        self.ids, self.weights, self.filler, self.asking = [BOS], [], [], False
        self.query, self.patches = [], []

    def add(self, ids, weight, filler=False):
        self.ids += ids
        self.weights += [weight] * len(ids)
        self.filler += [filler] * len(ids)
        self.query += [self.asking] * len(ids)

    def answer(self, ids):
        self.add(ids[:CHOICE_TOKENS], CHOICE)
        self.add(ids[CHOICE_TOKENS:], ANSWER)

    def expect(self, target, weight):
        """The next token must be `target`, whatever comes in the next piece."""
        self.patches.append((len(self.ids) - 1, target, weight))

    def finish(self, n):
        """Arrays of `n`: inputs, targets, weights, filler and question marks of the inputs."""
        ids = np.full(n + 1, EOS, dtype=np.int64)
        weights = np.zeros(n + 1, dtype=np.float32)
        m = min(n + 1, len(self.ids))
        ids[:m] = self.ids[:m]
        weights[: m - 1] = self.weights[: m - 1]
        targets = ids[1:].copy()
        for at, target, weight in self.patches:
            if at < n:
                targets[at], weights[at] = target, weight
        mark = lambda flags: np.array(([False] + flags + [False] * n)[:n])
        return ids[:-1], targets, weights[:n], mark(self.filler), mark(self.query)


@dataclass
class Stage:
    """One stage of the curriculum."""

    steps: int
    batch: int
    tokens: int
    max_position: int
    rate: float
    copy_share: float = 0.1
    text_share: float = 0.15
    dilution: int = 1
    # Documents with as many keys as fit, and many questions.
    keys_share: float = 0.0


class Data:
    def __init__(self, tokenizer, filler, words, rng):
        self.tokenizer, self.filler, self.words, self.rng = tokenizer, filler, words, rng
        self.vocab = tokenizer.get_vocab_size()

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def copying(self, n):
        """Segments of text or of random tokens, each two or three times."""
        row, rng = Row(), self.rng
        while len(row.ids) <= n:
            length = rng.randrange(8, max(9, n // 3))
            kind = rng.random()
            if kind < 0.35:
                segment = self.filler.book(rng, length)
            elif kind < 0.65:
                segment = self.encode(" " + tasks.digits(rng, length))
            else:
                segment = [rng.randrange(8, self.vocab) for _ in range(length)]
            for repeat in range(rng.choice([2, 2, 3])):
                row.add(segment, GIVEN if repeat == 0 else COPY)
                row.add(self.filler.book(rng, rng.randrange(1, 24)), GIVEN)
        return row

    def text(self, n):
        row = Row()
        row.add(self.filler.book(self.rng, n), 1.0)
        return row

    def document(self, quiz, n, chat, filled=0.6):
        """A document of about `n` tokens with the facts of `quiz` and questions after it.

        At most the share `filled` of it is facts and questions, the rest filler.
        """
        rng, row = self.rng, Row()
        preface = self.encode(quiz.preface) if quiz.preface else []
        needles = [self.encode(s) for s in quiz.needles]
        asked = [self.asked(q, chat) for q in quiz.questions]
        fixed = len(preface) + sum(map(len, needles)) + (4 if chat else 0)
        while len(asked) > 1 and fixed + sum(a.n for a in asked) > n * filled:
            asked.pop()
        space = n - fixed - sum(a.n for a in asked)
        if space < 0:
            return None
        text, at = self.filler.any(rng, space), 0
        if quiz.block:
            cuts = [rng.randrange(space + 1)] * len(needles)
        else:
            cuts = sorted(rng.randrange(space + 1) for _ in needles)
        if chat:
            row.add([IM_START] + self.encode("user\n"), GIVEN)
        row.add(preface, GIVEN)
        for cut, needle in zip(cuts, needles):
            row.add(text[at:cut], TEXT, filler=True)
            row.add(needle, NEEDLE)
            at = cut
        row.add(text[at:], TEXT, filler=True)
        row.asking = True
        for i, a in enumerate(asked):
            a.write(row, first=i == 0)
        return row

    def asked(self, question, chat):
        return (Chat if chat else Plain)(self.encode, question)

    def sample(self, stage):
        kind = self.rng.random()
        if kind < stage.copy_share:
            return self.copying(stage.tokens)
        if kind < stage.copy_share + stage.text_share:
            return self.text(stage.tokens)
        while True:
            chat = self.rng.random() < 0.25
            if self.rng.random() < stage.keys_share:
                quiz = tasks.many_keys(self.rng, self.words, stage.tokens)
                row = self.document(quiz, stage.tokens, chat, filled=0.97)
            else:
                quiz = tasks.quiz(self.rng, self.words, stage.tokens)
                row = self.document(quiz, stage.tokens, chat)
            if row is not None:
                return row

    def batch(self, stage):
        n = stage.tokens
        rows = [self.sample(stage).finish(n) for _ in range(stage.batch)]
        inputs, targets, weights, filler, query = (np.stack(column) for column in zip(*rows))
        positions = np.stack([spread(self.rng, n, stage.max_position) for _ in rows])
        # Attention from the questions sees filler as if it were `dilution` times as long.
        times = [self.rng.choice([1, 1, 2, 4, 16, 64]) for _ in rows]
        times = np.array([min(t, stage.dilution) for t in times], dtype=np.float32)
        return inputs, targets, weights, positions, filler, query, np.log(times)


class Plain:
    """The question as the document goes on, its answer begun."""

    def __init__(self, encode, question):
        self.lead = encode(question.ask + question.lead)
        self.answer = encode(question.answer)
        self.n = len(self.lead) + len(self.answer)

    def write(self, row, first):
        row.add(self.lead, LEAD)
        row.answer(self.answer)
        row.expect(EOS, 2.0)


class Chat:
    """The question as a user's turn, the answer as a whole sentence."""

    def __init__(self, encode, question):
        turn = encode(question.ask.strip()) + [IM_END] + encode("\n") + [IM_START]
        self.first = encode("\n\n") + turn + encode("assistant\n")
        self.later = [IM_START] + encode("user\n") + turn + encode("assistant\n")
        self.lead = encode(question.lead.strip())
        self.answer = encode(question.answer) + [IM_END]
        self.end = encode("\n")
        self.n = len(self.later) + len(self.lead) + len(self.answer) + 2

    def write(self, row, first):
        row.add(self.first if first else self.later, LEAD)
        row.add(self.lead, CHAT_LEAD)
        row.answer(self.answer)
        row.add(self.end, LEAD)


def spread(rng, n, max_position):
    """Position ids of `n` tokens: runs with random jumps between them (PoSE, arXiv:2309.10400)."""
    if max_position <= n or rng.random() < 0.3:
        return np.arange(n)
    reach = min(max_position, n * rng.choice([2, 8, 32, 128, 1024]))
    runs = rng.choice([1, 2, 4, 8])
    cuts = [0] + sorted(rng.sample(range(1, n), runs)) + [n]
    jumps = sorted(rng.randrange(reach - n + 1) for _ in range(runs + 1))
    return np.concatenate([np.arange(a, b) + j for a, b, j in zip(cuts, cuts[1:], jumps)])
