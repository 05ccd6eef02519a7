//! `/set`: how answers are generated, with the names, checks and messages of the command line.

use clap::{ColorChoice, Parser};
use longview_engine::GenerationParams;
use longview_model::generation::GenerationDefaults;

use crate::args::numbers::whole;
use crate::args::{SamplingArgs, draft_name};

/// One option, read as the command line reads it.
#[derive(Parser)]
#[command(no_binary_name = true, color = ColorChoice::Never)]
struct OneOption {
    #[arg(
        short = 'n',
        long,
        visible_alias = "n-predict",
        allow_negative_numbers = true,
        default_value = "-1",
        value_parser = whole(-1..=1 << 30)
    )]
    predict: i64,

    #[command(flatten)]
    sampling: SamplingArgs,
}

/// A setting: its names, how it is shown, and how it goes from one set of parameters to another.
struct Setting {
    names: &'static [&'static str],
    show: fn(&GenerationParams) -> String,
    copy: fn(&GenerationParams, &mut GenerationParams),
}

/// A number of the sampler.
macro_rules! number {
    ($names:expr, $field:ident) => {
        Setting {
            names: $names,
            show: |params| params.sampling.$field.to_string(),
            copy: |from, to| to.sampling.$field = from.sampling.$field,
        }
    };
}

const SETTINGS: &[Setting] = &[
    number!(&["temp", "temperature"], temperature),
    number!(&["top-k"], top_k),
    number!(&["top-p"], top_p),
    number!(&["min-p"], min_p),
    number!(&["repeat-penalty"], repeat_penalty),
    number!(&["repeat-last-n"], repeat_last_n),
    number!(&["seed"], seed),
    Setting {
        names: &["stop", "reverse-prompt"],
        show: |params| match params.stop.len() {
            0 => "none".to_owned(),
            _ => params.stop.iter().map(|text| format!("{text:?}")).collect::<Vec<_>>().join(" "),
        },
        copy: |from, to| to.stop.clone_from(&from.stop),
    },
    Setting {
        names: &["draft"],
        show: |params| draft_name(params.draft).to_owned(),
        copy: |from, to| to.draft = from.draft,
    },
    Setting {
        names: &["n", "predict", "n-predict"],
        show: |params| params.max_tokens.map_or("-1".to_owned(), |most| most.to_string()),
        copy: |from, to| to.max_tokens = from.max_tokens,
    },
];

/// The settings by their first names.
pub fn names() -> impl Iterator<Item = &'static str> {
    SETTINGS.iter().map(|setting| setting.names[0])
}

/// All settings, one a line.
pub fn list(params: &GenerationParams) -> String {
    let line = |setting: &Setting| format!("{:<16}{}", setting.names[0], (setting.show)(params));
    SETTINGS.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Changes one setting and says what it is now.
///
/// # Errors
/// If there is no such setting, or the command line would refuse the value.
pub fn set(
    params: &mut GenerationParams,
    defaults: &GenerationDefaults,
    name: &str,
    value: &str,
) -> Result<String, String> {
    let asked = name.trim_start_matches('-');
    let Some(setting) = SETTINGS.iter().find(|setting| setting.names.contains(&asked)) else {
        let known = names().collect::<Vec<_>>().join(", ");
        return Err(format!("/set {name}: no such setting; there are {known}"));
    };
    let mut new = params.clone();
    if setting.names[0] == "stop" && value.is_empty() {
        new.stop.clear();
    } else {
        let name = if setting.names[0] == "n" { "predict" } else { setting.names[0] };
        let read = OneOption::try_parse_from([format!("--{name}={value}")]);
        let read = read.map_err(|error| first_line(&error.to_string()))?;
        let max_tokens = usize::try_from(read.predict).ok();
        (setting.copy)(&read.sampling.params(defaults, max_tokens), &mut new);
        new.sampling.validate().map_err(|error| error.to_string())?;
    }
    *params = new;
    Ok(format!("{} {}", setting.names[0], (setting.show)(params)))
}

/// What a message of the command line says, with the values that there are, without the hints for
/// its usage.
fn first_line(message: &str) -> String {
    let mut lines = message.lines();
    let line = lines.next().unwrap_or_default();
    let line = line.strip_prefix("error: ").unwrap_or(line);
    match lines.next().map(str::trim).filter(|next| next.starts_with("[possible values")) {
        Some(values) => format!("{line} {values}"),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(changes: &[(&str, &str)]) -> Result<GenerationParams, String> {
        let mut params = GenerationParams::default();
        for (name, value) in changes {
            set(&mut params, &GenerationDefaults::default(), name, value)?;
        }
        Ok(params)
    }

    #[test]
    fn what_is_no_value_is_answered_with_those_there_are() {
        let said = after(&[("draft", "maybe")]).unwrap_err();
        assert!(said.ends_with("[possible values: lookup, off]"), "{said}");
    }

    #[test]
    fn each_setting_changes_its_own_value() {
        let given = [
            ("temp", "0.5"),
            ("top-k", "40"),
            ("top-p", "0.9"),
            ("min-p", "0.1"),
            ("repeat-penalty", "1.2"),
            ("repeat-last-n", "16"),
            ("seed", "7"),
            ("stop", "User:"),
            ("draft", "lookup"),
            ("n", "100"),
        ];
        let params = after(&given).unwrap();
        assert_eq!(given.map(|(name, _)| name).to_vec(), names().collect::<Vec<_>>());
        for (line, (name, value)) in list(&params).lines().zip(given) {
            let shown = line.strip_prefix(name).unwrap().trim().trim_matches('"');
            assert_eq!(shown, value);
        }
        assert_eq!(after(&[("n", "5"), ("n", "-1")]).unwrap().max_tokens, None);
        assert!(after(&[("stop", "a"), ("stop", "")]).unwrap().stop.is_empty());
        assert_eq!(after(&[("--temperature", "2")]).unwrap().sampling.temperature, 2.0);
    }

    #[test]
    fn what_the_command_line_refuses_is_refused_alike() {
        let refusal = |name, value| after(&[(name, value)]).unwrap_err();
        for (name, value, range) in [
            ("temp", "-1", "must be a number from 0 to 100"),
            ("temp", "hot", "must be a number from 0 to 100"),
            ("top-p", "2", "must be a number above 0, at most 1"),
        ] {
            let refusal = refusal(name, value);
            let start = format!("invalid value '{value}' for '--{name}");
            assert!(refusal.starts_with(&start) && refusal.ends_with(range), "{refusal}");
        }
        assert!(refusal("n", "-2").contains("-2"));
        assert!(refusal("budget", "9").contains("/set budget: no such setting; there are temp, "));
        let mut params = GenerationParams::default();
        let wrong = set(&mut params, &GenerationDefaults::default(), "top-p", "2");
        assert!(wrong.is_err() && params.sampling.top_p == 1.0, "the old value stays");
    }
}
