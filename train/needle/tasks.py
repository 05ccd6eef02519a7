"""Facts to hide in a document, and the questions about them.

The forms are those of RULER (arXiv:2404.06654: niah, vt), of the passkey task (arXiv:2305.16300)
and of LongEval's lines. A `Quiz` holds what to hide and what to ask; `data` writes the document.
"""

import math
import re
import string
from dataclasses import dataclass

CONSONANTS, VOWELS = "bcdfghklmnprstvw", "aeiou"


@dataclass
class Question:
    """`ask` in words; `lead` begins the answer, `answer` completes it."""

    ask: str
    lead: str
    answer: str


@dataclass
class Quiz:
    """Sentences to hide in order, and questions about them."""

    needles: list[str]
    questions: list[Question]
    preface: str = ""
    # Whether the needles stand together as lines instead of scattered in filler.
    block: bool = False


class Words:
    """Names for keys: words of the text at hand, made-up words, and pairs of both."""

    def __init__(self, texts, extra=()):
        found = {w for t in texts for w in re.findall(r"\b[a-z]{4,9}\b", t)}
        self.words = sorted(found | set(extra))

    def word(self, rng):
        if rng.random() < 0.25:
            return made_up(rng)
        return rng.choice(self.words)

    def keys(self, rng, n):
        """`n` keys of one shape, all different."""
        shape = rng.random()
        make = {
            0: self.word,
            1: lambda r: f"{self.word(r)}-{self.word(r)}",
            2: lambda r: digits(r, 6),
        }
        maker = make[0 if shape < 0.4 else 1 if shape < 0.75 else 2]
        found = []
        while len(found) < n:
            key = maker(rng)
            if key not in found:
                found.append(key)
        return found

    def similar_keys(self, rng, n):
        """`n` pairs of words, of which many share a word: both have to be matched."""
        few = math.isqrt(2 * n) + 1
        first, second = ([self.word(rng) for _ in range(few)] for _ in "ab")
        pairs = sorted({f"{a}-{b}" for a in first for b in second})
        return rng.sample(pairs, min(n, len(pairs)))


def made_up(rng):
    return "".join(
        rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(rng.choice([2, 3, 3, 4]))
    ) + rng.choice(["", "", "n", "r", "s"])


def digits(rng, n):
    return "".join(rng.choice(string.digits) for _ in range(n))


def passkey(rng, words, n=1, value_digits=5):
    value = digits(rng, value_digits)
    return Quiz(
        [f" The pass key is {value}. Remember it. {value} is the pass key."],
        [Question(" What is the pass key?", " The pass key is", f" {value}.")],
    )


def magic_numbers(rng, words, n=1, value_digits=None, asked=None, values_per_key=1, keys=None):
    """RULER niah: `n` keys, `values_per_key` numbers each; `asked` of the keys are asked about."""
    value_digits = value_digits or rng.choice([4, 5, 6, 7, 7, 7])
    keys = keys or words.keys(rng, n)
    n = len(keys)
    values = {k: [digits(rng, value_digits) for _ in range(values_per_key)] for k in keys}
    needles = [
        f" One of the special magic numbers for {k} is: {v}." for k in keys for v in values[k]
    ]
    rng.shuffle(needles)
    questions = []
    for k in rng.sample(keys, min(n, asked or n)):
        if values_per_key == 1:
            about = f"the special magic number for {k} mentioned in the provided text"
            lead, answer = f" The{about[3:]} is", f" {values[k][0]}."
            questions.append(Question(f" What is {about}?", lead, answer))
        else:
            about = f"the special magic numbers for {k} mentioned in the provided text"
            order = sorted(values[k], key="".join(needles).index)
            lead, answer = f" The{about[3:]} are", f" {', '.join(order)}."
            questions.append(Question(f" What are all {about}?", lead, answer))
    kind = (
        "A special magic number is" if n * values_per_key == 1 else "Some special magic numbers are"
    )
    them = "number" if n * values_per_key == 1 else "numbers"
    preface = (
        f" {kind} hidden within the following text. Make sure to memorize it."
        f" I will quiz you about the {them} afterwards."
    )
    return Quiz(needles, questions, preface if rng.random() < 0.5 else "")


def lines(rng, words, n=16, asked=None, value_digits=None, block=None, keys=None):
    """LongEval lines: a register's content by the name of its line."""
    keys = keys or words.keys(rng, n)
    n = len(keys)
    if value_digits or rng.random() < 0.65:
        width = value_digits or rng.choice([4, 5, 5, 6])
        values = [digits(rng, width) for _ in keys]
    else:
        values = [words.word(rng) for _ in keys]
    pairs = dict(zip(keys, values))
    needles = [f" line {k}: REGISTER_CONTENT is {v}." for k, v in pairs.items()]
    questions = [
        Question(
            f" Tell me what is the REGISTER_CONTENT in line {k}?",
            f" The REGISTER_CONTENT in line {k} is",
            f" {pairs[k]}.",
        )
        for k in rng.sample(keys, min(n, asked or n))
    ]
    return Quiz(needles, questions, block=rng.random() < 0.5 if block is None else block)


THINGS = [
    "phone number", "room number", "password", "ticket number", "account number", "access code",
    "favourite word", "code name", "order number", "locker number", "secret word", "reference code",
]  # fmt: skip
NAMES = (
    "Anna Thomas Clara Edwin Martha Peter Helen Samuel Lucy Walter Alice Henry Rose Albert Emma "
    "Oliver Grace Philip Nora Arthur Ingrid Tobias Marion Felix Judith Conrad Sylvia Bernard"
).split()


def facts(rng, words, n=4, asked=None):
    """Everyday facts: what some person's number or word is."""
    pairs = {}
    while len(pairs) < n:
        owner = rng.choice(NAMES) if rng.random() < 0.6 else f"the {words.word(rng)}"
        thing = rng.choice(THINGS)
        value = (
            words.word(rng)
            if "word" in thing or "name" in thing
            else digits(rng, rng.choice([3, 4, 5, 6]))
        )
        pairs[owner, thing] = value
    form = rng.random()
    needles = []
    for (owner, thing), value in pairs.items():
        if form < 0.5:
            needles.append(f" The {thing} of {owner} is {value}.")
        elif form < 0.8:
            needles.append(f" The {thing} of {owner} is: {value}.")
        else:
            needles.append(f" Remember that the {thing} of {owner} is {value}.")
    questions = [
        Question(
            f" What is the {thing} of {owner}?",
            f" The {thing} of {owner} is",
            f" {pairs[owner, thing]}.",
        )
        for owner, thing in rng.sample(sorted(pairs), min(n, asked or n))
    ]
    return Quiz(needles, questions)


def variables(rng, words, n=2, hops=1, asked=None):
    """RULER variable tracking: which variables got a value, directly or through others."""
    names = []
    while len(names) < n * (hops + 1):
        name = "".join(rng.choice(string.ascii_uppercase) for _ in range(5))
        if name not in names:
            names.append(name)
    chains = [names[i * (hops + 1) : (i + 1) * (hops + 1)] for i in range(n)]
    values = [digits(rng, 5) for _ in chains]
    waiting = [
        [f" VAR {c[0]} = {v}."] + [f" VAR {b} = VAR {a}." for a, b in zip(c, c[1:])]
        for c, v in zip(chains, values)
    ]
    needles = []
    while any(waiting):
        chain = rng.choice([w for w in waiting if w])
        needles.append(chain.pop(0))
    order = list(range(n))
    rng.shuffle(order)
    questions = [
        Question(
            f" Find all variables that are assigned the value {values[i]} in the text above.",
            f" The variables assigned the value {values[i]} are",
            f" {', '.join(chains[i])}.",
        )
        for i in order[: asked or n]
    ]
    return Quiz(needles, questions)


def quiz(rng, words, n_tokens):
    """A quiz for a document of `n_tokens`, or two quizzes of any kinds mixed in one document."""
    first = one_quiz(rng, words, n_tokens)
    if rng.random() < 0.7:
        return first
    second = one_quiz(rng, words, n_tokens // 2)
    # Of two passkeys, or two lists of magic numbers, nobody could tell which is meant.
    if first.questions[0].ask[:24] == second.questions[0].ask[:24] or first.block or second.block:
        return first
    questions = first.questions + second.questions
    rng.shuffle(questions)
    return Quiz(shuffled_together(rng, first.needles, second.needles), questions)


def many_keys(rng, words, n_tokens):
    """A quiz with many keys, in about half of the document's tokens, and as many questions."""
    kind = rng.random()
    n = max(2, int(n_tokens * rng.uniform(0.3, 0.6)) // (24 if kind < 0.6 else 30))
    keys = words.similar_keys(rng, n) if rng.random() < 0.5 else None
    if kind < 0.6:
        return lines(rng, words, n, keys=keys)
    if kind < 0.85:
        return magic_numbers(rng, words, n, keys=keys)
    return facts(rng, words, min(n, 48))


def shuffled_together(rng, a, b):
    """All of both lists, each in its own order."""
    a, b, mixed = list(a), list(b), []
    while a or b:
        source = a if rng.randrange(len(a) + len(b)) < len(a) else b
        mixed.append(source.pop(0))
    return mixed


def one_quiz(rng, words, n_tokens):
    """A quiz that fits a document of `n_tokens`; long documents hold more facts."""
    room = max(1, n_tokens // 40)
    many = lambda options, room=room: rng.choice([o for o in options if o <= room] or [1])
    kind = rng.random()
    if kind < 0.12:
        return passkey(rng, words)
    if kind < 0.48:
        return magic_numbers(
            rng, words, many([1, 1, 2, 4, 4, 8, 12, 16]), asked=rng.choice([1, 2, 4, 8])
        )
    if kind < 0.56:
        per_key = rng.choice([2, 3, 4])
        n = many([1, 2, 3])
        return magic_numbers(
            rng, words, n, asked=1, values_per_key=per_key if room >= n * per_key else 1
        )
    if kind < 0.80:
        n = many([8, 16, 32, 64, 64, 96], n_tokens // 22)
        return lines(rng, words, n, asked=rng.choice([1, 2, 4, 8]))
    if kind < 0.93:
        return facts(rng, words, many([1, 2, 4, 8, 16]), asked=rng.choice([1, 2, 4, 8]))
    return variables(rng, words, many([1, 2, 3]), hops=rng.choice([1, 1, 2]), asked=1)
