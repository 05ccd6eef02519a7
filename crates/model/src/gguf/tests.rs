//! Whole files: right ones, and every way in which a stranger's may be wrong.

use std::path::Path;
use std::time::{Duration, Instant};

use longview_core::HostBytes;
use longview_ops::Activations;
use longview_ops::reference::ReferenceBackend;

use super::writer::{Writer, f32, f32s, i32s, list, raw, text, texts, tiny, truth, u32};
use super::*;
use crate::chat::{ChatMessage, RenderOptions};
use crate::folder::ModelFolder;
use crate::testing::TempFolder;
use crate::tokenizer::Specials;
use crate::transformer::{LoadOptions, Model};

mod cves;
mod keys;
mod models;
mod texts;

fn open_bytes(bytes: Vec<u8>) -> Result<GgufModel, GgufModelError> {
    let file = GgufFile::of_bytes(Path::new("m.gguf"), HostBytes::from_vec(bytes))?;
    of_file(&file)
}

/// A small model.
pub(crate) fn tiny_bytes() -> Vec<u8> {
    tiny().bytes()
}

/// Opens a file and reads all that it holds.
pub(crate) fn use_all(bytes: Vec<u8>) -> Result<(), String> {
    let model = open_bytes(bytes).map_err(|error| error.to_string())?;
    for tensor in crate::weights::expected_tensors(&model.config) {
        model.tensors.source(&tensor.name).map_err(|error| error.to_string())?;
    }
    model.tensors.digest(&model.config).map_err(|error| error.to_string())?;
    if let Some(tokenizer) = model.tokenizer {
        let ids = tokenizer.encode("abc ab<|end|>", Specials::Add).map_err(|e| e.to_string())?;
        tokenizer.decode(&ids, false).map_err(|error| error.to_string())?;
    }
    if let Some(chat) = model.chat {
        let messages = [ChatMessage::new("user", "hi")];
        chat.render(&messages, &RenderOptions::default()).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// What a file is refused with.
fn refusal(file: &Writer) -> String {
    let message = use_all(file.bytes()).unwrap_err();
    assert!(message.starts_with("m.gguf: ") && message.len() < 2_000, "{message}");
    message
}

#[test]
fn a_small_model_opens_in_both_versions() {
    for version in [2, 3] {
        let file = Writer { version, ..tiny() };
        use_all(file.bytes()).unwrap();
        let model = open_bytes(file.bytes()).unwrap();
        assert_eq!((model.config.head_dim, model.config.n_kv_heads), (16, 1));
        assert!(model.config.tie_word_embeddings);
        assert_eq!(model.generation.eos_token_ids, [0]);
        let text = model.tokenizer.unwrap().encode("ab abc<|end|>", Specials::Add).unwrap();
        assert_eq!(text, [3, 5, 6, 0]);
        // The blocks stay within reach, with their types.
        let file = GgufFile::of_bytes(Path::new("m"), HostBytes::from_vec(file.bytes())).unwrap();
        let q = file.tensors.iter().find(|t| t.info.name == "blk.0.attn_q.weight").unwrap();
        assert_eq!((q.info.ty, file.blocks(q).unwrap().len()), (GgmlType::Q4_1, 32 * 20));
    }
}

#[test]
fn a_header_is_the_same_read_in_runs() {
    let bytes = tiny().bytes();
    let whole = Header::parse(&bytes, bytes.len() as u64).unwrap();
    assert_eq!(Header::read(&bytes).unwrap(), whole);
    assert_eq!(whole.tensors.len(), 11);
    // A vocabulary beyond the first run.
    let long = "x".repeat(3 << 20);
    let file = tiny().key("general.description", text(&long)).bytes();
    assert_eq!(
        Header::read(&file).unwrap().metadata.text("general.description").unwrap(),
        Some(&*long)
    );
}

#[test]
fn every_truncation_is_refused() {
    let bytes = tiny().bytes();
    for n in 0..bytes.len() {
        let message = use_all(bytes[..n].to_vec()).unwrap_err();
        assert!(message.contains("truncated") || n < 4, "{n} bytes: {message}");
        assert!(Header::read(&bytes[..n].to_vec()).is_err(), "{n} bytes read in runs");
    }
}

/// Flips each of `bits` of `bytes`, one at a time; how many are refused.
fn flip(bytes: &[u8], bits: std::ops::Range<usize>) -> usize {
    let mut n_refused = 0;
    for bit in bits {
        let mut flipped = bytes.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let before = Instant::now();
        if let Err(message) = use_all(flipped) {
            n_refused += 1;
            let control = |letter: char| letter.is_control() && letter != '\n';
            assert!(message.len() < 2_000 && !message.contains(control), "bit {bit}: {message:?}");
        }
        assert!(before.elapsed() < Duration::from_secs(10), "bit {bit}: {:?}", before.elapsed());
    }
    n_refused
}

#[test]
fn every_flipped_bit_of_a_header_is_refused_or_harmless() {
    let bytes = tiny().bytes();
    let data = Header::parse(&bytes, bytes.len() as u64).unwrap().tensors[0].start as usize;
    let n_refused = flip(&bytes, 0..data * 8);
    assert!(n_refused > data * 4, "{n_refused} were refused");
}

#[test]
fn every_flipped_bit_of_the_data_is_refused_or_harmless() {
    let bytes = tiny().key("tokenizer.ggml.model", text("none")).bytes();
    let data = Header::parse(&bytes, bytes.len() as u64).unwrap().tensors[0].start as usize;
    let n_refused = flip(&bytes, data * 8..bytes.len() * 8);
    assert!(n_refused < bytes.len(), "{n_refused} were refused: nothing but scales can be wrong");
}

#[test]
fn names_are_there_once() {
    let mut file = tiny();
    file.keys.push(("llama.block_count".to_owned(), u32(2)));
    assert!(
        refusal(&file).contains("key llama.block_count is there twice, the second time at byte")
    );
    let file = tiny().tensor("output_norm.weight", GgmlType::F32, &[32]);
    assert!(refusal(&file).contains("tensor output_norm.weight is there twice"));
}

#[test]
fn tensors_lie_one_behind_the_other() {
    let at = |offset: u64| {
        let mut file = tiny();
        file.last().offset = Some(offset);
        refusal(&file)
    };
    assert!(at(32).contains("tensor blk.0.ffn_down.weight begins at byte 32 of the data, and 256"));
    assert!(at(0).contains("begins at byte 0 of the data, and 256") || at(0).contains("and 0"));
    assert!(at(33).contains("begins at byte 33 of the data, no multiple of the alignment 32"));
    assert!(at(1 << 20).contains("is where the one before it ends"));
    assert!(at(u64::MAX - 31).contains("is where the one before it ends"));
}

#[test]
fn alignments_are_powers_of_two_in_a_range() {
    for (alignment, fine) in [(8, true), (64, true), (4096, true), (4, false), (48, false)] {
        let key = u32(alignment);
        let file = Writer { alignment: u64::from(alignment), ..tiny() };
        let file = file.key("general.alignment", key);
        assert_eq!(use_all(file.bytes()).is_ok(), fine, "{alignment}");
    }
    let file = tiny().key("general.alignment", u32(8192));
    assert!(refusal(&file).contains("general.alignment is 8192; it must be a power of two from 8"));
}

#[test]
fn shapes_are_whole_blocks_and_can_be_counted() {
    let with = |sizes: &[u64], ty: u32| {
        let mut file = tiny();
        let last = file.last();
        (last.sizes, last.ty) = (sizes.to_vec(), ty);
        refusal(&file)
    };
    assert!(
        with(&[33, 32], 8).contains("rows of 33 values, no multiple of the 32 in a block of Q8_0")
    );
    assert!(with(&[32, 32], 12).contains("no multiple of the 256 in a block of Q4_K"));
    for sizes in [&[0, 32][..], &[32, 0], &[1 << 62, 4], &[1 << 63, 1], &[u64::MAX, 2]] {
        let message = with(sizes, 0);
        assert!(message.contains("impossible shape"), "{sizes:?}: {message}");
    }
    assert!(with(&[], 0).contains("has 0 dimensions; 1 to 4 are read"));
    assert!(with(&[2, 2, 2, 2, 2], 0).contains("has 5 dimensions"));
    assert!(with(&[32, 32], 10).contains("blk.0.ffn_down.weight has type Q2_K, which is not read"));
    assert!(with(&[32, 33], 1).contains("truncated: tensor blk.0.ffn_down.weight ends at byte"));
    assert!(with(&[32, 31], 1).contains("blk.0.ffn_down.weight: shape [31, 32], the config gives"));
}

#[test]
fn values_have_the_types_that_they_need() {
    let wrong = |key: &str, value| refusal(&tiny().key(key, value));
    let message = wrong("llama.block_count", text("one"));
    assert!(
        message.ends_with("llama.block_count is \"one\"; it must be a whole number from 1 to 1024")
    );
    assert!(wrong("llama.block_count", f32(1.0)).contains("llama.block_count is 1;"));
    assert!(wrong("llama.rope.freq_base", f32(f32::NAN)).contains("llama.rope.freq_base is NaN"));
    assert!(wrong("llama.feed_forward_length", i32s(&[32])).contains("is a list of 1 numbers"));
    assert!(wrong("tokenizer.ggml.tokens", i32s(&[1])).contains("it must be a list of texts"));
    assert!(wrong("general.x", raw(77, vec![])).contains("the value of general.x at byte"));
    assert!(wrong("general.x", raw(77, vec![])).contains("has type 77, which is none of GGUF's"));
    assert!(wrong("general.x", truth(2)).contains("holds 2 for true or false"));
    assert!(wrong("general.x", list(9, 0, vec![])).contains("is a list of lists"));
    assert!(wrong("general.x", raw(8, vec![1, 0, 0, 0, 0, 0, 0, 0, 0xff])).contains("not UTF-8"));
}

#[test]
fn other_files_are_named() {
    let message = |bytes: &[u8]| use_all(bytes.to_vec()).unwrap_err();
    assert!(message(b"PK\x03\x04 and so on").contains("it begins with \"PK"));
    assert!(message(b"").contains("is not a GGUF file: it begins with nothing, it is empty"));
    assert!(message(b"version https://git-lfs").contains("run `git lfs pull`"));
    let file = Writer { version: 1, ..tiny() };
    assert!(refusal(&file).contains("GGUF version 1 is not read; versions 2 and 3 are"));
    let file = Writer { version: 3 << 24, ..tiny() };
    assert!(refusal(&file).contains("big-endian"));
}

#[test]
fn files_elsewhere_are_the_same_model() {
    let bytes = tiny().bytes();
    let mut files = FolderFiles { name: "m".into(), ..FolderFiles::default() };
    assert!(ModelFolder::from_files(&files).is_err(), "no config.json and no GGUF file");
    files.weights.insert("x.gguf".to_owned(), Arc::new(bytes.clone()));
    let (twin, model) = (ModelFolder::from_files(&files).unwrap(), open_bytes(bytes).unwrap());
    assert_eq!(twin.path, Path::new("m/x.gguf"));
    assert_eq!(twin.config, model.config);
    assert_eq!(twin.eos_token_ids(), model.generation.eos_token_ids);
    for tensor in crate::weights::expected_tensors(&model.config) {
        let [one, other] = [&twin.tensors, &model.tensors].map(|t| t.source(&tensor.name).unwrap());
        assert_eq!(one.bytes.as_ref(), other.bytes.as_ref(), "{}", tensor.name);
    }
    let renamed = files.weights.remove("x.gguf").unwrap();
    files.weights.insert("X.GGUF".to_owned(), renamed);
    assert_eq!(ModelFolder::from_files(&files).unwrap().path, Path::new("m/X.GGUF"));
    files.weights.clear();
    files.weights.insert("x.gguf".to_owned(), Arc::new(tiny().bytes()[..2_000].to_vec()));
    let message = ModelFolder::from_files(&files).map(drop).unwrap_err().to_string();
    assert!(message.starts_with("m/x.gguf: truncated"), "{message}");
}

/// What loading a file onto a device says.
fn load(file: &Writer) -> Result<(), String> {
    let model = open_bytes(file.bytes()).map_err(|error| error.to_string())?;
    let options = LoadOptions { planned_context: 64, activations: Activations::default() };
    let device = ReferenceBackend::new();
    let loaded = Model::load(&device, &model.config, &model.tensors, options, &mut |_, _| ());
    loaded.map(drop).map_err(|error| error.to_string())
}

#[test]
fn weights_that_are_no_numbers_are_named() {
    load(&tiny()).unwrap();
    let with = |name: &str, at: usize, bytes: &[u8]| {
        let mut file = tiny();
        let tensor = file.tensors.iter_mut().find(|tensor| tensor.name == name).unwrap();
        tensor.data[at..at + bytes.len()].copy_from_slice(bytes);
        load(&file).unwrap_err()
    };
    let (nan, infinity) = (half::f16::NAN.to_le_bytes(), half::f16::INFINITY.to_le_bytes());
    // The minimum of a block, the scale of one, and a value of each plain kind.
    let message = with("blk.0.attn_q.weight", 5 * 20 + 2, &infinity);
    assert!(message.starts_with("m.gguf: tensor blk.0.attn_q.weight holds "), "{message}");
    assert!(message.contains("NaN or infinity as the scale of a block; the file is damaged"));
    let message = with("token_embd.weight", 34, &nan);
    assert!(message.contains("tensor token_embd.weight holds NaN"), "{message}");
    let message = with("blk.0.ffn_norm.weight", 4 * 7, &f32::NAN.to_le_bytes());
    assert!(message.contains("tensor blk.0.ffn_norm.weight holds NaN or infinity as value 7;"));
}

#[test]
fn parts_of_a_model_are_opened_together() {
    let folder = TempFolder::new();
    let whole = tiny();
    let part = |no: u32, keys: bool, tensors: std::ops::Range<usize>| {
        let mut file = Writer { tensors: whole.tensors[tensors].to_vec(), ..Writer::new() };
        if keys {
            file.keys.clone_from(&whole.keys);
        }
        file.key("split.no", u32(no)).key("split.count", u32(2)).bytes()
    };
    let path = |name: &str| folder.path().join(name);
    let write = |name: &str, bytes: &[u8]| std::fs::write(path(name), bytes).unwrap();
    let open = |name: &str| ModelFolder::open(&path(name)).map_err(|error| error.to_string());
    let first = "m-00001-of-00002.gguf";
    write(first, &part(0, true, 0..6));
    let message = open(first).map(drop).unwrap_err();
    assert!(message.ends_with("m-00002-of-00002.gguf is missing; download it"), "{message}");
    write("m-00002-of-00002.gguf", &part(1, false, 6..11));
    let (split, single) = (open(first).unwrap(), open_bytes(whole.bytes()).unwrap());
    assert_eq!(
        split.tensors.digest(&split.config).unwrap(),
        single.tensors.digest(&single.config).unwrap()
    );
    write("m-00002-of-00002.gguf", &part(1, false, 5..11));
    assert!(open(first).map(drop).unwrap_err().contains("attn_v.weight is in two of them"));
    write("m-00002-of-00002.gguf", &part(0, false, 6..11));
    assert!(open(first).map(drop).unwrap_err().contains("says that it is part 0 of 2, counted"));
    write("other.gguf", &part(0, true, 0..6));
    assert!(
        open("other.gguf").map(drop).unwrap_err().contains("does not end in -00001-of-00002.gguf")
    );
    write("last.gguf", &part(1, true, 6..11));
    assert!(open("last.gguf").map(drop).unwrap_err().contains("name the first part"));
}
