//! What the keys and values of a session depend on: model, weights, tokenizer, positions.
//!
//! The same model has the same fingerprint on every machine and in a browser, so nothing that is
//! computed goes into it (the last bit of a power differs between libraries), only what files and
//! options say.

use longview_model::config::{ModelConfig, RopeConfig, RopeScaling};
use longview_model::tokenizer::Tokenizer;
use longview_model::weights::{TensorSet, WeightsError};
use longview_scheduler::{Fingerprint, FingerprintPart};
use serde_json::json;

/// The fingerprint of a model that is used for contexts of up to `context` tokens.
///
/// # Errors
/// If the weights cannot be read.
pub fn fingerprint(
    config: &ModelConfig,
    tensors: &TensorSet,
    tokenizer: Option<&Tokenizer>,
    context: usize,
) -> Result<Fingerprint, WeightsError> {
    let weights = tensors.digest(config)?;
    let size = tensors.weight_bytes(config);
    let mut rope = rope_text(&config.rope, context);
    if let Some(local) = &config.local {
        rope += &format!("; in windows {}", rope_text(&local.rope, context));
    }
    let text = config_text(config);
    Ok(Fingerprint {
        config: FingerprintPart { digest: digest(&text), about: about(config) },
        weights: FingerprintPart {
            about: format!("{size} bytes, {}", short(&weights)),
            digest: weights,
        },
        tokenizer: Some(match tokenizer {
            Some(tokenizer) => texts(tokenizer, tokenizer.digest()),
            None => FingerprintPart { digest: [0; 32], about: "none".into() },
        }),
        vocabulary: Some(match tokenizer {
            Some(tokenizer) => texts(tokenizer, tokenizer.vocabulary_digest()),
            None => FingerprintPart { digest: [0; 32], about: "none".into() },
        }),
        rope: FingerprintPart { digest: digest(&rope), about: rope },
    })
}

/// One digest of all that keys and values depend on: what libraries list sessions by. The
/// tokenizer's file is not part of it, its vocabulary is, as in session files.
pub fn fingerprint_digest(fingerprint: &Fingerprint) -> [u8; 32] {
    let Fingerprint { config, weights, tokenizer: _, vocabulary, rope } = fingerprint;
    let none = [0; 32];
    let vocabulary = vocabulary.as_ref().map_or(&none, |part| &part.digest);
    let mut hasher = blake3::Hasher::new();
    for part in [&config.digest, &weights.digest, vocabulary, &rope.digest] {
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}

fn texts(tokenizer: &Tokenizer, digest: [u8; 32]) -> FingerprintPart {
    let about = format!("{} tokens, {}", tokenizer.vocab_size(), short(&digest));
    FingerprintPart { digest, about }
}

fn digest(text: &str) -> [u8; 32] {
    *blake3::hash(text.as_bytes()).as_bytes()
}

/// The first digits of a digest.
fn short(digest: &[u8; 32]) -> String {
    digest[..6].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Everything of a config that decides what a token's keys and values are, but for positions, as
/// canonical JSON.
fn config_text(config: &ModelConfig) -> String {
    // No `..`: what a config gains has to be sorted in here.
    let ModelConfig {
        architecture,
        hidden_size,
        intermediate_size,
        n_layers,
        n_q_heads,
        n_kv_heads,
        head_dim,
        vocab_size,
        rms_norm_eps,
        rope: _,
        tie_word_embeddings,
        qkv_bias,
        o_bias,
        mlp_bias,
        qk_norm,
        max_position_embeddings: _,
        activation: _,
        embedding_scale,
        query_scalar,
        norm_plus_one: _,
        local,
        sliding_window: _,
        bos_token_id: _,
        eos_token_ids: _,
    } = config;
    let mut text = json!({
        "architecture": architecture.traits().class_name,
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "n_layers": n_layers,
        "n_q_heads": n_q_heads,
        "n_kv_heads": n_kv_heads,
        "head_dim": head_dim,
        "vocab_size": vocab_size,
        "rms_norm_eps": rms_norm_eps.to_string(),
        "tie_word_embeddings": tie_word_embeddings,
        "qkv_bias": qkv_bias,
        "o_bias": o_bias,
        "mlp_bias": mlp_bias,
        "qk_norm": qk_norm,
    });
    // What only some models have is named only there: the text of others is that of the releases
    // before.
    if *embedding_scale != 1.0 {
        text["embedding_scale"] = json!(embedding_scale.to_string());
    }
    if let Some(scalar) = query_scalar {
        text["query_scalar"] = json!(scalar.to_string());
    }
    if let Some(local) = local {
        text["window"] = json!(local.window);
        text["is_local"] = json!(local.is_local);
    }
    text.to_string()
}

/// The same for people.
fn about(config: &ModelConfig) -> String {
    format!(
        "{}, {} layers, width {}, {} query and {} KV heads of {}",
        config.architecture.traits().class_name,
        config.n_layers,
        config.hidden_size,
        config.n_q_heads,
        config.n_kv_heads,
        config.head_dim
    )
}

/// The position embedding as it is used for this context. Numbers have ten digits: some were
/// computed, and the last bit is not the same everywhere.
fn rope_text(rope: &RopeConfig, context: usize) -> String {
    let number = |x: f64| format!("{x:.9e}");
    let base = format!("theta {}, {} of a head", number(rope.theta), rope.rotary_dim);
    let scaling = match &rope.scaling {
        RopeScaling::Default => "no scaling".into(),
        RopeScaling::Linear { factor } => format!("linear {}", number(*factor)),
        // The base grows with the context, from the trained one on.
        RopeScaling::Dynamic { factor, original_max_positions } => {
            let planned = context.max(*original_max_positions);
            format!("dynamic {} from {original_max_positions}, for {planned}", number(*factor))
        }
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_positions,
        } => {
            let [factor, low, high] =
                [factor, low_freq_factor, high_freq_factor].map(|x| number(*x));
            format!("llama3 {factor}, {low} to {high}, from {original_max_positions}")
        }
        RopeScaling::Factors { factors } => {
            let all: Vec<String> = factors.iter().map(|x| number(*x)).collect();
            format!("factors {}", all.join(" "))
        }
        RopeScaling::Yarn {
            factor,
            attention_factor,
            beta_fast,
            beta_slow,
            truncate,
            original_max_positions,
        } => {
            let numbers = [factor, attention_factor, beta_fast, beta_slow].map(|x| number(*x));
            let rounded = if *truncate { "rounded" } else { "not rounded" };
            format!("yarn {}, {rounded}, from {original_max_positions}", numbers.join(", "))
        }
        RopeScaling::LongRope {
            short_factor,
            long_factor,
            attention_factor,
            original_max_positions,
        } => {
            let is_long = context > *original_max_positions;
            let (name, factors) =
                if is_long { ("long", long_factor) } else { ("short", short_factor) };
            let all: Vec<String> = factors.iter().map(|x| number(*x)).collect();
            let attention = number(*attention_factor);
            format!("longrope {name} {}, attention {attention}", all.join(" "))
        }
    };
    format!("{base}, {scaling}")
}
