//! Instruction sets: which there are, which this machine has, and the doors into code compiled for
//! them.
//!
//! The choice is made once, when the backend starts. [`Tier`] can only be made for a set that the
//! processor has, so that everything behind [`Tier::run`] may rely on it.

use std::fmt;
use std::str::FromStr;

use crate::CpuError;
use crate::simd::Simd;
use crate::simd::portable::Portable;

/// A tier of kernels.
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
    /// Every tier, the slowest first.
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

    /// The fastest tier that this machine has.
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

/// An [`Isa`] that this machine was found to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tier(Isa);

/// Work that is written once for all tiers.
pub(crate) trait Kernel {
    /// What comes out.
    type Output;

    /// Does the work; must be `#[inline(always)]`, with everything hot that it calls.
    ///
    /// # Safety
    /// Called by [`Tier::run`] only, which guarantees the features of `S`.
    unsafe fn run<S: Simd>(self) -> Self::Output;
}

impl Tier {
    /// The forced tier, or the best.
    pub(crate) fn choose(forced: Option<Isa>) -> Result<Self, CpuError> {
        let isa = forced.unwrap_or_else(Isa::best);
        if isa.is_available() { Ok(Self(isa)) } else { Err(CpuError::MissingIsa { isa }) }
    }

    /// Which one it is.
    pub(crate) fn isa(self) -> Isa {
        self.0
    }

    /// Runs a kernel with this tier's instructions.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `Tier` of AVX-512 is only made by `choose`, after all these features were
            // detected.
            Isa::Avx512 => unsafe { run_avx512(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above, for AVX2, FMA and F16C.
            Isa::Avx2 => unsafe { run_avx2(kernel) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: NEON is part of the aarch64 baseline.
            Isa::Neon => unsafe { kernel.run::<crate::simd::neon::Neon>() },
            // SAFETY: the portable tier needs no feature; tiers of other targets are never made.
            _ => unsafe { kernel.run::<Portable>() },
        }
    }

    /// Columns of the register tile of matrix products.
    pub(crate) fn tile_cols(self) -> usize {
        self.run(TileShape).1
    }

    /// Rows of the register tile of matrix products.
    pub(crate) fn tile_rows(self) -> usize {
        self.run(TileShape).0
    }

    /// f32 elements of a vector.
    pub(crate) fn lanes(self) -> usize {
        self.run(TileShape).2
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: this function has the features of the tier.
    unsafe { kernel.run::<crate::simd::avx512::Avx512>() }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: this function has the features of the tier.
    unsafe { kernel.run::<crate::simd::avx2::Avx2>() }
}

struct TileShape;

impl Kernel for TileShape {
    type Output = (usize, usize, usize);

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> Self::Output {
        (S::MR, S::NR, S::LANES)
    }
}
