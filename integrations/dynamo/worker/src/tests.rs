//! Dynamo's conformance kit, and what it does not ask, against a server of the embedded model.
//!
//! `LONGVIEW_PROGRAM` is a `longview` with the feature `kv-events`; `cargo xtask cluster --worker
//! rust` builds it and says where it is.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use clap::Parser;
use dynamo_backend_common::testing::{mock_context, run_conformance};
use dynamo_backend_common::{
    BackendError, DynamoError, ErrorType, FinishReason, GenerateContext, KvEventSource, LLMEngine,
    LLMEngineOutput, OutputOptions, PreprocessedRequest, SamplingOptions, StopConditions,
};
use futures::StreamExt;

use crate::args::Args;
use crate::engine::{BLOCK_TOKENS, LongviewEngine};

const N_CTX: u32 = 512;
const N_SLOTS: u32 = 3;
const STARTS: Duration = Duration::from_secs(60);
const GIVES_BACK: Duration = Duration::from_secs(2);

/// A server that ends with the test.
struct Served {
    child: Child,
    url: String,
    events: String,
    _lines: Receiver<String>,
}

impl Served {
    fn start() -> Self {
        Self::start_with(&[])
    }

    fn start_with(words: &[&str]) -> Self {
        let program = std::env::var_os("LONGVIEW_PROGRAM")
            .expect("LONGVIEW_PROGRAM: where is the longview program with kv-events?");
        let mut command = Command::new(program);
        command.args(["serve", "--port", "0", "--kv-events", "tcp://127.0.0.1:0"]);
        command.args(["--ctx-size", &N_CTX.to_string(), "--parallel", &N_SLOTS.to_string()]);
        command.args(["--no-library", "--no-page"]).args(words);
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let (tell, lines) = channel();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || {
            // The server's words are read to their end, or it would wait for who reads them.
            for line in stderr.lines().map_while(Result::ok) {
                let _ = tell.send(line);
            }
        });
        let (mut url, mut events) = (None, None);
        let mut said = String::new();
        while url.is_none() || events.is_none() {
            let line = lines.recv_timeout(STARTS).unwrap_or_else(|_| panic!("it said:\n{said}"));
            url = url.or_else(|| word_behind(&line, " at ").and_then(|at| origin(&at)));
            events = events.or_else(|| word_behind(&line, "KV events for routers: "));
            said += &format!("{line}\n");
        }
        let (url, events) = (url.unwrap(), events.unwrap());
        Self { child, url, events, _lines: lines }
    }

    fn engine(&self) -> LongviewEngine {
        let words = ["worker", "--model-path", "needle", "--server", &self.url];
        let words = words.into_iter().chain(["--kv-events", &self.events]);
        Args::parse_from(words).engine().unwrap().0
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    async fn metric(&self, name: &str) -> f64 {
        let page = reqwest::get(format!("{}/metrics", self.url)).await.unwrap();
        let page = page.text().await.unwrap();
        let value = page.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        value.trim().parse().unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.end();
    }
}

fn word_behind(line: &str, mark: &str) -> Option<String> {
    let rest = line.split_once(mark)?.1;
    rest.split([' ', ',']).next().map(str::to_owned)
}

/// An address without its path.
fn origin(address: &str) -> Option<String> {
    address.starts_with("http://").then(|| address.trim_end_matches("/v1").to_owned())
}

fn request(n_prompt: usize, max_tokens: u32) -> PreprocessedRequest {
    PreprocessedRequest::builder()
        .model("needle".to_owned())
        .token_ids((1..=64).cycle().take(n_prompt).collect::<Vec<u32>>())
        .stop_conditions(StopConditions {
            max_tokens: Some(max_tokens),
            ignore_eos: Some(true),
            ..StopConditions::default()
        })
        .sampling_options(SamplingOptions { temperature: Some(0.0), ..SamplingOptions::default() })
        .output_options(OutputOptions::default())
        .build()
        .unwrap()
}

async fn answer(
    engine: &LongviewEngine,
    request: PreprocessedRequest,
) -> Result<Vec<LLMEngineOutput>, DynamoError> {
    let stream = engine.generate(request, GenerateContext::new(mock_context(), None)).await?;
    stream.collect::<Vec<_>>().await.into_iter().collect()
}

fn tokens(outputs: &[LLMEngineOutput]) -> Vec<u32> {
    outputs.iter().flat_map(|output| output.token_ids.clone()).collect()
}

#[tokio::test]
async fn dynamos_conformance_kit_passes() {
    let served = Served::start();
    run_conformance(|| served.engine()).await.expect("conformance");
}

#[tokio::test]
async fn dynamo_is_told_the_truth() {
    let served = Served::start();
    let engine = served.engine();
    let config = engine.start(1).await.unwrap();
    let llm = config.llm.unwrap();
    assert_eq!(llm.context_length, Some(N_CTX));
    assert_eq!(llm.kv_cache_block_size, Some(BLOCK_TOKENS));
    assert_eq!(llm.max_num_seqs, Some(N_SLOTS.into()));
    assert_eq!(llm.total_kv_blocks, Some(u64::from(N_SLOTS * N_CTX / BLOCK_TOKENS)));
    let sources = engine.kv_event_sources().await.unwrap();
    let [KvEventSource::Zmq { endpoint, dp_rank: 0, .. }] = &sources[..] else {
        panic!("{} sources", sources.len());
    };
    assert_eq!(*endpoint, served.events);
}

#[tokio::test]
async fn an_answer_has_as_many_tokens_as_were_asked_for_and_the_same_ones_again() {
    let served = Served::start();
    let engine = served.engine();
    engine.start(1).await.unwrap();
    let first = answer(&engine, request(20, 12)).await.unwrap();
    let last = first.last().unwrap();
    assert!(matches!(last.finish_reason, Some(FinishReason::Length)), "{last:?}");
    let usage = last.completion_usage.as_ref().unwrap();
    assert_eq!((usage.prompt_tokens, usage.completion_tokens), (20, 12));
    assert_eq!(tokens(&first).len(), 12);
    let again = answer(&engine, request(20, 12)).await.unwrap();
    assert_eq!(tokens(&first), tokens(&again));
}

#[tokio::test]
async fn a_client_that_leaves_gives_its_place_back() {
    let served = Served::start();
    let engine = served.engine();
    engine.start(1).await.unwrap();
    assert_eq!(engine.is_quiescent().await.unwrap(), Some(true));
    for drops_the_stream in [false, true] {
        let ctx = mock_context();
        let context = GenerateContext::new(ctx.clone(), None);
        let mut stream = engine.generate(request(8, 480), context).await.unwrap();
        assert!(!stream.next().await.unwrap().unwrap().token_ids.is_empty());
        assert_eq!(served.metric("vllm:num_requests_running ").await, 1.0);
        assert_eq!(engine.is_quiescent().await.unwrap(), Some(false));
        if drops_the_stream {
            drop(stream);
        } else {
            ctx.stop_generating();
            let rest: Vec<_> = stream.map(Result::unwrap).collect().await;
            let last = rest.last().unwrap();
            assert!(matches!(last.finish_reason, Some(FinishReason::Cancelled)), "{last:?}");
        }
        let left = Instant::now();
        while served.metric("vllm:num_requests_running ").await != 0.0 {
            assert!(left.elapsed() < GIVES_BACK, "the place is not given back");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(engine.is_quiescent().await.unwrap(), Some(true));
    }
    let generated = served.metric("llamacpp:tokens_predicted_total ").await;
    assert!(generated < 2.0 * 480.0, "{generated} tokens: nothing was cut short");
}

#[tokio::test]
async fn a_prompt_that_is_too_long_is_refused_with_both_numbers() {
    let served = Served::start();
    let engine = served.engine();
    engine.start(1).await.unwrap();
    let error = answer(&engine, request(600, 8)).await.unwrap_err();
    assert_eq!(error.error_type(), ErrorType::Backend(BackendError::InvalidArgument));
    let message = error.to_string();
    assert!(message.contains("has 600 tokens") && message.contains("holds 512"), "{message}");
}

#[tokio::test]
async fn a_full_queue_is_told_in_the_stream() {
    let served = Served::start_with(&["--max-waiting", "0"]);
    let engine = served.engine();
    engine.start(1).await.unwrap();
    let mut running = Vec::new();
    for _ in 0..N_SLOTS {
        let context = GenerateContext::new(mock_context(), None);
        let mut stream = engine.generate(request(8, 480), context).await.unwrap();
        stream.next().await.unwrap().unwrap();
        running.push(stream);
    }
    let context = GenerateContext::new(mock_context(), None);
    let mut stream = engine.generate(request(8, 8), context).await.unwrap();
    let error = stream.next().await.unwrap().unwrap_err();
    assert_eq!(error.error_type(), ErrorType::WorkerOverloaded);
    let message = error.public_message().unwrap();
    assert!(message.contains("3 requests run and 0 wait already"), "{message}");
    assert!(stream.next().await.is_none());
}

#[tokio::test]
async fn a_server_that_is_gone_is_no_fault_of_the_request() {
    let mut served = Served::start();
    let engine = served.engine();
    let error = answer(&engine, request(8, 8)).await.unwrap_err();
    assert_eq!(error.error_type(), ErrorType::Backend(BackendError::EngineShutdown), "not started");
    engine.start(1).await.unwrap();
    let context = GenerateContext::new(mock_context(), None);
    let mut stream = engine.generate(request(8, 480), context).await.unwrap();
    stream.next().await.unwrap().unwrap();
    served.end();
    let broken = loop {
        match stream.next().await.expect("an error comes before the end") {
            Ok(output) => assert!(output.finish_reason.is_none(), "{output:?}"),
            Err(error) => break error,
        }
    };
    assert_eq!(broken.error_type(), ErrorType::Backend(BackendError::StreamIncomplete));
    let error = answer(&engine, request(8, 8)).await.unwrap_err();
    assert_eq!(error.error_type(), ErrorType::Backend(BackendError::EngineShutdown));
    engine.cleanup().await.unwrap();
    engine.cleanup().await.unwrap();
}

#[test]
fn other_roles_are_refused() {
    let words = ["worker", "--model-path", "needle", "--disaggregation-mode", "prefill"];
    let error = Args::parse_from(words).engine().err().expect("refused");
    assert!(error.to_string().contains("--disaggregation-mode"), "{error}");
}

#[tokio::test]
async fn a_server_is_waited_for_as_long_as_is_said() {
    let words = ["worker", "--model-path", "needle", "--server", "http://127.0.0.1:9"];
    let timeout = |more: &[&str]| {
        Args::try_parse_from(words.iter().chain(more)).map(|args| args.ready_timeout)
    };
    assert_eq!(timeout(&[]).unwrap(), Duration::from_secs(3600), "as the worker in Python");
    for wrong in ["0", "-1", "inf", "soon"] {
        assert!(timeout(&[&format!("--ready-timeout={wrong}")]).is_err(), "{wrong}");
    }
    let words = words.iter().chain(&["--ready-timeout", "0.5"]);
    let (engine, _) = Args::parse_from(words).engine().unwrap();
    let began = Instant::now();
    let error = engine.start(1).await.expect_err("nobody listens there").to_string();
    assert!(error.contains("does not answer") && error.contains("now 0.5 s"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}
