//! llama.cpp's options, by the names that it gives them: which of them mean the same here under
//! another name, which are the case anyhow, and what to use in place of the others.
//!
//! Options that have the same name and meaning in both programs are not listed: the grammar of a
//! command knows them.

/// What an option of llama.cpp is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// An option of ours that means the same.
    Ours(&'static str),
    /// A flag that asks for what is the case anyhow.
    Always,
    /// Nothing: what to do instead.
    Refused(&'static str),
}

use Meaning::{Always, Ours, Refused};

const LEAVE_OUT: &str = "leave it out";
const DEVICES: &str = "use --device cpu, cuda or wgpu: all layers are on that device";
const ONE_DEVICE: &str =
    "use --cuda-device N or --adapter NAME to pick one GPU: a model is on one device";
const CHAT: &str = "use `longview run -m DIR` without -p: that is a chat";
const HUB: &str = "use -hf USER/REPO[:QUANT], or `longview pull` and -m with that name";
const TOKEN: &str = "use the variable HF_TOKEN: other users of the machine see command lines";
const ONE_TYPE: &str = "use --kv-type TYPE: keys and values have one type";
const STATS: &str = "use --stats, or --json for token ids and timings";
const SAMPLERS: &str = "use --temp, --top-k, --top-p, --min-p or --repeat-penalty";
const ROPE: &str = "use --rope-scaling linear or yarn with --rope-scale FACTOR";
const YARN: &str = "use --rope-scaling yarn, which has the published values";
const TEMPLATE: &str = "use the model's own template: chat_template.jinja in its folder";
const NO_GRAMMAR: &str = "use a prompt that asks for the form: answers are not constrained";
const SESSION: &str = "use --save-session FILE, then --session FILE";
const SHIFT: &str = "use --policy streaming-llm with --sinks N: it evicts, and keeps the first N";
const THREADS: &str = "use --threads N, and taskset or numactl to place them";
const NO_DRAFT: &str = "use --draft lookup: tokens are drafted from what was read, not by a model";
const ONE_MODEL: &str = "use a model that has it merged into its weights";
const SERVER: &str = "use `longview serve`, which has it";
const IN_HOST: &str = "use --budget N: keys and values are in host memory, and a step reads N";

/// Names as on llama.cpp's command line, and what they are here.
const TABLE: &[(&[&str], Meaning)] = &[
    (&["--temperature"], Ours("--temp")),
    (&["-ub"], Ours("--chunk-size")),
    (&["-sys"], Ours("--system")),
    (&["-no-cnv", "--no-conversation"], Ours("--no-chat-template")),
    (
        &[
            "--no-display-prompt",
            "--no-warmup",
            "--log-disable",
            "--no-perf",
            "--jinja",
            "--mmap",
            "--no-escape",
            "--no-context-shift",
            "--simple-io",
        ],
        Always,
    ),
    (&["-ngl", "--gpu-layers", "--n-gpu-layers"], Refused(DEVICES)),
    (&["-dev"], Refused("use --device cpu, cuda or wgpu, and --cuda-device N")),
    (&["--list-devices"], Refused("use `longview doctor`")),
    (
        &["-sm", "--split-mode", "-ts", "--tensor-split", "-mg", "--main-gpu", "--rpc"],
        Refused(ONE_DEVICE),
    ),
    (
        &["-ot", "--override-tensor", "-cmoe", "--cpu-moe", "-ncmoe", "--n-cpu-moe"],
        Refused(DEVICES),
    ),
    (
        &["-fa", "--flash-attn", "-no-fa"],
        Refused("leave it out: attention is always computed in tiles"),
    ),
    (
        &["-b", "--batch-size"],
        Refused("use --chunk-size TOKENS (llama.cpp's -ub): prompts are computed in such chunks"),
    ),
    (
        &["-np", "--parallel", "-ns", "--sequences", "-cb"],
        Refused("use `longview serve --parallel N`"),
    ),
    (&["-cnv", "--conversation"], Refused(CHAT)),
    (&["-i", "--interactive", "-if", "--interactive-first"], Refused(CHAT)),
    (&["-ins", "--instruct", "-cml", "--chatml"], Refused(CHAT)),
    (&["-st", "--single-turn"], Refused("use -p TEXT: it is answered once")),
    (&["-mli", "--multiline-input"], Refused("use a file with -f, or -p with several lines")),
    (&["-sysf", "--system-prompt-file"], Refused("use --system \"$(cat FILE)\"")),
    (&["-e", "--escape"], Refused("use real line ends in the prompt, or a file with -f")),
    (&["-bf", "--binary-file"], Refused("use -f FILE, a text")),
    (&["--in-prefix", "--in-suffix", "--in-prefix-bos"], Refused(TEMPLATE)),
    (&["--chat-template", "--chat-template-file", "--no-jinja"], Refused(TEMPLATE)),
    (&["--chat-template-kwargs", "--reasoning-format", "--reasoning-budget"], Refused(TEMPLATE)),
    (&["-sp", "--special"], Refused("use --json: it has the token ids")),
    (&["-v", "--verbose", "--log-verbose", "--verbose-prompt"], Refused(STATS)),
    (&["-lv", "--verbosity", "--log-verbosity", "--perf", "--show-timings"], Refused(STATS)),
    (
        &["--log-file", "--log-prefix", "--log-timestamps", "--log-colors"],
        Refused("use 2> FILE: everything but the answer goes to stderr"),
    ),
    (&["--color", "-co"], Refused("leave it out: answers have no colours")),
    (&["--usage"], Refused("use --help")),
    (&["-tb", "--threads-batch"], Refused("use --threads N, for prompts and answers alike")),
    (
        &["-C", "--cpu-mask", "-Cr", "--cpu-range", "--cpu-strict", "--prio", "--poll", "--numa"],
        Refused(THREADS),
    ),
    (&["-Cb", "--cpu-mask-batch", "-Crb", "--cpu-range-batch"], Refused(THREADS)),
    (&["-ctk", "--cache-type-k", "-ctv", "--cache-type-v"], Refused(ONE_TYPE)),
    (&["-nkvo", "--no-kv-offload", "-kvo", "--kv-offload"], Refused(IN_HOST)),
    (&["-kvu", "--kv-unified", "--swa-full", "-dt", "--defrag-thold"], Refused(LEAVE_OUT)),
    (
        &["--mlock", "--no-mmap", "-nr", "--no-repack", "-dio", "--direct-io"],
        Refused("leave it out: weights are mapped from their files"),
    ),
    (&["--check-tensors"], Refused("leave it out: every tensor is checked against config.json")),
    (&["--override-kv"], Refused("use config.json of the model's folder")),
    (&["-fit", "-fitt", "-fitc"], Refused("use -c 0, the default: the context is fitted")),
    (&["-hf", "-hfr"], Ours("--hf-repo")),
    (&["-hff"], Ours("--hf-file")),
    (&["-hft", "--hf-token"], Refused(TOKEN)),
    (&["-mu", "--model-url", "-dr", "--docker-repo"], Refused(HUB)),
    (&["--rope-freq-base", "--rope-freq-scale"], Refused(ROPE)),
    (&["-gan", "--grp-attn-n", "-gaw", "--grp-attn-w"], Refused(ROPE)),
    (
        &["--yarn-ext-factor", "--yarn-attn-factor", "--yarn-beta-slow", "--yarn-beta-fast"],
        Refused(YARN),
    ),
    (&["--grammar", "--grammar-file", "-j", "--json-schema", "-jf"], Refused(NO_GRAMMAR)),
    (&["--json-schema-file"], Refused(NO_GRAMMAR)),
    (&["--keep", "--context-shift"], Refused(SHIFT)),
    (&["--prompt-cache", "--prompt-cache-all", "--prompt-cache-ro"], Refused(SESSION)),
    (&["--mirostat", "--mirostat-lr", "--mirostat-ent"], Refused(SAMPLERS)),
    (&["--typical", "--tfs", "--top-nsigma", "--top-n-sigma"], Refused(SAMPLERS)),
    (&["--presence-penalty", "--frequency-penalty"], Refused("use --repeat-penalty FACTOR")),
    (&["--dry-multiplier", "--dry-base", "--dry-allowed-length"], Refused(SAMPLERS)),
    (&["--dry-penalty-last-n", "--dry-sequence-breaker"], Refused(SAMPLERS)),
    (&["--xtc-probability", "--xtc-threshold"], Refused(SAMPLERS)),
    (&["--dynatemp-range", "--dynatemp-exp", "--samplers", "--sampling-seq"], Refused(SAMPLERS)),
    (&["--sampler-seq", "-l", "--logit-bias", "--penalize-nl"], Refused(SAMPLERS)),
    (&["-md", "--model-draft", "--draft-max", "--draft-min"], Refused(NO_DRAFT)),
    (&["-lcs", "--lookup-cache-static", "-lcd", "--lookup-cache-dynamic"], Refused(NO_DRAFT)),
    (&["--lora", "--lora-scaled", "--control-vector"], Refused(ONE_MODEL)),
    (
        &["-mm", "--mmproj", "--image", "--audio"],
        Refused("use a text: there are no images or sounds"),
    ),
    (&["--host", "--port", "--api-key"], Refused(SERVER)),
];

/// What `name` of llama.cpp, such as `-ngl`, is here; `None` for other words.
pub fn meaning(name: &str) -> Option<Meaning> {
    let row = TABLE.iter().find(|(names, _)| names.contains(&name));
    row.map(|(_, meaning)| *meaning)
}

/// Commands that other programs have, with what works here today.
pub fn absent_command(name: &str) -> Option<&'static str> {
    Some(match name {
        "ps" | "show" => {
            "`longview ls` lists the models that are here, and `longview plan -m NAME` shows what \
             one takes"
        }
        "chat" => "`longview run -m DIR` without -p is a chat",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_name_stands_once_and_every_refusal_says_what_to_do() {
        let mut seen = BTreeSet::new();
        for (names, meaning) in TABLE {
            for name in *names {
                assert!(name.starts_with('-') && seen.insert(name), "{name}");
            }
            if let Refused(instead) = meaning {
                let begins = ["use ", "leave it out"];
                assert!(begins.iter().any(|word| instead.starts_with(word)), "{instead}");
            }
        }
    }

    #[test]
    fn names_of_llama_cpp_are_found_whole() {
        assert_eq!(meaning("-sys"), Some(Ours("--system")));
        assert_eq!(meaning("--temperature"), Some(Ours("--temp")));
        assert_eq!(meaning("--jinja"), Some(Always));
        assert!(matches!(meaning("-ngl"), Some(Refused(_))));
        assert_eq!(meaning("-ng"), None);
        assert_eq!(meaning("--temp"), None);
    }

    #[test]
    fn commands_of_other_programs_say_what_works() {
        assert!(absent_command("ps").is_some_and(|text| text.contains("longview ls")));
        for ours in ["serve", "server", "speed", "pull", "download", "ls", "list", "rm"] {
            assert!(absent_command(ours).is_none(), "{ours}");
        }
    }
}
