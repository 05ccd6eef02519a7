// The sample document: generated filler with facts at all depths, in the forms that the embedded
// model was trained on. It follows `longview demo` (crates/cli/src/demo/document.rs,
// crates/eval/src/{facts,filler}.rs), but measures in characters: the page has no tokenizer.

/** Characters of a token in such a text, about. */
const CHARS_PER_TOKEN = 3.85;
const HEAD = 160;

const list = (words: string): string[] => words.split(" ");

const ADJECTIVES = list(
  "amber brisk calm dusty early fierce golden hollow ivory jolly kind lunar mossy noble odd pale " +
    "quiet rapid silver tiny urban velvet warm young",
);
const NOUNS = list(
  "anvil basket candle dragon eagle feather guitar hammer island jacket kettle ladder marble " +
    "needle orchid pepper quiver ribbon saddle teapot urn violin wagon yarrow",
);
const PEOPLE = list(
  "Anna Thomas Clara Edwin Martha Peter Helen Samuel Lucy Walter Alice Henry Rose Albert Emma " +
    "Oliver Grace Philip Nora Arthur",
);
const THINGS = [
  "phone number",
  "ticket number",
  "room number",
  "account number",
  "order number",
  "access code",
];

const WORDS: Record<string, string[]> = {
  P: PEOPLE,
  R: list("baker miller gardener teacher sailor doctor tailor clerk porter painter cook weaver"),
  A: list("old quiet narrow bright heavy gentle cold pale broken simple warm tidy dusty crooked"),
  N: list("basket lantern ladder kettle blanket bucket ribbon bottle cushion hammer candle saddle"),
  L: list("kitchen meadow orchard bakery library stable cellar market valley hillside courtyard"),
  U: list("bread straw butter wool honey paper rope flour timber cider salt linen"),
  V: list("carried mended painted borrowed cleaned lifted polished packed forgot sold noticed"),
  I: list("waited laughed rested sang slept listened whistled smiled worked lingered wandered"),
  S: list("geese sparrows cattle clouds lambs bees swallows guests children cousins visitors"),
  G: list("drifted gathered settled scattered hurried passed circled rested"),
  D: list("slowly softly calmly gladly carefully politely quietly eagerly seldom often"),
  T: list("spring summer autumn winter evening afternoon breakfast supper harvest rain snowfall"),
  H: list("wind rain fog sunlight dust smoke thunder moonlight drizzle mist"),
};

const TEMPLATES = [
  "{P} {V} the {A} {N} and left it in the {L}.",
  "In the {L} the {R} {V} a {A} {N}.",
  "The {S} {G} above the {L}, and the {H} grew {A}.",
  "After {T}, {P} {I} near the {A} {L}.",
  "It was a {A} day, and nobody in the {L} spoke of the {N}.",
  "The {R} {D} {V} the {N} that {P} had wanted.",
  "Before {T} there was always {U} and {U} on the shelf.",
  '"We shall need more {U}," said the {R}, who {I} by the {L}.',
  "A {A} {H} came down from the hills, and the {S} {G} {D}.",
  "{P} and {P} {I} together until the {H} had gone.",
  "Behind the {L} stood a {A} {N}, full of {U}.",
  "Every {A} {N} in the {L} belonged to the {R}.",
  "The {H} made the {L} seem {A}, though {P} liked it well.",
  "When the {R} {I}, the {S} {G} toward the {L}.",
  "Nothing pleased {P} so much as {A} {U} and a {A} {N}.",
  "All through the {T} the {L} smelled of {U}.",
  "{P} thought the {L} {A}, but the {R} thought it {A}.",
  "By {T} the {H} had stopped, and the {R} {I} again.",
  "The way to the {L} was {A}, and the {S} {G} along it.",
  "With a {A} {N} and some {U}, the {R} {I} beside {P}.",
];

/** SplitMix64's little brother: 32 bits are enough for words. */
class Random {
  constructor(private state: number) {}

  below(n: number): number {
    this.state = (this.state + 0x9e3779b9) | 0;
    let z = this.state ^ (this.state >>> 16);
    z = Math.imul(z, 0x21f0aaad);
    z = Math.imul(z ^ (z >>> 15), 0x735a2d97);
    return ((z ^ (z >>> 15)) >>> 0) % n;
  }

  of(words: string[]): string {
    return words[this.below(words.length)] ?? "";
  }

  digits(n: number): string {
    return Array.from({ length: n }, () => this.below(10)).join("");
  }
}

/** A document of about `tokens` tokens with `facts` facts; a function of the seed. */
export function sampleDocument(tokens: number, facts: number, seed: number): string {
  const random = new Random(seed);
  const length = Math.round(tokens * CHARS_PER_TOKEN);
  const statements = statementsOf(facts, random);
  // Nothing at the end: a policy that keeps only the last tokens must not see a fact.
  const span = length * 0.8 - HEAD;
  const places = statements.map(
    (_, i) => HEAD + (span * (i + 0.2 + random.below(61) / 100)) / facts,
  );
  let text = "";
  let next = 0;
  let sentences = 0;
  while (text.length < length) {
    while (next < facts && text.length >= (places[next] ?? 0)) text += statements[next++] ?? "";
    text += `${text.endsWith("\n") ? "" : " "}${sentence(random)}`;
    sentences += 1;
    if (sentences % 12 === 0) text += "\n";
  }
  return text.trim();
}

function statementsOf(n: number, random: Random): string[] {
  const names = new Set<string>();
  const fresh = (make: () => string): string => {
    for (;;) {
      const name = make();
      if (!names.has(name)) {
        names.add(name);
        return name;
      }
    }
  };
  const pair = (): string => `${random.of(ADJECTIVES)}-${random.of(NOUNS)}`;
  return Array.from({ length: n }, (_, i) => {
    if (i % 3 === 0) {
      return ` One of the special magic numbers for ${fresh(pair)} is: ${random.digits(7)}.`;
    }
    if (i % 3 === 1) return ` line ${fresh(pair)}: REGISTER_CONTENT is ${random.digits(5)}.`;
    const owned = fresh(() => `${random.of(THINGS)} of ${random.of(PEOPLE)}`);
    return ` The ${owned} is ${random.digits(5)}.`;
  });
}

function sentence(random: Random): string {
  return random
    .of(TEMPLATES)
    .replace(/\{(\w)\}/g, (_, slot: string) => random.of(WORDS[slot] ?? []));
}
