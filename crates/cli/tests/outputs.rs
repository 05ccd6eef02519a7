//! Files that commands write: nothing is lost, replaced by mistake, or left half written.

use std::fs;
#[cfg(target_os = "linux")]
use std::io::Write;
#[cfg(unix)]
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
#[cfg(unix)]
use std::os::unix::net::UnixListener;
use std::path::Path;
#[cfg(target_os = "linux")]
use std::process::Stdio;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

#[cfg(unix)]
use crate::support::interrupt;
use crate::support::{Done, TempFolder, command, longview, needle};

const MAGIC: &[u8] = b"\x89LVS\r\n\x1a\n";

/// A folder with a document of about 200 tokens.
fn folder() -> TempFolder {
    let folder = TempFolder::new();
    folder.write("doc.txt", "The miller carried a basket of straw to the old barn. ".repeat(14));
    folder
}

/// `longview run` that saves what it read of `document`.
fn saving(document: &Path, target: &Path, words: &[&str]) -> Command {
    let mut command = command(["run", "-m"]);
    command.arg(needle()).args(["--device", "cpu", "--budget", "256", "-f"]).arg(document);
    command.arg("--save-session").arg(target).args(words);
    command
}

fn save(folder: &TempFolder, target: &str, words: &[&str]) -> Done {
    let words = [&["-c", "2048"], words].concat();
    saving(&folder.file("doc.txt"), &folder.file(target), &words).output().unwrap().into()
}

/// A prefill of some seconds, up to where its target is taken.
fn long_save(folder: &TempFolder, target: &str) -> Child {
    let document = folder.write("long.txt", "The wind rose over the hills. ".repeat(900));
    let child = saving(&document, &folder.file(target), &["-c", "16384"]).spawn().unwrap();
    wait_for(&folder.file(&format!("{target}.part")));
    child
}

#[track_caller]
fn wait_for(path: &Path) {
    let start = Instant::now();
    while !path.exists() {
        assert!(start.elapsed() < Duration::from_secs(60), "{} does not come", path.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

fn parts(folder: &TempFolder) -> Vec<String> {
    names(folder.path()).into_iter().filter(|name| name.contains(".part")).collect()
}

fn is_session(path: &Path) -> bool {
    fs::read(path).unwrap().starts_with(MAGIC)
}

#[cfg(unix)]
fn make_pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn an_older_session_is_replaced_with_force_alone() {
    let folder = folder();
    save(&folder, "doc.lvs", &[]).ok();
    let path = folder.file("doc.lvs");
    let (before, made) = (fs::read(&path).unwrap(), path.metadata().unwrap().modified().unwrap());
    let done = save(&folder, "doc.lvs", &[]);
    done.fails_with(&["--save-session ", "doc.lvs: is there already", "--force", "another name"]);
    assert_eq!(path.metadata().unwrap().modified().unwrap(), made);
    save(&folder, "doc.lvs", &["--force"]).ok();
    assert_ne!(path.metadata().unwrap().modified().unwrap(), made, "it is another file");
    assert_eq!(fs::read(&path).unwrap(), before);
    assert_eq!(names(folder.path()), ["doc.lvs", "doc.txt"]);
}

/// On Windows as on Unix, who reads a file may go on when another one gets its name.
#[test]
fn a_session_that_somebody_has_open_is_replaced() {
    let folder = folder();
    save(&folder, "doc.lvs", &[]).ok();
    let mut open = fs::File::open(folder.file("doc.lvs")).unwrap();
    let before = fs::read(folder.file("doc.lvs")).unwrap();
    folder.write("doc.txt", "The wind rose over the hills. ".repeat(20));
    save(&folder, "doc.lvs", &["--force"]).ok();
    let mut old = Vec::new();
    std::io::Read::read_to_end(&mut open, &mut old).unwrap();
    assert!(old == before, "the open file is the old one");
    assert!(fs::read(folder.file("doc.lvs")).unwrap() != before);
    drop(open);
    assert_eq!(names(folder.path()), ["doc.lvs", "doc.txt"]);
}

#[test]
#[cfg(unix)]
fn a_file_that_replaces_another_keeps_its_mode() {
    let folder = folder();
    save(&folder, "doc.lvs", &[]).ok();
    let path = folder.file("doc.lvs");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let number = path.metadata().unwrap().ino();
    save(&folder, "doc.lvs", &[]).fails_with(&["is there already"]);
    assert_eq!(path.metadata().unwrap().ino(), number);
    save(&folder, "doc.lvs", &["--force"]).ok();
    assert_ne!(path.metadata().unwrap().ino(), number, "it is another file");
    assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
}

#[test]
#[cfg(unix)]
fn a_new_file_has_the_mode_that_the_user_wants_of_new_files() {
    let folder = folder();
    let save = saving(&folder.file("doc.txt"), &folder.file("doc.lvs"), &["-c", "2048"]);
    let mut shell = Command::new("sh");
    shell.args(["-c", "umask 027; exec \"$0\" \"$@\""]).arg(save.get_program());
    let done: Done = shell.args(save.get_args()).output().unwrap().into();
    done.ok();
    assert_eq!(folder.file("doc.lvs").metadata().unwrap().mode() & 0o777, 0o640);
}

#[test]
fn a_file_of_another_kind_is_never_replaced() {
    let folder = folder();
    let weights = fs::read(needle().join("model.safetensors")).unwrap();
    for (name, bytes, what) in [
        ("notes.txt", b"What I wrote all year.".as_slice(), "a text"),
        ("answers.jsonl", b"{\"kind\":\"run\",\"model\":\"m\"}\n", "a results file"),
        ("model.safetensors", &weights, "weights of a model (safetensors)"),
        ("x.gguf", b"GGUF\x03\0\0\0", "a GGUF model"),
        ("data", b"\0\x01\x02", "a binary file"),
        ("cut.lvs", &MAGIC[..5], "a binary file"),
    ] {
        let path = folder.write(name, bytes);
        for force in [&[][..], &["--force"]] {
            let seems = format!("it seems to be {what};");
            let parts = [name, "is not a saved session", &seems, "also with --force"];
            save(&folder, name, force).fails_with(&parts);
            assert!(fs::read(&path).unwrap() == bytes, "{name}");
        }
    }
    assert!(parts(&folder).is_empty());
}

#[test]
fn what_is_read_is_not_written_to() {
    let folder = folder();
    let text = fs::read(folder.file("doc.txt")).unwrap();
    fs::hard_link(folder.file("doc.txt"), folder.file("hard.txt")).unwrap();
    let mut all = vec!["doc.txt", "hard.txt"];
    #[cfg(unix)]
    symlink("doc.txt", folder.file("soft.txt")).unwrap();
    all.extend(cfg!(unix).then_some("soft.txt"));
    // Names that differ in case alone are one file there.
    all.extend(cfg!(windows).then_some("DOC.TXT"));
    for name in all {
        for force in [&[][..], &["--force"]] {
            let parts = [name, "is the document of -f, which is read", "give another name"];
            save(&folder, name, force).fails_with(&parts);
        }
    }
    // A document that looks like a session is not read before it is found out.
    folder.write("doc.lvs", [MAGIC, b"text"].concat());
    let path = folder.file("doc.lvs");
    let done: Done = saving(&path, &path, &["--force"]).output().unwrap().into();
    done.fails_with(&["is the document of -f"]);
    assert_eq!(fs::read(folder.file("doc.txt")).unwrap(), text);
    assert!(!cfg!(unix) || folder.file("soft.txt").is_symlink());

    let model = TempFolder::model();
    let config = fs::read(model.file("config.json")).unwrap();
    let policy = folder.write("policy.toml", "policy = \"quest\"\n");
    for (target, what) in
        [(model.file("config.json"), "a file of the model"), (policy.clone(), "the --policy-file")]
    {
        let mut command = command(["run", "--force", "-m"]);
        command.arg(model.path()).arg("-f").arg(folder.file("doc.txt"));
        command.arg("--policy-file").arg(&policy).arg("--save-session").arg(target);
        Done::from(command.output().unwrap()).fails_with(&[what, "which is read"]);
    }
    assert_eq!(fs::read(model.file("config.json")).unwrap(), config);
}

#[test]
#[cfg(unix)]
fn special_files_stay_what_they_are() {
    let folder = folder();
    fs::create_dir(folder.file("folder.lvs")).unwrap();
    make_pipe(&folder.file("pipe.lvs"));
    let _listener = UnixListener::bind(folder.file("socket.lvs")).unwrap();
    symlink("/dev/null", folder.file("null.lvs")).unwrap();
    let types = || {
        let names = ["folder.lvs", "pipe.lvs", "socket.lvs", "null.lvs"];
        names.map(|name| folder.file(name).metadata().unwrap().file_type())
    };
    let before = types();
    for (name, what) in [
        ("folder.lvs", "is a folder"),
        ("pipe.lvs", "is a named pipe"),
        ("socket.lvs", "is a socket"),
        ("null.lvs", "is a device"),
        ("new/", "is the name of a folder"),
    ] {
        for force in [&[][..], &["--force"]] {
            save(&folder, name, force).fails_with(&[name, what, "give"]);
        }
    }
    assert_eq!(types(), before);
    assert!(folder.file("null.lvs").is_symlink());
    assert!(parts(&folder).is_empty());
}

#[test]
#[cfg(unix)]
fn links_are_followed_and_stay_links() {
    let folder = folder();
    fs::create_dir(folder.file("far")).unwrap();
    symlink("far/real.lvs", folder.file("link.lvs")).unwrap();
    symlink("link.lvs", folder.file("second.lvs")).unwrap();
    save(&folder, "second.lvs", &[]).ok();
    assert!(is_session(&folder.file("far/real.lvs")), "a dangling link makes its target");
    let number = folder.file("far/real.lvs").metadata().unwrap().ino();
    save(&folder, "link.lvs", &[]).fails_with(&["is there already"]);
    save(&folder, "link.lvs", &["--force"]).ok();
    assert_ne!(folder.file("far/real.lvs").metadata().unwrap().ino(), number);
    for name in ["link.lvs", "second.lvs"] {
        assert!(folder.file(name).is_symlink(), "{name}");
    }
    assert_eq!(names(&folder.file("far")), ["real.lvs"]);

    symlink("one.lvs", folder.file("two.lvs")).unwrap();
    symlink("two.lvs", folder.file("one.lvs")).unwrap();
    save(&folder, "one.lvs", &["--force"]).fails_with(&["one.lvs: its symbolic links go round"]);
    symlink("nowhere/x.lvs", folder.file("lost.lvs")).unwrap();
    save(&folder, "lost.lvs", &[]).fails_with(&["lost.lvs: there is no folder", "nowhere"]);
    assert!(parts(&folder).is_empty());
}

#[test]
fn a_target_is_checked_before_anything_is_read() {
    let folder = folder();
    let refused = |target: &str, parts: &[&str]| {
        let words = ["run", "-m", "no-such-model", "-f", "no-such-document", "--save-session"];
        let mut command = command(words);
        command.arg(folder.file(target));
        Done::from(command.output().unwrap()).fails_with(parts);
    };
    refused("nowhere/doc.lvs", &["nowhere/doc.lvs: there is no folder", "make it first"]);
    refused("doc.txt/doc.lvs", &["doc.txt/doc.lvs: "]);
    refused(&"x".repeat(300), &["--save-session "]);
    let longest = "x".repeat(253);
    refused(&longest, &["cannot write to"]);
    #[cfg(target_os = "linux")]
    refused("/proc/self/doc.lvs", &["--save-session /proc/self/doc.lvs: cannot write to /proc/se"]);
    let empty = longview(["run", "-m", "x", "-f", "y", "--save-session", ""]);
    assert!(empty.code != Some(0) && empty.stderr.contains("--save-session"), "{}", empty.stderr);
    assert_eq!(names(folder.path()), ["doc.txt"]);
}

#[test]
fn two_writers_of_one_target_do_not_meet() {
    let folder = folder();
    let first = long_save(&folder, "doc.lvs");
    #[cfg(unix)]
    symlink("doc.lvs", folder.file("link.lvs")).unwrap();
    let same = if cfg!(unix) { ["link.lvs", "doc.lvs.part"] } else { ["DOC.LVS", "DOC.LVS.part"] };
    for [name, part] in [["doc.lvs", "doc.lvs.part"], same] {
        save(&folder, name, &[]).fails_with(&["another longview writes it now", part]);
    }
    Done::from(first.wait_with_output().unwrap()).ok();
    assert!(is_session(&folder.file("doc.lvs")));
    assert!(parts(&folder).is_empty());
}

#[test]
fn killed_writers_leave_one_part_that_the_next_one_removes() {
    let folder = folder();
    save(&folder, "doc.lvs", &[]).ok();
    let before = fs::read(folder.file("doc.lvs")).unwrap();
    let document = folder.write("long.txt", "The wind rose over the hills. ".repeat(700));
    for i in 0..10 {
        let mut saving = saving(&document, &folder.file("doc.lvs"), &["-c", "8192", "--force"]);
        let mut child = saving.spawn().unwrap();
        wait_for(&folder.file("doc.lvs.part"));
        std::thread::sleep(Duration::from_millis(40 * i));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(parts(&folder).len() <= 1, "{:?}", parts(&folder));
        assert!(is_session(&folder.file("doc.lvs")));
    }
    // As earlier versions named them, of a process that is not there any more.
    folder.write("doc.lvs.4194400.part", MAGIC);
    folder.write("doc.lvs.part", &before[..1000]);
    save(&folder, "doc.lvs", &["--force"]).ok();
    let left = if cfg!(target_os = "linux") { &[][..] } else { &["doc.lvs.4194400.part"] };
    assert_eq!(parts(&folder), left);
    assert_eq!(fs::read(folder.file("doc.lvs")).unwrap(), before);
}

#[test]
fn what_only_looks_like_a_part_is_not_removed() {
    let folder = folder();
    folder.write("doc.lvs.part", "What I downloaded.");
    save(&folder, "doc.lvs", &["--force"]).fails_with(&["doc.lvs.part is in the way", "move it"]);
    let found = fs::read_to_string(folder.file("doc.lvs.part")).unwrap();
    assert_eq!(found, "What I downloaded.");
    #[cfg(unix)]
    {
        fs::remove_file(folder.file("doc.lvs.part")).unwrap();
        symlink("doc.txt", folder.file("doc.lvs.part")).unwrap();
        save(&folder, "doc.lvs", &[]).fails_with(&["doc.lvs.part is in the way"]);
        assert!(folder.file("doc.lvs.part").is_symlink());
    }
}

#[test]
#[cfg(unix)]
fn ctrl_c_in_the_prefill_keeps_what_was_read() {
    let folder = folder();
    let document = folder.write("long.txt", "The wind rose over the hills. ".repeat(1800));
    let words = ["-c", "16384", "--chunk-size", "64"];
    let interrupted_after = |wait| {
        let child = saving(&document, &folder.file("doc.lvs"), &words).spawn().unwrap();
        wait_for(&folder.file("doc.lvs.part"));
        std::thread::sleep(Duration::from_millis(wait));
        interrupt(&child);
        let done = Done::from(child.wait_with_output().unwrap());
        assert_eq!(done.code, Some(130), "{}", done.stderr);
        done
    };
    // A busy machine may not have begun to read: then nothing is kept, and it gets more time.
    let mut runs = [1500, 4000, 10_000, 30_000].into_iter().map(interrupted_after);
    let done = runs.find(|_| folder.file("doc.lvs").exists()).expect("a chunk is read");
    assert_eq!(names(folder.path()), ["doc.lvs", "doc.txt", "long.txt"], "{}", done.stderr);
    let said = done.stderr.split("interrupted: ").nth(1).unwrap();
    let (counts, rest) = said.split_once(" document tokens were read and are kept").unwrap();
    assert!(rest.contains("doc.lvs goes on with the rest"), "{}", done.stderr);
    let command = rest.lines().find(|line| line.starts_with("  longview run ")).expect("a command");
    assert!(command.contains(" --session ") && command.ends_with(" --force"), "{command}");
    let count = |text: &str| text.replace(',', "").parse::<usize>().unwrap();
    let (kept, total) = counts.split_once(" of ").map(|(n, of)| (count(n), count(of))).unwrap();
    // A question reads the rest, and nothing again.
    let model = needle().display().to_string();
    let file = folder.file("doc.lvs").display().to_string();
    let ask = ["run", "-m", &model, "--device", "cpu", "--session", &file, "-p", "x", "--json"];
    let text = longview([&ask[..], &["-n", "1"]].concat()).ok();
    let field = text.split("\"prefill_tokens\": ").nth(1).unwrap();
    let rest = count(field.split(',').next().unwrap());
    assert!(kept > 0 && kept < total, "{kept} of {total}");
    assert!((total..total + 20).contains(&(kept + rest)), "{kept} and {rest} of {total}");
    // The command that was printed reads the rest too, and adds it to the file.
    let words = command.trim().split(' ').skip(1).map(|word| word.trim_matches('\''));
    let done = longview(words.collect::<Vec<_>>());
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert!(done.stderr.contains(" added to ") || done.stderr.contains(" written to "));
    let text = longview([&ask[..], &["-n", "1"]].concat()).ok();
    let field = text.split("\"prefill_tokens\": ").nth(1).unwrap();
    let rest = count(field.split(',').next().unwrap());
    assert!(rest < 20, "all of the document was saved: {rest}");
}

#[test]
fn a_file_that_appears_meanwhile_is_not_replaced_and_the_work_is_kept() {
    let folder = folder();
    let child = long_save(&folder, "doc.lvs");
    folder.write("doc.lvs", "Mine.");
    let done = Done::from(child.wait_with_output().unwrap());
    done.fails_with(&["doc.lvs: another program wrote this file meanwhile", "doc.lvs.1"]);
    assert_eq!(fs::read_to_string(folder.file("doc.lvs")).unwrap(), "Mine.");
    assert!(is_session(&folder.file("doc.lvs.1")));
    assert!(parts(&folder).is_empty());
}

#[test]
#[cfg(unix)]
fn no_space_is_said_and_nothing_is_lost() {
    let folder = folder();
    save(&folder, "doc.lvs", &[]).ok();
    let before = fs::read(folder.file("doc.lvs")).unwrap();
    let words = ["-c", "2048", "--force"];
    let save = saving(&folder.file("doc.txt"), &folder.file("doc.lvs"), &words);
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; ulimit -f 16; exec \"$0\" \"$@\""]).arg(save.get_program());
    let done: Done = shell.args(save.get_args()).output().unwrap().into();
    done.fails_with(&["doc.lvs: the file is larger than the system allows", "is as it was"]);
    assert!(fs::read(folder.file("doc.lvs")).unwrap() == before);
    assert!(parts(&folder).is_empty());
}

/// Runs a command on a terminal of its own, with `typed` as what the user types.
#[cfg(target_os = "linux")]
fn on_terminal(command: &Command, typed: &str) -> (Option<i32>, String) {
    let quoted =
        |word: &std::ffi::OsStr| format!("'{}'", word.to_str().unwrap().replace('\'', "'\\''"));
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let line = words.map(quoted).collect::<Vec<_>>().join(" ");
    let mut script = Command::new("script");
    script.args(["-qec", &line, "/dev/null"]);
    script.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = script.spawn().expect("script of util-linux");
    child.stdin.as_mut().unwrap().write_all(typed.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

#[test]
#[cfg(target_os = "linux")]
fn on_a_terminal_the_user_is_asked() {
    let folder = folder();
    save(&folder, "doc.lvs", &[]).ok();
    let path = folder.file("doc.lvs");
    let number = path.metadata().unwrap().ino();
    let save = saving(&folder.file("doc.txt"), &path, &["-c", "2048"]);
    for answer in ["n\n", "\n", "what?\n"] {
        let (code, shown) = on_terminal(&save, answer);
        assert_eq!(code, Some(1), "{shown}");
        assert!(shown.contains("doc.lvs? [y/N]") && shown.contains("is left as it is"), "{shown}");
        assert_eq!(path.metadata().unwrap().ino(), number, "{answer:?}");
    }
    let (code, shown) = on_terminal(&save, "y\n");
    assert_eq!(code, Some(0), "{shown}");
    assert_ne!(path.metadata().unwrap().ino(), number);
}

#[test]
#[cfg(target_os = "linux")]
fn a_terminal_gets_no_control_characters_on_stdout() {
    let folder = TempFolder::new();
    let model = folder.file("mo\u{1b}[31mdel\u{9b}0m");
    fs::create_dir(&model).unwrap();
    for entry in fs::read_dir(needle()).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            fs::copy(&path, model.join(path.file_name().unwrap())).unwrap();
        }
    }
    let mut plan = command(["plan", "--device", "cpu", "-c", "512", "-m"]);
    plan.arg(&model);
    let (code, shown) = on_terminal(&plan, "");
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("mo[31mdel0m: context 512"), "{shown:?}");
    assert!(!shown.contains(['\u{1b}', '\u{9b}']), "{shown:?}");
    let piped = Done::from(plan.output().unwrap()).ok();
    assert!(piped.contains("mo\u{1b}[31mdel\u{9b}0m"), "a pipe gets what is there: {piped:?}");
}

#[test]
fn completions_go_to_a_file_that_only_completions_replace() {
    let folder = TempFolder::new();
    let write = |shell: &str, name: &str, words: &[&str]| -> Done {
        let mut command = command(["completions", shell, "-o"]);
        command.arg(folder.file(name)).args(words).output().unwrap().into()
    };
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        assert_eq!(write(shell, "script", &["--force"]).ok(), "");
        let script = fs::read_to_string(folder.file("script")).unwrap();
        assert_eq!(script, longview(["completions", shell]).ok());
        let first = if shell == "zsh" { "#compdef longview\n" } else { "# Written by" };
        assert!(script.starts_with(first), "{shell}");
    }
    write("bash", "script", &[]).fails_with(&["-o ", "is there already", "--force"]);
    let rc = folder.write(".bashrc", "alias ll='ls -l'\n");
    for words in [&[][..], &["--force"]] {
        write("bash", ".bashrc", words).fails_with(&["is not a completion script", "a text"]);
    }
    assert_eq!(fs::read_to_string(rc).unwrap(), "alias ll='ls -l'\n");
    assert_eq!(names(folder.path()), [".bashrc", "script"]);
}

/// Files of the commands that only this feature has.
#[cfg(all(feature = "evaluation", unix))]
mod evaluation {
    use super::*;

    fn eval(words: &[&str], output: &Path) -> Done {
        let fixed = "eval --device cpu --tasks needle-passkey --lengths 512 --samples 1 \
                     --policies full -o";
        let mut command = command(fixed.split_whitespace());
        command.arg(output).args(words).output().unwrap().into()
    }

    fn report(results: &Path, output: &Path, words: &[&str]) -> Done {
        let mut command = command(["report"]);
        command.arg(results).arg("-o").arg(output).args(words).output().unwrap().into()
    }

    #[test]
    fn results_are_added_to_results_alone_and_that_is_checked_first() {
        let folder = folder();
        make_pipe(&folder.file("pipe"));
        symlink("/dev/null", folder.file("null")).unwrap();
        folder.write("settings.json", "{\"a\":1}");
        let before = names(folder.path());
        let file = folder.file("doc.txt");
        let text = fs::read(&file).unwrap();
        for (name, parts) in [
            ("doc.txt", &["-o ", "doc.txt: is not a results file, it seems to be a text"][..]),
            ("settings.json", &["is not a results file, it seems to be a JSON file"]),
            ("pipe", &["pipe: is a named pipe"]),
            ("null", &["null: is a device"]),
            (".", &["is a folder, and only a regular file"]),
            ("nowhere/x", &["nowhere/x: there is no folder"]),
        ] {
            let output = folder.file(name);
            let model = ["-m", "no-such-model"];
            eval(&model, &output).fails_with(parts);
            let file = file.to_str().unwrap();
            let mut probe = command(["probe", "-f", "no-such-text", "-m", "no-such-model", "-o"]);
            Done::from(probe.arg(&output).output().unwrap()).fails_with(parts);
            let mut speed = command(["speed", "-m", "no-such-model", "-o"]);
            Done::from(speed.arg(&output).output().unwrap()).fails_with(parts);
            assert_eq!(fs::read(file).unwrap(), text);
        }
        assert_eq!(names(folder.path()), before);
        // The same results go on without --force.
        let output = folder.file("answers.jsonl");
        eval(&[], &output).ok();
        let once = fs::read_to_string(&output).unwrap();
        eval(&[], &output).ok();
        let twice = fs::read_to_string(&output).unwrap();
        assert!(twice.starts_with(&once) && twice.len() > once.len());
        symlink("answers.jsonl", folder.file("link")).unwrap();
        eval(&[], &folder.file("link")).ok();
        assert!(folder.file("link").is_symlink());
        assert!(fs::read_to_string(&output).unwrap().starts_with(&twice));
        eval(&["--longbench", "/nope"], &output)
            .fails_with(&["--longbench /nope: is not a folder"]);
    }

    #[test]
    fn a_report_replaces_an_older_report_alone() {
        let folder = TempFolder::new();
        let results = folder.file("answers.jsonl");
        eval(&[], &results).ok();
        let to = folder.file("page");
        report(&results, &to, &[]).ok();
        let all = names(&to);
        assert!(all.contains(&"index.html".to_owned()) && all.contains(&"scores.md".to_owned()));
        report(&results, &to, &[]).fails_with(&["index.html: is there already", "--force"]);
        report(&results, &to, &["--force"]).ok();
        assert_eq!(names(&to), all, "and no part is left");
        // What the page does not name is somebody else's.
        let site = folder.file("site");
        fs::create_dir(&site).unwrap();
        for (name, parts) in [
            ("index.html", &["index.html: is not the page of a report", "a page of HTML"][..]),
            ("scores.md", &["scores.md: is there and is not of an older report"]),
        ] {
            fs::write(site.join(name), "<!doctype html>\nMy page").unwrap();
            for words in [&[][..], &["--force"]] {
                report(&results, &site, words).fails_with(parts);
            }
            assert_eq!(fs::read_to_string(site.join(name)).unwrap(), "<!doctype html>\nMy page");
            assert_eq!(names(&site), [name]);
            fs::remove_file(site.join(name)).unwrap();
        }
        report(&results, &results, &["--force"]).fails_with(&["is not a folder"]);
        make_pipe(&folder.file("pipe"));
        report(&folder.file("pipe"), &to, &["--force"]).fails_with(&["pipe", "a named pipe"]);
    }

    #[test]
    fn names_in_results_lead_nowhere_else() {
        let folder = TempFolder::new();
        let policy = "\"policy\":\"full\",\"budget\":0";
        let lines: String = (0..2)
            .map(|i| {
                format!(
                    "{{\"kind\":\"perplexity\",\"text\":\"../../../evil\",{policy},\
                     \"position\":{i},\"tokens\":1,\"nll\":1.0}}\n"
                )
            })
            .collect();
        let path = folder.write("probes.jsonl", lines);
        let to = folder.file("a/b/c");
        fs::create_dir_all(&to).unwrap();
        let done = report(&path, &to, &[]);
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        assert_eq!(names(folder.path()), ["a", "probes.jsonl"]);
        let all = names(&to);
        let plots = all.iter().filter(|name| name.contains("evil"));
        assert_eq!(plots.count(), 2, "{all:?}");
        report(&path, &to, &["--force"]).ok();
        assert_eq!(names(&to), all, "plots of the same report are replaced");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_standard_output_that_is_full_is_named() {
    let model = needle().display().to_string();
    for words in [
        &["policies"][..],
        &["policies", "--json"],
        &["completions", "bash"],
        &["plan", "-m", &model, "-c", "1024", "--device", "cpu"],
        &["run", "-m", &model, "-p", "Why?", "-n", "2", "--device", "cpu"],
        &["tokenize", "-m", &model, "-p", "Why?"],
        &["--help"],
        &["run", "--help"],
        &["run", "--help", "all"],
        &["--version"],
    ] {
        let full = || Stdio::from(fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
        let done = Done::from(command(words).stdout(full()).output().unwrap());
        let parts = ["standard output cannot be written", "No space left"];
        done.fails_with(&parts);
    }
    // A reader that has gone has what it wanted.
    let mut child = command(["policies"]).spawn().unwrap();
    drop(child.stdout.take());
    let done = Done::from(child.wait_with_output().unwrap());
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
}
