//! `longview kv`: documents that are read once, kept, and asked by later processes.

use std::fs;
use std::path::PathBuf;
use std::process::Child;

use crate::support::{Done, TempFolder, command, longview, needle};

const QUESTION: &str = "What is the pass key? The pass key is";

/// About 700 tokens with a fact in the middle.
fn text(n: usize) -> String {
    let filler = "The miller carried a basket of straw to the old barn and rested near the gate. ";
    filler.repeat(n)
        + "The pass key is 48213. Remember it. 48213 is the pass key. "
        + &filler.repeat(n)
}

/// A library, and files beside it.
struct Shelf(TempFolder);

impl Shelf {
    fn new() -> Self {
        Self(TempFolder::new())
    }

    /// `longview kv` with these words; `@NAME` is a file beside the library.
    fn command(&self, words: &[&str]) -> std::process::Command {
        let words = words.iter().map(|word| match word.strip_prefix('@') {
            Some(name) => self.0.file(name).display().to_string(),
            None => (*word).to_owned(),
        });
        let mut all = vec!["kv".to_owned()];
        all.extend(words);
        let mut command = command(all);
        command.env("LONGVIEW_LIBRARY", self.0.file("library"));
        command
    }

    fn kv(&self, words: &[&str]) -> Done {
        self.command(words).output().unwrap().into()
    }

    fn build(&self, words: &[&str]) -> Done {
        let model = needle().display().to_string();
        let with = ["-m", &model, "--device", "cpu", "--budget", "256"];
        self.kv(&[&["build"], words, &with].concat())
    }

    fn ask(&self, name: &str) -> Done {
        self.kv(&["open", name, QUESTION, "-n", "16", "--temp", "0", "--device", "cpu"])
    }

    /// The session files.
    fn sessions(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.0.file("library/sessions")).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}

#[test]
fn a_library_that_is_mistyped_is_named_and_not_made() {
    let shelf = Shelf::new();
    let absent = shelf.0.file("no-libary");
    for words in [
        &["ls"][..],
        &["check"],
        &["check", "--repair"],
        &["export", "a", "b"],
        &["open", "a", "why?"],
        &["rm", "a"],
        &["pin", "a"],
        &["unpin", "a"],
        &["rename", "a", "b"],
        &["quota"],
    ] {
        let named = [words, &["--library", "@no-libary"]].concat();
        let shown = absent.display().to_string();
        shelf.kv(&named).fails_with(&["--library", &shown, "no such folder", "`longview kv build"]);
        assert!(!absent.exists(), "{words:?}");
        // The user's own is empty before the first document, and is not made by a look at it.
        let own = shelf.kv(words);
        let is_a_list = ["ls", "check", "quota"].contains(&words[0]);
        assert_eq!(own.code, Some(i32::from(!is_a_list)), "{words:?}: {}", own.stderr);
        assert!(is_a_list || own.stderr.contains("a: there is no such document"), "{}", own.stderr);
        assert!(!shelf.0.file("library").exists(), "{words:?}");
    }
    // What puts something into it makes it.
    shelf.kv(&["quota", "1GiB"]).ok();
    assert!(shelf.0.file("library").is_dir());
    assert_eq!(shelf.kv(&["quota"]).ok(), "1.0 GiB; sessions take 0 B\n");
}

#[test]
fn a_verb_alone_says_what_is_missing_and_how_it_is_used() {
    for (words, missing, example) in [
        (&["kv", "build"][..], "<FILE>", "`longview kv build book.txt -m MODEL`"),
        (&["kv", "open"], "<NAME>", "`longview kv open NAME"),
        (&["kv", "ask"], "<NAME>", "`longview kv ls` lists the names"),
    ] {
        let done = longview(words);
        assert!(!done.stderr.contains("--model"), "{}", done.stderr);
        done.refuses_usage(&["required arguments", missing, example]);
    }
}

#[test]
fn a_document_is_kept_asked_and_removed() {
    let shelf = Shelf::new();
    assert!(shelf.kv(&["ls"]).stderr.contains("no documents in "));
    shelf.0.write("book.txt", text(16));
    let built = shelf.build(&["@book.txt"]).ok();
    let (name, id) = built.trim().split_once("  ").unwrap();
    assert_eq!(name, "book");
    for word in ["book", id] {
        assert!(shelf.ask(word).ok().contains("48213"));
    }
    let listed = shelf.kv(&["ls"]).ok();
    assert!(listed.contains("needle (longview, f16)") && listed.contains(" complete"), "{listed}");
    assert!(shelf.build(&["@book.txt"]).stderr.contains("was read before, nothing is to do"));
    // A session is a file of its own, that `run` can ask.
    shelf.kv(&["export", "book", "@book.lvs"]).ok();
    let model = needle().display().to_string();
    let run = ["run", "-m", &model, "--device", "cpu", "-n", "16", "--temp", "0", "-p", QUESTION];
    let mut run = command(run);
    let done: Done = run.arg("--session").arg(shelf.0.file("book.lvs")).output().unwrap().into();
    assert!(done.ok().contains("48213"));
    shelf.kv(&["export", "--text", "book", "@out.txt"]).ok();
    assert_eq!(fs::read_to_string(shelf.0.file("out.txt")).unwrap(), text(16));
    shelf.kv(&["export", "--text", "book", "-o", "@again.txt"]).ok();
    assert_eq!(fs::read_to_string(shelf.0.file("again.txt")).unwrap(), text(16));
    let both = ["export", "--text", "book", "@one.txt", "-o", "@two.txt"];
    shelf.kv(&both).refuses_usage(&["cannot be used with"]);
    shelf.kv(&["export", "book"]).refuses_usage(&["<FILE>"]);
    shelf.kv(&["export", "--text", "book", "@out.txt"]).fails_with(&["out.txt: is not "]);
    shelf.kv(&["rename", "book", "novel"]).ok();
    shelf.kv(&["pin", "novel"]).ok();
    let json: serde_json::Value = serde_json::from_str(&shelf.kv(&["ls", "--json"]).ok()).unwrap();
    let document = &json["documents"][0];
    assert_eq!((&document["name"], &document["pinned"]), (&"novel".into(), &true.into()));
    assert_eq!(document["sessions"][0]["complete"], true);
    shelf.kv(&["open", "book", "x"]).fails_with(&["book: there is no such document"]);
    assert!(shelf.kv(&["rm", "novel"]).ok().contains("novel: removed, "));
    assert!(shelf.sessions().is_empty());
    assert_eq!(fs::read_dir(shelf.0.file("library/texts")).unwrap().count(), 0);
}

#[test]
fn the_model_of_the_program_has_a_name() {
    let shelf = Shelf::new();
    shelf.0.write("book.txt", text(16));
    shelf.kv(&["build", "@book.txt", "-m", "needle", "--device", "cpu"]).ok();
    let listed = shelf.kv(&["ls"]).ok();
    assert!(listed.contains("needle (longview, f16)"), "{listed}");
    // Without -m it is the one that read the document.
    assert!(shelf.ask("book").ok().contains("48213"));
    let file = shelf.0.file("book.txt").display().to_string();
    let run = ["run", "-m", "needle", "--device", "cpu", "-n", "16", "--temp", "0", "-f", &file];
    let done: Done = command(run).args(["-p", QUESTION]).output().unwrap().into();
    assert!(done.ok().contains("48213"));
    // The same model at a place of its own has read the same. A question may be given as to `run`.
    let model = needle().display().to_string();
    let again = ["open", "book", "-p", QUESTION, "-m", &model, "-n", "16", "--temp", "0"];
    assert!(shelf.kv(&again).ok().contains("48213"));
    shelf.kv(&["open", "book", "x", "-p", "y"]).refuses_usage(&["cannot be used with"]);
}

#[test]
fn what_was_read_is_not_read_again() {
    let shelf = Shelf::new();
    shelf.0.write("one.txt", text(12));
    shelf.0.write("two.txt", "The ticket number of Samuel is 98399. ".to_owned() + &text(8));
    shelf.build(&["@one.txt"]).ok();
    let both = shelf.build(&["@one.txt", "@two.txt", "--name", "both"]);
    assert!(both.stderr.contains(" tokens are known from one"), "{}", both.stderr);
    both.ok();
    let question = "What is the ticket number of Samuel? The ticket number of Samuel is";
    let words = ["open", "both", question, "-n", "16", "--temp", "0", "--device", "cpu"];
    assert!(shelf.kv(&words).ok().contains("98399"));
    // A longer version under the same name takes its place.
    let longer = shelf.build(&["@one.txt", "@two.txt", "@one.txt", "--name", "both"]);
    assert!(longer.stderr.contains("known from both"), "{}", longer.stderr);
    longer.ok();
    let listed = shelf.kv(&["ls"]).ok();
    assert_eq!(listed.lines().count(), 3, "{listed}");
    shelf.0.write("other.txt", "Another text about nothing in particular. ".repeat(9));
    shelf
        .build(&["@other.txt", "--name", "both"])
        .fails_with(&["both: another document is called"]);
    // What else is kept of the same text: another type of rows. The text alone can be read anew.
    shelf.build(&["--from", "one", "--kv-type", "q8"]).ok();
    assert_eq!(shelf.kv(&["ls"]).ok().lines().count(), 4);
    shelf.kv(&["quota", "1KiB"]).ok();
    let listed = shelf.kv(&["ls"]).ok();
    assert_eq!(listed.matches("text only").count(), 2, "{listed}");
    shelf.ask("one").fails_with(&["one: only its text is here; `longview kv build --from "]);
    shelf.build(&["--from", "one"]).fails_with(&["one: takes ", "the library may hold 1.0 KiB"]);
}

/// Its text alone would be in the way of another document of the name.
#[test]
fn of_a_document_that_cannot_be_read_nothing_is_kept() {
    let shelf = Shelf::new();
    shelf.0.write("one.txt", text(12));
    shelf.build(&["@one.txt", "--ctx-size", "64"]).fails_with(&["tokens"]);
    assert_eq!(shelf.kv(&["ls"]).ok().matches("one").count(), 0);
    shelf.build(&["@one.txt"]).ok();
    shelf.build(&["@one.txt", "--kv-type", "q8", "--ctx-size", "64"]).fails_with(&["tokens"]);
    assert_eq!(shelf.kv(&["ls"]).ok().matches("one").count(), 1, "what was there stays");
}

#[test]
#[cfg(unix)]
fn a_build_that_is_interrupted_goes_on() {
    let shelf = Shelf::new();
    shelf.0.write("book.txt", text(200));
    let model = needle().display().to_string();
    let with = ["-m", &model, "--device", "cpu", "--budget", "256", "--chunk-size", "32"];
    let words = [&["build", "@book.txt"], &with[..]].concat();
    // Loading may take long where much else runs: then nothing was read.
    let stopped = [300, 1000, 3000].into_iter().map(|ms| interrupted(&shelf, &words, ms));
    let stopped =
        stopped.into_iter().find(|done| done.stderr.contains("are kept")).expect("a part");
    assert_eq!((stopped.code, &*stopped.stdout), (Some(130), ""));
    assert!(stopped.stderr.contains("this goes on:\n  longview kv build "), "{}", stopped.stderr);
    let listed = shelf.kv(&["ls"]).ok();
    assert!(listed.contains(" % read"), "{listed}");
    let rest = shelf.kv(&words);
    assert!(rest.stderr.contains(" tokens are known from book"), "{}", rest.stderr);
    rest.ok();
    assert!(shelf.kv(&["ls"]).ok().contains(" complete"));
    assert!(shelf.ask("book").ok().contains("48213"));
    assert_eq!(shelf.sessions().len(), 1);
}

#[test]
fn a_session_that_was_read_sparsely_is_asked_by_who_says_so() {
    let shelf = Shelf::new();
    shelf.0.write("book.txt", text(40));
    shelf.build(&["@book.txt", "--prefill", "sparse:0.5"]).ok();
    let listed = shelf.kv(&["ls"]).ok();
    assert!(listed.contains("needle (longview, f16, sparse:0.5)"), "{listed}");
    let words = ["open", "book", QUESTION, "-n", "16", "--temp", "0", "--device", "cpu"];
    let sparsely = || shelf.kv(&[&words[..], &["--prefill", "sparse"]].concat());
    shelf.ask("book").fails_with(&["was read with --prefill sparse:0.5", "--prefill sparse"]);
    assert!(sparsely().ok().contains("48213"));
    // To read exactly is to read again, and both are there then.
    assert!(!shelf.build(&["@book.txt"]).stderr.contains("nothing is to do"));
    assert_eq!(shelf.sessions().len(), 2);
    assert!(sparsely().ok().contains("48213"));
    assert!(shelf.ask("book").ok().contains("48213"), "the one that was asked last is the other");
}

/// All is read, and Ctrl-C comes while it is indexed: the next build makes the index.
#[test]
#[cfg(unix)]
fn an_index_that_was_interrupted_is_made_by_the_next_build() {
    let model = needle().display().to_string();
    // With as many iterations as are allowed the index takes longer than the reading.
    let slow = ["--policy", "lrqk", "--iterations", "1024", "--keep-every", "0"];
    let words = ["build", "@book.txt", "-m", &model, "--device", "cpu"];
    let words = [&words[..], &slow[..]].concat();
    let stopped_after = |ms: u64| {
        let shelf = Shelf::new();
        shelf.0.write("book.txt", text(80));
        let done = interrupted(&shelf, &words, ms);
        let wanted = "their index is not complete, and this makes it:\n  longview kv build ";
        done.stderr.contains(wanted).then_some((shelf, done))
    };
    let mut tries = (1..60).map(|i| stopped_after(i * 200));
    let (shelf, stopped) = tries.find_map(|found| found).expect("a Ctrl-C during the index");
    assert_eq!((stopped.code, &*stopped.stdout), (Some(130), ""));
    assert!(shelf.kv(&["ls"]).ok().contains(" no index"));
    let asked = shelf.ask("book");
    let lacks =
        "its index is not complete; it is made now, and not kept: `longview kv build --from ";
    assert_eq!(asked.stderr.matches(lacks).count(), 1, "{}", asked.stderr);
    asked.ok();
    let rest = shelf.kv(&words);
    assert!(!rest.stderr.contains("nothing is to do"), "{}", rest.stderr);
    rest.ok();
    assert!(shelf.kv(&["ls"]).ok().contains(" complete"));
    let again = shelf.kv(&words);
    assert!(again.stderr.contains("was read before, nothing is to do"), "{}", again.stderr);
    let asked = shelf.ask("book");
    assert!(!asked.stderr.contains("index is not complete"), "{}", asked.stderr);
    assert!(asked.ok().contains("48213"));
}

/// Tokens that the library has of its one document.
fn kept_tokens(shelf: &Shelf) -> u64 {
    let manifest = fs::read(shelf.0.file("library/manifest.json")).unwrap_or_default();
    let json: serde_json::Value = serde_json::from_slice(&manifest).unwrap_or_default();
    let found = find(&json, "n_tokens").and_then(serde_json::Value::as_u64);
    found.unwrap_or(0)
}

/// The first value of this name, wherever it stands.
fn find<'a>(json: &'a serde_json::Value, name: &str) -> Option<&'a serde_json::Value> {
    match json {
        serde_json::Value::Object(fields) => {
            fields.get(name).or_else(|| fields.values().find_map(|value| find(value, name)))
        }
        serde_json::Value::Array(items) => items.iter().find_map(|item| find(item, name)),
        _ => None,
    }
}

#[test]
fn a_build_that_is_killed_goes_on_from_what_was_kept() {
    let shelf = Shelf::new();
    shelf.0.write("book.txt", text(200));
    let model = needle().display().to_string();
    let with = ["-m", &model, "--device", "cpu", "--budget", "256", "--chunk-size", "32"];
    let words = [&["build", "@book.txt", "--keep-every", "0.02"], &with[..]].concat();
    let mut child: Child = shelf.command(&words).spawn().unwrap();
    // Kept once as a file, and once behind what that file has.
    let mut seen = Vec::new();
    while seen.len() < 2 && child.try_wait().unwrap().is_none() {
        let n_tokens = kept_tokens(&shelf);
        if n_tokens > seen.last().copied().unwrap_or(0) {
            seen.push(n_tokens);
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    child.kill().unwrap();
    // Windows has no signals: what is killed returns 1.
    let code = cfg!(windows).then_some(1);
    assert_eq!(child.wait().unwrap().code(), code, "it ended before it could be killed: {seen:?}");
    assert_eq!(seen.len(), 2, "it ended before it could be killed");
    assert!(shelf.kv(&["ls"]).ok().contains(" % read"));
    let (kept, again) = (kept_tokens(&shelf), shelf.kv(&words));
    let first = again.stderr.lines().find(|line| line.contains(" tokens are known from book"));
    let first = first.unwrap_or_else(|| panic!("{}", again.stderr));
    let n_known: String = first.chars().take_while(|c| *c != ' ').filter(|c| *c != ',').collect();
    assert!(
        n_known.parse::<u64>().unwrap() >= kept && kept >= seen[1],
        "{first}; {kept}; {seen:?}"
    );
    again.ok();
    assert!(shelf.ask("book").ok().contains("48213"));
    assert!(shelf.kv(&["check"]).ok().contains("2 files are right"));
    assert_eq!(shelf.sessions().len(), 1);
}

#[test]
fn a_longer_session_is_cut_for_a_shorter_document() {
    let shelf = Shelf::new();
    // The first has more tokens than the context that the second gets.
    shelf.0.write("long.txt", text(30) + &text(250));
    shelf.0.write("short.txt", text(30) + "The end.");
    shelf.build(&["@long.txt"]).ok();
    let short = shelf.build(&["@short.txt"]);
    assert!(short.stderr.contains(" tokens, as long needs\n"), "{}", short.stderr);
    let known = short.stderr.lines().find(|line| line.ends_with(" tokens are known from long"));
    assert!(known.is_some_and(|line| line.starts_with("1,")), "{}", short.stderr);
    short.ok();
    assert!(shelf.ask("short").ok().contains("48213"));
}

/// Byte by byte: what is kept in between changes nothing of what comes out.
#[test]
fn keeping_while_reading_changes_nothing() {
    let [once, often] = ["0", "0.01"].map(|seconds| {
        let shelf = Shelf::new();
        shelf.0.write("book.txt", text(40));
        shelf.build(&["@book.txt", "--chunk-size", "32", "--keep-every", seconds]).ok();
        let sessions = shelf.sessions();
        assert_eq!(sessions.len(), 1);
        fs::read(&sessions[0]).unwrap()
    });
    assert!(once == often, "{} and {} bytes", once.len(), often.len());
}

#[cfg(unix)]
fn interrupted(shelf: &Shelf, words: &[&str], after_ms: u64) -> Done {
    use std::io::{BufRead, BufReader, Read};
    let mut child: Child = shelf.command(words).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    while !said.contains("context: ") && stderr.read_line(&mut said).unwrap() > 0 {}
    std::thread::sleep(std::time::Duration::from_millis(after_ms));
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    stderr.read_to_string(&mut said).unwrap();
    let mut done: Done = child.wait_with_output().unwrap().into();
    done.stderr = said;
    done
}

#[test]
fn a_damaged_session_is_refused_and_found() {
    let shelf = Shelf::new();
    shelf.0.write("book.txt", text(12));
    shelf.build(&["@book.txt"]).ok();
    assert!(shelf.kv(&["check"]).ok().contains("2 files are right"));
    let path = shelf.sessions().remove(0);
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::write(&path, bytes).unwrap();
    shelf.ask("book").fails_with(&["the session is damaged in "]);
    shelf.kv(&["export", "book", "@x.lvs"]).fails_with(&["book: ", "nothing is written"]);
    let check = shelf.kv(&["check"]);
    assert_eq!(check.code, Some(1));
    assert!(check.stdout.contains("book: ") && check.stdout.contains("is damaged in "));
    assert!(check.stderr.contains("1 thing is not right; `longview kv check --repair`"));
    assert!(shelf.kv(&["check", "--repair"]).ok().contains("1 thing is set right"));
    assert!(shelf.kv(&["check"]).ok().contains("1 file is right"));
    shelf.ask("book").fails_with(&["only its text is here"]);
    shelf.build(&["--from", "book"]).ok();
    assert!(shelf.ask("book").ok().contains("48213"));
}

/// A PDF of one page that draws `content`, with further entries in its trailer.
fn pdf(content: &str, trailer: &str) -> Vec<u8> {
    let objects = [
        "<< /Type /Catalog /Pages 2 0 R >>".to_owned(),
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>".to_owned(),
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R /Resources << \
         /Font << /F1 5 0 R >> /XObject << /I 6 0 R >> >> >>"
            .to_owned(),
        format!("<< /Length {} >>\nstream\n{content}\nendstream", content.len()),
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>".to_owned(),
        "<< /Type /XObject /Subtype /Image /Width 1 /Height 1 /ColorSpace /DeviceGray \
         /BitsPerComponent 8 /Length 1 >>\nstream\n\x01\nendstream"
            .to_owned(),
        format!(
            "<< /Filter /Standard /V 1 /R 2 /P -4 /O <{}> /U <{}> >>",
            "41".repeat(32),
            "42".repeat(32)
        ),
    ];
    let (mut bytes, mut table) = (b"%PDF-1.4\n".to_vec(), String::new());
    for (i, object) in objects.iter().enumerate() {
        table.push_str(&format!("{:010} 00000 n \n", bytes.len()));
        bytes.extend_from_slice(format!("{} 0 obj\n{object}\nendobj\n", i + 1).as_bytes());
    }
    let start = bytes.len();
    let n = objects.len() + 1;
    let end = format!(
        "xref\n0 {n}\n0000000000 65535 f \n{table}trailer\n<< /Size {n} /Root 1 0 R {trailer} >>\n\
         startxref\n{start}\n%%EOF\n"
    );
    bytes.extend_from_slice(end.as_bytes());
    bytes
}

/// The text that comes out of a file.
fn read(shelf: &Shelf, name: &str) -> String {
    let built = shelf.build(&[&format!("@{name}")]).ok();
    let id = built.trim().rsplit("  ").next().unwrap();
    let out = format!("@{name}.out");
    shelf.kv(&["export", "--text", id, &out]).ok();
    fs::read_to_string(shelf.0.file(&out[1..])).unwrap()
}

#[test]
fn files_of_many_kinds_become_text() {
    let shelf = Shelf::new();
    let draw = "BT /F1 12 Tf 72 700 Td (The pass key is 48213.) Tj ET";
    shelf.0.write("a.pdf", pdf(draw, ""));
    assert_eq!(read(&shelf, "a.pdf").trim(), "The pass key is 48213.");
    let manifest = fs::read_to_string(shelf.0.file("library/manifest.json")).unwrap();
    assert!(manifest.contains("\"pages\":1") || manifest.contains("\"pages\": 1"), "{manifest}");
    let page = "<html><head><title>x</title></head><body><h1>Key</h1><p>It is <b>48213</b>.";
    shelf.0.write("a.html", page);
    assert_eq!(read(&shelf, "a.html").trim(), "# Key\n\nIt is 48213.");
    let latin =
        b"O\xf9 est le caf\xe9 pr\xe8s de la for\xeat ? Voil\xe0 l'\xe9l\xe8ve, d\xe9j\xe0 l\xe0.";
    shelf.0.write("latin.txt", latin);
    assert_eq!(
        read(&shelf, "latin.txt"),
        "Où est le café près de la forêt ? Voilà l'élève, déjà là."
    );
    shelf.0.write("a.md", "# Title\r\n\r\n*text*");
    assert_eq!(read(&shelf, "a.md"), "# Title\n\n*text*");
}

#[test]
fn files_without_text_say_why() {
    let shelf = Shelf::new();
    let image = "q 612 0 0 792 0 0 cm /I Do Q";
    for (name, bytes, part) in [
        ("scan.pdf", pdf(image, ""), "scan.pdf: has no text: its pages (1) are pictures"),
        ("locked.pdf", pdf("", "/Encrypt 7 0 R /ID [<41> <41>]"), "is encrypted and asks for a"),
        ("cut.pdf", b"%PDF-1.4\n1 0 obj".to_vec(), "cut.pdf: is broken as a pdf file"),
        ("a.doc", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1rest".to_vec(), "is an old Word document"),
        ("a.txt", b"\x89PNG\r\n\x1a\n".to_vec(), "a.txt: is a PNG image, and no text"),
        ("b.txt", vec![0, 1, 2, 3, 200], "b.txt: is a binary file, and no text"),
        ("a.docx", b"PK\x03\x04rest".to_vec(), "a.docx: is broken as a docx file"),
        ("empty.txt", b" \n".to_vec(), "empty.txt: there is no text in it"),
    ] {
        shelf.0.write(name, bytes);
        shelf.build(&[&format!("@{name}")]).fails_with(&[part]);
    }
    shelf.build(&["@none.txt"]).fails_with(&["none.txt: cannot be read"]);
    shelf.build(&["@library"]).fails_with(&["library: is a folder; give the name of a file"]);
    assert!(shelf.kv(&["ls"]).stderr.contains("no documents in "), "nothing is kept");
    shelf.0.write("a.txt", "A text.");
    shelf.kv(&["build", "@a.txt"]).fails_with(&["no model is known: give one with -m MODEL"]);
    shelf.kv(&["build"]).refuses_usage(&["<FILE>"]);
    let foreign = shelf.0.path().display().to_string();
    shelf.kv(&["ls", "--library", &foreign]).fails_with(&["is no library, and not empty"]);
}
