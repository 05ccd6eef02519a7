//! Every route, in one table, and what each request passes before its handler.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use axum::http::header::{AUTHORIZATION, HeaderName, ORIGIN};
use axum::http::{HeaderMap, Method, Response, StatusCode};
use axum::middleware::from_fn;
use axum::routing::any;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::sensitive_headers::SetSensitiveRequestHeadersLayer;
use tower_http::trace::TraceLayer;
use tracing::field::display;
use tracing::{Span, debug, debug_span, error};

use crate::app::App;
use crate::caller::Caller;
use crate::error::ApiError;
use crate::events::Asked;
use crate::page::Asset;
use crate::request_id::{self, RequestId};
use crate::{
    about, complete, contexts, guard, messages, openapi, origins, percent, responses, slots,
};

/// A path of the server; it may have a name in braces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// GET, POST or DELETE.
    pub method: &'static str,
    /// As in axum.
    pub path: &'static str,
    /// Whether it is served without a key.
    pub is_open: bool,
    /// Whether it is there only with a library.
    pub needs_library: bool,
    /// Whether it is a file of the page, which a server may not have.
    pub is_page: bool,
    target: Target,
}

/// What answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Health,
    Models,
    Model,
    Metrics,
    Props,
    Tokenize,
    Detokenize,
    ApplyTemplate,
    Completions,
    Completion,
    Chat,
    Responses,
    Messages,
    CountTokens,
    Slots,
    SlotAction,
    OpenApi,
    ListContexts,
    CreateContext,
    GetContext,
    ChangeContext,
    DeleteContext,
    ContextText,
    Page(Asset),
}

const fn route(method: &'static str, path: &'static str, target: Target) -> Route {
    Route { method, path, is_open: false, needs_library: false, is_page: false, target }
}

const fn context(method: &'static str, path: &'static str, target: Target) -> Route {
    Route { needs_library: true, ..route(method, path, target) }
}

/// A file of the page: everybody may have it, as the page asks for the key.
const fn page(path: &'static str, asset: Asset) -> Route {
    Route { is_open: true, is_page: true, ..route("GET", path, Target::Page(asset)) }
}

/// All routes there are. Those without `/v1` are llama.cpp's, whose `/completions` is not OpenAI's.
pub const ROUTES: [Route; 32] = [
    page("/", Asset::Html),
    page("/assets/page.js", Asset::Script),
    page("/assets/page.css", Asset::Style),
    page("/assets/icon.svg", Asset::Icon),
    Route { is_open: true, ..route("GET", "/health", Target::Health) },
    Route { is_open: true, ..route("GET", "/v1/health", Target::Health) },
    route("GET", "/v1/models", Target::Models),
    route("GET", "/models", Target::Models),
    route("GET", "/v1/models/{id}", Target::Model),
    route("GET", "/metrics", Target::Metrics),
    route("GET", "/props", Target::Props),
    route("GET", "/slots", Target::Slots),
    route("POST", "/slots/{id}", Target::SlotAction),
    route("GET", "/openapi.json", Target::OpenApi),
    route("POST", "/tokenize", Target::Tokenize),
    route("POST", "/detokenize", Target::Detokenize),
    route("POST", "/apply-template", Target::ApplyTemplate),
    route("POST", "/v1/completions", Target::Completions),
    route("POST", "/completion", Target::Completion),
    route("POST", "/completions", Target::Completion),
    route("POST", "/v1/chat/completions", Target::Chat),
    route("POST", "/chat/completions", Target::Chat),
    route("POST", "/v1/responses", Target::Responses),
    route("POST", "/responses", Target::Responses),
    route("POST", "/v1/messages", Target::Messages),
    route("POST", "/v1/messages/count_tokens", Target::CountTokens),
    context("GET", "/v1/contexts", Target::ListContexts),
    context("POST", "/v1/contexts", Target::CreateContext),
    context("GET", "/v1/contexts/{id}", Target::GetContext),
    context("POST", "/v1/contexts/{id}", Target::ChangeContext),
    context("DELETE", "/v1/contexts/{id}", Target::DeleteContext),
    context("GET", "/v1/contexts/{id}/text", Target::ContextText),
];

impl Route {
    /// What stands in `path` where the route has a name; `None` if the route is another one.
    fn matches<'a>(&self, path: &'a str) -> Option<Option<&'a str>> {
        match self.path.split_once("{id}") {
            None => (self.path == path).then_some(None),
            Some((start, end)) => {
                let name = path.strip_prefix(start)?.strip_suffix(end)?;
                // Names of models have slashes in them, which many clients send as they are.
                let may_be = self.target == Target::Model || !name.contains('/');
                (!name.is_empty() && may_be).then_some(Some(name))
            }
        }
    }
}

/// The service.
pub(crate) fn router(app: Arc<App>) -> Router {
    let serve = move |request: Request| {
        let app = Arc::clone(&app);
        async move {
            let path = request.uri().path().to_owned();
            let origin = request.headers().get(ORIGIN).cloned();
            let answer = handle(Arc::clone(&app), request).await;
            let mut answer = answer.unwrap_or_else(|error| error.response(&path));
            origins::mark(&app.options.allowed_origins, origin.as_ref(), answer.headers_mut());
            answer
        }
    };
    layered(Router::new().fallback(any(serve)))
}

/// What is around all routes, from the inside out. Bounds of time and size are not here but behind
/// the guard, in [`body`]: layers for them would answer who may not ask, and not in JSON.
fn layered<S: Clone + Send + Sync + 'static>(router: Router<S>) -> Router<S> {
    let about = |request: &Request| {
        // No query: it is nothing that any route reads, and may be anything.
        let id = request.extensions().get::<RequestId>().map(display);
        let path = request.uri().path();
        debug_span!("request", method = %request.method(), path, request_id = id)
    };
    let answered = |response: &Response<_>, took: Duration, _: &Span| {
        let (status, ms) = (response.status().as_u16(), took.as_millis() as u64);
        debug!(status, ms, "answered");
    };
    let trace = TraceLayer::new_for_http().make_span_with(about).on_response(answered);
    // Errors of a server that is full or loads are no failures of it; `worker` tells of those.
    let trace = trace.on_request(()).on_body_chunk(()).on_eos(()).on_failure(());
    let keys = [AUTHORIZATION, HeaderName::from_static("x-api-key")];
    let router = router.layer(CatchPanicLayer::custom(fault)).layer(trace);
    let router = router.layer(SetSensitiveRequestHeadersLayer::new(keys));
    // Outermost: an answer to a fault has the name too.
    router.layer(from_fn(request_id::name))
}

/// What a client is told where a handler panics. Why may have a part of the request in it, and is
/// not logged. Nor is the path known here: the error is in OpenAI's form.
fn fault(_why: Box<dyn Any + Send>) -> Response<Body> {
    error!("a request ended by a fault of the program");
    ApiError::internal("the request ended by a fault of the program").response("/")
}

/// The routes that this server has.
fn there(app: &App) -> impl Iterator<Item = &'static Route> {
    let (has_library, has_page) = (app.options.documents.is_some(), app.options.has_page);
    let is_there =
        move |route: &&Route| (has_library || !route.needs_library) && (has_page || !route.is_page);
    ROUTES.iter().filter(is_there)
}

/// Checks first: who may not ask does not learn what there is.
async fn handle(app: Arc<App>, request: Request) -> Result<Response<Body>, ApiError> {
    let since = Instant::now();
    let request_id = request.extensions().get::<RequestId>().cloned();
    let path = request.uri().path().to_owned();
    let matching = |route: &'static Route| route.matches(&path).map(|name| (route, name));
    let found: Vec<_> = there(&app).filter_map(matching).collect();
    let is_open = found.iter().any(|(route, _)| route.is_open);
    guard::check_site(&app.options, request.headers())?;
    if let Some(answer) = origins::preflight(&app.options.allowed_origins, &request) {
        // Before the key, which browsers send with the request alone; it says nothing of paths.
        return Ok(answer);
    }
    let scope = guard::scope(&app.keys, request.headers(), is_open)?;
    if found.is_empty() {
        let message = "there is no such path here; docs/server.md lists them";
        return Err(ApiError::new(StatusCode::NOT_FOUND, "not_found", message));
    }
    let asked = request.method().clone();
    let asked = if asked == Method::HEAD { Method::GET } else { asked };
    let Some((route, name)) = found.iter().find(|(route, _)| asked == route.method) else {
        // What can be got can be asked for its head.
        let head = found.iter().any(|(route, _)| route.method == "GET").then_some("HEAD");
        let methods: Vec<_> = found.iter().map(|(route, _)| route.method).chain(head).collect();
        return Err(ApiError::not_allowed(&methods));
    };
    if let Target::Page(asset) = route.target {
        return asset.respond(request.headers());
    }
    let name = percent::decoded(name.unwrap_or_default()).ok_or_else(|| {
        let message = "id: is no text in UTF-8 with `%` and two digits for what a path cannot have";
        ApiError::field("id", message)
    })?;
    let kind = request.headers().get("content-type").and_then(|kind| kind.to_str().ok());
    let kind = kind.map(str::to_owned);
    let query = request.uri().query().map(str::to_owned);
    let body = body(&app, request).await?;
    let asked = Asked { method: route.method, path: route.path, request_id, since };
    let app = Caller::new(app, scope).who_asked(asked);
    match route.target {
        Target::CreateContext => contexts::create(app, kind.as_deref(), body).await,
        Target::SlotAction => slots::act(app, &name, query.as_deref(), body).await,
        target => dispatch(app, target, name, body).await,
    }
}

/// The whole body, if it comes in time and is not too large.
async fn body(app: &App, request: Request) -> Result<Bytes, ApiError> {
    let limits = app.options.limits;
    let too_large = || {
        let message = format!("the body has more than {} bytes", limits.body_bytes);
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
    };
    // What says its length beforehand is refused before it is sent.
    let length = request.headers().get("content-length");
    let length = length.and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if length.is_some_and(|length| length > limits.body_bytes) {
        return Err(too_large());
    }
    let reading = to_bytes(request.into_body(), limits.body_bytes);
    match tokio::time::timeout(limits.body, reading).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(_)) => Err(too_large()),
        Err(_) => {
            let message = "the body did not come in time";
            Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message))
        }
    }
}

async fn dispatch(
    app: Caller,
    target: Target,
    name: String,
    body: Bytes,
) -> Result<Response<Body>, ApiError> {
    match target {
        Target::Health => about::health(&app),
        Target::Models => Ok(about::models(&app)),
        Target::Model => about::model(&app, &name),
        Target::Metrics => Ok(about::metrics(&app)),
        Target::Props => Ok(about::props(&app)),
        Target::Tokenize => about::tokenize(app, body).await,
        Target::Detokenize => about::detokenize(app, body).await,
        Target::ApplyTemplate => about::apply_template(app, body).await,
        Target::Completions => complete::completions(app, body).await,
        Target::Completion => complete::completion(app, body).await,
        Target::Chat => complete::chat(app, body).await,
        Target::Responses => responses::responses(app, body).await,
        Target::Messages => messages::messages(app, body).await,
        Target::CountTokens => messages::count_tokens(app, body).await,
        Target::Slots => Ok(about::slots(&app)),
        Target::OpenApi => {
            let there = there(&app).map(|route| (route.method, route.path, route.is_open));
            Ok(openapi::page(there))
        }
        Target::ListContexts => contexts::list(app).await,
        Target::CreateContext => contexts::create(app, None, body).await,
        Target::SlotAction => slots::act(app, &name, None, body).await,
        Target::GetContext => contexts::get(app, name).await,
        Target::ChangeContext => contexts::change(app, name, body).await,
        Target::DeleteContext => contexts::delete(app, name).await,
        Target::ContextText => contexts::text(app, name).await,
        Target::Page(asset) => asset.respond(&HeaderMap::new()),
    }
}

#[cfg(test)]
mod tests {
    use hyper::service::Service;
    use hyper_util::service::TowerToHyperService;
    use serde_json::Value;
    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn a_handler_that_panics_is_an_answer() {
        let handler = |request: Request| async move {
            assert!(request.uri().path() != "/fault", "as the test wants it");
            assert!(request.headers().values().all(|value| value.is_sensitive()));
        };
        let service = TowerToHyperService::new(layered(Router::new().fallback(any(handler))));
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        let ask = |path: &str| {
            let request = Request::get(path).header("x-api-key", "k").header(AUTHORIZATION, "k");
            let request = request.body(Body::empty()).expect("a request");
            let answer = service.call(request);
            runtime.block_on(async {
                let answer = answer.await.expect("an answer");
                let status = answer.status();
                let body = to_bytes(Body::new(answer.into_body()), 1 << 10).await.expect("a body");
                (status, body)
            })
        };
        assert_eq!(ask("/").0, StatusCode::OK);
        let (status, body) = ask("/fault");
        let body: Value = serde_json::from_slice(&body).expect("JSON");
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(body["error"]["code"], "internal_error", "{body}");
        assert!(!body.to_string().contains("wants"), "{body}");
        assert_eq!(ask("/").0, StatusCode::OK);
    }
}
