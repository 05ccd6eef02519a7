//! `/openapi.json`: the server as a program reads it. Its paths are those of the table of routes,
//! and each has its fields here; tests compare both with the server that runs.

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

use crate::error::json_response;

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
    Field("model", Kind::Text, "the name that /v1/models lists, or none"),
    Field("max_tokens", Kind::Whole, "the most tokens of the answer; -1 is no limit"),
    Field("temperature", Kind::Number, "0 is greedy"),
    Field("top_p", Kind::Number, "from 0 to 1; 0 takes the best token"),
    Field("top_k", Kind::Whole, "0 and -1 keep all"),
    Field("min_p", Kind::Number, "0 keeps all"),
    Field("seed", Kind::Whole, "of the draws; below 0 is none"),
    Field("repeat_penalty", Kind::Number, "1 is off"),
    Field("repeat_last_n", Kind::Whole, "tokens that the penalty looks back; -1 is all"),
    Field("presence_penalty", Kind::Number, "from -2 to 2"),
    Field("frequency_penalty", Kind::Number, "from -2 to 2"),
    Field("logit_bias", Kind::Any, "numbers from -100 to 100 by token, or a list of such pairs"),
    Field("ignore_eos", Kind::Flag, "goes on where the model would end"),
    Field("stream", Kind::Flag, "sends the answer in events"),
    Field("return_progress", Kind::Flag, "sends how far the prompt was read"),
    Field("timings_per_token", Kind::Flag, "says in each part of a stream what it took so far"),
    Field("cache_prompt", Kind::Flag, "false reads the whole prompt anew"),
    Field("response_format", Kind::Object, "of type text, json_object or json_schema"),
    Field("json_schema", Kind::Object, "what the answer must be"),
    Field("grammar", Kind::Text, "in llama.cpp's form (GBNF) or Lark's"),
    Field("context_id", Kind::Text, "a context whose text comes first"),
    Field("id_slot", Kind::Whole, "the slot in which it leaves what it read; -1 is the first"),
    Field("policy", Kind::Text, "what each generated token attends"),
    Field("budget", Kind::Whole, "tokens that it attends"),
    Field("residual", Kind::Text, "an estimate of what is not attended"),
    Field("policy_options", Kind::Object, "further options of the policy, as texts"),
    Field("draft", Kind::Text, "lookup or none: whether tokens are computed on trial"),
    Field("prefill", Kind::Text, "exact, sparse or sparse:THRESHOLD: how the prompt is read"),
];
/// What is seen of an answer beside its text.
const LOOK: &[Field] = &[Field("longview", Kind::Object, "with passages, steps and map")];
const COMPLETIONS: &[Field] = &[
    Field("prompt", Kind::Any, "a text, a list of tokens, or a list of texts or of such lists"),
    Field("n", Kind::Whole, "answers"),
    Field("n_predict", Kind::Whole, "llama.cpp's max_tokens"),
    Field("repetition_penalty", Kind::Number, "the other name of repeat_penalty"),
    Field("logprobs", Kind::Whole, "alternatives to say the probabilities of"),
    Field("return_token_ids", Kind::Flag, "says the tokens of answers"),
    Field("n_probs", Kind::Whole, "llama.cpp's logprobs"),
    Field("stop", Kind::Any, "a text or texts that end the answer"),
    Field("stream_options", Kind::Object, "with include_usage"),
];
const NATIVE: &[Field] = &[
    Field("prompt", Kind::Any, "a text or a list of tokens"),
    Field("n_predict", Kind::Whole, "the most tokens of the answer; -1 is no limit"),
    Field("repetition_penalty", Kind::Number, "the other name of repeat_penalty"),
    Field("n_probs", Kind::Whole, "alternatives to say the probabilities of"),
    Field("post_sampling_probs", Kind::Flag, "probabilities after all cuts, and no logarithms"),
    Field("return_tokens", Kind::Flag, "says the tokens of the answer"),
    Field("stop", Kind::Any, "a text or texts that end the answer"),
];
const CHAT: &[Field] = &[
    Field("messages", Kind::List, "with role and content"),
    Field("max_completion_tokens", Kind::Whole, "the other name of max_tokens"),
    Field("n", Kind::Whole, "answers"),
    Field("n_predict", Kind::Whole, "llama.cpp's max_tokens"),
    Field("repetition_penalty", Kind::Number, "the other name of repeat_penalty"),
    Field("logprobs", Kind::Flag, "says the probabilities of tokens"),
    Field("top_logprobs", Kind::Whole, "alternatives to say them of"),
    Field("n_probs", Kind::Whole, "llama.cpp's logprobs and top_logprobs"),
    Field("post_sampling_probs", Kind::Flag, "probabilities after all cuts, and no logarithms"),
    Field("reasoning_format", Kind::Text, "auto, deepseek, or none: thoughts stay in the text"),
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
    Field("reasoning_format", Kind::Text, "auto, deepseek, or none: thoughts stay in the text"),
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
const STOPS: &[Field] = &[
    Field("stop_sequences", Kind::Any, "texts that end the answer"),
    Field("output_config", Kind::Object, "with format, as response_format"),
    Field("output_format", Kind::Object, "the older place of that format"),
    Field("thinking", Kind::Object, "of type enabled, adaptive or disabled"),
    Field("reasoning_format", Kind::Text, "auto, deepseek, or none: thoughts stay in the text"),
];
const COUNTED: &[Field] = &[
    Field("model", Kind::Text, "the name that /v1/models lists, or none"),
    Field("context_id", Kind::Text, "a context whose text comes first"),
];
const TOKENIZE: &[Field] = &[
    Field("content", Kind::Text, "the text"),
    Field("add_special", Kind::Flag, "with the tokens that begin a text"),
    Field("with_pieces", Kind::Flag, "with the text of each token, or bytes that are no text"),
];
const DETOKENIZE: &[Field] = &[Field("tokens", Kind::List, "the tokens")];
const TEMPLATE: &[Field] = &[
    Field("messages", Kind::List, "with role and content"),
    Field("tools", Kind::List, "functions that the model may call"),
    Field("add_generation_prompt", Kind::Flag, "ends where the assistant speaks"),
    Field("chat_template_kwargs", Kind::Object, "further variables of the template"),
];
const CHANGE: &[Field] = &[
    Field("pin", Kind::Flag, "whether it stays whatever else needs room"),
    Field("name", Kind::Text, "how it is called from now on"),
    Field("ttl", Kind::Whole, "seconds without use after which it goes; 0: it stays"),
];
const CONTEXT: &[Field] = &[
    Field("text", Kind::Text, "the document"),
    Field("model", Kind::Text, "the name that /v1/models lists, or none"),
    Field("name", Kind::Text, "how it is called"),
    Field("pin", Kind::Flag, "keeps it whatever else needs room"),
    Field("ttl", Kind::Whole, "seconds without use after which it goes"),
    Field("prefill", Kind::Text, "exact, sparse or sparse:THRESHOLD: how it is read"),
    Field("stream", Kind::Flag, "sends how far it was read"),
];

const FILE: &[Field] = &[Field("filename", Kind::Text, "the context; not to erase")];

/// A route: its method, its path, and whether it is served without a key.
pub(crate) type Entry = (&'static str, &'static str, bool);

/// Where the query says what is done, and whether there is a body.
const SLOT: &str = "/slots/{id}";
/// Where any one of the fields is enough.
const CHANGES: &str = "/v1/contexts/{id}";

/// What a route does, and the fields of its request, of which the first must be there but for
/// [`CHANGES`]. A route that is not here is not on the page, which a test finds.
fn about(method: &str, path: &str) -> Option<(&'static str, Vec<Field>)> {
    let (summary, parts): (_, &[&[Field]]) = match (method, path) {
        ("GET", "/") => ("the page for people", &[]),
        ("GET", "/assets/page.js") => ("its script", &[]),
        ("GET", "/assets/page.css") => ("its style", &[]),
        ("GET", "/assets/icon.svg") => ("its icon", &[]),
        ("GET", "/health" | "/v1/health") => ("whether requests are served", &[]),
        ("GET", "/v1/models" | "/models") => ("the model", &[]),
        ("GET", "/v1/models/{id}") => ("the model, by one of its names", &[]),
        ("GET", "/metrics") => ("counters for Prometheus", &[]),
        ("GET", "/props") => ("how the server was started", &[]),
        ("GET", "/slots") => ("the requests of the key that run", &[]),
        ("POST", SLOT) => ("saves, restores or erases what a slot holds", &[FILE]),
        ("GET", "/openapi.json") => ("this page", &[]),
        ("POST", "/tokenize") => ("the tokens of a text", &[TOKENIZE]),
        ("POST", "/detokenize") => ("the text of tokens", &[DETOKENIZE]),
        ("POST", "/apply-template") => ("the text that a conversation becomes", &[TEMPLATE]),
        ("POST", "/v1/completions") => ("goes on from a text", &[COMPLETIONS, ANSWER, LOOK]),
        ("POST", "/completion" | "/completions") => {
            ("goes on from a text, in llama.cpp's form", &[NATIVE, ANSWER])
        }
        ("POST", "/v1/chat/completions" | "/chat/completions") => {
            ("answers a conversation", &[CHAT, ANSWER, LOOK])
        }
        ("POST", "/v1/responses" | "/responses") => {
            ("answers, in OpenAI's newer form", &[RESPONSES, ANSWER])
        }
        ("POST", "/v1/messages") => ("answers, in Anthropic's form", &[TURNS, STOPS, ANSWER]),
        ("POST", "/v1/messages/count_tokens") => {
            ("the tokens of a conversation", &[TURNS, COUNTED])
        }
        ("GET", "/v1/contexts") => ("all contexts", &[]),
        ("POST", "/v1/contexts") => ("reads a document and keeps it", &[CONTEXT]),
        ("GET", "/v1/contexts/{id}") => ("one context", &[]),
        ("GET", "/v1/contexts/{id}/text") => ("the text of a context", &[]),
        ("POST", "/v1/contexts/{id}") => ("changes what is said of a context", &[CHANGE]),
        ("DELETE", "/v1/contexts/{id}") => ("removes a context", &[]),
        _ => return None,
    };
    Some((summary, parts.concat()))
}

/// The page.
pub(crate) fn page(routes: impl Iterator<Item = Entry>) -> Response<Body> {
    let page = serde_json::to_value(describe(routes));
    json_response(StatusCode::OK, &page.unwrap_or_else(|_| json!({})))
}

fn describe(routes: impl Iterator<Item = Entry>) -> OpenApi {
    let mut paths = Paths::new();
    for entry in routes {
        let method = match entry.0 {
            "GET" => HttpMethod::Get,
            "DELETE" => HttpMethod::Delete,
            _ => HttpMethod::Post,
        };
        if let Some(operation) = operation(entry) {
            paths.add_path_operation(entry.1, vec![method], operation);
        }
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

fn operation((method, path, is_open): Entry) -> Option<OperationBuilder> {
    let (summary, fields) = about(method, path)?;
    let kind = match path {
        "/metrics" => "text/plain",
        "/" => "text/html",
        "/assets/page.js" => "text/javascript",
        "/assets/page.css" => "text/css",
        "/assets/icon.svg" => "image/svg+xml",
        _ => "application/json",
    };
    let mut ok = ResponseBuilder::new().description("as asked").content(kind, any());
    if fields.iter().any(|field| field.0 == "stream") {
        ok = ok.content("text/event-stream", any());
    }
    let refused = ResponseBuilder::new()
        .description("an error, with its message, code and param")
        .content("application/json", any());
    let mut operation = OperationBuilder::new()
        .summary(Some(summary))
        .response("200", ok.build())
        .response("default", refused.build());
    if !is_open {
        let none: [&str; 0] = [];
        operation = operation.security(SecurityRequirement::new(KEY, none));
    }
    if path.contains("{id}") {
        let id = ParameterBuilder::new()
            .name("id")
            .parameter_in(ParameterIn::Path)
            .required(Required::True)
            .schema(Some(object(Some(Type::String))))
            .build();
        operation = operation.parameter(id);
    }
    if path == SLOT {
        let names = ["save", "restore", "erase"];
        let action = ParameterBuilder::new()
            .name("action")
            .parameter_in(ParameterIn::Query)
            .required(Required::True)
            .schema(Some(object(Some(Type::String)).enum_values(Some(names))));
        operation = operation.parameter(action.build());
    }
    if let Some(first) = fields.first() {
        let mut body = match path {
            CHANGES => ObjectBuilder::new().min_properties(Some(1)),
            SLOT => ObjectBuilder::new(),
            _ => ObjectBuilder::new().required(first.0),
        };
        for Field(name, kind, about) in &fields {
            body = body.property(*name, kind.schema(about));
        }
        let content = ContentBuilder::new().schema(Some(Schema::from(body))).build();
        let body = RequestBodyBuilder::new().content("application/json", content);
        let required = if path == SLOT { Required::False } else { Required::True };
        operation = operation.request_body(Some(body.required(Some(required)).build()));
    }
    Some(operation)
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
