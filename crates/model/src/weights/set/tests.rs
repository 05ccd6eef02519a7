//! Safetensors folders, whole, sharded and damaged.

use std::fs;
use std::sync::Arc;

use longview_core::{LayerId, RangeSource};

use super::*;
use crate::testing::TempFolder;
use crate::weights::stored::Stored;
use crate::weights::{layer_tensors, weight_tensors};

/// A safetensors file by hand; `pad` moves the data off its alignment.
fn file(tensors: &[(&str, &str, &[usize], Vec<u8>)], pad: usize) -> Vec<u8> {
    let mut entries = serde_json::Map::new();
    let mut data = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        let start = data.len();
        data.extend_from_slice(bytes);
        entries.insert(
            (*name).to_owned(),
            serde_json::json!({
                "dtype": dtype, "shape": shape, "data_offsets": [start, data.len()]
            }),
        );
    }
    let mut header = serde_json::Value::Object(entries).to_string().into_bytes();
    while !(header.len() + 8).is_multiple_of(8) {
        header.push(b' ');
    }
    header.extend(std::iter::repeat_n(b' ', pad));
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header);
    out.extend(data);
    out
}

fn floats(n: usize) -> Vec<u8> {
    (0..n).flat_map(|i| (i as f32).to_le_bytes()).collect()
}

fn one(pad: usize) -> Vec<u8> {
    file(&[("a", "F32", &[2, 3], floats(6))], pad)
}

fn open_single(bytes: &[u8]) -> Result<TensorSet, WeightsError> {
    let folder = TempFolder::new();
    fs::write(folder.path().join(SINGLE), bytes).unwrap();
    TensorSet::open(folder.path())
}

/// The message after the file's path.
fn message(bytes: &[u8]) -> String {
    let text = open_single(bytes).unwrap_err().to_string();
    text.split_once("model.safetensors: ").expect("names the file").1.to_owned()
}

#[test]
fn a_tensor_is_found_with_its_bytes() {
    let set = open_single(&one(0)).unwrap();
    let source = set.source("a").unwrap();
    assert_eq!((source.dtype, source.n_rows, source.n_cols), (DType::F32, 2, 3));
    assert_eq!(source.bytes.as_ref(), floats(6));
    assert_eq!(set.len(), 1);
}

#[test]
fn unaligned_data_is_copied_and_aligned_data_is_not() {
    for pad in 0..8 {
        let set = open_single(&one(pad)).unwrap();
        let stored = set.get("a").unwrap().bytes().unwrap();
        let aligned = set.source("a").unwrap().bytes;
        assert_eq!(aligned.as_ref(), floats(6), "pad {pad}");
        assert!((aligned.as_ref().as_ptr() as usize).is_multiple_of(4), "pad {pad}");
        let in_place = aligned.as_ref().as_ptr() == stored.as_ref().as_ptr();
        assert_eq!(in_place, pad % 4 == 0, "pad {pad}");
    }
}

#[test]
fn damaged_files_say_what_is_wrong_and_what_to_do() {
    let whole = one(0);
    let n = whole.len();
    assert_eq!(message(&[]), "the file is empty; download it again");
    assert_eq!(message(&whole[..5]), "truncated, 5 bytes of 8; download it again");
    let header = n - 24;
    assert_eq!(
        message(&whole[..20]),
        format!("truncated, 20 bytes of {header}; download it again")
    );
    assert_eq!(
        message(&whole[..n - 1]),
        format!("truncated, {} bytes of {n}; download it again", n - 1)
    );
    let longer = [whole.clone(), vec![0; 3]].concat();
    assert_eq!(
        message(&longer),
        format!(
            "corrupt safetensors header ({} bytes, the header accounts for {n}); \
             download it again",
            n + 3
        )
    );
    let mut huge = whole.clone();
    huge[..8].copy_from_slice(&200_000_000u64.to_le_bytes());
    assert_eq!(
        message(&huge),
        "a header of 200000000 bytes is above the cap of 100000000; the file is corrupt or not \
         safetensors"
    );
    let mut garbage = whole.clone();
    garbage[8] = b'?';
    assert!(message(&garbage).starts_with("corrupt safetensors header (expected value at line 1"));
    let lfs = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n";
    assert_eq!(message(lfs), "is a Git LFS pointer, not the weights; run `git lfs pull`");
}

#[test]
fn names_in_a_corrupt_header_do_not_act_on_a_terminal() {
    let name = format!("\u{1b}[2J\u{7f}{}", "x".repeat(5_000));
    let entry = serde_json::json!({"dtype": "F32", "shape": [1], "data_offsets": [4, 8]});
    let header = serde_json::json!({ name.as_str(): entry }).to_string();
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 8]].concat();
    let text = message(&bytes);
    assert!(text.contains(r"\u{1b}[2J\u{7f}x") && text.len() < 400, "{text:?}");
    assert!(!text.contains(char::is_control), "{text:?}");
}

#[test]
fn plain_values_that_are_no_numbers_are_named() {
    let value = |i: usize| if i == 5 { f32::NEG_INFINITY } else { 1.0 };
    let bytes = |n: usize| (0..n).flat_map(|i| value(i).to_le_bytes()).collect::<Vec<u8>>();
    let whole = file(&[("m", "F32", &[2, 3], bytes(6)), ("v", "F32", &[6], bytes(6))], 0);
    let source: SharedSource = Arc::new(whole);
    let weights = [(SINGLE.to_owned(), source)].into();
    let files = FolderFiles { name: "f".into(), weights, ..FolderFiles::default() };
    let set = TensorSet::from_files(&files).unwrap();
    let device = longview_ops::reference::ReferenceBackend::new();
    let message = |name: &str| {
        let rows = set.whole_rows(name).unwrap();
        let loaded = set.hand_over(&device, rows, Activations::default());
        loaded.map(drop).unwrap_err().to_string()
    };
    // A matrix that is read while it is handed over, and a vector.
    assert!(message("m").contains("NaN or infinity as value 5"), "{}", message("m"));
    assert!(message("m").contains('m') && message("v").contains("tensor v holds NaN or infinity"));
    assert!(set.plus_one("v").unwrap_err().to_string().contains("as value 5"));
}

#[test]
fn headers_that_lie_are_corrupt() {
    let overlapping = String::from_utf8_lossy(&one(0)).replace("[0,24]", "[8,32]");
    assert!(message(overlapping.as_bytes()).starts_with("corrupt safetensors header"));
    let wrong_size = file(&[("a", "F32", &[2, 4], floats(6))], 0);
    assert!(message(&wrong_size).starts_with("corrupt safetensors header"));
    let overflow = file(&[("a", "F32", &[usize::MAX, usize::MAX], floats(6))], 0);
    assert!(message(&overflow).starts_with("corrupt safetensors header"));
}

/// A file of `size` bytes of which only the first are not zero.
struct Sparse {
    begin: Vec<u8>,
    size: u64,
}

impl RangeSource for Sparse {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, at: u64, out: &mut [u8]) -> std::io::Result<()> {
        out.fill(0);
        let begin = self.begin.get(at as usize..).unwrap_or_default();
        let n = begin.len().min(out.len());
        out[..n].copy_from_slice(&begin[..n]);
        Ok(())
    }
}

#[test]
fn files_beyond_four_gigabytes_are_read_in_place() {
    let large = [1 << 20, 1 << 11];
    let bytes = 1u64 << 32;
    let header = serde_json::json!({
        "large": {"dtype": "BF16", "shape": large, "data_offsets": [0, bytes]},
        "behind": {"dtype": "F32", "shape": [2], "data_offsets": [bytes, bytes + 8]},
    });
    let header = header.to_string();
    let mut begin = (header.len() as u64).to_le_bytes().to_vec();
    begin.extend(header.into_bytes());
    let size = begin.len() as u64 + bytes + 8;
    let source: SharedSource = Arc::new(Sparse { begin, size });
    let shard = Shard::of_source(Path::new("model.safetensors"), &source).unwrap();
    assert_eq!(shard.tensors["large"].shape, large);
    let Stored::InFile { start, len, .. } = &shard.tensors["behind"].stored_at else {
        panic!("a source is read in place");
    };
    assert_eq!((*start, *len), (size - 8, 8));
}

#[test]
fn too_many_tensors_are_counted_before_they_are_built() {
    let mut header = String::from("{");
    for i in 0..=MAX_TENSORS {
        header.push_str(&format!("\"{i}\":0,"));
    }
    header.pop();
    header.push('}');
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.into_bytes());
    assert_eq!(message(&bytes), "more than 65536 tensors; the file is corrupt");
}

#[test]
fn a_folder_without_weights_says_what_it_looked_for() {
    let folder = TempFolder::new();
    let text = TensorSet::open(folder.path()).unwrap_err().to_string();
    assert!(text.ends_with(
        ": no model.safetensors and no model.safetensors.index.json; a Hugging Face model folder \
         holds one of them"
    ));
    fs::write(folder.path().join("pytorch_model.bin"), b"x").unwrap();
    let text = TensorSet::open(folder.path()).unwrap_err().to_string();
    assert!(text.ends_with("can run code: save the model again as safetensors"), "{text}");
}

fn sharded(map: serde_json::Value) -> (TempFolder, Result<TensorSet, WeightsError>) {
    let folder = TempFolder::new();
    fs::write(folder.path().join("one.safetensors"), one(0)).unwrap();
    let index = serde_json::json!({"metadata": {}, "weight_map": map});
    fs::write(folder.path().join(INDEX), index.to_string()).unwrap();
    let set = TensorSet::open(folder.path());
    (folder, set)
}

#[test]
fn shards_are_followed_and_checked() {
    let (_folder, set) = sharded(serde_json::json!({"a": "one.safetensors"}));
    assert_eq!(set.unwrap().get("a").unwrap().shape(), [2, 3]);
    let missing = serde_json::json!({"a": "two.safetensors", "b": "three.safetensors"});
    let text = sharded(missing).1.unwrap_err().to_string();
    assert!(text.ends_with(
        "2 of the shards it names are missing: three.safetensors, two.safetensors; download them"
    ));
    let elsewhere = sharded(serde_json::json!({"b": "one.safetensors"})).1;
    let text = elsewhere.unwrap_err().to_string();
    assert!(text.ends_with("\n  b: not in one.safetensors, where the index puts it"), "{text}");
}

#[test]
fn shards_outside_the_folder_are_refused() {
    for name in ["../one.safetensors", "/etc/passwd", "a/b", "..", ".", "", "C:x", "a\\b"] {
        let text = sharded(serde_json::json!({"a": name})).1.unwrap_err().to_string();
        assert!(text.contains("is not a plain file name; shards must lie beside"), "{text}");
    }
}

#[test]
fn an_index_that_is_none_is_named() {
    let folder = TempFolder::new();
    fs::write(folder.path().join(INDEX), "{}").unwrap();
    let text = TensorSet::open(folder.path()).unwrap_err().to_string();
    assert!(text.contains("index.json: not a safetensors index (missing field `weight_map`"));
}

fn tiny_config(tied: bool) -> ModelConfig {
    tiny("Qwen2ForCausalLM", tied)
}

/// One layer with heads of 2, or of 8 where the architecture rotates a part of each.
fn tiny(class_name: &str, tied: bool) -> ModelConfig {
    let text = serde_json::json!({
        "architectures": [class_name], "hidden_size": 4, "intermediate_size": 6,
        "head_dim": if class_name.starts_with("Glm") { 8 } else { 2 },
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
        "vocab_size": 5, "tie_word_embeddings": tied
    });
    ModelConfig::from_json(&text.to_string()).unwrap()
}

fn tiny_tensors(config: &ModelConfig) -> Vec<(String, &'static str, Vec<usize>)> {
    expected_tensors(config).into_iter().map(|t| (t.name, "F32", t.shape)).collect()
}

fn tiny_set(tensors: &[(String, &'static str, Vec<usize>)]) -> TensorSet {
    let with_data: Vec<_> = tensors
        .iter()
        .map(|(name, dtype, shape)| {
            let elements = shape.iter().product::<usize>();
            let size = if *dtype == "I8" { 1 } else { 4 };
            (name.as_str(), *dtype, shape.as_slice(), vec![0u8; elements * size])
        })
        .collect();
    open_single(&file(&with_data, 0)).unwrap()
}

#[test]
fn tensors_that_fit_pass_and_tied_heads_are_ignored() {
    let config = tiny_config(true);
    let mut tensors = tiny_tensors(&config);
    tiny_set(&tensors).check(&config).unwrap();
    tensors.push(("lm_head.weight".into(), "F32", vec![5, 4]));
    tensors.push(("model.layers.0.self_attn.rotary_emb.inv_freq".into(), "F32", vec![1]));
    let set = tiny_set(&tensors);
    set.check(&config).unwrap();
    let used: usize = tiny_tensors(&config).iter().map(|t| t.2.iter().product::<usize>()).sum();
    assert_eq!(set.weight_bytes(&config), 4 * used as u64);
}

#[test]
fn all_mismatches_come_in_one_error() {
    let config = tiny_config(false);
    let mut tensors = tiny_tensors(&config);
    tensors.retain(|t| t.0 != "model.norm.weight" && t.0 != "lm_head.weight");
    for tensor in &mut tensors {
        match tensor.0.as_str() {
            "model.layers.0.self_attn.q_proj.weight" => tensor.2 = vec![4, 5],
            "model.layers.0.mlp.up_proj.weight" => tensor.1 = "I8",
            _ => {}
        }
    }
    tensors.push(("model.layers.0.self_attn.o_proj.bias".into(), "F32", vec![4]));
    let text = tiny_set(&tensors).check(&config).unwrap_err().to_string();
    let (head, lines) = text.split_once(":\n").unwrap();
    assert!(head.ends_with("model.safetensors: 5 tensors do not fit config.json"), "{head}");
    assert_eq!(
        lines,
        "  lm_head.weight: missing; if the output is the embedding, config.json must say \
         \"tie_word_embeddings\": true\n\
         \x20 model.layers.0.mlp.up_proj.weight: type I8, Longview reads F32, F16 and BF16\n\
         \x20 model.layers.0.self_attn.o_proj.bias: the config has no such tensor; ignoring it \
         would give wrong results\n\
         \x20 model.layers.0.self_attn.q_proj.weight: shape [4, 5], the config gives [4, 4]\n\
         \x20 model.norm.weight: missing"
    );
}

/// A file in which every element is the number of its row in its tensor.
fn numbered(config: &ModelConfig) -> TensorSet {
    let tensors = expected_tensors(config);
    let with_data: Vec<_> = tensors
        .iter()
        .map(|tensor| {
            let row = tensor.shape[1..].iter().product();
            let rows = (0..tensor.shape[0]).flat_map(|row_id| vec![row_id as f32; row]);
            let bytes = rows.flat_map(f32::to_le_bytes).collect();
            (tensor.name.as_str(), "F32", tensor.shape.as_slice(), bytes)
        })
        .collect();
    open_single(&file(&with_data, 0)).unwrap()
}

/// The rows of the stored tensor that `part` was made of.
fn rows_of(set: &TensorSet, part: &TensorPart) -> Vec<usize> {
    let source = set.part(part).unwrap();
    let elements = longview_core::decode_f32(DType::F32, source.bytes.as_ref());
    assert_eq!(elements.len(), source.n_rows * source.n_cols);
    let rows = part.n_rows();
    elements.chunks(elements.len() / rows).map(|row| row[0] as usize).collect()
}

fn lies_in_place(set: &TensorSet, part: &TensorPart) -> bool {
    let stored = set.get(&part.tensor.name).unwrap().bytes().unwrap();
    let stored = stored.as_ref().as_ptr_range();
    stored.contains(&set.part(part).unwrap().bytes.as_ref().as_ptr())
}

#[test]
fn fused_projections_are_split_where_they_lie() {
    let config = tiny("Phi3ForCausalLM", false);
    let set = numbered(&config);
    set.check(&config).unwrap();
    let t = layer_tensors(&config, LayerId(0));
    let expected = [(&t.q, 0..4), (&t.k, 4..6), (&t.v, 6..8), (&t.gate, 0..6), (&t.up, 6..12)];
    for (linear, rows) in expected {
        assert_eq!(rows_of(&set, &linear.weight), rows.collect::<Vec<_>>());
        assert!(lies_in_place(&set, &linear.weight));
    }
    let whole: usize =
        expected_tensors(&config).iter().map(|t| t.shape.iter().product::<usize>()).sum();
    assert_eq!(set.weight_bytes(&config), 4 * whole as u64, "no tensor counts twice");
    assert_eq!(weight_tensors(&config).len(), expected_tensors(&config).len() + 3);
}

#[test]
fn heads_that_are_stored_by_kv_head_are_collected() {
    let config = ModelConfig { n_q_heads: 4, n_kv_heads: 2, ..tiny("InternLM2ForCausalLM", false) };
    let set = numbered(&config);
    set.check(&config).unwrap();
    let t = layer_tensors(&config, LayerId(0));
    let expected = [
        (&t.q, vec![0, 1, 2, 3, 8, 9, 10, 11]),
        (&t.k, vec![4, 5, 12, 13]),
        (&t.v, vec![6, 7, 14, 15]),
    ];
    for (linear, rows) in expected {
        assert_eq!(rows_of(&set, &linear.weight), rows);
        assert_eq!(rows_of(&set, linear.bias.as_ref().unwrap()), rows);
        assert!(!lies_in_place(&set, &linear.weight));
    }
    assert_eq!(t.gate.weight.tensor.name, "model.layers.0.feed_forward.w1.weight");
    assert_eq!(t.up.weight.tensor.name, "model.layers.0.feed_forward.w3.weight");
}

#[test]
fn pairs_of_neighbours_become_halves_in_q_and_k_alone() {
    let config = tiny("GlmForCausalLM", false);
    let set = numbered(&config);
    let t = layer_tensors(&config, LayerId(0));
    let head = [0, 2, 1, 3, 4, 5, 6, 7];
    let two_heads = [head, head.map(|row| row + 8)].concat();
    for (linear, rows) in [(&t.q, two_heads), (&t.k, head.to_vec())] {
        assert_eq!(rows_of(&set, &linear.weight), rows);
        assert_eq!(rows_of(&set, linear.bias.as_ref().unwrap()), rows);
    }
    assert_eq!(rows_of(&set, &t.v.weight), (0..8).collect::<Vec<_>>());
    assert!(lies_in_place(&set, &t.v.weight));
}

#[test]
fn fused_tensors_of_another_shape_are_named_once() {
    let config = tiny("Phi3ForCausalLM", false);
    let mut tensors = tiny_tensors(&config);
    for tensor in &mut tensors {
        match tensor.0.as_str() {
            "model.layers.0.self_attn.qkv_proj.weight" => tensor.2 = vec![6, 4],
            "model.layers.0.mlp.gate_up_proj.weight" => tensor.2 = vec![6, 4],
            _ => {}
        }
    }
    tensors.push(("model.layers.0.self_attn.qkv_proj.bias".into(), "F32", vec![8]));
    let set = tiny_set(&tensors);
    let text = set.check(&config).unwrap_err().to_string();
    assert_eq!(
        text.split_once(":\n").unwrap().1,
        "  model.layers.0.mlp.gate_up_proj.weight: shape [6, 4], the config gives [12, 4]\n\
         \x20 model.layers.0.self_attn.qkv_proj.bias: the config has no such tensor; ignoring it \
         would give wrong results\n\
         \x20 model.layers.0.self_attn.qkv_proj.weight: shape [6, 4], the config gives [8, 4]"
    );
    let part = layer_tensors(&config, LayerId(0)).v.weight;
    let text = set.part(&part).map(drop).unwrap_err().to_string();
    assert!(text.ends_with("qkv_proj.weight: shape [6, 4], the config gives [8, 4]"), "{text}");
}

#[test]
fn norms_behind_attention_and_mlp_are_expected() {
    let config = tiny("Glm4ForCausalLM", false);
    let mut tensors = tiny_tensors(&config);
    tiny_set(&tensors).check(&config).unwrap();
    tensors.retain(|t| !t.0.contains("post_self_attn") && !t.0.contains("post_mlp"));
    let text = tiny_set(&tensors).check(&config).unwrap_err().to_string();
    assert_eq!(
        text.split_once(":\n").unwrap().1,
        "  model.layers.0.post_mlp_layernorm.weight: missing\n\
         \x20 model.layers.0.post_self_attn_layernorm.weight: missing"
    );
    // To the architecture without them they are unknown.
    let text = tiny_set(&tiny_tensors(&config)).check(&tiny("GlmForCausalLM", false)).unwrap_err();
    assert!(text.to_string().contains("post_mlp_layernorm.weight: the config has no such tensor"));
}

#[test]
fn the_output_projection_is_asked_for_by_its_own_name() {
    let config = tiny("InternLM2ForCausalLM", false);
    let mut tensors = tiny_tensors(&config);
    tensors.retain(|t| t.0 != "output.weight");
    let text = tiny_set(&tensors).check(&config).unwrap_err().to_string();
    assert!(text.contains("output.weight: missing; if the output is the embedding"), "{text}");
}

/// The files of a folder as a browser hands them over.
fn elsewhere(texts: &[(&str, &str)], weights: &[(&str, Vec<u8>)]) -> FolderFiles {
    let mut files = FolderFiles { name: "m".into(), ..FolderFiles::default() };
    let texts = texts.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
    files.texts.extend(texts);
    for (name, bytes) in weights {
        files.weights.insert((*name).to_owned(), Arc::new(bytes.clone()));
    }
    files
}

#[test]
fn files_elsewhere_are_followed_and_checked_as_in_a_folder() {
    let message = |files: &FolderFiles| TensorSet::from_files(files).unwrap_err().to_string();
    let single = TensorSet::from_files(&elsewhere(&[], &[(SINGLE, one(0))])).unwrap();
    assert_eq!((single.path(), single.len()), (Path::new("m/model.safetensors"), 1));
    assert!(!single.is_empty());
    assert!(message(&elsewhere(&[], &[])).starts_with("m: no model.safetensors and no model."));
    let index = |map: &str| format!("{{\"weight_map\": {map}}}");
    let text = index("{\"a\": \"one.safetensors\"}");
    let sharded = elsewhere(&[(INDEX, &text)], &[("one.safetensors", one(0))]);
    assert_eq!(TensorSet::from_files(&sharded).unwrap().get("a").unwrap().shape(), [2, 3]);
    let cut = elsewhere(&[(INDEX, &text)], &[("one.safetensors", one(0)[..40].to_vec())]);
    assert!(message(&cut).starts_with("m/one.safetensors: "), "{}", message(&cut));
    let none = elsewhere(&[(INDEX, "[]")], &[]);
    assert!(message(&none).starts_with("m/model.safetensors.index.json: not a safetensors index"));
    let empty = elsewhere(&[(INDEX, &index("{}"))], &[]);
    assert!(TensorSet::from_files(&empty).unwrap().is_empty());
    let names: Vec<String> = (0..=MAX_TENSORS).map(|i| format!("\"{i}\":\"x\"")).collect();
    let many = elsewhere(&[(INDEX, &index(&format!("{{{}}}", names.join(","))))], &[]);
    assert_eq!(
        message(&many),
        "m/model.safetensors.index.json: more than 65536 tensors; the file is corrupt"
    );
}

#[cfg(unix)]
#[test]
fn names_that_lead_nowhere_are_errors_and_not_absences() {
    let folder = TempFolder::new();
    let link =
        |name: &str| std::os::unix::fs::symlink("nowhere", folder.path().join(name)).unwrap();
    let message = || TensorSet::open(folder.path()).unwrap_err().to_string();
    link("one.safetensors");
    let index = serde_json::json!({"weight_map": {"a": "one.safetensors"}});
    fs::write(folder.path().join(INDEX), index.to_string()).unwrap();
    assert!(message().contains("one.safetensors: cannot be read ("), "{}", message());
    link(SINGLE);
    assert!(message().contains("model.safetensors: cannot be read ("), "{}", message());
}

#[test]
fn an_index_beyond_the_longest_header_is_not_read() {
    let folder = TempFolder::new();
    let file = fs::File::create(folder.path().join(INDEX)).unwrap();
    file.set_len(MAX_HEADER_BYTES + 1).unwrap();
    let text = TensorSet::open(folder.path()).unwrap_err().to_string();
    assert!(text.contains("index.json: a header of 100000001 bytes is above the cap of 100000000"));
}

/// A tied model with an output projection of its own, which `change` may make another one.
fn with_head(dtype: &'static str, change: impl FnOnce(&mut Vec<u8>)) -> Result<(), WeightsError> {
    let config = tiny_config(true);
    let mut tensors = tiny_tensors(&config);
    tensors.push(("lm_head.weight".into(), dtype, vec![5, 4]));
    let size = if dtype == "F16" { 2 } else { 4 };
    let mut head: Vec<u8> = vec![0; 5 * 4 * size];
    change(&mut head);
    let data = |(name, dtype, shape): &(String, &'static str, Vec<usize>)| {
        let is_head = name == "lm_head.weight";
        let bytes =
            if is_head { head.clone() } else { vec![0; shape.iter().product::<usize>() * 4] };
        (name.clone(), *dtype, shape.clone(), bytes)
    };
    let all: Vec<_> = tensors.iter().map(data).collect();
    let all: Vec<_> = all.iter().map(|(n, d, s, b)| (&**n, *d, &**s, b.clone())).collect();
    open_single(&file(&all, 0)).unwrap().check(&config)
}

#[test]
fn a_tied_output_projection_must_be_a_copy() {
    with_head("F32", |_| {}).unwrap();
    for refused in [with_head("F32", |head| head[79] = 1), with_head("F16", |_| {})] {
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("lm_head.weight differs from model.embed_tokens.weight"), "{text}");
        assert!(text.ends_with("to use lm_head.weight, or remove that tensor"), "{text}");
    }
}

#[test]
fn what_is_asked_of_a_set_is_there_in_the_shape_that_was_asked_for() {
    let set = open_single(&file(&[("b", "I8", &[2], vec![1, 2])], 0)).unwrap();
    let text = set.source("a").unwrap_err().to_string();
    assert!(text.ends_with("1 tensor does not fit config.json:\n  a: missing"), "{text}");
    let text = set.source("b").unwrap_err().to_string();
    assert!(text.ends_with("b: type I8, Longview reads F32, F16 and BF16"), "{text}");
    let set = open_single(&one(0)).unwrap();
    let tensor = ExpectedTensor { name: "a".to_owned(), shape: vec![3, 2] };
    let text = set.part(&TensorPart::whole(tensor)).unwrap_err().to_string();
    assert!(text.ends_with("a: shape [2, 3], the config gives [3, 2]"), "{text}");
    assert_eq!(set.main_type(&tiny_config(true)), "", "none of the model's tensors is there");
}
