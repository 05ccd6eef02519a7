//! `longview tokenize`: the tokens of a text.

use std::fs::File;
use std::process::Stdio;

use crate::support::{Done, TempFolder, command, longview, needle};

fn tokens(words: &[&str]) -> Done {
    let model = needle().display().to_string();
    longview([&["tokenize", "-m", &model], words].concat())
}

fn ids(words: &[&str]) -> Vec<u32> {
    let line = tokens(&[words, &["--ids"]].concat()).ok();
    assert_eq!(line.lines().count(), 1, "{line}");
    serde_json::from_str(&line).unwrap()
}

#[test]
fn a_line_for_each_token_has_its_id_and_text() {
    let text = "It was a \"plain\"\nday. \u{20ac}";
    let lines = tokens(&["-p", text]).ok();
    let ids = ids(&["-p", text]);
    assert_eq!(lines.lines().count(), ids.len(), "{lines}");
    let mut bytes = Vec::new();
    for (line, id) in lines.lines().zip(&ids) {
        let (found, piece) = line.trim_start().split_once("  ").unwrap();
        assert_eq!(found, id.to_string(), "{line}");
        match piece.strip_prefix('<').and_then(|piece| piece.strip_suffix('>')) {
            // A part of a character.
            Some(part) => bytes.extend(
                part.split(' ')
                    .map(|byte| u8::from_str_radix(byte.strip_prefix("0x").unwrap(), 16).unwrap()),
            ),
            None => bytes.extend(serde_json::from_str::<String>(piece).unwrap().into_bytes()),
        }
    }
    assert_eq!(String::from_utf8(bytes).unwrap(), text);
    assert_eq!(tokens(&["-p", text, "--count"]).ok(), format!("{}\n", ids.len()));
    // The server's option, under the server's name.
    let begun = self::ids(&["-p", text, "--add-special"]);
    assert_eq!(begun[1..], ids);
    assert_eq!(self::ids(&["-p", "<|begin_of_text|>"]), begun[..1], "as it is written");
}

#[test]
fn the_text_comes_from_a_file_or_through_a_pipe() {
    let folder = TempFolder::new();
    folder.write("a.txt", "It was.");
    folder.write("empty.txt", "");
    folder.write("latin.txt", [b'c', 0xe9]);
    let file = |name: &str| folder.file(name).display().to_string();
    let wanted = ids(&["-p", "It was."]);
    assert_eq!(ids(&["-f", &file("a.txt")]), wanted);
    for words in [&["--ids"][..], &["--ids", "-f", "-"]] {
        let model = needle().display().to_string();
        let mut command = command([&["tokenize", "-m", &model], words].concat());
        let stdin = Stdio::from(File::open(folder.file("a.txt")).unwrap());
        let line = Done::from(command.stdin(stdin).output().unwrap()).ok();
        assert_eq!(serde_json::from_str::<Vec<u32>>(&line).unwrap(), wanted);
    }
    assert_eq!(tokens(&["-p", "", "--count"]).ok(), "0\n");
    tokens(&[]).fails_with(&["stdin", "is empty"]);
    tokens(&["-f", &file("empty.txt")]).fails_with(&["empty.txt", "is empty"]);
    tokens(&["-f", &file("latin.txt")]).fails_with(&["latin.txt", "not UTF-8"]);
    tokens(&["-f", &file("none.txt")]).fails_with(&["none.txt", "cannot be read"]);
    tokens(&["-p", "a", "-f", &file("a.txt")]).refuses_usage(&["--prompt", "--file"]);
    tokens(&["-p", "a", "--ids", "--count"]).refuses_usage(&["--ids", "--count"]);
    longview(["tokenize", "-p", "a"]).refuses_usage(&["--model"]);
    longview(["tokenize", "-m", "/nowhere", "-p", "a"]).fails_with(&["/nowhere"]);
}
