//! Small GGUF files for tests, right or wrong in one place.

use half::f16;

use super::types::GgmlType;

/// A value with its type, as a file has both.
#[derive(Clone)]
pub(super) struct Stored(u32, Vec<u8>);

pub(super) fn u32(n: u32) -> Stored {
    Stored(4, n.to_le_bytes().to_vec())
}

pub(super) fn f32(x: f32) -> Stored {
    Stored(6, x.to_le_bytes().to_vec())
}

pub(super) fn truth(byte: u8) -> Stored {
    Stored(7, vec![byte])
}

pub(super) fn text(text: &str) -> Stored {
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text.as_bytes());
    Stored(8, bytes)
}

pub(super) fn raw(ty: u32, bytes: Vec<u8>) -> Stored {
    Stored(ty, bytes)
}

/// A list of `n` elements of type `ty`, whatever `elements` are.
pub(super) fn list(ty: u32, n: u64, elements: Vec<u8>) -> Stored {
    let mut bytes = ty.to_le_bytes().to_vec();
    bytes.extend(n.to_le_bytes());
    bytes.extend(elements);
    Stored(9, bytes)
}

pub(super) fn texts(all: &[&str]) -> Stored {
    list(8, all.len() as u64, all.iter().flat_map(|one| text(one).1).collect())
}

pub(super) fn i32s(all: &[i32]) -> Stored {
    list(5, all.len() as u64, all.iter().flat_map(|n| n.to_le_bytes()).collect())
}

pub(super) fn f32s(all: &[f32]) -> Stored {
    list(6, all.len() as u64, all.iter().flat_map(|x| x.to_le_bytes()).collect())
}

/// A tensor as its description has it.
#[derive(Clone)]
pub(super) struct Written {
    pub name: String,
    /// The length of a row first.
    pub sizes: Vec<u64>,
    pub ty: u32,
    /// In place of the next aligned place.
    pub offset: Option<u64>,
    pub data: Vec<u8>,
}

/// A file.
#[derive(Clone)]
pub(super) struct Writer {
    pub version: u32,
    pub keys: Vec<(String, Stored)>,
    pub tensors: Vec<Written>,
    pub alignment: u64,
    /// In place of what there is.
    pub n_keys: Option<u64>,
    pub n_tensors: Option<u64>,
}

impl Writer {
    pub(super) fn new() -> Self {
        Self {
            version: 3,
            keys: Vec::new(),
            tensors: Vec::new(),
            alignment: 32,
            n_keys: None,
            n_tensors: None,
        }
    }

    /// Adds a key, or gives it another value.
    pub(super) fn key(mut self, key: &str, value: Stored) -> Self {
        match self.keys.iter_mut().find(|(name, _)| name == key) {
            Some((_, old)) => *old = value,
            None => self.keys.push((key.to_owned(), value)),
        }
        self
    }

    pub(super) fn without(mut self, key: &str) -> Self {
        self.keys.retain(|(name, _)| name != key);
        self
    }

    /// Adds a tensor of `ty` whose bytes are a pattern that f16 holds in every format.
    pub(super) fn tensor(mut self, name: &str, ty: GgmlType, sizes: &[u64]) -> Self {
        let n: u64 = sizes.iter().product();
        let mut data = Vec::new();
        for block in 0..n / ty.block_len() as u64 {
            let start = data.len();
            data.extend((0..ty.block_bytes()).map(|i| (block as usize * 7 + i * 5) as u8));
            let one = f16::from_f32(0.01).to_le_bytes();
            let places: &[usize] = match ty {
                GgmlType::F32 => &[],
                GgmlType::Q6K => &[208],
                GgmlType::Q4_1 | GgmlType::Q5_1 | GgmlType::Q4K | GgmlType::Q5K => &[0, 2],
                _ => &[0],
            };
            for at in places {
                data[start + at..][..one.len()].copy_from_slice(&one);
            }
            match ty {
                GgmlType::F32 => data[start..].copy_from_slice(&(block as f32).to_le_bytes()),
                GgmlType::Mxfp4 => data[start] = 120,
                _ => {}
            }
        }
        let (name, sizes) = (name.to_owned(), sizes.to_vec());
        self.tensors.push(Written { name, sizes, ty: ty.id(), offset: None, data });
        self
    }

    /// The last tensor that was added.
    pub(super) fn last(&mut self) -> &mut Written {
        self.tensors.last_mut().expect("a tensor was added")
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.n_tensors.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.n_keys.unwrap_or(self.keys.len() as u64).to_le_bytes());
        for (key, Stored(ty, value)) in &self.keys {
            out.extend(text(key).1);
            out.extend(ty.to_le_bytes());
            out.extend(value);
        }
        let mut data = Vec::new();
        for tensor in &self.tensors {
            pad(&mut data, self.alignment);
            out.extend(text(&tensor.name).1);
            out.extend((tensor.sizes.len() as u32).to_le_bytes());
            out.extend(tensor.sizes.iter().flat_map(|n| n.to_le_bytes()));
            out.extend(tensor.ty.to_le_bytes());
            out.extend(tensor.offset.unwrap_or(data.len() as u64).to_le_bytes());
            data.extend(&tensor.data);
        }
        pad(&mut out, self.alignment);
        out.extend(data);
        out
    }
}

fn pad(bytes: &mut Vec<u8>, alignment: u64) {
    bytes.resize(bytes.len().next_multiple_of(alignment as usize), 0);
}

/// A llama of one layer, two heads of 16 and seven tokens.
pub(super) fn tiny() -> Writer {
    let ty = GgmlType::Q8_0;
    let model = Writer::new()
        .key("general.architecture", text("llama"))
        .key("llama.block_count", u32(1))
        .key("llama.context_length", u32(64))
        .key("llama.embedding_length", u32(32))
        .key("llama.feed_forward_length", u32(32))
        .key("llama.attention.head_count", u32(2))
        .key("llama.attention.head_count_kv", u32(1))
        .key("llama.attention.layer_norm_rms_epsilon", f32(1e-5))
        .key("tokenizer.ggml.model", text("gpt2"))
        .key("tokenizer.ggml.pre", text("gpt-2"))
        .key("tokenizer.ggml.tokens", texts(&["<|end|>", "a", "b", "ab", "Ġ", "Ġab", "c"]))
        .key("tokenizer.ggml.token_type", i32s(&[3, 1, 1, 1, 1, 1, 1]))
        .key("tokenizer.ggml.merges", texts(&["a b", "Ġ ab"]))
        .key("tokenizer.ggml.eos_token_id", u32(0))
        .key("tokenizer.chat_template", text("{{ messages[0].content }}"));
    model
        .tensor("token_embd.weight", ty, &[32, 7])
        .tensor("output_norm.weight", GgmlType::F32, &[32])
        .tensor("blk.0.attn_norm.weight", GgmlType::F32, &[32])
        .tensor("blk.0.attn_q.weight", GgmlType::Q4_1, &[32, 32])
        .tensor("blk.0.attn_k.weight", ty, &[32, 16])
        .tensor("blk.0.attn_v.weight", ty, &[32, 16])
        .tensor("blk.0.attn_output.weight", GgmlType::F16, &[32, 32])
        .tensor("blk.0.ffn_norm.weight", GgmlType::F32, &[32])
        .tensor("blk.0.ffn_gate.weight", GgmlType::Q5_0, &[32, 32])
        .tensor("blk.0.ffn_up.weight", ty, &[32, 32])
        .tensor("blk.0.ffn_down.weight", GgmlType::Bf16, &[32, 32])
}
