//! jinja2 as transformers sets it up, with limits on what one call may make.

use minijinja::value::{Kwargs, Rest, Value};
use minijinja::{Environment, Error as JinjaError, ErrorKind, State, filters};

use super::bounds::{FUEL, MAX_TEXT_BYTES, beyond};
use super::{date, python};
use crate::text::clip;

/// Where `strftime_now` finds the time of this rendering.
pub(super) const NOW: &str = "__longview_now";
/// The widest indent or field that a template may ask for. Published ones ask for 4.
const MAX_WIDTH: usize = 1_000;
/// Calls within calls, in minijinja's own measure: a macro costs about eight. Published templates
/// call themselves once for each level of a JSON schema.
const MAX_RECURSION: usize = 400;

/// jinja2 as transformers sets it up.
pub(super) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(MAX_RECURSION);
    // Copies of all variables in errors, which nobody reads.
    environment.set_debug(false);
    environment.set_unknown_method_callback(method);
    environment.set_formatter(|out, _, value| python::print(out, value));
    environment.add_filter("tojson", tojson);
    environment.add_filter("indent", indent);
    environment.add_filter("replace", replace);
    environment.add_filter("format", format_text);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment
}

/// minijinja's own filters, behind a look at their arguments.
fn indent(state: &State<'_, '_>, args: Rest<Value>) -> Result<Value, JinjaError> {
    check_indent(&args)?;
    Value::from_function(filters::indent).call(state, &args)
}

fn replace(state: &State<'_, '_>, args: Rest<Value>) -> Result<Value, JinjaError> {
    check_replace(&args)?;
    Value::from_function(filters::replace).call(state, &args)
}

fn format_text(state: &State<'_, '_>, args: Rest<Value>) -> Result<Value, JinjaError> {
    check_format(args.first())?;
    Value::from_function(filters::format).call(state, &args)
}

/// Python's methods of strings, lists and dictionaries.
fn method(
    state: &State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, JinjaError> {
    match (name, args) {
        ("replace", [from, to, ..]) => {
            check_replace(&[value.clone(), from.clone(), to.clone()])?;
        }
        ("format", _) => check_format(Some(value))?,
        _ => {}
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

/// `text | indent(width)`: the width is the second argument, or has its name.
fn check_indent(args: &[Value]) -> Result<(), JinjaError> {
    let named = args.last().filter(|last| last.is_kwargs());
    let named = named.and_then(|last| last.get_attr("width").ok());
    let given = args.get(1).filter(|value| !value.is_kwargs()).cloned().or(named);
    let width = given.and_then(|width| width.as_usize()).unwrap_or(4);
    let text = args.first().and_then(Value::as_str).unwrap_or_default();
    let lines = text.bytes().filter(|byte| *byte == b'\n').count() + 1;
    if width > MAX_WIDTH {
        return Err(beyond(format!("indent by {width}, above the limit of {MAX_WIDTH}")));
    }
    check_length(lines.saturating_mul(width).saturating_add(text.len()))
}

/// `text | replace(from, to)`.
fn check_replace(args: &[Value]) -> Result<(), JinjaError> {
    let [Some(text), Some(from), Some(to)] = [0, 1, 2].map(|i| args.get(i).and_then(Value::as_str))
    else {
        return Ok(());
    };
    if to.len() <= from.len() {
        return Ok(());
    }
    let added = text.matches(from).count().saturating_mul(to.len() - from.len());
    check_length(text.len().saturating_add(added))
}

/// A number in a format is a width, a precision or the place of an argument.
fn check_format(format: Option<&Value>) -> Result<(), JinjaError> {
    let format = format.and_then(Value::as_str).unwrap_or_default();
    let numbers = format.split(|letter: char| !letter.is_ascii_digit());
    // Words that are all digits are no widths; only those of a format specification are.
    let is_wide =
        |digits: &str| digits.parse().map_or(!digits.is_empty(), |n: usize| n > MAX_WIDTH);
    let specified = format.contains(['%', '{']);
    match numbers.into_iter().find(|digits| specified && is_wide(digits)) {
        Some(digits) => {
            let digits = clip(digits);
            Err(beyond(format!("format with the number {digits}, above the limit of {MAX_WIDTH}")))
        }
        None => Ok(()),
    }
}

fn check_length(bytes: usize) -> Result<(), JinjaError> {
    if bytes > MAX_TEXT_BYTES {
        return Err(beyond(format!("a text of {} MiB", bytes >> 20)));
    }
    Ok(())
}

/// The message of `raise_exception`, carried through minijinja's error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn raise_exception(message: String) -> Result<Value, JinjaError> {
    let error = JinjaError::new(ErrorKind::InvalidOperation, message.clone());
    Err(error.with_source(Raised(message)))
}

pub(super) fn refusal(error: &JinjaError) -> Option<String> {
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        if let Some(Raised(message)) = error.downcast_ref() {
            return Some(clip(message));
        }
        cause = error.source();
    }
    None
}

fn strftime_now(state: &State<'_, '_>, format: &str) -> Result<String, JinjaError> {
    let now = state.lookup(NOW).and_then(|now| now.as_i64()).unwrap_or(0);
    date::strftime(now, format).map_err(|directive| {
        let text = format!("strftime_now does not know %{directive}");
        JinjaError::new(ErrorKind::InvalidOperation, text)
    })
}

/// Python's `json.dumps` with transformers' defaults, instead of Jinja's filter that escapes HTML.
fn tojson(value: &Value, indent: Option<Value>, options: Kwargs) -> Result<String, JinjaError> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => options.get::<Option<Value>>("indent")?,
    };
    let indent = match indent {
        Some(indent) if !indent.is_none() => Some(usize::try_from(indent)?),
        _ => None,
    };
    if let Some(indent) = indent.filter(|indent| *indent > MAX_WIDTH) {
        return Err(beyond(format!("tojson: indent {indent}, above the limit of {MAX_WIDTH}")));
    }
    let style = python::JsonStyle {
        indent,
        ensure_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        separators: separators(options.get("separators")?)?,
    };
    options.assert_all_used()?;
    python::to_json(value, &style)
}

fn separators(given: Option<Vec<String>>) -> Result<Option<(String, String)>, JinjaError> {
    let Some(given) = given else { return Ok(None) };
    let pair = <[String; 2]>::try_from(given).map_err(|_| {
        JinjaError::new(ErrorKind::InvalidOperation, "tojson: separators must be two strings")
    })?;
    Ok(Some(pair.into()))
}

/// The line and the reason without minijinja's own position text.
pub(super) fn describe(error: &JinjaError) -> (usize, String) {
    let reason = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    (error.line().unwrap_or(1), clip(&reason))
}
