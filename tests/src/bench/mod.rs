//! One bench of ops for every backend, written against the contract alone.
//!
//! Each case is timed (`meter`) and compared with limits that were measured on the same device in
//! the same process (`limits`). Bytes count the large operands of an op once (a copy: read and
//! written); FLOP are those of the equation. After the ops the embedded model decodes, and what a
//! token asks of the device is counted (`tokens`). What the same bytes and FLOP imply on GPUs that
//! are not here is `bounds`; a token there, by its launches, is `token_model`; whole steps over
//! long contexts are `decode`; opening a document that was read before is `open`.

mod attention;
mod bounds;
mod cases;
mod cluster;
pub mod decode;
mod dense;
mod harness;
mod kv;
mod limits;
mod meter;
pub mod open;
pub mod random_model;
mod rates;
mod request;
mod select;
mod table;
pub mod token_model;
mod tokens;

pub use bounds::bounds;
pub use request::{Asked, Device, Request, USAGE};

use std::io::Write;
use std::sync::Arc;

use anyhow::Result;
use longview_cpu::CpuBackend;
use longview_cuda::CudaBackend;
use longview_ops::Backend;
use longview_wgpu::WgpuBackend;

use self::cases::cases;
use self::harness::Bench;
use self::rates::Limits;
use self::table::Table;

/// Does what a command line asks for: measures, or computes bounds.
///
/// # Errors
/// If the device cannot be opened, an op fails, or `out` takes nothing.
pub fn answer(asked: &Asked, out: &mut dyn Write) -> Result<()> {
    match asked {
        Asked::Measure(request) => run(request, out),
        Asked::Bounds(filter) => bounds(filter, out),
    }
}

/// Opens the device and measures; a line of the table as soon as it is known.
pub fn run(request: &Request, out: &mut dyn Write) -> Result<()> {
    match &request.device {
        Device::Cpu(options) => {
            let backend = Arc::new(CpuBackend::new(*options)?);
            let limits = Limits::of_cpu(&backend);
            measure(&backend, Some(limits), request, out)
        }
        Device::Wgpu(options) => {
            let backend = Arc::new(pollster::block_on(WgpuBackend::new(options))?);
            measure(&backend, None, request, out)
        }
        Device::Cuda(options) => {
            let backend = Arc::new(pollster::block_on(CudaBackend::new(options))?);
            measure(&backend, None, request, out)
        }
    }
}

/// All tables of one backend. Limits that its own crate cannot measure are measured by ops.
fn measure<B: Backend>(
    backend: &Arc<B>,
    limits: Option<Limits>,
    request: &Request,
    out: &mut dyn Write,
) -> Result<()> {
    let mut bench = Bench::new(&**backend, &request.filter, request.quick)?;
    writeln!(out, "{}", backend.capabilities().device)?;
    let limits = match limits {
        Some(limits) => limits,
        None => Limits::of_ops(&mut bench)?,
    };
    writeln!(out, "{}", limits.text)?;
    if request.quick {
        writeln!(out, "--quick: small operands, short samples; rates and shares mean little")?;
    }
    let mut table = Table { limits, out };
    table.add(&mut bench, &cases())?;
    tokens::table(&bench, backend, table.out)
}
