//! Scores worked out by hand, or by the published programs where that is said.

use super::*;

fn list(items: &[&str]) -> Vec<String> {
    items.iter().map(|item| (*item).to_owned()).collect()
}

fn score(metric: Metric, prediction: &str, references: &[&str]) -> f64 {
    metric.score(prediction, &list(references))
}

#[track_caller]
fn assert_near(found: f64, wanted: f64) {
    assert!((found - wanted).abs() < 1e-9, "{found}, expected {wanted}");
}

#[test]
fn ruler_matches_all_or_a_part() {
    let three = ["1234567", "ab-Cd", "x"];
    assert_near(score(Metric::MatchAll, "It is 1234567 and AB-CD.", &three), 2.0 / 3.0);
    assert_eq!(score(Metric::MatchPart, "It is 1234567.", &three), 1.0);
    assert_eq!(score(Metric::MatchPart, "nothing", &["a b", "c d"]), 0.0);
    assert_eq!(score(Metric::MatchAll, "anything", &[]), 0.0);
}

#[test]
fn an_exact_answer_has_nothing_beside_it() {
    assert_eq!(score(Metric::Exact, " 12345.", &["12345."]), 1.0);
    assert_eq!(score(Metric::Exact, " 123456", &["12345"]), 0.0);
}

#[test]
fn infinitebench_takes_the_first_number() {
    assert_eq!(score(Metric::FirstInteger, "The key 01234 or 5", &["01234"]), 1.0);
    assert_eq!(score(Metric::FirstInteger, "5 or 01234", &["01234"]), 0.0);
    assert_eq!(score(Metric::FirstInteger, "none", &["1"]), 0.0);
    assert_eq!(score(Metric::FirstNumber, "It is 42.", &["42"]), 1.0);
    assert_eq!(score(Metric::FirstNumber, "7.0 it is", &["7"]), 1.0);
    assert_eq!(score(Metric::FirstNumber, "7.5", &["7"]), 0.0);
    assert_eq!(score(Metric::FirstNumber, "", &["7"]), 0.0);
}

#[test]
fn a_value_is_a_word_of_its_own() {
    assert_eq!(score(Metric::KvValue, "The value: \"ab-12\".", &["ab-12"]), 1.0);
    assert_eq!(score(Metric::KvValue, "ab-123", &["ab-12"]), 0.0);
}

#[test]
fn words_of_a_needle_are_recalled() {
    // eat, sandwich, in, park: three of four.
    let needle = ["eat a sandwich in the park"];
    assert_near(score(Metric::WordRecall, "You can EAT in Park!", &needle), 0.75);
    assert_eq!(score(Metric::WordRecall, "", &needle), 0.0);
}

#[test]
fn f1_counts_words_that_both_have() {
    // "cat sat on mat" and "cat is on mat": 3 of 4 and 3 of 4.
    assert_near(score(Metric::QaF1, "The cat sat on a mat.", &["the cat is on the mat"]), 0.75);
    // One of three said words, the one wanted: 2 * 1/3 * 1 / (4/3) = 1/2, the best reference.
    assert_near(score(Metric::QaF1, "paris paris france", &["rome", "Paris"]), 0.5);
    assert_eq!(score(Metric::QaF1, "", &["x"]), 0.0);
}

#[test]
fn chinese_words_are_cut_before_they_are_counted() {
    let found = score(Metric::QaF1Zh, "我来到北京清华大学。", &["北京清华大学"]);
    // jieba: 我 来到 北京 清华大学 against 北京 清华大学: 2 of 4, 2 of 2.
    assert_near(found, 2.0 / 3.0);
    assert_eq!(score(Metric::QaF1Zh, "「北京」。", &["北京"]), 1.0);
    let rouge = score(Metric::RougeLZh, "我来到北京清华大学", &["北京清华大学"]);
    assert!((rouge - 2.0 / 3.0).abs() < 1e-7, "{rouge}");
}

#[test]
fn rouge_l_is_that_of_the_python_package() {
    // Values of rouge 1.0.1. The first by hand: 4 of 5 different words each way.
    assert_near(rouge_l("the cat sat on the mat", "the cat was on the mat"), 0.7999999950000002);
    assert_near(
        rouge_l(
            "police killed the gunman. the gunman fled.",
            "the gunman was killed by police. he fled.",
        ),
        0.4615384568047337,
    );
    assert_near(rouge_l("w1 w2 w6 w7 w8. w1 w3 w8 w9 w5", "w1 w2 w3 w4 w5"), 0.6153846106508877);
    assert_near(rouge_l("a. . b", "a b"), 0.7999999952000001);
    assert_eq!(rouge_l("", "a"), 0.0);
    assert_eq!(rouge_l("...", "a"), 0.0);
}

#[test]
fn similarity_is_that_of_difflib() {
    // Values of fuzzywuzzy 0.18 with difflib. The second by hand: "bcd" of 8 characters.
    assert_eq!(ratio("return x + 1", "return y + 1"), 0.92);
    assert_eq!(ratio("abcd", "bcde"), 0.75);
    assert_eq!(ratio("    self.value = value", "self.values = values"), 0.86);
    let code = "private volatile Thread currentThread;";
    assert_eq!(ratio("private Thread currentThread;", code), 0.87);
    assert_eq!((ratio("", "abc"), ratio("", "")), (0.0, 1.0));
    // Long texts: characters that are everywhere begin no block.
    let everywhere: String = (0..80).map(|i| format!("x{}y", i % 10)).collect();
    assert_near(sequence_ratio("x1yx2yx3y", &everywhere), 0.008032128514056224);
    assert_near(sequence_ratio("x1yx2yx3y", &everywhere[..198]), 0.08695652173913043);
}

#[test]
fn code_is_compared_by_its_first_line() {
    let answer = "\n```python\n# a comment\nreturn x + 1\nmore";
    assert_eq!(score(Metric::CodeSimilarity, answer, &["return y + 1"]), 0.92);
    assert_eq!(score(Metric::CodeSimilarity, "# only a comment", &["x"]), 0.0);
}

#[test]
fn classes_share_a_point() {
    let classes = list(&["city", "country", "other city"]);
    let of = |prediction: &str, reference: &str| {
        score(Metric::Classification { classes: classes.clone() }, prediction, &[reference])
    };
    assert_eq!(of("Type: country", "country"), 1.0);
    assert_eq!(of("country or city", "country"), 0.5);
    assert_eq!(of("other city", "other city"), 1.0, "`city` is part of the right name");
    assert_eq!(of("nothing", "city"), 0.0);
    assert_near(of("city, country, other city", "city"), 1.0 / 3.0);
}

#[test]
fn numbers_are_counted() {
    assert_near(score(Metric::Retrieval, "Paragraph 3, or 4", &["Paragraph 3"]), 0.5);
    assert_eq!(score(Metric::Retrieval, "段落12", &["段落12"]), 1.0);
    assert_eq!(score(Metric::Retrieval, "no number", &["Paragraph 3"]), 0.0);
    assert_near(score(Metric::Count, "7 of 8 or 7", &["7"]), 2.0 / 3.0);
}

#[test]
fn the_first_line_can_stand_alone() {
    let metric = Metric::FirstLine(Box::new(Metric::QaF1));
    assert_eq!(metric.score("\n\nParis\nand more words", &list(&["paris"])), 1.0);
    let whole = score(Metric::QaF1, "Paris\nand more words", &["paris"]);
    assert!(whole < 1.0, "{whole}");
}
