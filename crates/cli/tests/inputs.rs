//! Files and texts that commands read, and what of them reaches the screen.

use std::fs::{self, File};
#[cfg(unix)]
use std::os::unix::fs::symlink;
#[cfg(unix)]
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
#[cfg(unix)]
use std::process::Stdio;
#[cfg(unix)]
use std::time::{Duration, Instant};

use crate::support::{Done, TempFolder, command, longview, needle, run};

/// `longview run -m needle --device cpu`.
fn asking(words: &[&str]) -> Command {
    let mut command = command(["run", "--device", "cpu", "-n", "1", "-m"]);
    command.arg(needle()).args(words);
    command
}

/// Runs to the end, which must come soon.
#[cfg(unix)]
#[track_caller]
fn at_once(command: &mut Command) -> Done {
    let start = Instant::now();
    let mut child = command.spawn().unwrap();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("it waits for what never comes");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap().into()
}

fn prompt_ids(command: &mut Command) -> serde_json::Value {
    let text = Done::from(command.arg("--json").output().unwrap()).ok();
    serde_json::from_str::<serde_json::Value>(&text).unwrap()["prompt_ids"].clone()
}

#[test]
#[cfg(unix)]
fn special_files_are_refused_by_kind() {
    let folder = TempFolder::new();
    let pipe = folder.file("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let socket = folder.file("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    let zero = folder.file("zero");
    symlink("/dev/zero", &zero).unwrap();
    for option in ["-f", "--session", "--policy-file"] {
        let refused = |path: &Path, parts: &[&str]| {
            let words = match option {
                "-f" => &[][..],
                _ => &["-p", "x"],
            };
            at_once(asking(words).arg(option).arg(path)).fails_with(parts);
        };
        refused(&pipe, &[&format!("{option} "), "pipe: is a named pipe, which may have no end"]);
        refused(&socket, &["socket: is a socket"]);
        refused(&zero, &["zero: is a device"]);
        refused(Path::new("/dev/urandom"), &["/dev/urandom: is a device"]);
        refused(folder.path(), &["is a folder; give the name of a file in it"]);
    }
    at_once(asking(&[]).arg("-f").arg(&pipe)).fails_with(&["pipe it in with -f -"]);
}

#[test]
#[cfg(unix)]
fn stdin_without_an_end_is_left_at_the_first_byte_that_is_no_text() {
    let endless = |path: &str| {
        let mut asking = asking(&["-f", "-"]);
        at_once(asking.stdin(File::open(path).unwrap()))
    };
    endless("/dev/zero").fails_with(&["-f - (stdin): holds a zero byte at offset 0"]);
    endless("/dev/urandom").fails_with(&["-f - (stdin): "]);
}

#[test]
#[cfg(unix)]
fn text_without_an_end_is_read_up_to_a_limit() {
    let mut yes = Command::new("yes").stdout(Stdio::piped()).spawn().unwrap();
    let mut asking = asking(&["-f", "-"]);
    let done = at_once(asking.stdin(yes.stdout.take().unwrap()));
    done.fails_with(&["-f - (stdin): has more, and at most ", "iB are read; shorten it"]);
    yes.kill().unwrap();
    yes.wait().unwrap();
    // A file that says that it is larger is not read at all.
    let folder = TempFolder::new();
    let path = folder.file("huge.txt");
    File::create(&path).unwrap().set_len(1 << 40).unwrap();
    let start = Instant::now();
    let done = at_once(self::asking(&[]).arg("-f").arg(&path));
    done.fails_with(&["huge.txt: has 1.0 TiB, and at most "]);
    assert!(start.elapsed() < Duration::from_secs(5));
    let done = at_once(self::asking(&["-p", "x"]).arg("--policy-file").arg(&path));
    done.fails_with(&["huge.txt: "]);
}

#[test]
#[cfg(unix)]
fn a_text_far_too_long_is_refused_in_little_memory_and_time() {
    let folder = TempFolder::new();
    let digits = "0123456789".repeat(1_000_000);
    let path = folder.write("digits.txt", &digits);
    let model = TempFolder::model();
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}";
    model.write("chat_template.jinja", template);
    let refused = |model: &Path, context: &str, parts: &[&str]| {
        // 1.5 GB of addresses for everything: to encode this at once takes 3.
        let line = "ulimit -v 1500000; exec \"$0\" run --device cpu -m \"$1\" -f \"$2\" -c \"$3\"";
        let mut shell = Command::new("sh");
        shell.args(["-c", line, env!("CARGO_BIN_EXE_longview")]).arg(model).arg(&path).arg(context);
        shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let start = Instant::now();
        at_once(&mut shell).fails_with(parts);
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    };
    for model in [needle().as_path(), model.path()] {
        let holds = " by what was read of it, but the context holds 4,096; start with a larger -";
        refused(model, "4096", &["the prompt has at least ", holds]);
        // The program's own choice ends where the model's context does.
        let made_for = " tokens and the model was made for 131,072; shorten it, or use -c ";
        refused(model, "0", &["the document has about ", made_for, " --rope-scaling yarn "]);
    }
}

#[test]
fn the_mark_at_the_start_of_a_text_is_no_part_of_it() {
    let folder = TempFolder::new();
    let plain = folder.write("plain.txt", "The wind rose over\r\n\tthe hills.\u{c}");
    let marked = folder.write("marked.txt", "\u{feff}The wind rose over\r\n\tthe hills.\u{c}");
    let ids = |path: &Path| prompt_ids(asking(&[]).arg("-f").arg(path));
    assert_eq!(ids(&marked), ids(&plain));
    let stdin = prompt_ids(asking(&["-f", "-"]).stdin(File::open(&marked).unwrap()));
    assert_eq!(stdin, ids(&plain));
    let policy = folder.write("policy.toml", "\u{feff}policy = \"quest\"\nbudget = 64\n");
    Done::from(asking(&["-p", "x"]).arg("--policy-file").arg(policy).output().unwrap()).ok();
}

#[test]
fn nothing_to_read_is_an_error() {
    let folder = TempFolder::new();
    let empty = folder.write("empty.txt", "");
    let mark = folder.write("mark.txt", "\u{feff}");
    let model = needle();
    for path in [&empty, &mark] {
        for more in [&[][..], &["-p", ""], &["-p", "x"], &["--no-chat-template"]] {
            let done = Done::from(asking(more).arg("-f").arg(path).output().unwrap());
            done.fails_with(&["-f ", ".txt: is empty"]);
        }
    }
    run(&model, &["-p", ""]).fails_with(&["-p: the prompt is empty"]);
    run(&model, &["-f", "-"]).fails_with(&["-f - (stdin): is empty"]);
}

#[test]
fn bytes_that_are_no_text_are_named() {
    let folder = TempFolder::new();
    let zero = folder.write("zero.txt", b"abc\0def");
    let wide = folder.write("wide.txt", b"\xff\xfea\0b\0");
    let cut = folder.write("cut.txt", "caf\u{e9}".as_bytes().split_last().unwrap().1);
    for (path, part) in [
        (zero, "zero.txt: holds a zero byte at offset 3"),
        (wide, "wide.txt: not UTF-8: byte 0xff at offset 0"),
        (cut, "cut.txt: not UTF-8: byte 0xc3 at offset 3"),
    ] {
        Done::from(asking(&[]).arg("-f").arg(path).output().unwrap()).fails_with(&[part, "iconv"]);
    }
}

/// Asserts that stderr has what a terminal shows and no more than a screen of it.
#[track_caller]
fn is_fit_for_a_screen(done: &Done) {
    let is_control = |c: char| c != '\n' && c != '\t' && c.is_control();
    assert!(!done.stderr.contains(is_control), "{:?}", done.stderr);
    let error = done.stderr.split_once("error: ").map_or("", |(_, error)| error);
    assert!(error.lines().count() <= 10, "{}", done.stderr);
    assert!(done.stderr.len() < 6000, "{} bytes", done.stderr.len());
}

#[test]
fn no_escape_sequence_reaches_the_screen() {
    let evil = "x\u{1b}[2J\u{1b}]0;owned\u{7}\u{9b}31m\r\u{7f}";
    let shown = "x\\u{1b}[2J";
    let model = TempFolder::model();
    model.write("chat_template.jinja", format!("{{{{ raise_exception('{evil}') }}}}"));
    let mut all = vec![run(model.path(), &["-p", "x"])];
    all.push(run(Path::new(evil), &["-p", "x"]));
    all.push(run(&needle(), &["-f", evil]));
    all.push(run(&needle(), &["--session", evil, "-p", "x"]));
    all.push(run(&needle(), &["--policy-file", evil, "-p", "x"]));
    all.push(run(&needle(), &["-f", "x", "--save-session", evil, "--chunk-size", "1"]));
    all.push(run(&needle(), &["-p", "x", "--device", evil]));
    all.push(run(&needle(), &["-p", "x", "--budget", evil]));
    all.push(longview([evil]));
    all.push(longview(["run", &format!("--{evil}")]));
    let shards = TempFolder::model();
    fs::remove_file(shards.file("model.safetensors")).unwrap();
    let escaped = serde_json::to_string(evil).unwrap();
    let index = format!("{{\"metadata\":{{}},\"weight_map\":{{\"a.weight\":{escaped}}}}}");
    shards.write("model.safetensors.index.json", index);
    all.push(run(shards.path(), &["-p", "x"]));
    for done in &all {
        assert_ne!(done.code, Some(0));
        is_fit_for_a_screen(done);
    }
    // The parser of options leaves them out, all others say what was there.
    let named = all.iter().filter(|done| done.stderr.contains(shown)).count();
    assert!(named >= 6, "what was wrong is still named: {named} of {}", all.len());
}

#[test]
fn a_huge_value_is_not_printed_whole() {
    let huge = "9".repeat(100_000);
    for words in [
        &["-m", huge.as_str(), "-p", "x"][..],
        &["-m", "x", "-p", "x", "--device", &huge],
        &["-m", "x", "-p", "x", "--budget", &huge],
        &["-m", "x", "-p", "x", "-c", &huge],
        &["-m", "x", "-f", &huge],
        &["-m", "x", "-f", "y", "--save-session", &huge],
        &[&huge],
    ] {
        let done = longview([&["run"], words].concat());
        assert_ne!(done.code, Some(0));
        is_fit_for_a_screen(&done);
        let is_cut = |mark| done.stderr.contains(mark);
        assert!(is_cut("more characters") || is_cut("..'"), "{}", done.stderr);
    }
}

#[test]
fn a_model_that_is_wrong_all_over_says_so_in_ten_lines() {
    let model = TempFolder::model();
    model.edit("config.json", "\"hidden_size\": 256", "\"hidden_size\": 320");
    let done = run(model.path(), &["-p", "x"]);
    is_fit_for_a_screen(&done);
    let n = done.stderr.lines().count();
    assert!(n >= 3, "{}", done.stderr);
    done.fails_with(&["tensors do not fit config.json"]);
}

#[test]
fn help_is_whole() {
    for words in [&[][..], &["run"], &["--help"], &["run", "--help"]] {
        let done = longview(words);
        let (text, least) = match words {
            ["run"] => (&done.stderr, 3),
            [] => (&done.stderr, 12),
            _ => (&done.stdout, 12),
        };
        assert!(text.lines().count() >= least, "{words:?}: {text}");
        assert!(!text.contains("more lines") && !text.contains("more characters"), "{text}");
    }
}

/// Files of the commands that only this feature has.
#[cfg(all(feature = "evaluation", unix))]
#[test]
fn texts_of_evaluations_are_regular_files_too() {
    let folder = TempFolder::new();
    let pipe = folder.file("pipe.txt");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let output = folder.file("out.jsonl");
    let refused = |words: &[&str], parts: &[&str]| {
        at_once(command(words).arg("-o").arg(&output)).fails_with(parts);
    };
    let (name, all) = (pipe.to_str().unwrap(), folder.path().to_str().unwrap());
    refused(&["probe", "--device", "cpu", "-f", name], &["pipe.txt: is a named pipe"]);
    for option in ["--squad", "--hotpotqa"] {
        refused(&["eval", "--device", "cpu", option, name], &["pipe.txt: is a named pipe"]);
    }
    refused(&["eval", "--device", "cpu", "--text", all], &["pipe.txt", "it is a named pipe"]);
    refused(&["speed", "--device", "cpu", "--text", all], &["pipe.txt", "it is a named pipe"]);
    assert!(!output.exists());
}

#[test]
#[cfg(unix)]
fn what_is_piped_in_beside_a_prompt_is_said_to_be_unread() {
    use std::io::Write;
    let folder = TempFolder::new();
    folder.write("doc.txt", "A plain day.");
    folder.write("empty.txt", "");
    let file = folder.file("doc.txt").display().to_string();
    let note = "note: stdin is not read beside";
    let from = |name: &str| Stdio::from(File::open(folder.file(name)).unwrap());
    let said = |words: &[&str], stdin: Stdio| {
        let done = at_once(asking(words).stdin(stdin));
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        done.stderr
    };
    let shown = said(&["-p", "Why?"], from("doc.txt"));
    assert_eq!(shown.matches(&format!("{note} -p; `-f -` reads it")).count(), 1, "{shown}");
    assert!(said(&["-f", &file, "-p", "Why?"], from("doc.txt")).contains(note));
    assert!(said(&["-f", &file], from("doc.txt")).contains(&format!("{note} -f;")));
    // What is read is not spoken of, nor is an input with nothing in it.
    assert!(!said(&["-f", "-", "-p", "Why?"], from("doc.txt")).contains(note));
    for name in ["empty.txt", "/dev/null"] {
        assert!(!said(&["-p", "Why?"], from(name)).contains(note), "{name}");
    }
    for has_text in [true, false] {
        let mut child = asking(&["-p", "Why?"]).stdin(Stdio::piped()).spawn().unwrap();
        let mut pipe = child.stdin.take().unwrap();
        if has_text {
            pipe.write_all(b"A plain day.").unwrap();
        }
        // It stays open: who inherits a pipe that nobody closes is not kept waiting.
        let start = Instant::now();
        while child.try_wait().unwrap().is_none() {
            assert!(start.elapsed() < Duration::from_secs(60), "it waits for what never comes");
            std::thread::sleep(Duration::from_millis(5));
        }
        let done = Done::from(child.wait_with_output().unwrap());
        drop(pipe);
        assert_eq!((done.code, done.stderr.contains(note)), (Some(0), has_text), "{}", done.stderr);
    }
}
