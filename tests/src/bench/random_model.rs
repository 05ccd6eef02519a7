//! Models of random weights in the shape of published ones: speed does not depend on the numbers.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use longview_core::{DType, SplitMix64};

/// A model's dimensions.
#[derive(Clone, Copy, Debug)]
pub struct Dims {
    /// What it is called.
    pub name: &'static str,
    /// Whether q, k and v have a bias, as Qwen2 has and Llama has not.
    pub has_bias: bool,
    /// Decoder layers.
    pub n_layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub n_q_heads: usize,
    /// KV heads.
    pub n_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Width between the layers of the MLP.
    pub ffn: usize,
    /// Tokens of the vocabulary.
    pub vocab: usize,
}

pub(super) const LLAMA_1B_4_LAYERS: Dims = Dims {
    name: "4 layers of Llama-3.2-1B",
    has_bias: true,
    n_layers: 4,
    hidden: 2048,
    n_q_heads: 32,
    n_kv_heads: 8,
    head_dim: 64,
    ffn: 8192,
    vocab: 1024,
};

pub(super) const QWEN_05B: Dims = Dims {
    name: "Qwen2.5-0.5B",
    has_bias: true,
    n_layers: 24,
    hidden: 896,
    n_q_heads: 14,
    n_kv_heads: 2,
    head_dim: 64,
    ffn: 4864,
    vocab: 151_936,
};

pub(super) const SMOLLM2_135M: Dims = Dims {
    name: "SmolLM2-135M",
    has_bias: false,
    n_layers: 30,
    hidden: 576,
    n_q_heads: 9,
    n_kv_heads: 3,
    head_dim: 64,
    ffn: 1536,
    vocab: 49_152,
};

/// 15 GB of weights on the disk and on the device.
pub const LLAMA_8B: Dims = Dims {
    name: "Llama-3.1-8B",
    has_bias: true,
    n_layers: 32,
    hidden: 4096,
    n_q_heads: 32,
    n_kv_heads: 8,
    head_dim: 128,
    ffn: 14_336,
    vocab: 128_256,
};

/// A model folder of random bf16 weights in the system's temporary directory, removed when dropped.
pub struct RandomFolder {
    /// Where it is.
    pub path: PathBuf,
}

/// What a folder's weights are.
#[derive(Clone, Copy, PartialEq)]
enum Weights {
    Random,
    /// A hole in the file: no disk is needed, and nothing is computed with them.
    Zeros,
}

impl RandomFolder {
    /// Writes the folder.
    pub fn new(dims: &Dims) -> io::Result<Self> {
        Self::of(dims, Weights::Random)
    }

    /// Writes a folder of zeros that takes no room on the disk: for devices that only count.
    pub fn zeros(dims: &Dims) -> io::Result<Self> {
        Self::of(dims, Weights::Zeros)
    }

    /// A folder without files.
    pub fn empty() -> io::Result<Self> {
        static N_MADE: AtomicU64 = AtomicU64::new(0);
        let (process, n) = (std::process::id(), N_MADE.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(format!("longview-bench-{process}-{n}"));
        std::fs::create_dir_all(&path)?;
        Ok(Self { path })
    }

    fn of(dims: &Dims, weights: Weights) -> io::Result<Self> {
        let folder = Self::empty()?;
        let (class, model_type) = if dims.has_bias {
            ("Qwen2ForCausalLM", "qwen2")
        } else {
            ("LlamaForCausalLM", "llama")
        };
        let config = format!(
            r#"{{"architectures":["{class}"],"model_type":"{model_type}","hidden_size":{},
            "intermediate_size":{},"num_hidden_layers":{},"num_attention_heads":{},
            "num_key_value_heads":{},"head_dim":{},"vocab_size":{},"rms_norm_eps":1e-6,
            "max_position_embeddings":131072,"rope_theta":1000000.0,
            "tie_word_embeddings":true,"hidden_act":"silu"}}"#,
            dims.hidden,
            dims.ffn,
            dims.n_layers,
            dims.n_q_heads,
            dims.n_kv_heads,
            dims.head_dim,
            dims.vocab
        );
        std::fs::write(folder.path.join("config.json"), config)?;
        folder.write_weights(dims, weights)?;
        Ok(folder)
    }

    fn write_weights(&self, dims: &Dims, weights: Weights) -> io::Result<()> {
        let tensors = tensor_shapes(dims);
        let (mut header, mut offset) = (String::from("{"), 0);
        for (i, (name, shape)) in tensors.iter().enumerate() {
            let bytes = shape.iter().product::<usize>() * 2;
            let comma = if i > 0 { "," } else { "" };
            let end = offset + bytes;
            header += &format!(
                r#"{comma}"{name}":{{"dtype":"BF16","shape":{shape:?},
                "data_offsets":[{offset},{end}]}}"#
            );
            offset = end;
        }
        header.push('}');
        while header.len() % 8 != 0 {
            header.push(' ');
        }
        let file = std::fs::File::create(self.path.join("model.safetensors"))?;
        let mut file = io::BufWriter::new(file);
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(header.as_bytes())?;
        if weights == Weights::Zeros {
            file.flush()?;
            return file.get_ref().set_len((8 + header.len() + offset) as u64);
        }
        let mut rng = SplitMix64::new(1);
        let block: Vec<f32> = (0..1 << 20).map(|_| 0.02 * rng.next_normal()).collect();
        let block = longview_core::encode_f32(DType::BF16, &block);
        let mut left = offset;
        while left > 0 {
            let n = left.min(block.len());
            file.write_all(&block[..n])?;
            left -= n;
        }
        file.flush()
    }
}

impl Drop for RandomFolder {
    fn drop(&mut self) {
        // A leftover in the temporary directory is not worth a panic.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

fn tensor_shapes(dims: &Dims) -> Vec<(String, Vec<usize>)> {
    let (d, f) = (dims.hidden, dims.ffn);
    let (q, kv) = (dims.n_q_heads * dims.head_dim, dims.n_kv_heads * dims.head_dim);
    let mut list = vec![
        ("model.embed_tokens.weight".to_owned(), vec![dims.vocab, d]),
        ("model.norm.weight".to_owned(), vec![d]),
    ];
    for i in 0..dims.n_layers {
        let parts: [(&str, Vec<usize>); 12] = [
            ("input_layernorm.weight", vec![d]),
            ("post_attention_layernorm.weight", vec![d]),
            ("self_attn.q_proj.weight", vec![q, d]),
            ("self_attn.q_proj.bias", vec![q]),
            ("self_attn.k_proj.weight", vec![kv, d]),
            ("self_attn.k_proj.bias", vec![kv]),
            ("self_attn.v_proj.weight", vec![kv, d]),
            ("self_attn.v_proj.bias", vec![kv]),
            ("self_attn.o_proj.weight", vec![d, q]),
            ("mlp.gate_proj.weight", vec![f, d]),
            ("mlp.up_proj.weight", vec![f, d]),
            ("mlp.down_proj.weight", vec![d, f]),
        ];
        let named =
            parts.into_iter().map(|(name, shape)| (format!("model.layers.{i}.{name}"), shape));
        list.extend(named.filter(|(name, _)| dims.has_bias || !name.ends_with("bias")));
    }
    list
}
