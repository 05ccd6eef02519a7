//! English sentences without end: a small grammar, seeded, without digits.
//!
//! Nobody wrote or tuned a text for the demo; what stands between the facts is a function of the
//! seed.

use longview_core::SplitMix64;

/// Words for the slots of the templates.
const WORDS: [(char, &str); 13] = [
    (
        'P',
        "Anna Thomas Clara Edwin Martha Peter Helen Samuel Lucy Walter Alice Henry Rose Albert \
         Emma Oliver Grace Philip Nora Arthur",
    ),
    (
        'R',
        "baker miller gardener teacher sailor doctor tailor clerk porter painter cook fisherman \
         postman weaver cooper nurse traveller guide scholar neighbor",
    ),
    (
        'A',
        "old quiet narrow bright heavy gentle cold pale broken simple warm tidy dusty crooked \
         green faded busy empty pleasant plain damp patient clever hollow",
    ),
    (
        'N',
        "basket lantern ladder kettle blanket bucket ribbon bottle cushion hammer candle saddle \
         pillow trumpet barrel carpet mirror drawer wagon shovel jacket parcel teapot curtain",
    ),
    (
        'L',
        "kitchen meadow orchard bakery library stable cellar market valley hillside courtyard \
         workshop attic pasture riverbank lane cottage veranda schoolroom barn",
    ),
    ('U', "bread straw butter wool honey paper rope flour timber cider salt linen"),
    (
        'V',
        "carried mended painted borrowed cleaned lifted polished packed forgot sold noticed \
         admired moved measured covered washed",
    ),
    (
        'I',
        "waited laughed rested sang slept listened whistled smiled worked lingered wandered talked",
    ),
    (
        'S',
        "geese sparrows cattle clouds lambs bees swallows guests children cousins visitors \
         shepherds",
    ),
    ('G', "drifted gathered settled scattered hurried passed circled rested"),
    ('D', "slowly softly calmly gladly carefully politely quietly eagerly seldom often"),
    (
        'T',
        "spring summer autumn winter evening afternoon breakfast supper harvest rain snowfall frost",
    ),
    ('H', "wind rain fog sunlight dust smoke thunder moonlight drizzle mist"),
];

/// Sentences; a letter in braces is a slot.
const TEMPLATES: [&str; 30] = [
    "{P} {V} the {A} {N} and left it in the {L}.",
    "In the {L} the {R} {V} a {A} {N}.",
    "The {S} {G} above the {L}, and the {H} grew {A}.",
    "After {T}, {P} {I} near the {A} {L}.",
    "It was a {A} day, and nobody in the {L} spoke of the {N}.",
    "The {R} {D} {V} the {N} that {P} had wanted.",
    "Before {T} there was always {U} and {U} on the shelf.",
    "\"We shall need more {U},\" said the {R}, who {I} by the {L}.",
    "\"Where is my {N}?\" {P} asked, but the {R} only {I}.",
    "A {A} {H} came down from the hills, and the {S} {G} {D}.",
    "{P} and {P} {I} together until the {H} had gone.",
    "Behind the {L} stood a {A} {N}, full of {U}.",
    "Every {A} {N} in the {L} belonged to the {R}.",
    "The {H} made the {L} seem {A}, though {P} liked it well.",
    "When the {R} {I}, the {S} {G} toward the {L}.",
    "{P} {D} {V} some {U} for the {A} {R}.",
    "Nothing pleased {P} so much as {A} {U} and a {A} {N}.",
    "The {A} {R} {V} the {N}, then {I} for an hour.",
    "All through the {T} the {L} smelled of {U}.",
    "There were {S} beyond the {L}, and {P} {I} to see them.",
    "As the {T} ended, the {A} {N} was {D} put away.",
    "{P} thought the {L} {A}, but the {R} thought it {A}.",
    "Some {S} {G} near the {N}, for the {H} was {A}.",
    "The {R} and the {R} {V} {U} from the {A} {L}.",
    "By {T} the {H} had stopped, and the {R} {I} again.",
    "{P} kept a {N}, a {N} and a {A} {N} in the {L}.",
    "Nobody knew why {P} {V} that {A} {N} so {D}.",
    "The way to the {L} was {A}, and the {S} {G} along it.",
    "With a {A} {N} and some {U}, the {R} {I} beside {P}.",
    "Once more the {H} {D} touched the {A} roof of the {L}.",
];

/// A source of sentences.
pub struct Filler {
    rng: SplitMix64,
    words: Vec<(char, Vec<&'static str>)>,
    last: usize,
}

impl Filler {
    /// The text of `seed`.
    pub fn new(seed: u64) -> Self {
        let words = WORDS.iter().map(|(slot, list)| (*slot, list.split_whitespace().collect()));
        Self { rng: SplitMix64::new(seed), words: words.collect(), last: TEMPLATES.len() }
    }

    /// The next sentence, with a space before it.
    pub fn sentence(&mut self) -> String {
        let mut choice = self.rng.below(TEMPLATES.len());
        if choice == self.last {
            // Never the same form twice in a row.
            choice = (choice + 1) % TEMPLATES.len();
        }
        self.last = choice;
        let mut parts = TEMPLATES[choice].split('{');
        let mut sentence = format!(" {}", parts.next().unwrap_or_default());
        for part in parts {
            let (slot, rest) = part.split_once('}').expect("a constant template");
            sentence.push_str(self.word(slot));
            sentence.push_str(rest);
        }
        sentence
    }

    fn word(&mut self, slot: &str) -> &'static str {
        let list = self.words.iter().find(|(name, _)| slot.starts_with(*name));
        let (_, list) = list.expect("a constant template");
        list[self.rng.below(list.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_are_plain_and_a_function_of_the_seed() {
        let text = |seed| {
            let mut filler = Filler::new(seed);
            (0..500).map(|_| filler.sentence()).collect::<Vec<_>>()
        };
        assert_eq!(text(7), text(7));
        assert_ne!(text(7), text(8));
        for sentence in text(7) {
            assert!(sentence.starts_with(' ') && sentence.len() > 20, "{sentence:?}");
            assert!(!sentence.contains(['{', '}']), "{sentence:?}");
            assert!(!sentence.contains(|c: char| c.is_ascii_digit()), "{sentence:?}");
        }
    }
}
