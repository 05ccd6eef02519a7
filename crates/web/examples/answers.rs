//! The demo's questions on the CPU: what a browser has to answer too.
//!
//!     cargo run -p longview-web --example answers -- MODEL DOCUMENT QUESTIONS
//!
//! and after these, if it is not to be the default, POLICY and any number of OPTION VALUE. DOCUMENT
//! is a text file, QUESTIONS has one in each line. Prints one JSON object a line.

#![expect(clippy::print_stdout, reason = "a face: it talks to a terminal")]

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use longview_cpu::{CpuBackend, CpuOptions};
use longview_engine::EngineOptions;
use longview_model::folder::ModelFolder;
use longview_reader::{Question, Reader};
use longview_scheduler::{HostStoreKind, PolicyOptions, Preset};
use pollster::block_on;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, document, questions, rest @ ..] = args.as_slice() else {
        bail!("usage: answers MODEL DOCUMENT QUESTIONS [POLICY [OPTION VALUE]..]");
    };
    let policy = policy(rest)?;
    let backend = Arc::new(CpuBackend::new(CpuOptions::default())?);
    // As in a browser: rows in buffers of a fixed size, filled through the cache.
    let options = EngineOptions {
        ctx_size: 4096,
        chunk_size: 256,
        simulate_device: true,
        overlap: false,
        host_store: HostStoreKind::Plain,
        ..EngineOptions::default()
    };
    let folder = ModelFolder::open(Path::new(model))?;
    let mut reader = block_on(Reader::load(backend, folder, options, &mut |_, _| {}))?;
    let text = std::fs::read_to_string(document).with_context(|| document.clone())?;
    let state = block_on(reader.read(&text, &policy, &mut |_| ControlFlow::Continue(())))?;
    println!("{}", serde_json::to_string(&state)?);
    for text in std::fs::read_to_string(questions).with_context(|| questions.clone())?.lines() {
        let question = Question {
            text: text.to_owned(),
            policy: policy.clone(),
            max_tokens: 48,
            temperature: 0.0,
            map: None,
        };
        let answer = block_on(reader.ask(&question, &mut |_| ControlFlow::Continue(())))?;
        println!("{}", serde_json::to_string(&answer)?);
    }
    Ok(())
}

fn policy(args: &[String]) -> Result<PolicyOptions> {
    let Some((preset, options)) = args.split_first() else {
        return Ok(PolicyOptions::new(Preset::DEFAULT));
    };
    let mut policy = PolicyOptions::new(preset.parse()?);
    for pair in options.chunks(2) {
        let [name, value] = pair else { bail!("option {} has no value", pair[0]) };
        policy.set(name, value)?;
    }
    Ok(policy)
}
