//! The command line of the bench of ops.

use anyhow::{Context, Error, Result, bail, ensure};
use longview_cpu::CpuOptions;
use longview_wgpu::WgpuOptions;

use crate::backends::KNOWN;

/// What can be asked for.
pub const USAGE: &str = "--device cpu|wgpu [--filter TEXT] [--quick] [--threads N] [--isa NAME] \
                         [--adapter NAME] [--tier NAME]";

/// A device and how to open it.
#[derive(Clone, Debug)]
pub enum Device {
    /// The CPU backend.
    Cpu(CpuOptions),
    /// The WGSL backend.
    Wgpu(WgpuOptions),
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
    /// Reads what follows the program's name. `--bench`, which cargo adds, says nothing.
    pub fn parse(args: impl IntoIterator<Item = String>) -> Result<Self> {
        let (mut device, mut filter, mut quick) = (None, String::new(), false);
        let (mut cpu, mut wgpu) = (CpuOptions::default(), WgpuOptions::default());
        let mut meant_for = None;
        let mut args = args.into_iter().filter(|arg| arg != "--bench");
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
                "--tier" => wgpu.tier = Some(value()?.parse().map_err(Error::msg)?),
                _ => bail!("unknown argument '{arg}'"),
            }
            match option {
                "--threads" | "--isa" => meant_for = Some((option.to_owned(), "cpu")),
                "--adapter" | "--tier" => meant_for = Some((option.to_owned(), "wgpu")),
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
            known if KNOWN.contains(&known) => bail!("{known} is not in this build"),
            unknown => bail!("unknown device '{unknown}': cpu or wgpu"),
        };
        Ok(Self { device, filter, quick })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Request> {
        Request::parse(line.split_whitespace().map(String::from))
    }

    #[test]
    fn devices_take_their_own_options() {
        let request = parse("--device cpu --threads 3 --filter=matvec --quick --bench").unwrap();
        assert!(matches!(request.device, Device::Cpu(CpuOptions { threads: 3, isa: None })));
        assert!(request.quick && request.filter == "matvec");
        let request = parse("--adapter llvmpipe --device=wgpu --tier core").unwrap();
        let Device::Wgpu(options) = request.device else { panic!("{request:?}") };
        assert_eq!(options.adapter.as_deref(), Some("llvmpipe"));
        assert_eq!(options.tier.map(|tier| tier.name()), Some("core"));
        assert!(!request.quick && request.filter.is_empty());
    }

    #[test]
    fn mistakes_are_named() {
        let message = |line| parse(line).unwrap_err().to_string();
        assert_eq!(message("--quick"), "--device is missing");
        assert_eq!(message("--device"), "--device needs a value");
        assert_eq!(message("--device gpu"), "unknown device 'gpu': cpu or wgpu");
        assert_eq!(message("--device cuda"), "cuda is not in this build");
        assert_eq!(message("--device wgpu --isa avx2"), "--isa is for cpu, not for wgpu");
        assert_eq!(message("--device cpu --tier core"), "--tier is for wgpu, not for cpu");
        assert_eq!(message("--device cpu matvec"), "unknown argument 'matvec'");
        assert!(message("--device wgpu --tier high").contains("unknown tier 'high'"));
    }
}
