//! Options as users of llama.cpp type them, numbers out of range, and help in parts.

use crate::support::{Done, TempFolder, longview, needle, run};

/// `longview run` on the embedded model and the CPU.
fn ask(words: &[&str]) -> Done {
    let fixed = ["--device", "cpu", "-n", "4"];
    run(&needle(), &[&fixed, words].concat())
}

fn json(words: &[&str]) -> serde_json::Value {
    let words = [words, &["--json"]].concat();
    serde_json::from_str(&ask(&words).ok()).unwrap()
}

#[test]
fn options_of_llama_cpp_are_never_read_as_something_else() {
    for (words, parts) in [
        (&["-ngl", "99"][..], &["-ngl: not in longview: use --device"][..]),
        (&["--n-gpu-layers=99"], &["--n-gpu-layers: not in longview: use --device"]),
        (&["-fa"], &["-fa: not in longview: leave it out"]),
        (&["-fa", "on"], &["-fa: not in longview: leave it out"]),
        (&["-cnv"], &["-cnv: not in longview: use `longview run -m DIR` without -p"]),
        (&["-b", "64"], &["-b: not in longview: use --chunk-size"]),
        (&["-v"], &["-v: not in longview: use --stats"]),
        (&["--color"], &["--color: not in longview: leave it out"]),
        (&["-ctk", "q8_0"], &["-ctk: not in longview: use --kv-type"]),
        (&["-hft", "hf_x"], &["-hft: not in longview: use the variable HF_TOKEN"]),
        (&["-mg", "1"], &["-mg: not in longview: use --cuda-device"]),
        (&["--mirostat", "2"], &["--mirostat: not in longview: use --temp"]),
        (&["-tb", "4"], &["-tb: not in longview: use --threads"]),
        (&["--rope-freq-base", "1"], &["not in longview: use --rope-scaling"]),
        (&["-zap"], &["-zap: not in longview: options of several letters"]),
        (&["-nx"], &["-nx: not in longview: ", "`-n x`"]),
    ] {
        ask(&[&["-p", "x"], words].concat()).refuses_usage(parts);
        ask(&[words, &["-p", "x"]].concat()).refuses_usage(parts);
    }
    let model = needle();
    let plan = ["plan", "-m", model.to_str().unwrap(), "-ngl", "99"];
    longview(plan).refuses_usage(&["-ngl: not in longview"]);
    longview(["-m", "x", "-p", "y"]).refuses_usage(&["begin with one", "longview run -m DIR"]);
}

/// As other programs take models and prompts (`ollama run MODEL PROMPT`, `vllm serve MODEL`).
#[test]
fn a_word_without_an_option_is_refused_with_the_options_that_take_it() {
    let [model, prompt] = ["-m <MODEL> names the model", "-p <TEXT> gives the prompt"];
    let document = "-f <FILE> gives a document";
    longview(["run", "smollm2", "Hello there"]).refuses_usage(&["'smollm2'", model, prompt]);
    longview(["run", "-m", "x", "Hello there"]).refuses_usage(&["'Hello there'", prompt, document]);
    let serve = longview(["serve", "smollm2"]);
    assert!(!serve.stderr.contains(prompt), "no option of serve: {}", serve.stderr);
    serve.refuses_usage(&["'smollm2'", model]);
    longview(["run", "--promt", "x"]).refuses_usage(&["--promt", "similar"]);
}

#[test]
fn options_of_llama_cpp_that_exist_here_work_under_its_names() {
    let plain = json(&["-p", "The wind", "--temp", "0.7", "--chunk-size", "64"]);
    let theirs = ["-p", "The wind", "--temperature", "0.7", "-ub", "64", "--no-warmup", "--jinja"];
    assert_eq!(json(&theirs)["generated_ids"], plain["generated_ids"]);
    let model = TempFolder::model();
    let template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
    model.write("chat_template.jinja", template);
    let ids = |words: &[&str]| {
        let words = [words, &["-p", "Hi", "-n", "1", "--json", "--device", "cpu"]].concat();
        let json: serde_json::Value =
            serde_json::from_str(&run(model.path(), &words).ok()).unwrap();
        json["prompt_ids"].clone()
    };
    assert_eq!(ids(&["-sys", "Be brief."]), ids(&["--system", "Be brief."]));
    assert_ne!(ids(&["-sys", "Be brief."]), ids(&[]));
    assert_eq!(ids(&["-no-cnv"]), ids(&["--no-chat-template"]));
}

#[test]
fn values_may_begin_with_a_dash() {
    let spaced = json(&["-p", "-5 degrees"]);
    assert_eq!(spaced["prompt_ids"], json(&["--prompt=-5 degrees"])["prompt_ids"]);
    assert_eq!(spaced["prompt_ids"], json(&["-p", "-5 degrees", "-t2"])["prompt_ids"]);
    assert!(json(&["-p", "-ngl"])["prompt_ids"].as_array().unwrap().len() > 1);
}

#[test]
fn a_seed_of_minus_one_is_another_one_each_time_and_is_shown() {
    let words = ["-p", "The", "--temp", "1", "-s"];
    let with = |seed: &str| json(&[&words[..], &[seed]].concat());
    let (first, second) = (with("-1"), with("-1"));
    let seed = |json: &serde_json::Value| json["seed"].as_u64().unwrap().to_string();
    assert_ne!(seed(&first), seed(&second));
    assert_eq!(with(&seed(&first))["generated_ids"], first["generated_ids"]);
    let stats = ask(&["-p", "The", "--stats", "-s", "7"]);
    assert!(stats.stderr.contains("seed     7\n"), "{}", stats.stderr);
    assert_eq!(seed(&with("0")), "0");
}

#[test]
fn numbers_out_of_range_are_named_with_their_range() {
    for (line, range) in [
        ("--temp -1", "from 0 to 100"),
        ("--temp nan", "from 0 to 100"),
        ("--top-p 2", "above 0, at most 1"),
        ("--top-p 0", "above 0, at most 1"),
        ("--min-p 1.5", "from 0 to 1"),
        ("--top-k 99999999999999999", "from 0 to 1,073,741,824"),
        ("--repeat-penalty 0", "from 0.001 to 1000"),
        ("--repeat-last-n -2", "from -1 to 1,073,741,824"),
        ("--seed 18446744073709551616", "from 0 to 18446744073709551615, or -1"),
        ("--seed -2", "from 0 to 18446744073709551615, or -1"),
        ("--threads 99999999", "from 0 to 1,024"),
        ("--threads -2", "from 0 to 1,024"),
        ("--ctx-size -1", "from 0 to 1,073,741,824"),
        ("--chunk-size 0", "from 1 to 65,536"),
        ("--chunk-size 1000000000", "from 1 to 65,536"),
        ("--chunk-size 18446744073709551615", "from 1 to 65,536"),
        ("--ctx-size 2000000000", "from 0 to 1,073,741,824"),
        ("--predict 99999999999999999999", "from -1 to 1,073,741,824"),
        ("--predict -2", "from -1 to 1,073,741,824"),
        ("--device-memory 1", "from 1KiB to 1024TiB"),
        ("--device-memory 1e30GB", "from 1KiB to 1024TiB"),
        ("--recall-gate 7", "from -1"),
        ("--rope-scaling yarn --rope-scale 1e9", "from 1 to 1000"),
        ("--rope-scaling none --yarn-orig-ctx 0", "from 1 to 1,073,741,824"),
        ("--cuda-device 4000000000", "from 0 to 1,023"),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let (option, value) = (words[words.len() - 2], words[words.len() - 1]);
        let words = [&["run", "-m", "x", "-p", "y"], &words[..]].concat();
        longview(words).refuses_usage(&[option, value, range]);
    }
    let most = "from 1 to 1,073,741,824";
    longview(["demo", "-c", "99999999999"]).refuses_usage(&["--context", "99999999999", most]);
    let wrong = longview(["run", "-m", "x", "-p", "y", "--budget", "much"]);
    wrong.refuses_usage(&["--budget: 'much' is neither", "Usage: longview run [OPTIONS]"]);
    longview(["demo", "--questions", "0"]).refuses_usage(&["--questions", "from 1 to 96"]);
    longview(["run", "-m", "x", "-p", "y", "--stop", ""]).refuses_usage(&["--stop"]);
}

#[test]
fn a_demo_that_no_memory_holds_ends_before_it_writes_its_document() {
    let start = std::time::Instant::now();
    let done = longview(["demo", "--device", "cpu", "-c", "1073741824"]);
    done.fails_with(&["not enough memory: ", "available; use --ctx-size "]);
    assert!(start.elapsed() < std::time::Duration::from_secs(20), "{:?}", start.elapsed());
}

#[cfg(feature = "evaluation")]
#[test]
fn numbers_of_evaluations_have_ranges_and_folders_must_be_there() {
    let folder = TempFolder::new();
    let output = folder.file("results.jsonl");
    let output = output.to_str().unwrap();
    for (words, range) in [
        (&["eval", "--samples", "99999999999999999"][..], "from 1 to 100,000"),
        (&["eval", "--samples", "0"], "from 1 to 100,000"),
        (&["eval", "--lengths", "0"], "from 1 to"),
        (&["eval", "--budgets", "0"], "from 1 to"),
        (&["speed", "--contexts", "0"], "from 1 to"),
        (&["speed", "--steps", "99999999999"], "from 1 to 1,048,576"),
        (&["speed", "--prefilled", "0"], "from 1 to"),
        (&["probe", "--stride", "0", "-f", "x"], "from 1 to 1,048,576"),
        (&["probe", "--steps", "0", "-f", "x"], "from 1 to 1,048,576"),
    ] {
        let words = [words, &["-o", output]].concat();
        longview(&words).refuses_usage(&[words[1], words[2], range]);
    }
    for (option, problem) in [
        ("--longbench", "is not a folder; give the one of its .jsonl files"),
        ("--squad", "cannot be read"),
        ("--hotpotqa", "cannot be read"),
    ] {
        longview(["eval", option, "/nope", "-o", output])
            .fails_with(&[&format!("{option} /nope: {problem}")]);
    }
    let start = std::time::Instant::now();
    longview(["speed", "--contexts", "1000000000", "--device", "cpu", "-o", output])
        .fails_with(&["--contexts 1000000000", "not enough memory"]);
    assert!(start.elapsed() < std::time::Duration::from_secs(20), "{:?}", start.elapsed());
}

#[test]
fn models_that_are_no_folder_say_what_works() {
    let folder = TempFolder::new();
    let nowhere = folder.file("nowhere.gguf");
    run(&nowhere, &["-p", "x"]).fails_with(&["there is no such file", "`longview pull"]);
    run("some-org/some-model".as_ref(), &["-p", "x"])
        .fails_with(&["is neither a folder, nor a file", "`longview pull some-org/some-model`"]);
    let weights = needle().join("model.safetensors");
    run(&weights, &["-p", "x"]).fails_with(&["is a file; name the folder that it is in"]);
    let nowhere = folder.file("nowhere");
    run(&nowhere, &["-p", "x"]).fails_with(&["is not a folder; name the folder"]);
}

/// A GGUF file of nothing but the name of an architecture.
fn gguf_of(architecture: &str) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3_u32.to_le_bytes());
    bytes.extend([0_u64, 1].iter().flat_map(|n| n.to_le_bytes()));
    let text = |bytes: &mut Vec<u8>, text: &str| {
        bytes.extend((text.len() as u64).to_le_bytes());
        bytes.extend(text.as_bytes());
    };
    text(&mut bytes, "general.architecture");
    bytes.extend(8_u32.to_le_bytes());
    text(&mut bytes, architecture);
    bytes
}

#[test]
fn gguf_files_that_cannot_be_run_say_what_works() {
    let folder = TempFolder::new();
    let file = folder.write("model.gguf", b"GGUF");
    run(&file, &["-p", "x"]).fails_with(&["model.gguf: truncated: the version at byte 4"]);
    run(folder.path(), &["-p", "x"]).fails_with(&["name the file in it: -m", "model.gguf"]);
    for (architecture, parts) in [
        ("gemma2", ["architecture \"gemma2\" is not supported", "llama, internlm2, qwen2"]),
        ("clip", ["a projector for pictures (mmproj)", "the .gguf file of the language model"]),
        ("llama", ["holds no tensor", "token_embd.weight"]),
    ] {
        let file = folder.write("model.gguf", gguf_of(architecture));
        run(&file, &["-p", "x"]).fails_with(&parts);
    }
    // Whatever it is called.
    let file = folder.write("model.bin", gguf_of("clip"));
    run(&file, &["-p", "x"]).fails_with(&["a projector for pictures (mmproj)"]);
}

#[test]
fn commands_of_other_programs_say_what_works() {
    for (name, parts) in [
        ("ps", ["`longview ls` lists", "longview plan -m NAME"]),
        ("show", ["`longview ls` lists", "longview plan -m NAME"]),
        ("chat", ["without -p is a chat", "longview run -m DIR"]),
    ] {
        let done = longview([name, "-m", "x"]);
        assert!(!done.stderr.contains("speed"), "{}", done.stderr);
        done.refuses_usage(&parts);
    }
}

#[test]
fn help_comes_in_parts() {
    let short = longview(["run", "-h"]).ok();
    let is_option = |line: &&str| line.starts_with("  -") || line.starts_with("      --");
    let options = short.lines().filter(is_option).count();
    assert!((15..=26).contains(&options), "{short}");
    assert!(short.lines().count() < 90, "{} lines", short.lines().count());
    assert!(short.contains("longview run --help policies | sampling | engine | all"), "{short}");
    for (topic, part) in [
        ("policies", "--cluster-tokens"),
        ("sampling", "--repeat-last-n"),
        ("engine", "--isa"),
        ("all", "--rope-scale"),
    ] {
        assert!(!short.contains(part), "{part} is for --help {topic}");
        let long = longview(["run", "--help", topic]).ok();
        assert!(long.contains(part), "{part} is not in: {long}");
        assert_eq!(longview(["help", "run", topic]).ok(), long);
    }
    for words in [["run", "--help", "polices"], ["help", "run", "polices"]] {
        let topics = "policies | sampling | engine | all";
        longview(words).refuses_usage(&["polices: there is no such topic", topics]);
    }
    assert!(longview(["run", "--help"]).ok().contains("--prompt"));
    assert!(short.contains("generation_config.json"), "{short}");
}

#[test]
fn stats_say_what_is_true_in_place() {
    let prompt = "The wind rose over the hills. ".repeat(20);
    let stats = ask(&["-p", &prompt, "--stats", "--budget", "64", "--dense-layers", "1"]).stderr;
    let line = stats.lines().find(|line| line.starts_with("policy ")).unwrap();
    assert!(line.ends_with("on average: the first layer of 5 attends all, the others up to 64"));
    for absent in ["hits", "fetch", "on the device"] {
        assert!(!stats.contains(absent), "{absent} in: {stats}");
    }
    let words = ["-p", &prompt, "--stats", "--budget", "64", "--simulate-device"];
    let device = ask(&words).stderr;
    for part in ["of the recalled rows were on the device", "fetch ", "on the device, "] {
        assert!(device.contains(part), "{part} is not in: {device}");
    }
}

#[test]
fn weights_are_quantised_at_load_or_the_type_is_refused() {
    let ids = |words: &[&str]| json(&[&["-p", "The wind", "--temp", "0"], words].concat());
    let plain = ids(&[])["generated_ids"].clone();
    assert_eq!(ids(&["--quantize", "q8_0"])["generated_ids"], plain);
    let model = needle();
    let bytes = |words: &[&str]| {
        let plan = ["plan", "-m", model.to_str().unwrap(), "-c", "1024", "--device", "cpu"];
        let text = longview([&plan, words, &["--json"]].concat()).ok();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        json["plans"][0]["weight_bytes"].as_u64().unwrap()
    };
    let shares = ["q8_0", "Q4_K"].map(|ty| bytes(&["--quantize", ty]) * 100 / bytes(&[]));
    assert!((53..=56).contains(&shares[0]), "of 16 bits 8.5 stay: {shares:?}");
    assert!((30..=40).contains(&shares[1]), "4.6 in layers, 6.6 in the embedding: {shares:?}");
    ask(&["-p", "x", "--quantize", "q2_k"]).refuses_usage(&[
        "--quantize",
        "q2_k",
        "use q4_0, q4_1",
    ]);
}
