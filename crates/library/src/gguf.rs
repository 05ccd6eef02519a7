//! GGUF files by their names: which quantisation one holds, and which belong together.

use std::collections::BTreeMap;

/// What is taken where nothing is asked for, as llama.cpp does: these, then the first.
const USUAL: [&str; 2] = ["Q4_K_M", "Q8_0"];

/// A model in one GGUF file or in several parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// What the names of all parts begin with.
    prefix: String,
    /// How many parts there must be.
    of: usize,
    /// The parts that are there, by number from 1.
    parts: BTreeMap<usize, String>,
}

impl Group {
    /// The parts that are there, in their order.
    pub(crate) fn files(&self) -> Vec<String> {
        self.parts.values().cloned().collect()
    }

    /// The name of the first part, which stands for the model.
    pub(crate) fn first(&self) -> Option<&str> {
        self.parts.get(&1).map(String::as_str)
    }

    /// The number of the first part that is not there.
    pub(crate) fn missing(&self) -> Option<String> {
        let number = (1..=self.of).find(|number| !self.parts.contains_key(number))?;
        Some(format!("part {number} of {}", self.of))
    }

    /// The quantisation: the last word of the name, such as `Q4_K_M`.
    pub(crate) fn quant(&self) -> Option<String> {
        let (_, word) = self.prefix.rsplit_once(['-', '.'])?;
        let is_right = |c: char| c.is_ascii_alphanumeric() || c == '_';
        (!word.is_empty() && word.chars().all(is_right)).then(|| word.to_ascii_uppercase())
    }

    /// Whether `quant` stands in the name as words of their own.
    fn is_of(&self, quant: &str) -> bool {
        let (name, quant) = (self.prefix.to_ascii_uppercase(), quant.to_ascii_uppercase());
        name.match_indices(&quant).any(|(at, found)| {
            let before = name[..at].chars().next_back();
            let behind = name[at + found.len()..].chars().next();
            !before.is_some_and(char::is_alphanumeric) && behind.is_none_or(|c| "-./".contains(c))
        })
    }
}

/// The models among the files `names`, by name. Parts that are no language models are left out.
pub(crate) fn groups<'a>(names: impl Iterator<Item = &'a str>) -> Vec<Group> {
    let mut groups: BTreeMap<(String, usize), Group> = BTreeMap::new();
    for name in names {
        let Some(stem) = name.strip_suffix(".gguf").filter(|stem| is_model(stem)) else { continue };
        let (prefix, number, of) = split(stem);
        let key = (prefix.to_owned(), of);
        let new = || Group { prefix: prefix.to_owned(), of, parts: BTreeMap::new() };
        groups.entry(key).or_insert_with(new).parts.insert(number, name.to_owned());
    }
    groups.into_values().collect()
}

/// The one that is asked for, or the usual one.
pub(crate) fn choose<'a>(groups: &'a [Group], quant: Option<&str>) -> Option<&'a Group> {
    let of = |quant: &str| {
        let exact = groups
            .iter()
            .find(|group| group.quant().is_some_and(|own| own.eq_ignore_ascii_case(quant)));
        exact.or_else(|| groups.iter().find(|group| group.is_of(quant)))
    };
    match quant {
        Some(quant) => of(quant),
        None => USUAL.iter().find_map(|quant| of(quant)).or_else(|| groups.first()),
    }
}

/// The quantisations that there are, each once.
pub(crate) fn quants(groups: &[Group]) -> Vec<String> {
    let mut quants: Vec<String> = groups.iter().filter_map(Group::quant).collect();
    quants.sort();
    quants.dedup();
    quants
}

/// Projectors of images and matrices of importance come as GGUF too.
fn is_model(stem: &str) -> bool {
    let name = stem.to_ascii_lowercase();
    !name.contains("mmproj") && !name.contains("imatrix")
}

/// `NAME-00002-of-00003`: the name, 2 and 3.
fn split(stem: &str) -> (&str, usize, usize) {
    let number = |digits: &str| {
        let is_number = digits.len() == 5 && digits.bytes().all(|b| b.is_ascii_digit());
        is_number.then(|| digits.parse::<usize>().ok()).flatten()
    };
    let parsed = || {
        let (rest, of) = stem.rsplit_once("-of-")?;
        let (prefix, part) = rest.rsplit_once('-')?;
        let (part, of) = (number(part)?, number(of)?);
        (1..=of).contains(&part).then_some((prefix, part, of))
    };
    parsed().unwrap_or((stem, 1, 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(names: &[&str], quant: Option<&str>) -> Option<Vec<String>> {
        let groups = groups(names.iter().copied());
        choose(&groups, quant).map(Group::files)
    }

    const NAMES: [&str; 6] = [
        "m-BF16.gguf",
        "m-IQ4_XS.gguf",
        "m-Q4_K_M.gguf",
        "m-Q8_0.gguf",
        "m-UD-Q4_K_XL.gguf",
        "mmproj-m-F16.gguf",
    ];

    #[test]
    fn the_usual_quantisation_is_that_of_llama_cpp() {
        assert_eq!(chosen(&NAMES, None).unwrap(), ["m-Q4_K_M.gguf"]);
        assert_eq!(chosen(&["m-Q8_0.gguf", "m-Q2_K.gguf"], None).unwrap(), ["m-Q8_0.gguf"]);
        assert_eq!(chosen(&["m-Q6_K.gguf", "m-Q2_K.gguf"], None).unwrap(), ["m-Q2_K.gguf"]);
        assert_eq!(chosen(&["mmproj-F16.gguf", "README.md"], None), None);
    }

    #[test]
    fn a_quantisation_is_found_whole_in_any_case() {
        let one = |quant| chosen(&NAMES, Some(quant)).map(|files| files.concat());
        assert_eq!(one("q8_0").unwrap(), "m-Q8_0.gguf");
        assert_eq!(one("Q4_K_XL").unwrap(), "m-UD-Q4_K_XL.gguf");
        assert_eq!(one("UD-Q4_K_XL").unwrap(), "m-UD-Q4_K_XL.gguf");
        for absent in ["Q4_XS", "Q4", "Q4_K", "Q5_K_M", "F16"] {
            assert_eq!(one(absent), None, "{absent}");
        }
        let dotted = ["tiny.q4_0.gguf", "Q5_0/tiny.gguf"];
        assert_eq!(chosen(&dotted, Some("Q4_0")).unwrap(), ["tiny.q4_0.gguf"]);
        assert_eq!(chosen(&dotted, Some("Q5_0")).unwrap(), ["Q5_0/tiny.gguf"]);
        assert_eq!(quants(&groups(NAMES.into_iter())).len(), 5);
    }

    #[test]
    fn parts_belong_together() {
        let parts = ["x/m-Q8_0-00002-of-00003.gguf", "x/m-Q8_0-00001-of-00003.gguf"];
        let found = groups(parts.into_iter());
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].first(), Some("x/m-Q8_0-00001-of-00003.gguf"));
        assert_eq!(found[0].missing().as_deref(), Some("part 3 of 3"));
        assert_eq!(found[0].quant().as_deref(), Some("Q8_0"));
        for plain in ["m-00001-of-00000.gguf", "m-1-of-2.gguf", "m-00003-of-00002.gguf"] {
            let found = groups([plain].into_iter());
            assert_eq!((found[0].missing(), found[0].first()), (None, Some(plain)));
        }
    }
}
