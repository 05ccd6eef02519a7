//! `/openapi.json`: the server as a program reads it. Its paths are those of the table of routes,
//! and each has its fields here: whoever adds a route without them does not get past the compiler.

use axum::body::Body;
use axum::http::{Response, StatusCode};
use serde_json::json;
use utoipa::openapi::content::ContentBuilder;
use utoipa::openapi::path::{OperationBuilder, ParameterBuilder, ParameterIn};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::{ObjectBuilder, SchemaType, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    ComponentsBuilder, HttpMethod, InfoBuilder, OpenApi, OpenApiBuilder, Paths, Required,
    ResponseBuilder, Schema,
};

use crate::app::App;
use crate::error::json_response;
use crate::routes::{ROUTES, Route, Target};

/// The scheme of keys.
const KEY: &str = "key";

/// A field of a request.
#[derive(Clone, Copy)]
struct Field(&'static str, Kind, &'static str);

/// What a field is.
#[derive(Clone, Copy)]
enum Kind {
    Text,
    Whole,
    Number,
    Flag,
    List,
    Object,
    /// One of several types.
    Any,
}

/// How an answer is generated.
const ANSWER: &[Field] = &[
    Field("model", Kind::Text, "a name that /v1/models lists, or none"),
    Field("max_tokens", Kind::Whole, "the most tokens of the answer"),
    Field("temperature", Kind::Number, "0 is greedy"),
    Field("top_p", Kind::Number, "above 0, at most 1"),
    Field("top_k", Kind::Whole, "0 keeps all"),
    Field("min_p", Kind::Number, "0 keeps all"),
    Field("seed", Kind::Whole, "of the draws"),
    Field("repeat_penalty", Kind::Number, "1 is off"),
    Field("repeat_last_n", Kind::Whole, "tokens that the penalty looks back"),
    Field("presence_penalty", Kind::Number, "from -2 to 2"),
    Field("frequency_penalty", Kind::Number, "from -2 to 2"),
    Field("logit_bias", Kind::Object, "numbers from -100 to 100 by token"),
    Field("ignore_eos", Kind::Flag, "goes on where the model would end"),
    Field("stream", Kind::Flag, "sends the answer in events"),
    Field("return_progress", Kind::Flag, "sends how far the prompt was read"),
    Field("cache_prompt", Kind::Flag, "false reads the whole prompt anew"),
    Field("response_format", Kind::Object, "of type text, json_object or json_schema"),
    Field("json_schema", Kind::Object, "what the answer must be"),
    Field("grammar", Kind::Text, "in llama.cpp's form (GBNF) or Lark's"),
    Field("context_id", Kind::Text, "a context whose text comes first"),
    Field("policy", Kind::Text, "what each generated token attends"),
    Field("budget", Kind::Whole, "tokens that it attends"),
    Field("residual", Kind::Text, "an estimate of what is not attended"),
];
const COMPLETIONS: &[Field] = &[
    Field("prompt", Kind::Any, "a text, a list of one text, or a list of tokens"),
    Field("n", Kind::Whole, "answers"),
    Field("n_predict", Kind::Whole, "llama.cpp's max_tokens"),
    Field("repetition_penalty", Kind::Number, "the other name of repeat_penalty"),
    Field("logprobs", Kind::Whole, "alternatives to say the probabilities of"),
    Field("stop", Kind::Any, "a text or texts that end the answer"),
    Field("stream_options", Kind::Object, "with include_usage"),
];
const CHAT: &[Field] = &[
    Field("messages", Kind::List, "with role and content"),
    Field("max_completion_tokens", Kind::Whole, "the other name of max_tokens"),
    Field("n", Kind::Whole, "answers"),
    Field("n_predict", Kind::Whole, "llama.cpp's max_tokens"),
    Field("repetition_penalty", Kind::Number, "the other name of repeat_penalty"),
    Field("logprobs", Kind::Flag, "says the probabilities of tokens"),
    Field("top_logprobs", Kind::Whole, "alternatives to say them of"),
    Field("stop", Kind::Any, "a text or texts that end the answer"),
    Field("stream_options", Kind::Object, "with include_usage"),
    Field("tools", Kind::List, "functions that the model may call"),
    Field("tool_choice", Kind::Any, "none, auto, required, or a function"),
    Field("parallel_tool_calls", Kind::Flag, "several calls where one is required"),
    Field("chat_template_kwargs", Kind::Object, "further variables of the template"),
];
const RESPONSES: &[Field] = &[
    Field("input", Kind::Any, "a text, or items"),
    Field("instructions", Kind::Text, "what the system says first"),
    Field("max_output_tokens", Kind::Whole, "the other name of max_tokens"),
    Field("text", Kind::Object, "with format, as response_format"),
    Field("truncation", Kind::Text, "disabled"),
    Field("tools", Kind::List, "functions that the model may call"),
    Field("tool_choice", Kind::Any, "none, auto, required, or a function"),
    Field("parallel_tool_calls", Kind::Flag, "has no effect"),
    Field("chat_template_kwargs", Kind::Object, "further variables of the template"),
];
const TURNS: &[Field] = &[
    Field("messages", Kind::List, "of the user and the assistant in turns"),
    Field("system", Kind::Any, "a text or blocks of text"),
    Field("tools", Kind::List, "with name, description and input_schema"),
    Field("tool_choice", Kind::Any, "of type auto, any, none or tool"),
    Field("chat_template_kwargs", Kind::Object, "further variables of the template"),
];
const STOPS: &[Field] = &[Field("stop_sequences", Kind::Any, "texts that end the answer")];
const COUNTED: &[Field] = &[
    Field("model", Kind::Text, "a name that /v1/models lists, or none"),
    Field("context_id", Kind::Text, "a context whose text comes first"),
];
const TOKENIZE: &[Field] = &[
    Field("content", Kind::Text, "the text"),
    Field("add_special", Kind::Flag, "with the tokens that begin a text"),
    Field("with_pieces", Kind::Flag, "with the text of each token"),
];
const DETOKENIZE: &[Field] = &[Field("tokens", Kind::List, "the tokens")];
const TEMPLATE: &[Field] = &[
    Field("messages", Kind::List, "with role and content"),
    Field("tools", Kind::List, "functions that the model may call"),
    Field("add_generation_prompt", Kind::Flag, "ends where the assistant speaks"),
    Field("chat_template_kwargs", Kind::Object, "further variables of the template"),
];
const CONTEXT: &[Field] = &[
    Field("text", Kind::Text, "the document"),
    Field("model", Kind::Text, "a name that /v1/models lists, or none"),
    Field("name", Kind::Text, "how it is called"),
    Field("pin", Kind::Flag, "keeps it whatever else needs room"),
    Field("stream", Kind::Flag, "sends how far it was read"),
];

/// What a route does, and the fields of its request, of which the first must be there.
struct About {
    summary: &'static str,
    fields: Vec<Field>,
    /// Whether the answer can be a stream.
    has_stream: bool,
}

fn about(target: Target) -> About {
    let (summary, parts): (_, &[&[Field]]) = match target {
        Target::Health => ("whether requests are served", &[]),
        Target::Models => ("the names of the model", &[]),
        Target::Metrics => ("counters for Prometheus", &[]),
        Target::Props => ("how the server was started", &[]),
        Target::Slots => ("the requests that run", &[]),
        Target::OpenApi => ("this page", &[]),
        Target::Tokenize => ("the tokens of a text", &[TOKENIZE]),
        Target::Detokenize => ("the text of tokens", &[DETOKENIZE]),
        Target::ApplyTemplate => ("the text that a conversation becomes", &[TEMPLATE]),
        Target::Completions => ("goes on from a text", &[COMPLETIONS, ANSWER]),
        Target::Chat => ("answers a conversation", &[CHAT, ANSWER]),
        Target::Responses => ("answers, in OpenAI's newer form", &[RESPONSES, ANSWER]),
        Target::Messages => ("answers, in Anthropic's form", &[TURNS, STOPS, ANSWER]),
        Target::CountTokens => ("the tokens of a conversation", &[TURNS, COUNTED]),
        Target::ListContexts => ("all contexts", &[]),
        Target::CreateContext => ("reads a document and keeps it", &[CONTEXT]),
        Target::GetContext => ("one context", &[]),
        Target::DeleteContext => ("removes a context", &[]),
    };
    let fields: Vec<Field> = parts.concat();
    let has_stream = fields.iter().any(|field| field.0 == "stream");
    About { summary, fields, has_stream }
}

/// The page.
pub(crate) fn page(app: &App) -> Response<Body> {
    let has_library = app.options.documents.is_some();
    let there = ROUTES.iter().filter(|route| has_library || !route.needs_library);
    let page = serde_json::to_value(describe(there));
    json_response(StatusCode::OK, &page.unwrap_or_else(|_| json!({})))
}

fn describe<'a>(routes: impl Iterator<Item = &'a Route>) -> OpenApi {
    let mut paths = Paths::new();
    for route in routes {
        let method = match route.method {
            "GET" => HttpMethod::Get,
            "DELETE" => HttpMethod::Delete,
            _ => HttpMethod::Post,
        };
        paths.add_path_operation(route.path, vec![method], operation(route));
    }
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
    let keys = ComponentsBuilder::new().security_scheme(KEY, SecurityScheme::Http(bearer));
    let about = "What docs/server.md says in words.";
    let info = InfoBuilder::new().title("Longview").version(env!("CARGO_PKG_VERSION"));
    OpenApiBuilder::new()
        .info(info.description(Some(about)).build())
        .paths(paths)
        .components(Some(keys.build()))
        .build()
}

fn operation(route: &Route) -> OperationBuilder {
    let About { summary, fields, has_stream } = about(route.target);
    let kind = if route.target == Target::Metrics { "text/plain" } else { "application/json" };
    let mut ok = ResponseBuilder::new().description("as asked").content(kind, any());
    if has_stream {
        ok = ok.content("text/event-stream", any());
    }
    let refused = ResponseBuilder::new()
        .description("an error, with its message, code and param")
        .content("application/json", any());
    let mut operation = OperationBuilder::new()
        .summary(Some(summary))
        .operation_id(Some(format!("{:?}", route.target)))
        .response("200", ok.build())
        .response("default", refused.build());
    if !route.is_open {
        let none: [&str; 0] = [];
        operation = operation.security(SecurityRequirement::new(KEY, none));
    }
    if route.path.ends_with("{id}") {
        let id = ParameterBuilder::new()
            .name("id")
            .parameter_in(ParameterIn::Path)
            .required(Required::True)
            .schema(Some(object(Some(Type::String))))
            .build();
        operation = operation.parameter(id);
    }
    if !fields.is_empty() {
        let mut body = ObjectBuilder::new();
        body = body.required(fields[0].0);
        for Field(name, kind, about) in fields {
            body = body.property(name, kind.schema(about));
        }
        let content = ContentBuilder::new().schema(Some(Schema::from(body))).build();
        let body = RequestBodyBuilder::new().content("application/json", content);
        operation = operation.request_body(Some(body.required(Some(Required::True)).build()));
    }
    operation
}

impl Kind {
    fn schema(self, about: &str) -> Schema {
        let kind = match self {
            Self::Text => Some(Type::String),
            Self::Whole => Some(Type::Integer),
            Self::Number => Some(Type::Number),
            Self::Flag => Some(Type::Boolean),
            Self::List => Some(Type::Array),
            Self::Object => Some(Type::Object),
            Self::Any => None,
        };
        Schema::from(object(kind).description(Some(about)))
    }
}

fn object(kind: Option<Type>) -> ObjectBuilder {
    let kind = kind.map_or_else(SchemaType::any, SchemaType::Type);
    ObjectBuilder::new().schema_type(kind)
}

/// A body of which only its kind is said here.
fn any() -> utoipa::openapi::Content {
    ContentBuilder::new().schema(Some(Schema::from(object(None)))).build()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    #[test]
    fn every_route_is_described_and_nothing_else() {
        let page: Value = serde_json::to_value(describe(ROUTES.iter())).unwrap();
        let mut found = BTreeSet::new();
        for (path, methods) in page["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                assert!(operation["summary"].is_string(), "{operation}");
                let is_open = operation["security"].is_null();
                found.insert((method.to_uppercase(), path.clone(), is_open));
            }
        }
        let routes = ROUTES.iter().map(|r| (r.method.to_owned(), r.path.to_owned(), r.is_open));
        assert_eq!(found, routes.collect());
        assert_eq!(found.len(), ROUTES.len());
        let ids: BTreeSet<String> =
            ROUTES.iter().map(|route| format!("{:?}", route.target)).collect();
        assert_eq!(ids.len(), ROUTES.len(), "each operation has a name of its own");
    }
}
