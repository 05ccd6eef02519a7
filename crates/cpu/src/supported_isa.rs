//! The doors into code that is compiled for one instruction set.
//!
//! The choice is made once, when the backend starts. [`SupportedIsa`] can only be made for a set
//! that the processor has, so that everything behind [`SupportedIsa::run`] may rely on it.

use crate::error::CpuError;
use crate::isa::Isa;
use crate::simd::Simd;
use crate::simd::bytes::ByteSimd;
use crate::simd::pairs::PairSimd;
use crate::simd::portable::Portable;

/// An instruction set that this machine was found to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SupportedIsa {
    isa: Isa,
    /// AVX-512 with dot products of bytes.
    vnni: bool,
    /// AVX-512 with dot products of bf16.
    bf16: bool,
}

/// Work that is written once for all instruction sets.
pub(crate) trait Kernel {
    /// What [`Kernel::run`] returns.
    type Output;

    /// Does the work; must be `#[inline(always)]`, with everything hot that it calls.
    ///
    /// # Safety
    /// Called by [`SupportedIsa::run`] only, which guarantees the features of `S`.
    unsafe fn run<S: Simd>(self) -> Self::Output;
}

/// As [`Kernel`], for products of quantised weights.
pub(crate) trait ByteKernel {
    /// What [`ByteKernel::run`] returns.
    type Output;

    /// As [`Kernel::run`].
    ///
    /// # Safety
    /// Called by [`SupportedIsa::run_bytes`] only, which guarantees the features of `S`.
    unsafe fn run<S: ByteSimd>(self) -> Self::Output;
}

/// As [`Kernel`], for products of bf16.
pub(crate) trait PairKernel {
    /// What [`PairKernel::run`] returns.
    type Output;

    /// As [`Kernel::run`].
    ///
    /// # Safety
    /// Called by [`SupportedIsa::run_pairs`] only, which guarantees the features of `S`.
    unsafe fn run<S: PairSimd>(self) -> Self::Output;
}

impl SupportedIsa {
    /// The forced one, or the best.
    pub(crate) fn choose(forced: Option<Isa>) -> Result<Self, CpuError> {
        let isa = forced.unwrap_or_else(Isa::best);
        if !isa.is_available() {
            return Err(CpuError::MissingIsa { isa });
        }
        let is_avx512 = isa == Isa::Avx512;
        Ok(Self { isa, vnni: is_avx512 && has_vnni(), bf16: is_avx512 && has_bf16() })
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
            Isa::Avx512 => unsafe { run_avx512(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above, for AVX2, FMA and F16C.
            Isa::Avx2 => unsafe { run_avx2(kernel) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: NEON is part of the aarch64 baseline.
            Isa::Neon => unsafe { kernel.run::<crate::simd::neon::Neon>() },
            // SAFETY: portable code needs no feature; sets of other targets are never made.
            _ => unsafe { kernel.run::<Portable>() },
        }
    }

    /// The same without dot products of bytes in one instruction.
    #[cfg(test)]
    pub(crate) fn without_vnni(self) -> Self {
        Self { vnni: false, ..self }
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
            // SAFETY: as in `run`; `vnni` is only true where it was detected.
            Isa::Avx512 if self.vnni => unsafe { run_bytes_avx512_vnni(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as in `run`.
            Isa::Avx512 => unsafe { run_bytes_avx512(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as in `run`.
            Isa::Avx2 => unsafe { run_bytes_avx2(kernel) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as in `run`.
            Isa::Neon => unsafe { kernel.run::<crate::simd::neon::Neon>() },
            // SAFETY: as in `run`.
            _ => unsafe { kernel.run::<Portable>() },
        }
    }

    /// Whether two products of bf16 are one instruction. Elsewhere f32 kernels are faster than what
    /// [`SupportedIsa::run_pairs`] runs.
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
            Isa::Avx512 if self.bf16 => unsafe { run_pairs_avx512(kernel) },
            // SAFETY: as in `run`.
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
    // SAFETY: this function has the features.
    unsafe { kernel.run::<crate::simd::avx512::Avx512<false>>() }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: this function has the features.
    unsafe { kernel.run::<crate::simd::avx2::Avx2>() }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn run_bytes_avx512_vnni<K: ByteKernel>(kernel: K) -> K::Output {
    // SAFETY: this function has the features.
    unsafe { kernel.run::<crate::simd::avx512::Avx512<true>>() }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn run_bytes_avx512<K: ByteKernel>(kernel: K) -> K::Output {
    // SAFETY: this function has the features.
    unsafe { kernel.run::<crate::simd::avx512::Avx512<false>>() }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn run_bytes_avx2<K: ByteKernel>(kernel: K) -> K::Output {
    // SAFETY: this function has the features.
    unsafe { kernel.run::<crate::simd::avx2::Avx2>() }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
fn run_pairs_avx512<K: PairKernel>(kernel: K) -> K::Output {
    // SAFETY: this function has the features.
    unsafe { kernel.run::<crate::simd::avx512::Avx512<false>>() }
}

#[cfg(target_arch = "x86_64")]
fn has_vnni() -> bool {
    is_x86_feature_detected!("avx512vnni")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_vnni() -> bool {
    false
}

#[cfg(target_arch = "x86_64")]
fn has_bf16() -> bool {
    is_x86_feature_detected!("avx512bf16")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_bf16() -> bool {
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
