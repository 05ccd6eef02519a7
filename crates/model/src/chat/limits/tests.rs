//! Sources that would take the parser too much stack, and those that may.

use super::*;
use crate::testing::fixture;

fn refusal(source: &str) -> String {
    check(source).map_err(|(line, reason)| format!("{line}: {reason}")).unwrap_err()
}

#[test]
fn chains_and_nests_are_refused_where_they_grow_long() {
    let long = [
        format!("{{{{ {} true }}}}", "not ".repeat(100_000)),
        format!("{{{{ {}1 }}}}", "1+".repeat(100_000)),
        format!("{{{{ \"a\"{} }}}}", "|upper".repeat(100_000)),
        format!("{{{{ messages{} }}}}", ".a".repeat(100_000)),
        format!("{{{{ {}1 }}}}", "1 if 1 else ".repeat(100_000)),
        format!("{{% set x = {}1 %}}", "-".repeat(100_000)),
    ];
    for source in long {
        assert_eq!(refusal(&source), "1: more than 700 words and signs in one tag");
    }
    for bracket in ["(", "[", "{1:", "x(", "x[1,"] {
        let source = format!("\n{{{{ {}", bracket.repeat(60));
        assert_eq!(refusal(&source), "2: more than 50 brackets within brackets");
    }
    for block in [
        "{% if 1 %}",
        "{%- for x in y -%}",
        "{% macro m() %}",
        "{% call m() %}",
        "{% set x %}",
        "{% set x | f(a=1) %}",
        "{% filter upper %}",
        "{% with a = 1 %}",
        "{% block b %}",
    ] {
        assert_eq!(refusal(&block.repeat(101)), "1: more than 100 blocks within blocks", "{block}");
        assert_eq!(check(&block.repeat(100)), Ok(()));
    }
    let elifs = format!("{{% if 1 %}}{}{{% endif %}}", "{% elif 1 %}".repeat(100));
    assert_eq!(refusal(&elifs), "1: more than 100 blocks within blocks");
}

#[test]
fn what_only_is_long_may_be() {
    for part in [
        "{{ a }}",
        "{# c #}",
        "{% set x = 1 %}",
        "{% if a %}b{% else %}c{% endif %}",
        "text\n",
        "{% if a %}{% elif b %}{% elif c %}{% endif %}",
        "{% set x %}y{% endset %}",
        "{% raw %}{{ ( {% if %}{% endraw %}",
        "{% for x in y %}{% endfor %}",
    ] {
        assert_eq!(check(&part.repeat(5_000)), Ok(()), "{part}");
    }
}

/// The largest number of `count` over the tags of the templates that the tests have.
fn largest(count: impl Fn(&Scan<'_>) -> usize) -> usize {
    let mut largest = 0;
    for style in ["llama", "qwen", "mistral", "print"] {
        let path = fixture("chat-templates").join(format!("{style}.jinja"));
        let source = std::fs::read_to_string(path).unwrap();
        let mut scan = Scan::default();
        for token in tokenize(&source, false, Default::default(), WhitespaceConfig::default()) {
            scan.take(&token.unwrap().0).unwrap();
            largest = largest.max(count(&scan));
        }
    }
    largest
}

#[test]
fn templates_of_published_models_stay_ten_times_below() {
    let found = [
        (largest(|scan| scan.n_tokens), MAX_TAG_TOKENS),
        (largest(|scan| scan.brackets), MAX_BRACKETS),
        (largest(|scan| scan.depth), MAX_BLOCKS),
    ];
    for (found, limit) in found {
        assert!((1..=limit / 10).contains(&found), "{found} of {limit}");
    }
}
