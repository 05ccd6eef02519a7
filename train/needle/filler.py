"""Text between the facts: books from a folder, generated sentences, noise lines of RULER."""

import random
import re
from pathlib import Path

import numpy as np

# One letter in braces is a slot that takes a word of its list.
WORDS = {
    "P": "Anna Thomas Clara Edwin Martha Peter Helen Samuel Lucy Walter Alice Henry Rose Albert "
    "Emma Oliver Grace Philip Nora Arthur Ingrid Tobias Marion Felix",
    "R": "baker miller gardener teacher sailor doctor tailor clerk porter painter cook fisherman "
    "postman weaver cooper nurse traveller guide scholar neighbour pilot judge",
    "A": "old quiet narrow bright heavy gentle cold pale broken simple warm tidy dusty crooked "
    "green faded busy empty pleasant plain damp patient clever hollow",
    "N": "basket lantern ladder kettle blanket bucket ribbon bottle cushion hammer candle saddle "
    "pillow trumpet barrel carpet mirror drawer wagon shovel jacket parcel teapot curtain",
    "L": "kitchen meadow orchard bakery library stable cellar market valley hillside courtyard "
    "workshop attic pasture riverbank lane cottage veranda schoolroom barn",
    "U": "bread straw butter wool honey paper rope flour timber cider salt linen",
    "V": "carried mended painted borrowed cleaned lifted polished packed forgot sold noticed "
    "admired moved measured covered washed",
    "I": "waited laughed rested sang slept listened whistled smiled worked lingered wandered "
    "talked",
    "S": "geese sparrows cattle clouds lambs bees swallows guests children cousins visitors "
    "shepherds",
    "G": "drifted gathered settled scattered hurried passed circled rested",
    "D": "slowly softly calmly gladly carefully politely quietly eagerly seldom often",
    "T": "spring summer autumn winter evening afternoon breakfast supper harvest rain "
    "snowfall frost",
    "H": "wind rain fog sunlight dust smoke thunder moonlight drizzle mist",
}
TEMPLATES = [
    "{P} {V} the {A} {N} and left it in the {L}.",
    "In the {L} the {R} {V} a {A} {N}.",
    "The {S} {G} above the {L}, and the {H} grew {A}.",
    "After {T}, {P} {I} near the {A} {L}.",
    "It was a {A} day, and nobody in the {L} spoke of the {N}.",
    "The {R} {D} {V} the {N} that {P} had wanted.",
    "Before {T} there was always {U} and {U} on the shelf.",
    '"We shall need more {U}," said the {R}, who {I} by the {L}.',
    '"Where is my {N}?" {P} asked, but the {R} only {I}.',
    "A {A} {H} came down from the hills, and the {S} {G} {D}.",
    "Behind the {L} stood a {A} {N}, full of {U}.",
    "Every {A} {N} in the {L} belonged to the {R}.",
    "When the {R} {I}, the {S} {G} toward the {L}.",
    "Nothing pleased {P} so much as {A} {U} and a {A} {N}.",
    "There were {S} beyond the {L}, and {P} {I} to see them.",
    "{P} thought the {L} {A}, but the {R} thought it {A}.",
    "By {T} the {H} had stopped, and the {R} {I} again.",
    "Nobody knew why {P} {V} that {A} {N} so {D}.",
    "With a {A} {N} and some {U}, the {R} {I} beside {P}.",
    "Once more the {H} {D} touched the {A} roof of the {L}.",
]
# The noise haystack of RULER and of the passkey task.
NOISE = (
    " The grass is green. The sky is blue. The sun is yellow. Here we go." " There and back again."
)


def sentence(rng):
    """One generated sentence, a space before it."""
    pick = lambda m: rng.choice(WORDS[m.group(1)].split())
    return " " + re.sub(r"\{(\w)\}", pick, rng.choice(TEMPLATES))


class Filler:
    """Tokens of filler. Without books all of it is generated."""

    def __init__(self, tokenizer, books, seed=0, generated_tokens=400_000):
        rng = random.Random(f"filler {seed}")
        encode = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
        self.noise = np.array(encode(NOISE), dtype=np.int64)
        pieces, n = [], 0
        while n < generated_tokens:
            ids = encode("".join(sentence(rng) for _ in range(200)))
            pieces.append(ids)
            n += len(ids)
        self.generated = np.concatenate([np.array(p, dtype=np.int64) for p in pieces])
        texts = [np.array(encode(text), dtype=np.int64) for text in books]
        self.books = np.concatenate(texts) if texts else self.generated

    def book(self, rng, n):
        """`n` consecutive tokens of a book."""
        return cut(self.books, rng, n)

    def any(self, rng, n):
        """`n` tokens of one kind: mostly books, else generated sentences, else noise lines."""
        kind = rng.random()
        if kind < 0.6:
            return cut(self.books, rng, n)
        if kind < 0.85:
            return cut(self.generated, rng, n)
        at = rng.randrange(len(self.noise))
        return np.resize(np.roll(self.noise, -at), n).tolist()


def cut(ids, rng, n):
    at = rng.randrange(len(ids) - n - 1)
    return ids[at : at + n].tolist()


def read_books(folder, hold_out=()):
    """The texts of a folder, without the files held out for evaluation."""
    if folder is None:
        return []
    files = sorted(Path(folder).glob("*.txt"))
    if not files:
        raise SystemExit(f"error: {folder} holds no .txt file; give a folder of plain text books")
    return [f.read_text(encoding="utf-8") for f in files if f.name not in set(hold_out)]
