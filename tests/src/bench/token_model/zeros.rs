//! A GGUF file of quantised zeros that takes no room on the disk: to quantise the weights of a
//! model takes minutes, and a device that only counts needs none of them.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use longview_core::quant::QuantType;

use crate::bench::random_model::Dims;

/// Numbers of types of tensors in the format.
const F32: u32 = 0;
const Q4_K: u32 = 12;
const Q6_K: u32 = 14;
/// Numbers of types of values.
const U32_VALUE: u32 = 4;
const F32_VALUE: u32 = 6;
const TEXT_VALUE: u32 = 8;
const ALIGNMENT: u64 = 32;

/// Writes a model of Q4_K, its embedding of Q6_K, as llama.cpp would.
pub(super) fn write(dims: &Dims, path: &Path) -> io::Result<()> {
    let tensors = tensors(dims);
    let numbers = [
        ("block_count", dims.n_layers),
        ("context_length", 131_072),
        ("embedding_length", dims.hidden),
        ("feed_forward_length", dims.ffn),
        ("attention.head_count", dims.n_q_heads),
        ("attention.head_count_kv", dims.n_kv_heads),
        ("attention.key_length", dims.head_dim),
        ("attention.value_length", dims.head_dim),
    ];
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((numbers.len() as u64 + 2).to_le_bytes());
    text(&mut out, "general.architecture");
    out.extend(TEXT_VALUE.to_le_bytes());
    text(&mut out, "llama");
    text(&mut out, "llama.attention.layer_norm_rms_epsilon");
    out.extend(F32_VALUE.to_le_bytes());
    out.extend(1e-5f32.to_le_bytes());
    for (name, number) in numbers {
        text(&mut out, &format!("llama.{name}"));
        out.extend(U32_VALUE.to_le_bytes());
        out.extend((number as u32).to_le_bytes());
    }
    let mut offset = 0u64;
    for (name, ty, sizes) in &tensors {
        text(&mut out, name);
        out.extend((sizes.len() as u32).to_le_bytes());
        out.extend(sizes.iter().flat_map(|n| (*n as u64).to_le_bytes()));
        out.extend(ty.to_le_bytes());
        out.extend(offset.to_le_bytes());
        offset = (offset + bytes(*ty, sizes)).next_multiple_of(ALIGNMENT);
    }
    let begin = (out.len() as u64).next_multiple_of(ALIGNMENT);
    let mut file = File::create(path)?;
    file.write_all(&out)?;
    file.set_len(begin + offset)
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn bytes(ty: u32, sizes: &[usize]) -> u64 {
    let n: usize = sizes.iter().product();
    let of_blocks = |ty: QuantType| n / ty.block_len() * ty.block_bytes();
    let bytes = match ty {
        Q4_K => of_blocks(QuantType::Q4K),
        Q6_K => of_blocks(QuantType::Q6K),
        _ => n * 4,
    };
    bytes as u64
}

/// Name, type and sizes, the width of a row first.
fn tensors(dims: &Dims) -> Vec<(String, u32, Vec<usize>)> {
    let (d, f) = (dims.hidden, dims.ffn);
    let (q, kv) = (dims.n_q_heads * dims.head_dim, dims.n_kv_heads * dims.head_dim);
    let mut list = vec![
        ("token_embd.weight".to_owned(), Q6_K, vec![d, dims.vocab]),
        ("output_norm.weight".to_owned(), F32, vec![d]),
    ];
    for i in 0..dims.n_layers {
        let parts = [
            ("attn_norm", F32, vec![d]),
            ("attn_q", Q4_K, vec![d, q]),
            ("attn_k", Q4_K, vec![d, kv]),
            ("attn_v", Q4_K, vec![d, kv]),
            ("attn_output", Q4_K, vec![q, d]),
            ("ffn_norm", F32, vec![d]),
            ("ffn_gate", Q4_K, vec![d, f]),
            ("ffn_up", Q4_K, vec![d, f]),
            ("ffn_down", Q4_K, vec![f, d]),
        ];
        let named = |(name, ty, sizes)| (format!("blk.{i}.{name}.weight"), ty, sizes);
        list.extend(parts.into_iter().map(named));
    }
    list
}
