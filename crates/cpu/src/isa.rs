//! Instruction sets: which there are, and which this machine has.

use std::fmt;
use std::str::FromStr;

/// An instruction set that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// No intrinsics: any target.
    Portable,
    /// 64-bit ARM.
    Neon,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
}

impl Isa {
    /// All of them, the slowest first.
    pub const ALL: &'static [Isa] = &[Isa::Portable, Isa::Neon, Isa::Avx2, Isa::Avx512];

    /// The name on command lines and in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Neon => "neon",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        }
    }

    /// Whether this machine can run it.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Portable => true,
            Isa::Neon => cfg!(target_arch = "aarch64"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Isa::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::Avx512 => false,
        }
    }

    /// The fastest that this machine has.
    pub fn best() -> Self {
        let available = Isa::ALL.iter().rev().copied().find(|isa| isa.is_available());
        available.unwrap_or(Isa::Portable)
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Isa {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Isa::ALL.iter().copied().find(|isa| isa.name() == text).ok_or_else(|| {
            let known: Vec<_> = Isa::ALL.iter().map(|isa| isa.name()).collect();
            format!("unknown instruction set '{text}': one of {}", known.join(", "))
        })
    }
}
