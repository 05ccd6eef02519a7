//! `longview quantize`: the file answers as the folder does, and nothing is lost on the way.

use std::fs;
use std::path::Path;
#[cfg(unix)]
use std::time::{Duration, Instant};

#[cfg(unix)]
use crate::support::interrupt;
use crate::support::{Done, TempFolder, command, longview, needle, run};

fn quantize(model: &Path, target: &Path, words: &[&str]) -> Done {
    let mut command = command(["quantize", "-m"]);
    command.arg(model).arg("-o").arg(target).args(words);
    command.output().unwrap().into()
}

const TEXT: &str = "The pass key is 48213. Remember it. What is the pass key? The pass key is";

#[test]
fn a_file_answers_as_its_folder_quantised_at_load() {
    let folder = TempFolder::new();
    for ty in ["q8_0", "q4_k", "f16"] {
        let target = folder.file(&format!("needle-{ty}.gguf"));
        let done = quantize(&needle(), &target, &["--type", ty]);
        assert!(done.stderr.contains("qwen2, ") && done.stderr.contains("26 F32 tensors"));
        assert_eq!(done.ok(), format!("{}\n", target.display()));
        let words =
            ["--device", "cpu", "-c", "2048", "-n", "24", "--temp", "0", "--json", "-p", TEXT];
        let at_load = [&words[..], &["--quantize", ty]].concat();
        let of_folder = run(&needle(), if ty == "f16" { &words } else { &at_load }).ok();
        let ids = |json: String| {
            let json: serde_json::Value = serde_json::from_str(&json).unwrap();
            json["text"].as_str().unwrap().to_owned()
        };
        assert_eq!(ids(run(&target, &words).ok()), ids(of_folder), "{ty}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3, "no part is left");
}

#[test]
fn a_file_replaces_none_but_a_model_and_never_itself() {
    let folder = TempFolder::model();
    let notes = folder.write("notes.txt", "precious");
    quantize(&needle(), &notes, &["--force"]).fails_with(&[
        "notes.txt: is not a GGUF model, it seems to be a text",
        "nothing but a GGUF model is written over",
    ]);
    let config = folder.file("config.json");
    quantize(folder.path(), &config, &["--force"])
        .fails_with(&["config.json: is a file of the model, which is read"]);
    let target = folder.file("m.gguf");
    quantize(&needle(), &target, &["--type", "f16"]).ok();
    let before = fs::read(&target).unwrap();
    quantize(&needle(), &target, &[]).fails_with(&["is there already (a GGUF model)", "--force"]);
    quantize(&target, &target, &["--force"]).fails_with(&["m.gguf: is the model, which is read"]);
    assert_eq!(fs::read(&target).unwrap(), before);
    quantize(&needle(), &target, &["--force"]).ok();
    assert!(fs::read(&target).unwrap().len() < before.len());
    assert_eq!(fs::read(&notes).unwrap(), b"precious");
}

#[test]
fn models_that_have_no_such_file_leave_nothing() {
    let folder = TempFolder::new();
    let target = folder.file("m.gguf");
    let fixture =
        |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name);
    quantize(&fixture("glm-partial"), &target, &[])
        .fails_with(&["GlmForCausalLM has no GGUF form", "use the folder itself"]);
    quantize(&fixture("gemma3-old"), &target, &[]).fails_with(&["rows of 72 values"]);
    let damaged = TempFolder::model();
    damaged.edit("tokenizer.json", "\"individual_digits\": true", "\"individual_digits\": false");
    quantize(damaged.path(), &target, &[])
        .fails_with(&["tokenizer.json: its way to cut a text into words has no name"]);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    longview(["quantize", "-m", "x", "-o", "y", "--type", "q2_k"])
        .refuses_usage(&["unknown type 'q2_k'", "q4_k"]);
}

/// A folder of random weights that take some seconds.
#[cfg(unix)]
fn large() -> TempFolder {
    let folder = TempFolder::new();
    let (width, layers, mut header, mut at) = (2048, 4, Vec::new(), 0);
    let mut add = |name: String, shape: &[usize]| {
        let n = 2 * shape.iter().product::<usize>();
        header.push(format!(
            "\"{name}\":{{\"dtype\":\"BF16\",\"shape\":{shape:?},\"data_offsets\":[{at},{}]}}",
            at + n
        ));
        at += n;
    };
    add("model.embed_tokens.weight".to_owned(), &[64, width]);
    add("model.norm.weight".to_owned(), &[width]);
    for layer in 0..layers {
        let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
        for part in ["input_layernorm", "post_attention_layernorm"] {
            add(name(part), &[width]);
        }
        for part in ["q_proj", "k_proj", "v_proj", "o_proj"] {
            add(name(&format!("self_attn.{part}")), &[width, width]);
        }
        for part in ["gate_proj", "up_proj", "down_proj"] {
            add(name(&format!("mlp.{part}")), &[width, width]);
        }
    }
    let header = format!("{{{}}}", header.join(","));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.bytes());
    let first = file.len();
    // Small numbers of every mantissa.
    file.extend(
        (0..at / 2)
            .flat_map(|i| (0x3c00_u16 + (i as u16).wrapping_mul(40_503) % 512).to_le_bytes()),
    );
    assert_eq!(file.len(), first + at);
    folder.write("model.safetensors", file);
    let config = format!(
        "{{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":{width},\
         \"intermediate_size\":{width},\"num_hidden_layers\":{layers},\"num_attention_heads\":16,\
         \"vocab_size\":64,\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":true}}"
    );
    folder.write("config.json", config);
    folder
}

#[test]
#[cfg(unix)]
fn ctrl_c_ends_within_a_second_and_leaves_nothing() {
    let (model, folder) = (large(), TempFolder::new());
    let target = folder.file("m.gguf");
    let mut quantize = command(["quantize", "--type", "q4_k", "-m"]);
    let child = quantize.arg(model.path()).arg("-o").arg(&target).spawn().unwrap();
    let part = folder.file("m.gguf.part");
    let start = Instant::now();
    while part.metadata().map_or(0, |found| found.len()) < 1 << 20 {
        assert!(start.elapsed() < Duration::from_secs(60), "nothing is written");
        std::thread::sleep(Duration::from_millis(5));
    }
    interrupt(&child);
    let start = Instant::now();
    let done = Done::from(child.wait_with_output().unwrap());
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    assert_eq!(done.code, Some(130), "{}", done.stderr);
    assert!(done.stderr.contains("were written; nothing is left of them"), "{}", done.stderr);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}
