//! The doors into code that is compiled for one instruction set.
//!
//! The choice is made once, when the backend starts. [`SupportedIsa`] can only be made for a set
//! that the processor has, so that everything behind [`SupportedIsa::run`] may rely on it.

#[cfg(target_arch = "aarch64")]
use std::arch::is_aarch64_feature_detected;
use std::fmt;

use crate::error::CpuError;
use crate::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::simd::avx2::Avx2;
#[cfg(target_arch = "x86_64")]
use crate::simd::avx512::Avx512;
use crate::simd::bytes::{ByteKernel, ByteSimd};
#[cfg(target_arch = "aarch64")]
use crate::simd::neon::{DOTS, MATRICES, Neon, WIDENED};
use crate::simd::pairs::{PairKernel, PairSimd};
use crate::simd::portable::Portable;
use crate::simd::words::{WordKernel, WordSimd};
use crate::simd::{Kernel, Simd};

/// Rows from which on words pay, though codes must be widened for them: few where several
/// instructions multiply bytes, and many where one does.
const FEW_ROWS_OF_WORDS: usize = 8;
const MANY_ROWS_OF_WORDS: usize = 48;

/// An instruction set that this machine was found to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SupportedIsa {
    isa: Isa,
    bytes: ByteProducts,
    /// AVX-512 with dot products of bf16 that pay.
    bf16: bool,
    /// As of [`SupportedIsa::words_from`].
    words_from: Option<usize>,
    /// As of [`SupportedIsa::reads_ahead`].
    reads_ahead: bool,
}

/// How products of bytes are summed, the slowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(not(target_arch = "aarch64"), allow(dead_code, reason = "processors differ in them"))]
pub(crate) enum ByteProducts {
    /// By several instructions for four of them.
    Widened,
    /// By one for four: AVX-512's VNNI, `dotprod` of ARM.
    Dots,
    /// By one for two rows of eight with two others: `i8mm` of ARM.
    Matrices,
}

impl ByteProducts {
    /// The most that this machine has beside an instruction set.
    fn best(isa: Isa) -> Self {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 if is_x86_feature_detected!("avx512vnni") => Self::Dots,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon if is_aarch64_feature_detected!("dotprod") => {
                if is_aarch64_feature_detected!("i8mm") { Self::Matrices } else { Self::Dots }
            }
            _ => Self::Widened,
        }
    }
}

impl SupportedIsa {
    /// The forced one, or the best.
    pub(crate) fn choose(forced: Option<Isa>) -> Result<Self, CpuError> {
        let isa = forced.unwrap_or_else(Isa::best);
        if !isa.is_available() {
            return Err(CpuError::MissingIsa { isa });
        }
        let is_avx512 = isa == Isa::Avx512;
        // AMD's dot products of bf16 do twice the work of an FMA in its time. Intel's take four
        // times as long: in registers one core of a Sapphire Rapids does 89 GFLOP/s with them, and
        // 180 with FMAs.
        let bf16 = is_avx512 && has_bf16() && is_amd();
        let bytes = ByteProducts::best(isa);
        let words_from = match (isa, bytes) {
            (Isa::Avx512, ByteProducts::Widened) | (Isa::Avx2, _) => Some(FEW_ROWS_OF_WORDS),
            (Isa::Avx512, _) => Some(MANY_ROWS_OF_WORDS),
            _ => None,
        };
        Ok(Self { isa, bytes, bf16, words_from, reads_ahead: is_amd() })
    }

    /// Which one it is.
    pub(crate) fn isa(self) -> Isa {
        self.isa
    }

    /// Runs a kernel with these instructions.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a value of AVX-512 is only made by `choose`, after all these features were
            // detected.
            Isa::Avx512 => unsafe { Avx512::<false>::call(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above, for AVX2, FMA and F16C.
            Isa::Avx2 => unsafe { Avx2::call(kernel) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: NEON is part of the aarch64 baseline.
            Isa::Neon => unsafe { Neon::<WIDENED>::call(kernel) },
            // SAFETY: portable code needs no feature; sets of other targets are never made.
            _ => unsafe { Portable::call(kernel) },
        }
    }

    /// The same with each way to sum products of bytes that it has, the slowest first.
    #[cfg(test)]
    pub(crate) fn with_each_of_byte_products(self) -> Vec<Self> {
        let all = [ByteProducts::Widened, ByteProducts::Dots, ByteProducts::Matrices];
        let had = all.into_iter().filter(|bytes| *bytes <= self.bytes);
        had.map(|bytes| Self { bytes, ..self }).collect()
    }

    /// Whether products of bytes are summed in one instruction, without a sign on one side.
    pub(crate) fn is_biased(self) -> bool {
        self.run_bytes(IsBiased)
    }

    /// Runs a kernel with these instructions.
    #[inline]
    pub(crate) fn run_bytes<K: ByteKernel>(self, kernel: K) -> K::Output {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as in `run`; there are only more than `Widened` where they were detected.
            Isa::Avx512 if self.bytes > ByteProducts::Widened => unsafe {
                Avx512::<true>::call_bytes(kernel)
            },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as in `run`.
            Isa::Avx512 => unsafe { Avx512::<false>::call_bytes(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as in `run`.
            Isa::Avx2 => unsafe { Avx2::call_bytes(kernel) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as in `run`; there are only more than `Widened` where they were detected.
            Isa::Neon => unsafe {
                match self.bytes {
                    ByteProducts::Widened => Neon::<WIDENED>::call_bytes(kernel),
                    ByteProducts::Dots => Neon::<DOTS>::call_bytes(kernel),
                    ByteProducts::Matrices => Neon::<MATRICES>::call_bytes(kernel),
                }
            },
            // SAFETY: as in `run`.
            _ => unsafe { Portable::call_bytes(kernel) },
        }
    }

    /// Whether two products of bf16 are one instruction, and a fast one. Elsewhere f32 kernels are
    /// faster than what [`SupportedIsa::run_pairs`] runs.
    pub(crate) fn has_pairs(self) -> bool {
        self.bf16
    }

    /// The same without dot products of bf16 in one instruction.
    #[cfg(test)]
    pub(crate) fn without_pairs(self) -> Self {
        Self { bf16: false, ..self }
    }

    /// The same with them, if need be by code without intrinsics.
    #[cfg(test)]
    pub(crate) fn with_pairs(self) -> Self {
        Self { bf16: true, ..self }
    }

    /// Runs a kernel with these instructions, or with none where they do not multiply bf16.
    #[inline]
    pub(crate) fn run_pairs<K: PairKernel>(self, kernel: K) -> K::Output {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as in `run`; `bf16` is only true where it was detected.
            Isa::Avx512 if self.bf16 => unsafe { Avx512::<false>::call_pairs(kernel) },
            // SAFETY: as in `run`.
            _ => unsafe { Portable::call_pairs(kernel) },
        }
    }

    /// Whether the processor reads one stream of memory ahead better by itself than when it is
    /// asked to. (Measured with AVX-512.)
    pub(crate) fn reads_ahead(self) -> bool {
        self.reads_ahead
    }

    /// Rows from which on products of words of 16 bits are faster than those of bytes.
    pub(crate) fn words_from(self) -> Option<usize> {
        self.words_from
    }

    /// The same with words from so many rows on, if need be by code without intrinsics.
    #[cfg(test)]
    pub(crate) fn with_words_from(self, words_from: Option<usize>) -> Self {
        Self { words_from, ..self }
    }

    /// Runs a kernel with these instructions, or with none where they are never
    /// [faster](Self::words_from).
    #[inline]
    pub(crate) fn run_words<K: WordKernel>(self, kernel: K) -> K::Output {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as in `run`.
            Isa::Avx2 => unsafe { Avx2::call_words(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as in `run_bytes`.
            Isa::Avx512 if self.bytes > ByteProducts::Widened => unsafe {
                Avx512::<true>::call_words(kernel)
            },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as in `run`.
            Isa::Avx512 => unsafe { Avx512::<false>::call_words(kernel) },
            // SAFETY: as in `run`.
            _ => unsafe { Portable::call_words(kernel) },
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

impl fmt::Display for SupportedIsa {
    /// Its name, and what an ARM processor has beside NEON.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let more = match (self.isa, self.bytes) {
            (Isa::Neon, ByteProducts::Dots) => " with dotprod",
            (Isa::Neon, ByteProducts::Matrices) => " with i8mm",
            _ => "",
        };
        write!(f, "{}{more}", self.isa)
    }
}

/// Whether there are dot products of bf16 in one instruction.
#[cfg(target_arch = "x86_64")]
fn has_bf16() -> bool {
    is_x86_feature_detected!("avx512bf16")
}

/// Whether AMD made the processor.
#[cfg(target_arch = "x86_64")]
fn is_amd() -> bool {
    let maker = std::arch::x86_64::__cpuid(0);
    [maker.ebx, maker.edx, maker.ecx].map(u32::to_le_bytes).concat() == b"AuthenticAMD"
}

#[cfg(not(target_arch = "x86_64"))]
fn has_bf16() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn is_amd() -> bool {
    false
}

struct IsBiased;

impl ByteKernel for IsBiased {
    type Output = bool;

    #[inline(always)]
    unsafe fn run<S: ByteSimd>(self) -> bool {
        S::BIASED
    }
}

struct TileShape;

impl Kernel for TileShape {
    type Output = (usize, usize, usize);

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> Self::Output {
        (S::MR, S::NR, S::LANES)
    }
}
