//! Tools: functions that a model may ask its client to call, and how models write such calls.
//!
//! Each family of models writes calls in a form of its own, which its chat template shows. A
//! template that knows no tools gets them in a message of the system, in the form of Hermes.

use serde_json::{Value, json};

use crate::call_texts;
use crate::constraint::{Constraint, Grammars, check_schema, spaced};
use crate::error::ApiError;
use crate::fields::{Fields, wrong};
use crate::tagged::{Form, ToolTypes};
use crate::texts::ModelFacts;

/// Tools of one request.
const MAX_TOOLS: usize = 128;
/// Letters of a tool's name.
const MAX_NAME: usize = 64;

/// How a model writes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Style {
    /// What the chat templates of such models hold.
    marks: &'static str,
    /// Begins a call, or a list of calls.
    pub(crate) open: &'static str,
    /// Ends it; nothing: the JSON ends by itself.
    pub(crate) close: &'static str,
    /// What the arguments are called.
    arguments: &'static str,
    /// How arguments are written.
    pub(crate) form: Form,
    /// Whether calls stand in a list.
    pub(crate) is_list: bool,
    /// Whether an answer that begins as JSON is a call, without anything before it.
    pub(crate) may_be_bare: bool,
}

/// Qwen, Hermes and SmolLM: also for those that know no tools.
pub(crate) const HERMES: Style = Style {
    marks: "<tool_call>",
    open: call_texts::OPEN,
    close: call_texts::CLOSE,
    arguments: call_texts::ARGUMENTS,
    form: Form::Json,
    is_list: false,
    may_be_bare: false,
};

/// Forms with marks around each argument. Where an answer is held to a call, that is in the form of
/// Hermes, which is read in these as well.
pub(crate) const TAGGED: [Style; 2] = [
    // Qwen3-Coder.
    Style { marks: "<parameter=", form: Form::Functions, ..HERMES },
    // GLM-4.5.
    Style { marks: "<arg_key>", form: Form::Pairs, ..HERMES },
];

/// The forms, the most telling first.
pub(crate) const STYLES: [Style; 5] = [
    HERMES,
    // Mistral.
    Style { marks: "[TOOL_CALLS]", open: "[TOOL_CALLS]", close: "", is_list: true, ..HERMES },
    // Phi-4-mini.
    Style {
        marks: "<|tool_call|>",
        open: "<|tool_call|>",
        close: "<|/tool_call|>",
        is_list: true,
        ..HERMES
    },
    // InternLM 2.5.
    Style {
        marks: "<|action_start|>",
        open: "<|action_start|><|plugin|>",
        close: "<|action_end|>",
        arguments: "parameters",
        ..HERMES
    },
    // Llama 3.
    Style {
        marks: "\"parameters\"",
        open: "<|python_tag|>",
        close: "",
        arguments: "parameters",
        form: Form::Json,
        is_list: false,
        may_be_bare: true,
    },
];

/// The tools of a request, and whether one must be called.
#[derive(Debug, Default)]
pub(crate) struct Tools {
    /// In OpenAI's form.
    list: Vec<Value>,
    choice: Choice,
    /// Several calls in one answer.
    may_repeat: bool,
}

/// Which tools the model may call.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) enum Choice {
    /// None.
    None,
    /// Any, or none.
    #[default]
    Auto,
    /// One at least.
    Required,
    /// This one.
    Named(String),
}

/// The field `tools`, each in OpenAI's form as `one` reads it; `one` gets its place in the list.
pub(crate) fn listed(
    fields: &mut Fields<'_>,
    one: impl Fn((usize, &Value)) -> Result<Value, ApiError>,
) -> Result<Vec<Value>, ApiError> {
    match fields.any("tools") {
        None => Ok(Vec::new()),
        Some(Value::Array(list)) => list.iter().enumerate().map(one).collect(),
        Some(_) => Err(wrong("tools", "a list")),
    }
}

impl Tools {
    /// OpenAI's fields `tools`, `tool_choice` and `parallel_tool_calls`.
    pub(crate) fn read(fields: &mut Fields<'_>) -> Result<Self, ApiError> {
        let list = listed(fields, one_tool)?;
        let choice = fields.any("tool_choice").map_or(Ok(Choice::Auto), choice)?;
        let may_repeat = fields.flag("parallel_tool_calls")?.unwrap_or(false);
        Self { list, choice, may_repeat }.checked()
    }

    /// Tools in OpenAI's form, from an endpoint of another form.
    pub(crate) fn of(list: Vec<Value>, choice: Choice) -> Result<Self, ApiError> {
        Self { list, choice, may_repeat: false }.checked()
    }

    fn checked(self) -> Result<Self, ApiError> {
        if self.list.len() > MAX_TOOLS {
            return Err(wrong("tools", &format!("at most {MAX_TOOLS} tools")));
        }
        let mut names: Vec<&str> = self.list.iter().map(name_of).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(wrong(
                "tools",
                &format!("tools of different names, not {} twice", pair[0]),
            ));
        }
        match &self.choice {
            Choice::Named(name) if !names.contains(&name.as_str()) => {
                Err(wrong("tool_choice", "the name of one of the tools"))
            }
            Choice::Required if names.is_empty() => {
                Err(wrong("tool_choice", "none or auto where there are no tools"))
            }
            _ => Ok(self),
        }
    }

    /// Whether the model is told of tools.
    pub(crate) fn are_told(&self) -> bool {
        !self.list.is_empty() && self.choice != Choice::None
    }

    /// Types of the arguments of each.
    pub(crate) fn types(&self) -> ToolTypes {
        ToolTypes::of(&self.list)
    }

    /// How this model's calls are read; none where it is told of no tools.
    pub(crate) fn style(&self, model: &ModelFacts) -> Option<Style> {
        self.are_told().then(|| style_of(model))
    }

    /// What the chat template is told. One that knows no tools is told nothing: then `messages`
    /// are.
    pub(crate) fn tell(&self, model: &ModelFacts, messages: &mut Vec<Value>) -> Option<Value> {
        if !self.are_told() {
            return None;
        }
        if model.chat.as_ref().is_some_and(|chat| chat.mentions("tools")) {
            return Some(Value::Array(self.list.clone()));
        }
        tell_by_message(&self.list, messages);
        None
    }

    /// What an answer must be that has to call a tool.
    pub(crate) fn constraint(
        &self,
        grammars: &Grammars,
        model: &ModelFacts,
    ) -> Result<Option<Constraint>, ApiError> {
        let called: Vec<&Value> = match &self.choice {
            Choice::None | Choice::Auto => return Ok(None),
            Choice::Required => self.list.iter().collect(),
            Choice::Named(name) => self.list.iter().filter(|tool| name_of(tool) == name).collect(),
        };
        let style = style_of(model);
        let lark = grammar(&style, &called, self.may_repeat, |text| grammars.literal(text, model))?;
        grammars.of_lark(lark, "tools", model).map(Some)
    }
}

fn style_of(model: &ModelFacts) -> Style {
    let Some(chat) = &model.chat else { return HERMES };
    let is_there = |style: &&Style| chat.mentions(style.marks);
    TAGGED.iter().chain(&STYLES).find(is_there).copied().unwrap_or(HERMES)
}

fn name_of(tool: &Value) -> &str {
    tool["function"]["name"].as_str().unwrap_or_default()
}

fn one_tool((i, tool): (usize, &Value)) -> Result<Value, ApiError> {
    let param = format!("tools[{i}]");
    if tool["type"] != "function" {
        return Err(wrong(&format!("{param}.type"), "function, the only kind of tools here"));
    }
    let function = &tool["function"];
    checked_tool(&param, &function["name"], &function["description"], &function["parameters"])
}

/// A tool in OpenAI's form, of parts that a client sent.
pub(crate) fn checked_tool(
    param: &str,
    name: &Value,
    description: &Value,
    parameters: &Value,
) -> Result<Value, ApiError> {
    let is_sound = |name: &&str| {
        let is_letter = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
        (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(is_letter)
    };
    let name = name.as_str().filter(is_sound).ok_or_else(|| {
        let wanted = format!("1 to {MAX_NAME} letters, digits, _ and -");
        wrong(&format!("{param}.name"), &wanted)
    })?;
    let mut function = json!({ "name": name });
    match description {
        Value::Null => {}
        Value::String(text) => function["description"] = json!(text),
        _ => return Err(wrong(&format!("{param}.description"), "a text")),
    }
    function["parameters"] = match parameters {
        Value::Null => json!({ "type": "object", "properties": {} }),
        schema => {
            check_schema(schema, &format!("{param}.parameters"))?;
            schema.clone()
        }
    };
    Ok(json!({ "type": "function", "function": function }))
}

/// The field `tool_choice`.
pub(crate) fn choice(value: &Value) -> Result<Choice, ApiError> {
    let wanted = "none, auto, required, or an object with the name of a tool";
    match value {
        Value::String(text) => match text.as_str() {
            "none" => Ok(Choice::None),
            "auto" => Ok(Choice::Auto),
            "required" => Ok(Choice::Required),
            _ => Err(wrong("tool_choice", wanted)),
        },
        _ => {
            let name = value["function"]["name"].as_str().or_else(|| value["name"].as_str());
            let name = name.filter(|_| value["type"] == "function");
            name.map(|name| Choice::Named(name.to_owned()))
                .ok_or_else(|| wrong("tool_choice", wanted))
        }
    }
}

/// Tells a model of tools whose template does not.
fn tell_by_message(list: &[Value], messages: &mut Vec<Value>) {
    let tools: Vec<String> = list.iter().map(Value::to_string).collect();
    let text = format!(
        "You may call these tools:\n<tools>\n{}\n</tools>\nTo call one, write:\n<tool_call>\n\
         {{\"name\": NAME, \"arguments\": {{...}}}}\n</tool_call>",
        tools.join("\n")
    );
    // Templates have one message of the system at most.
    let is_system = |message: &&mut Value| {
        message["role"].as_str().is_some_and(|role| matches!(role, "system" | "developer"))
    };
    match messages.iter_mut().find(is_system) {
        Some(system) => {
            let said = system["content"].as_str().unwrap_or_default();
            system["content"] = json!(format!("{said}\n\n{text}"));
        }
        None => messages.insert(0, json!({ "role": "system", "content": text })),
    }
}

/// A call, or calls, of `tools` in Lark's form. Each tool's schema is a grammar of its own, so
/// that what it refers to is found.
fn grammar(
    style: &Style,
    tools: &[&Value],
    may_repeat: bool,
    literal: impl Fn(&str) -> Result<String, ApiError>,
) -> Result<String, ApiError> {
    let mark = |text: &str| match text {
        "" => Ok(String::new()),
        // Marks of two tokens are two.
        "<|action_start|><|plugin|>" => {
            Ok(format!("{} {}", literal("<|action_start|>")?, literal("<|plugin|>")?))
        }
        text => literal(text),
    };
    let (open, close) = (mark(style.open)?, mark(style.close)?);
    let start = if style.is_list {
        let more = if may_repeat { " (\", \" call)*" } else { "" };
        format!("{open} \"[\" call{more} \"]\" {close}")
    } else if style.may_be_bare {
        "call".to_owned()
    } else {
        let one = format!("{open} \"\\n\" call \"\\n\" {close}");
        let more = if may_repeat { format!(" (\"\\n\" {one})*") } else { String::new() };
        one + &more
    };
    let mut text = format!("start: {start}\n");
    let names: Vec<String> = (0..tools.len()).map(|i| format!("call_{i}")).collect();
    text += &format!("call: {}\n", names.join(" | "));
    for (i, tool) in tools.iter().enumerate() {
        let begin = format!("{{\"name\": \"{}\", \"{}\": ", name_of(tool), style.arguments);
        let schema = spaced(tool["function"]["parameters"].clone());
        text += &format!("call_{i}: {} args_{i} \"}}\"\nargs_{i}: %json {schema}\n", json!(begin));
    }
    Ok(text)
}
