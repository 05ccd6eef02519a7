//! The program: see the library.

use std::error::Error;
use std::sync::Arc;

use clap::Parser;
use longview_dynamo_worker::Args;

fn main() -> Result<(), Box<dyn Error>> {
    let (engine, config) = Args::parse().engine()?;
    Ok(dynamo_backend_common::run(Arc::new(engine), config)?)
}
