//! What Dynamo drives: a server that is asked for each request, and watched.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_stream::stream;
use async_trait::async_trait;
use dynamo_backend_common::{
    AsyncEngineContext, ComponentSnapshot, DynamoError, EngineConfig, GenerateContext,
    KvEventSource, LLMEngine, LLMEngineOutput, LLMEngineOutputExt, LlmRegistration,
    MetricsBindings, MetricsCtx, PreprocessedRequest, SnapshotPublisher,
};
use futures::stream::BoxStream;
use rustix::process::{Signal, getpid, kill_process};
use tokio::task::AbortHandle;
use tokio::time::sleep;

use crate::error::gone;
use crate::ready::{LOOKS, Watched, wait_until_ready};
use crate::request::Body;
use crate::server::{Answer, Part, Props, Server};

/// Tokens of a block in the server's events. A router drops events of blocks of another size.
pub(crate) const BLOCK_TOKENS: u32 = 64;
/// The only rank there is.
const RANK: u32 = 0;

/// Where the server is, and what it serves.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) server: String,
    pub(crate) api_key: Option<String>,
    pub(crate) ready_timeout: Duration,
    pub(crate) kv_events: Option<String>,
    pub(crate) kv_events_topic: String,
    pub(crate) model_path: String,
    pub(crate) served_model_name: Option<String>,
}

/// One server, which this process neither starts nor ends.
pub struct LongviewEngine {
    options: Options,
    server: Arc<Server>,
    started: Mutex<Option<Started>>,
    loads: Loads,
}

/// Where the load of the server is told.
type Loads = Arc<Mutex<Option<Arc<SnapshotPublisher>>>>;

/// What is there between start and cleanup.
struct Started {
    props: Props,
    watch: AbortHandle,
    /// Each answer that is generated has a copy.
    answers: Arc<()>,
}

impl Drop for Started {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl LongviewEngine {
    /// # Errors
    /// `InvalidArgument`: a key that no header can hold.
    pub(crate) fn new(options: Options) -> Result<Self, DynamoError> {
        let server = Arc::new(Server::new(&options.server, options.api_key.as_deref())?);
        Ok(Self { options, server, started: Mutex::default(), loads: Loads::default() })
    }

    fn started(&self) -> MutexGuard<'_, Option<Started>> {
        self.started.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The context of the server, and what says that one more answer runs.
    fn begin(&self) -> Result<(u32, Arc<()>), DynamoError> {
        let started = self.started();
        let started = started.as_ref().ok_or_else(|| gone("this worker has not been started"))?;
        Ok((started.props.n_ctx, Arc::clone(&started.answers)))
    }
}

#[async_trait]
impl LLMEngine for LongviewEngine {
    async fn start(&self, _worker_id: u64) -> Result<EngineConfig, DynamoError> {
        let timeout = self.options.ready_timeout;
        wait_until_ready(&self.server, timeout, LOOKS).await?;
        let props = self.server.props().await?;
        let watch = watch(Arc::clone(&self.server), props, Arc::clone(&self.loads), timeout);
        let watch = tokio::spawn(watch).abort_handle();
        *self.started() = Some(Started { props, watch, answers: Arc::default() });
        Ok(EngineConfig {
            model: self.options.model_path.clone(),
            served_model_name: self.options.served_model_name.clone(),
            llm: Some(LlmRegistration {
                context_length: Some(props.n_ctx),
                kv_cache_block_size: Some(BLOCK_TOKENS),
                total_kv_blocks: Some(n_blocks(props)),
                max_num_seqs: Some(props.total_slots.into()),
                max_num_batched_tokens: Some(props.n_ctx.into()),
                ..LlmRegistration::default()
            }),
            ..EngineConfig::default()
        })
    }

    async fn generate(
        &self,
        request: PreprocessedRequest,
        ctx: GenerateContext,
    ) -> Result<BoxStream<'static, Result<LLMEngineOutput, DynamoError>>, DynamoError> {
        let (n_ctx, running) = self.begin()?;
        let body = Body::of(request, n_ctx)?;
        let ctx = ctx.inner_arc();
        let answer = tokio::select! {
            biased;
            () = ctx.stopped() => Ok(None),
            answer = self.server.complete(&body) => answer.map(Some),
        };
        Ok(outputs(answer, ctx, running))
    }

    async fn is_quiescent(&self) -> Result<Option<bool>, DynamoError> {
        let started = self.started();
        Ok(Some(started.as_ref().is_none_or(|one| Arc::strong_count(&one.answers) == 1)))
    }

    async fn cleanup(&self) -> Result<(), DynamoError> {
        *self.started() = None;
        *self.loads.lock().unwrap_or_else(PoisonError::into_inner) = None;
        Ok(())
    }

    async fn kv_event_sources(&self) -> Result<Vec<KvEventSource>, DynamoError> {
        let source = self.options.kv_events.as_ref().map(|endpoint| KvEventSource::Zmq {
            endpoint: endpoint.clone(),
            topic: self.options.kv_events_topic.clone(),
            dp_rank: RANK,
            image_token_id: None,
        });
        Ok(source.into_iter().collect())
    }

    async fn setup_metrics(&self, _ctx: MetricsCtx<'_>) -> Result<MetricsBindings, DynamoError> {
        let loads = Arc::clone(&self.loads);
        Ok(MetricsBindings {
            dp_ranks: vec![RANK],
            on_publisher_ready: Some(Box::new(move |publisher| {
                *loads.lock().unwrap_or_else(PoisonError::into_inner) = Some(publisher);
                Ok(())
            })),
        })
    }
}

/// An answer in Dynamo's form. `None`: its client left before the server was asked.
///
/// What the server says against a request is told in the stream. Before one, Dynamo takes all but
/// wrong requests for a connection that failed, and would leave a worker alone whose queue is full.
fn outputs(
    answer: Result<Option<Answer>, DynamoError>,
    ctx: Arc<dyn AsyncEngineContext>,
    running: Arc<()>,
) -> BoxStream<'static, Result<LLMEngineOutput, DynamoError>> {
    Box::pin(stream! {
        let _running = running;
        let mut answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                yield Err(error);
                return;
            }
        };
        loop {
            let part = match &mut answer {
                None => None,
                Some(answer) => tokio::select! {
                    biased;
                    () = ctx.stopped() => None,
                    part = answer.next() => Some(part),
                },
            };
            let Some(part) = part else {
                // The server gives the place back as soon as the connection is closed, which must
                // not wait for who reads the last output.
                drop(answer.take());
                yield Ok(LLMEngineOutput::cancelled());
                return;
            };
            let output = part.map(output);
            let is_last = output.as_ref().map_or(true, |output| output.finish_reason.is_some());
            yield output;
            if is_last {
                return;
            }
        }
    })
}

fn output(part: Part) -> LLMEngineOutput {
    let (reason, usage) = match part {
        Part::Tokens(tokens) => return LLMEngineOutput::default().with_tokens(tokens),
        Part::End { reason, usage } => (reason, usage),
    };
    let last = match reason.as_deref() {
        Some("stop") => LLMEngineOutput::stop(),
        Some("length") => LLMEngineOutput::length(),
        other => {
            let reason = other.unwrap_or("none");
            LLMEngineOutput::error(format!("the server gives a reason that is unknown: {reason}"))
        }
    };
    last.with_usage(*usage)
}

/// Blocks of as many contexts of full length as may run.
fn n_blocks(props: Props) -> u64 {
    u64::from(props.total_slots) * u64::from(props.n_ctx) / u64::from(BLOCK_TOKENS)
}

/// Tells the load of the server, and ends this worker when the server is gone: then Dynamo sends it
/// no request any more. A server that answers without being ready may come back.
async fn watch(server: Arc<Server>, props: Props, loads: Loads, timeout: Duration) {
    let mut watched = Watched::default();
    let why = loop {
        sleep(LOOKS).await;
        if let Some(why) = watched.saw(server.health().await, Instant::now(), timeout) {
            break why;
        }
        let publisher = loads.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(publisher) = publisher
            && let Some(usage) = server.kv_usage().await
        {
            publisher.publish(RANK, snapshot(usage, n_blocks(props)));
        }
    };
    tracing::error!("{} {why}: this worker ends", server.address());
    if let Err(error) = kill_process(getpid(), Signal::TERM) {
        tracing::error!("this worker cannot end itself: {error}");
    }
}

fn snapshot(usage: f64, n_blocks: u64) -> ComponentSnapshot {
    ComponentSnapshot {
        kv_used_blocks: (usage * n_blocks as f64).round() as u64,
        kv_total_blocks: n_blocks,
        gpu_cache_usage: usage as f32,
        kv_cache_hit_rate: None,
        dp_rank: RANK,
    }
}
