//! Rewriting of template sources before they are compiled.

/// Replaces `{% generation %}` and `{% endgeneration %}`, which mark the assistant's words for
/// training, by an `if` that always holds: minijinja has no such tag, and the text is the same.
/// Lines and whitespace control stay as they are.
pub(super) fn rewrite_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        // The sign of "{%" does not end it: "{%}" is no tag.
        let Some(end) = tag[2..].find("%}") else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(end + 4);
        out.push_str(&rewrite_tag(tag));
        rest = after;
    }
    out.push_str(rest);
    out
}

/// `tag` is `{% ... %}` with optional signs inside.
fn rewrite_tag(tag: &str) -> std::borrow::Cow<'_, str> {
    let name = tag[2..tag.len() - 2].trim_matches(['-', '+']).trim();
    match name {
        "generation" => tag.replacen(name, "if true", 1).into(),
        "endgeneration" => tag.replacen(name, "endif", 1).into(),
        _ => tag.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_two_tags_change() {
        let source = "a{%- generation %}\n{{ generation }}{% if x %}{%endgeneration-%}{% raw";
        assert_eq!(
            rewrite_generation_tags(source),
            "a{%- if true %}\n{{ generation }}{% if x %}{%endif-%}{% raw"
        );
        assert_eq!(rewrite_generation_tags("{%%}{%"), "{%%}{%");
        assert_eq!(rewrite_generation_tags("{%}x{% generation %}"), "{%}x{% generation %}");
        assert_eq!(rewrite_generation_tags("a{%}"), "a{%}");
    }
}
