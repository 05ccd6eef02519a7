//! Bad input: what `longview` says, and with which exit code.

use std::fs;

use crate::support::{TempFolder, longview, needle, run};

const WEIGHTS: &str = "model.safetensors";

/// Runs a prompt on a model that was damaged.
#[track_caller]
fn refuses(model: &TempFolder, parts: &[&str]) {
    run(model.path(), &["-p", "x", "-n", "1"]).fails_with(parts);
}

#[test]
fn a_folder_that_is_not_there() {
    let folder = TempFolder::new();
    run(&folder.file("nowhere"), &["-p", "x"]).fails_with(&["nowhere: is not a folder"]);
    refuses(&folder, &["config.json: cannot be read"]);
}

#[test]
fn missing_weights() {
    let model = TempFolder::model();
    fs::remove_file(model.file(WEIGHTS)).unwrap();
    refuses(&model, &["no model.safetensors", "a Hugging Face model folder holds one of them"]);
}

#[test]
fn empty_weights() {
    let model = TempFolder::model();
    model.write(WEIGHTS, "");
    refuses(&model, &["model.safetensors: the file is empty; download it again"]);
}

#[test]
fn truncated_weights() {
    let model = TempFolder::model();
    let bytes = fs::read(model.file(WEIGHTS)).unwrap();
    model.write(WEIGHTS, &bytes[..bytes.len() / 2]);
    let (found, needed) = ((bytes.len() / 2).to_string(), bytes.len().to_string());
    refuses(&model, &["truncated", &found, &needed, "download it again"]);
    model.write(WEIGHTS, &bytes[..5]);
    refuses(&model, &["truncated, 5 bytes of 8"]);
}

#[test]
fn corrupt_weights() {
    let model = TempFolder::model();
    let mut bytes = fs::read(model.file(WEIGHTS)).unwrap();
    bytes[8] = b'!';
    model.write(WEIGHTS, &bytes);
    refuses(&model, &["corrupt safetensors header", "download it again"]);
    bytes[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    model.write(WEIGHTS, &bytes);
    refuses(&model, &["corrupt or not safetensors"]);
}

#[test]
fn wrong_shapes() {
    let model = TempFolder::model();
    model.edit("config.json", "\"intermediate_size\": 512", "\"intermediate_size\": 500");
    let shapes = "gate_proj.weight: shape [512, 256], the config gives [500, 256]";
    refuses(&model, &["15 tensors do not fit config.json", shapes]);
}

#[test]
fn an_unknown_architecture() {
    let model = TempFolder::model();
    model.edit("config.json", "Qwen2ForCausalLM", "MambaForCausalLM");
    refuses(&model, &["architecture \"MambaForCausalLM\" is not supported", "LlamaForCausalLM"]);
}

#[test]
fn a_broken_config() {
    let model = TempFolder::model();
    model.write("config.json", "{\"hidden_size\": ");
    refuses(&model, &["config.json: is not a model config", "line 1"]);
}

#[test]
fn a_broken_tokenizer() {
    let model = TempFolder::model();
    model.write("tokenizer.json", "{\"version\": \"1.0\"}");
    refuses(&model, &["tokenizer.json: is not a tokenizer"]);
    fs::remove_file(model.file("tokenizer.json")).unwrap();
    refuses(&model, &["holds no tokenizer.json, so no text can be encoded"]);
}

#[test]
fn a_broken_template() {
    let model = TempFolder::model();
    model.write("chat_template.jinja", "line one\n{% for m in messages %}{{ m.content }}");
    refuses(&model, &["chat_template.jinja: the chat template is broken in line 2"]);
    model.write("chat_template.jinja", "{{ raise_exception('no users here') }}");
    refuses(&model, &["the model's chat template refuses this conversation: no users here"]);
}

#[test]
fn a_prompt_longer_than_the_context() {
    let prompt = "a ".repeat(300);
    let done = run(&needle(), &["-c", "64", "-p", &prompt]);
    done.fails_with(&["the prompt has", "the context holds 64", "--ctx-size"]);
    let count = |text: &str| text.split_whitespace().find_map(|word| word.parse::<usize>().ok());
    let done = run(&needle(), &["--device", "cpu", "-c", "64", "-p", &prompt]);
    assert!(count(&done.stderr).unwrap() > 300, "{}", done.stderr);
}

#[test]
fn a_budget_of_nothing() {
    for command in ["demo", "run", "plan"] {
        let model = needle();
        let model = model.to_str().unwrap();
        let mut words = vec![command, "--budget", "0"];
        match command {
            "run" => words.extend(["-m", model, "-p", "x"]),
            "plan" => words.extend(["-m", model]),
            _ => {}
        }
        longview(words).fails_with(&["--budget 0", "at least one token", "--budget auto"]);
    }
}

#[test]
fn a_budget_above_the_context_equals_full() {
    let text = |policy: &[&str]| {
        let fixed = ["-c", "600", "-n", "24", "--ignore-eos", "-p"];
        let prompt = "The wind rose over the hills. ".repeat(40);
        let words: Vec<&str> = fixed.iter().copied().chain([prompt.as_str()]).collect();
        run(&needle(), &[&words, policy].concat()).ok()
    };
    let full = text(&["--policy", "full"]);
    assert!(full.len() > 10, "{full:?}");
    assert_eq!(text(&["--policy", "clusterkv", "--budget", "100000"]), full);
    assert_eq!(text(&["--policy", "clusterkv", "--budget", "100000", "--simulate-device"]), full);
}

#[test]
fn options_that_cannot_work_together() {
    let words = ["--policy", "streaming-llm", "--cluster-tokens", "8", "-p", "x"];
    run(&needle(), &words).fails_with(&["--cluster-tokens has no meaning for --policy"]);
    let model = TempFolder::model();
    let plain = r#"{"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}"#;
    model.write("tokenizer_config.json", plain);
    let words = ["-p", "x", "--system", "y"];
    run(model.path(), &words).fails_with(&["has no chat template"]);
    run(model.path(), &[]).fails_with(&["without a chat template there is no chat", "-p or -f"]);
    longview(["demo", "--context", "300"]).fails_with(&["--context 300: too short", "24 facts"]);
}

#[test]
fn options_of_another_device_are_refused() {
    for (device, option, value, wanted) in [
        ("cpu", "--cuda-device", "0", "cuda"),
        ("wgpu", "--cuda-device", "0", "cuda"),
        ("auto", "--cuda-device", "1", "cuda"),
        ("cpu", "--adapter", "0", "wgpu"),
        ("cuda", "--adapter", "llvmpipe", "wgpu"),
        ("cuda", "--shader-level", "core", "wgpu"),
    ] {
        let done = run(&needle(), &["-p", "x", "--device", device, option, value]);
        let reason =
            format!("{option} has no meaning for --device {device}: use --device {wanted}");
        done.fails_with(&[&reason]);
    }
}

#[test]
fn a_gpu_that_is_named_and_absent_is_no_reason_for_another_device() {
    let done = run(&needle(), &["-p", "x", "--device", "auto", "--adapter", "no such GPU"]);
    done.fails_with(&["no such GPU"]);
}

#[cfg(not(feature = "evaluation"))]
#[test]
fn commands_that_are_not_built_are_listed_and_say_how_to_build_them() {
    let help = longview(["--help"]).ok();
    for command in ["eval", "probe", "speed", "report"] {
        assert!(help.contains(&format!("\n  {command} ")), "{command} is not in: {help}");
        let parts =
            [command, "not in this build", "cargo build --profile dist --features evaluation"];
        for words in [&[command][..], &[command, "--budgets", "256", "file"]] {
            let done = longview(words);
            assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
            done.fails_with(&parts);
        }
    }
}

#[test]
fn usage_is_exit_code_2() {
    for words in [
        &["run"][..],
        &["run", "-m", "x", "--policy", "quests"],
        &["run", "-m", "x", "--kv-type", "q4"],
        &["run", "-m", "x", "--rope-scaling", "yarn"],
        &["demo", "--questions", "97"],
        &["demo", "--budget", "many"],
        &["demo", "--device-memory", "much"],
        &["demo", "--device", "opencl"],
        &["demo", "--device", "cuda", "--cuda-device", "first"],
        &["fly"],
        &[],
    ] {
        let done = longview(words);
        assert_eq!(done.code, Some(2), "{words:?}: {}", done.stderr);
        assert_eq!(done.stdout, "");
    }
}

#[test]
fn not_enough_memory_is_said_before_loading() {
    let done = run(&needle(), &["-c", "1000000000", "-p", "x"]);
    done.fails_with(&[
        "not enough memory: ",
        "TiB are needed (8.3 MiB weights, 2.3 TiB keys and values",
        "are available",
        "--ctx-size",
    ]);
    let done = run(&needle(), &["--device", "cpu", "--device-memory", "1MB", "-p", "x"]);
    done.fails_with(&["not enough memory: ", "976.6 KiB are available"]);
}

#[test]
fn a_file_that_is_not_utf8() {
    let folder = TempFolder::new();
    let path = folder.write("latin1.txt", b"caf\xe9 au lait");
    let done = run(&needle(), &["-f", path.to_str().unwrap()]);
    done.fails_with(&["latin1.txt: not UTF-8: byte 0xe9 at offset 3"]);
    let missing = folder.file("missing.txt");
    let done = run(&needle(), &["-f", missing.to_str().unwrap()]);
    done.fails_with(&["missing.txt: cannot be read", "caused by: ", "(os error 2)"]);
}
