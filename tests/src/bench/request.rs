//! The command line of the bench of ops.

use anyhow::{Context, Error, Result, bail, ensure};
use longview_cpu::CpuOptions;
use longview_cuda::CudaOptions;
use longview_wgpu::WgpuOptions;

use crate::backends::KNOWN;

/// What can be asked for.
pub const USAGE: &str = "--device cpu|wgpu|cuda [--filter TEXT] [--quick] [--threads N] \
                         [--isa NAME] [--adapter NAME] [--shader-level NAME] [--cuda-device N] | \
                         --bounds [--filter TEXT]";

/// A device and how to open it.
#[derive(Clone, Debug)]
pub enum Device {
    /// The CPU backend.
    Cpu(CpuOptions),
    /// The WGSL backend.
    Wgpu(WgpuOptions),
    /// The CUDA backend.
    Cuda(CudaOptions),
}

/// What the bench is asked for.
#[derive(Clone, Debug)]
pub enum Asked {
    /// Times.
    Measure(Request),
    /// What bytes and FLOP imply on GPUs that are not here, of cases whose title contains this.
    Bounds(String),
}

impl Asked {
    /// Reads what follows the program's name. `--bench`, which cargo adds, says nothing.
    pub fn parse(args: impl IntoIterator<Item = String>) -> Result<Self> {
        let (bounds, args): (Vec<_>, Vec<_>) =
            args.into_iter().filter(|arg| arg != "--bench").partition(|arg| arg == "--bounds");
        if bounds.is_empty() {
            Request::parse(args).map(Asked::Measure)
        } else {
            filter_alone(args).map(Asked::Bounds)
        }
    }
}

/// The filter, where nothing else is given.
fn filter_alone(args: Vec<String>) -> Result<String> {
    let (mut filter, mut args) = (String::new(), args.into_iter());
    while let Some(arg) = args.next() {
        filter = match (arg.as_str(), arg.strip_prefix("--filter=")) {
            ("--filter", _) => args.next().context("--filter needs a value")?,
            (_, Some(text)) => text.to_owned(),
            _ => bail!("--bounds needs no device: it takes --filter alone, not '{arg}'"),
        };
    }
    Ok(filter)
}

/// What to measure, on which device.
#[derive(Clone, Debug)]
pub struct Request {
    /// Where.
    pub device: Device,
    /// Only cases whose title contains this.
    pub filter: String,
    /// Short samples of small operands: to see that everything runs, not how fast.
    pub quick: bool,
}

impl Request {
    /// Reads what is asked for; see [`Asked`].
    pub(super) fn parse(args: impl IntoIterator<Item = String>) -> Result<Self> {
        let (mut device, mut filter, mut quick) = (None, String::new(), false);
        let (mut cpu, mut wgpu) = (CpuOptions::default(), WgpuOptions::default());
        let mut cuda = CudaOptions::default();
        let mut meant_for = None;
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            if arg == "--quick" {
                quick = true;
                continue;
            }
            let (option, inline) = match arg.split_once('=') {
                Some((option, value)) => (option, Some(value.to_owned())),
                None => (arg.as_str(), None),
            };
            let mut value = || {
                let value = inline.clone().or_else(|| args.next());
                value.with_context(|| format!("{option} needs a value"))
            };
            match option {
                "--device" => device = Some(value()?),
                "--filter" => filter = value()?,
                "--threads" => cpu.threads = value()?.parse().context("--threads")?,
                "--isa" => cpu.isa = Some(value()?.parse().map_err(Error::msg)?),
                "--adapter" => wgpu.adapter = Some(value()?),
                "--shader-level" => wgpu.shader_level = Some(value()?.parse().map_err(Error::msg)?),
                "--cuda-device" => {
                    cuda.device = Some(value()?.parse().context("--cuda-device")?);
                }
                _ => bail!("unknown argument '{arg}'"),
            }
            match option {
                "--threads" | "--isa" => meant_for = Some((option.to_owned(), "cpu")),
                "--adapter" | "--shader-level" => meant_for = Some((option.to_owned(), "wgpu")),
                "--cuda-device" => meant_for = Some((option.to_owned(), "cuda")),
                _ => {}
            }
        }
        let name = device.context("--device is missing")?;
        if let Some((option, other)) = meant_for {
            ensure!(name == other, "{option} is for {other}, not for {name}");
        }
        let device = match name.as_str() {
            "cpu" => Device::Cpu(cpu),
            "wgpu" => Device::Wgpu(wgpu),
            "cuda" => Device::Cuda(cuda),
            known if KNOWN.contains(&known) => {
                bail!("{known} is for tests: its speed says nothing")
            }
            unknown => bail!("unknown device '{unknown}': cpu, wgpu or cuda"),
        };
        Ok(Self { device, filter, quick })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(line: &str) -> Result<Asked> {
        Asked::parse(line.split_whitespace().map(String::from))
    }

    fn parse(line: &str) -> Result<Request> {
        match ask(line)? {
            Asked::Measure(request) => Ok(request),
            Asked::Bounds(filter) => panic!("bounds of {filter}"),
        }
    }

    #[test]
    fn bounds_need_no_device() {
        let calls =
            [("--bounds", ""), ("--filter a --bounds --bench", "a"), ("--bounds --filter=b", "b")];
        for (line, wanted) in calls {
            let Asked::Bounds(filter) = ask(line).unwrap() else { panic!("{line} measures") };
            assert_eq!(filter, wanted);
        }
        let message = ask("--bounds --device cuda").unwrap_err().to_string();
        assert_eq!(message, "--bounds needs no device: it takes --filter alone, not '--device'");
    }

    #[test]
    fn devices_take_their_own_options() {
        let request = parse("--device cpu --threads 3 --filter=matvec --quick --bench").unwrap();
        assert!(matches!(request.device, Device::Cpu(CpuOptions { threads: 3, isa: None })));
        assert!(request.quick && request.filter == "matvec");
        let request = parse("--adapter llvmpipe --device=wgpu --shader-level core").unwrap();
        let Device::Wgpu(options) = request.device else { panic!("{request:?}") };
        assert_eq!(options.adapter.as_deref(), Some("llvmpipe"));
        assert_eq!(options.shader_level.map(|level| level.name()), Some("core"));
        assert!(!request.quick && request.filter.is_empty());
        let request = parse("--device cuda --cuda-device 1").unwrap();
        assert!(matches!(request.device, Device::Cuda(CudaOptions { device: Some(1), .. })));
    }

    #[test]
    fn mistakes_are_named() {
        let message = |line| parse(line).unwrap_err().to_string();
        assert_eq!(message("--quick"), "--device is missing");
        assert_eq!(message("--device"), "--device needs a value");
        assert_eq!(message("--device gpu"), "unknown device 'gpu': cpu, wgpu or cuda");
        let emulated = "cuda-emulated is for tests: its speed says nothing";
        assert_eq!(message("--device cuda-emulated"), emulated);
        assert_eq!(
            message("--device cpu --cuda-device 0"),
            "--cuda-device is for cuda, not for cpu"
        );
        assert_eq!(message("--device wgpu --isa avx2"), "--isa is for cpu, not for wgpu");
        assert_eq!(
            message("--device cpu --shader-level core"),
            "--shader-level is for wgpu, not for cpu"
        );
        assert_eq!(message("--device cpu matvec"), "unknown argument 'matvec'");
        assert!(
            message("--device wgpu --shader-level high").contains("unknown shader level 'high'")
        );
    }
}
