//! What the matrices of a file are stored as.

use std::fmt;
use std::str::FromStr;

use longview_core::quant::QuantType;

use crate::gguf::GgmlType;
use crate::weights::{RowForm, block_type};

/// What the matrices of a file are stored as. Norms and biases are always F32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportType {
    /// Every matrix as f32.
    F32,
    /// Every matrix as f16.
    F16,
    /// Every matrix as bf16.
    Bf16,
    /// Blocks of this type, or of one near to it where a row is no whole blocks of it, and in
    /// embedding and output: as [`TensorSet::quantize`](crate::weights::TensorSet::quantize) does.
    Quantised(QuantType),
}

impl ExportType {
    /// The form of a matrix with rows of `n_cols`, if there is one; `is_end`: it is the embedding
    /// or the output.
    pub(super) fn form(self, is_end: bool, n_cols: usize) -> Option<RowForm> {
        match self {
            ExportType::F32 => Some(RowForm::F32),
            ExportType::F16 => Some(RowForm::F16),
            ExportType::Bf16 => Some(RowForm::Bf16),
            ExportType::Quantised(ty) => block_type(ty, is_end, n_cols).map(RowForm::Blocks),
        }
    }

    /// The number that llama.cpp gives to files of this type (`llama_ftype`). It is shown to
    /// people; types of 256 values are their S variants, as no layer has more bits than others.
    pub(super) fn file_type(self) -> u32 {
        match self {
            ExportType::F32 => 0,
            ExportType::F16 => 1,
            ExportType::Bf16 => 32,
            ExportType::Quantised(ty) => match ty {
                QuantType::Q4_0 => 2,
                QuantType::Q4_1 => 3,
                QuantType::Q8_0 => 7,
                QuantType::Q5_0 => 8,
                QuantType::Q5_1 => 9,
                QuantType::Q4K => 14,
                QuantType::Q5K => 16,
                QuantType::Q6K => 18,
                QuantType::Iq4Nl => 25,
                QuantType::Mxfp4 => 38,
            },
        }
    }
}

/// The type that files name for `form`.
pub(super) fn ggml_type(form: RowForm) -> GgmlType {
    let is_of = |ty: &GgmlType| match form {
        RowForm::F32 => *ty == GgmlType::F32,
        RowForm::F16 => *ty == GgmlType::F16,
        RowForm::Bf16 => *ty == GgmlType::Bf16,
        RowForm::Blocks(quant) => ty.quant_type() == Some(quant),
    };
    GgmlType::all().find(is_of).expect("every form is a type of GGUF")
}

impl fmt::Display for ExportType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExportType::F32 => f.write_str("f32"),
            ExportType::F16 => f.write_str("f16"),
            ExportType::Bf16 => f.write_str("bf16"),
            ExportType::Quantised(ty) => ty.fmt(f),
        }
    }
}

/// A name that is no type of a file.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown type '{0}': use f32, f16, bf16, {names}{mix}", names = names(), mix = mix(.0))]
pub struct ParseExportTypeError(String);

/// Words for names of llama.cpp's mixtures, such as `Q4_K_M`: files of one type for most tensors
/// and better ones for some.
fn mix(name: &str) -> String {
    let name = name.to_ascii_lowercase();
    let is_base = |ty: &QuantType| {
        let rest = name.strip_prefix(ty.name()).and_then(|rest| rest.strip_prefix('_'));
        matches!(rest, Some("s" | "m" | "l"))
    };
    let base = QuantType::ALL.into_iter().find(is_base).map(QuantType::name);
    let said = |base| format!("; it is a mix of llama.cpp's, whose main type is {base}");
    base.map_or_else(String::new, said)
}

fn names() -> String {
    QuantType::ALL.map(QuantType::name).join(", ")
}

impl FromStr for ExportType {
    type Err = ParseExportTypeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let plain = [ExportType::F32, ExportType::F16, ExportType::Bf16];
        let is_named = |ty: &ExportType| ty.to_string().eq_ignore_ascii_case(text);
        let quantised = || text.parse().ok().map(ExportType::Quantised);
        let found = plain.into_iter().find(is_named).or_else(quantised);
        found.ok_or_else(|| ParseExportTypeError(text.to_owned()))
    }
}
