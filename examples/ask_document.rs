//! Prefills a text file once and asks it two questions.
//!
//!     cargo run --release --example ask_document -- MODEL_FOLDER TEXT_FILE QUESTION QUESTION
#![expect(clippy::print_stdout, reason = "an example talks to a terminal")]

use std::{ops::ControlFlow::Continue, sync::Arc};

use anyhow::{Context, Result, bail};
use longview_cpu::{CpuBackend, CpuOptions};
use longview_engine::{Engine, EngineOptions, GenerationParams};
use longview_model::{folder::ModelFolder, tokenizer::Specials};
use longview_scheduler::{PolicyOptions, Preset};
use pollster::block_on;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, file, questions @ ..] = args.as_slice() else {
        bail!("usage: ask_document MODEL_FOLDER TEXT_FILE QUESTION QUESTION");
    };
    let folder = ModelFolder::open(model.as_ref())?;
    let text = std::fs::read_to_string(file).with_context(|| file.clone())?;
    let document = folder.tokenizer()?.encode(&text, Specials::Add)?;
    let options = EngineOptions { ctx_size: document.len() + 512, ..EngineOptions::default() };
    let policy = PolicyOptions::new(Preset::DEFAULT);
    let backend = Arc::new(CpuBackend::new(CpuOptions::default())?);
    let mut engine = Engine::load(backend, folder, options, &policy)?;
    let mut session = engine.session(&policy)?;
    block_on(engine.prefill(&mut session, &document, &mut |_| Continue(())))?;
    for question in questions {
        let tokenizer = engine.tokenizer().context("no tokenizer")?;
        let ids = tokenizer.encode(question, Specials::AsWritten)?;
        // The question and its answer go through the policy: they see what is recalled.
        block_on(engine.feed(&mut session, &ids))?;
        let params = GenerationParams { max_tokens: Some(64), ..GenerationParams::default() };
        let answer = block_on(engine.generate(&mut session, &params, &mut |_| Continue(())))?;
        println!("{question}{}", answer.text);
        block_on(session.truncate(document.len()))?;
    }
    Ok(())
}
