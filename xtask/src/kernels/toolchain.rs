//! The pinned compilers, fetched with pip into `target/cuda-tools` and checked by their hashes.

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::process::allow_to_run;
use crate::wheel::{Wheel, target_folder};

/// PTX of this one loads on every driver since CUDA 12.1.
const EARLY: Wheel = Wheel {
    package: "nvidia-cuda-nvrtc-cu12",
    version: "12.1.105",
    sha256: "339b385f50c309763ca65456ec75e17bbefcbbf2893f462cb8b90584cd27a1c2",
    file: "nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
};

/// Knows Blackwell.
const LATE: Wheel = Wheel {
    package: "nvidia-cuda-nvrtc-cu12",
    version: "12.9.86",
    sha256: "210cf05005a447e29214e9ce50851e83fc5f4358df8b453155d5e1918094dcb4",
    file: "nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
};

/// Assembles what both make, for all targets.
const PTXAS: Wheel = Wheel {
    package: "nvidia-cuda-nvcc-cu12",
    version: "12.9.86",
    sha256: "5d6a0d32fdc7ea39917c20065614ae93add6f577d840233237ff08e9a38f58f0",
    file: "nvidia/cuda_nvcc/bin/ptxas",
};

/// Where the compilers are.
pub(crate) struct Tools {
    pub(crate) early: PathBuf,
    pub(crate) late: PathBuf,
    pub(crate) ptxas: PathBuf,
}

/// The compilers; those that are not there yet are fetched.
pub(crate) fn fetch() -> Result<Tools> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        bail!("the pinned compilers of kernels are for x86-64 Linux: run this there");
    }
    let folder = target_folder()?.join("cuda-tools");
    let tools = Tools {
        early: EARLY.unpack(&folder)?,
        late: LATE.unpack(&folder)?,
        ptxas: PTXAS.unpack(&folder)?,
    };
    allow_to_run(&tools.ptxas)?;
    Ok(tools)
}

/// What names the compilers that make and assemble PTX of one of the two toolkits.
pub(super) fn versions(early: bool) -> [&'static str; 2] {
    [if early { EARLY.sha256 } else { LATE.sha256 }, PTXAS.sha256]
}
