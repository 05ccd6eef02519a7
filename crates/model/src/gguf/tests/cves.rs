//! Files as those that broke other readers. Each is small, and refused before anything is
//! allocated by its numbers.

use super::*;

/// 2^64 / 24, the size of a key-value there: the product was 16 bytes.
#[test]
fn cve_2024_23605_number_of_keys() {
    for n in [0x0AAA_AAAA_AAAA_AAAB, u64::MAX, 65_537] {
        let file = Writer { n_keys: Some(n), ..tiny() };
        let message = refusal(&file);
        assert!(message.contains("the number of keys at byte 16 has"), "{message}");
    }
    refusal(&Writer { n_keys: Some(65_536), ..tiny() });
}

#[test]
fn cve_2024_21836_number_of_tensors() {
    for n in [u64::MAX / 88 + 1, u64::MAX, 65_537] {
        let file = Writer { n_tensors: Some(n), ..tiny() };
        assert!(refusal(&file).contains("the number of tensors at byte 8 has"));
    }
}

/// The length of a text plus one was 0.
#[test]
fn cve_2024_23496_length_of_a_text() {
    for n in [u64::MAX, u64::MAX - 1, 1 << 24 | 1] {
        let file = tiny().key("general.name", raw(8, n.to_le_bytes().to_vec()));
        let message = refusal(&file);
        assert!(message.contains("the value of general.name at byte"), "{message}");
        assert!(message.contains("above the limit of 16777216"), "{message}");
    }
    let file = tiny().key("general.name", raw(8, (1_u64 << 24).to_le_bytes().to_vec()));
    assert!(refusal(&file).contains("truncated"));
}

#[test]
fn cve_2024_21825_length_of_a_list() {
    for ty in [4, 8, 12] {
        for n in [u64::MAX, u64::MAX / 8 + 1, 1 << 61, (16 << 20) + 1] {
            let file = tiny().key("general.x", list(ty, n, vec![0; 8]));
            assert!(refusal(&file).contains("above the limit of 16777216"), "{n}");
        }
        let file = tiny().key("general.x", list(ty, 16 << 20, vec![0; 8]));
        let message = refusal(&file);
        assert!(message.contains("truncated") || message.contains("above the limit"), "{message}");
    }
}

#[test]
fn cve_2024_21802_dimensions() {
    for sizes in [[1 << 32, 1 << 32], [u64::MAX, u64::MAX], [1 << 63, 2]] {
        let mut file = tiny();
        file.last().sizes = sizes.to_vec();
        let message = refusal(&file);
        assert!(message.contains("blk.0.ffn_down.weight has the impossible shape"), "{message}");
    }
}

/// Sums of sizes that came around to a small one: the second is the way around the first mend.
#[test]
fn cve_2025_53630_and_2026_27940_sum_of_sizes() {
    for n in [1 << 59, (1 << 60) - 32, (1 << 61) - 64] {
        let mut file = tiny();
        for tensor in &mut file.tensors[1..4] {
            tensor.sizes = vec![n];
            tensor.ty = 1;
        }
        let message = refusal(&file);
        let known = ["is where the one before", "truncated: tensor", "impossible shape"];
        assert!(known.iter().any(|part| message.contains(part)), "{message}");
    }
}

/// Exabytes by the shape, four megabytes by the product in 64 bits; with blocks, too.
#[test]
fn cve_2026_33298_bytes_of_a_tensor() {
    for (ty, sizes) in [
        (0, [1 << 62, 5, 1, 1]),
        (8, [1 << 63, 2, 1, 1]),
        (12, [1 << 60, 16, 1, 1]),
        (2, [32, 1 << 58, 2, 1]),
        (14, [256, 1 << 20, 1 << 20, 1 << 20]),
    ] {
        let mut file = tiny();
        (file.last().ty, file.last().sizes) = (ty, sizes.to_vec());
        let message = refusal(&file);
        let known = ["impossible shape", "truncated: tensor"];
        assert!(known.iter().any(|part| message.contains(part)), "{sizes:?}: {message}");
    }
}

/// A text longer than 2^31 tokens' room, and a piece longer than a 32-bit length.
#[test]
fn cve_2025_52566_and_49847_lengths_of_texts_and_pieces() {
    let model = open_bytes(tiny().bytes()).unwrap();
    let tokenizer = model.tokenizer.unwrap();
    let ids = tokenizer.encode(&"ab".repeat(500_000), Specials::Add).unwrap();
    assert_eq!(ids.len(), 500_000);
    let long = "x".repeat(10_001);
    let tokens = texts(&["<|end|>", "a", "b", "ab", "Ġ", "Ġab", &long]);
    let message = refusal(&tiny().key("tokenizer.ggml.tokens", tokens));
    assert!(message.contains("token 6 has 10001 bytes"), "{message}");
}

/// A list of one type that is read as one of another.
#[test]
fn poc_types_of_lists() {
    let file = tiny().key("tokenizer.ggml.token_type", list(1, 7, vec![3, 1, 1, 1, 1, 1, 1]));
    use_all(file.bytes()).expect("small numbers are numbers");
    let file = tiny().key("tokenizer.ggml.token_type", list(7, 7, vec![1; 7]));
    assert!(refusal(&file).contains("token_type is a list of 7 numbers; it must be a list of 7"));
    let file = tiny().key("tokenizer.ggml.token_type", i32s(&[1; 6]));
    assert!(refusal(&file).contains("token_type is a list of 6 numbers"));
    let file = tiny().key("tokenizer.ggml.merges", list(0, 2, vec![0; 2]));
    assert!(refusal(&file).contains("tokenizer.ggml.merges is a list of 2 numbers"));
}

#[test]
fn poc_alignment_of_two_gigabytes() {
    let file = tiny().key("general.alignment", u32(0x8000_0000));
    assert!(refusal(&file).contains("general.alignment is 2147483648"));
}

#[test]
fn poc_number_of_layers() {
    for n in [u32::MAX, 1025] {
        assert!(refusal(&tiny().key("llama.block_count", u32(n))).contains("from 1 to 1024"));
    }
    let message = refusal(&tiny().key("llama.block_count", u32(1024)));
    assert!(message.contains("9207 tensors do not fit its metadata"), "{message}");
    assert!(message.contains("blk.1.attn_norm.weight: missing"), "{message}");
}

/// 500 blocks within each other, and a macro that calls itself.
#[test]
fn poc_chat_templates() {
    let nested = format!("{}{}", "{% if 1 %}".repeat(5_500), "{% endif %}".repeat(5_500));
    for source in [&nested[..], "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"] {
        let file = tiny().key("tokenizer.chat_template", text(source));
        assert!(refusal(&file).contains("m.gguf: tokenizer.chat_template"));
    }
}

/// Files of a few bytes, read beyond their end.
#[test]
fn cve_2024_39720_and_12055_tiny_files() {
    for bytes in [&b"GGUF"[..], b"GGUF\x03\0\0\0", b"GGUF\x03\0\0\0\x01\0\0\0\0\0\0\0"] {
        assert!(use_all(bytes.to_vec()).unwrap_err().contains("truncated"));
    }
    let mut none = b"GGUF\x03\0\0\0".to_vec();
    none.extend([0; 16]);
    assert!(use_all(none).unwrap_err().contains("general.architecture is missing"));
}

/// Divisions by zero.
#[test]
fn go_2025_3559_and_3689_zeros() {
    for key in ["block_count", "embedding_length", "attention.head_count", "context_length"] {
        let message = refusal(&tiny().key(&format!("llama.{key}"), u32(0)));
        assert!(message.contains(&format!("llama.{key} is 0; it must be a whole number from 1")));
    }
    let message = refusal(&tiny().key("llama.attention.head_count_kv", u32(0)));
    assert!(message.contains("head_count_kv is 0"), "{message}");
    assert!(refusal(&tiny().key("llama.attention.key_length", u32(0))).contains("key_length is 0"));
    assert!(refusal(&tiny().key("general.alignment", u32(0))).contains("general.alignment is 0"));
    let message = refusal(&tiny().key("llama.rope.dimension_count", u32(0)));
    assert!(message.contains("rope.dimension_count is 0"), "{message}");
}

/// Things that are not there.
#[test]
fn go_2025_3582_missing_keys_and_tensors() {
    for key in [
        "general.architecture",
        "llama.block_count",
        "llama.attention.layer_norm_rms_epsilon",
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.merges",
    ] {
        let message = refusal(&tiny().without(key));
        assert!(message.contains(&format!("{key} is missing")), "{message}");
    }
    for i in 0..tiny().tensors.len() {
        let mut file = tiny();
        let name = file.tensors.remove(i).name;
        let message = refusal(&file);
        assert!(message.contains(&name), "{message}");
        assert!(message.contains("missing") || message.contains("holds no tensor"), "{message}");
    }
}

/// Memory without limit: the largest numbers that are allowed, in a file that does not have them.
#[test]
fn go_2025_3557_no_allocation_by_a_number() {
    let start = Instant::now();
    for ty in 0..13 {
        let file = tiny().key("general.x", list(ty, 16 << 20, Vec::new()));
        refusal(&file);
    }
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}

/// "Bleeding Llama": an extent beyond the file, read from the heap.
#[test]
fn cve_2026_7482_extent_beyond_the_file() {
    for rows in [33, 1 << 20, 1 << 40] {
        let mut file = tiny();
        file.last().sizes[1] = rows;
        let message = refusal(&file);
        assert!(message.contains("truncated: tensor blk.0.ffn_down.weight ends at"), "{message}");
    }
}

/// Numbers of values were cut to 32 bits before blocks were made into values.
#[test]
fn cve_2026_53923_values_beyond_32_bits() {
    for sizes in [[1 << 32 | 32, 32], [32, 1 << 32 | 32], [1 << 33, 1]] {
        let mut file = tiny();
        (file.last().ty, file.last().sizes) = (8, sizes.to_vec());
        assert!(refusal(&file).contains("truncated: tensor blk.0.ffn_down.weight ends at"));
    }
}
