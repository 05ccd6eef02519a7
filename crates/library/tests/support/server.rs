//! A hub on this machine: it speaks the API of the Hugging Face hub, keeps large files at a second
//! address as the hub does, remembers who asked for what, and misbehaves on request.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};
use serde_json::{Value, json};

/// What goes wrong with one request for a file's content.
#[derive(Clone, Debug)]
pub enum Fault {
    /// This status, with headers.
    Status(u16, Vec<(&'static str, String)>),
    /// The connection ends behind so many bytes.
    Cut(usize),
    /// The head says a shorter length, and that is all that comes.
    Short(usize),
    /// Other bytes of the same length.
    Flipped,
    /// More bytes than there are.
    Longer,
    /// From now on the content has another mark.
    NewMark(&'static str),
    /// Ranges are ignored.
    Whole,
    /// A part is sent, and another one than was asked for.
    OtherPart,
    /// So many bytes at a time, with pauses.
    Slow(usize, Duration),
    /// Nothing comes behind so many bytes.
    Hang(usize),
}

/// A file of a repository.
#[derive(Clone, Debug)]
pub struct HubFile {
    pub bytes: Vec<u8>,
    pub is_large: bool,
    /// What the list says in place of the truth.
    pub listed_size: Option<u64>,
    pub listed_hash: Option<String>,
}

/// A request that came.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Whether it came to the address of large files.
    pub is_store: bool,
    pub path: String,
    pub headers: BTreeMap<String, String>,
}

#[derive(Default)]
struct State {
    repos: BTreeMap<String, Repo>,
    seen: Vec<Seen>,
    /// By file name; each request takes one.
    faults: BTreeMap<String, VecDeque<Fault>>,
    list_faults: VecDeque<Fault>,
    marks: BTreeMap<String, &'static str>,
    redirect: Option<String>,
}

#[derive(Clone, Default)]
struct Repo {
    commit: String,
    revisions: BTreeMap<String, String>,
    files: BTreeMap<String, HubFile>,
    token: Option<String>,
    is_gated: bool,
}

/// A hub that runs until the process ends.
#[derive(Clone)]
pub struct TestHub {
    hub: SocketAddr,
    store: SocketAddr,
    state: Arc<Mutex<State>>,
}

/// The hash of a large file.
pub fn sha256(bytes: &[u8]) -> String {
    hex(digest(&SHA256, bytes).as_ref())
}

/// The hash of a small file.
pub fn git_hash(bytes: &[u8]) -> String {
    let blob = [format!("blob {}\0", bytes.len()).as_bytes(), bytes].concat();
    hex(digest(&SHA1_FOR_LEGACY_USE_ONLY, &blob).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes without a pattern.
pub fn noise(n: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..n).map(next).collect()
}

impl HubFile {
    fn hash(&self) -> String {
        let hash = || if self.is_large { sha256(&self.bytes) } else { git_hash(&self.bytes) };
        self.listed_hash.clone().unwrap_or_else(hash)
    }
}

impl TestHub {
    /// A hub without repositories.
    pub fn start() -> Self {
        let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
        let (hub, store) = (listen(), listen());
        let state = Arc::new(Mutex::new(State::default()));
        let own =
            Self { hub: hub.local_addr().unwrap(), store: store.local_addr().unwrap(), state };
        own.serve(hub, false);
        own.serve(store, true);
        own
    }

    /// For HF_ENDPOINT.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.hub)
    }

    /// Adds a repository, or a file to it; large files have more than 1,000 bytes.
    pub fn file(&self, repo: &str, name: &str, bytes: impl Into<Vec<u8>>) -> &Self {
        let bytes = bytes.into();
        let is_large = bytes.len() > 1000;
        let file = HubFile { bytes, is_large, listed_size: None, listed_hash: None };
        self.repo(repo, |repo| drop(repo.files.insert(name.to_owned(), file)))
    }

    /// Changes what is listed of a file.
    pub fn lie(&self, repo: &str, name: &str, change: impl FnOnce(&mut HubFile)) -> &Self {
        self.repo(repo, |repo| change(repo.files.get_mut(name).unwrap()))
    }

    /// Another commit, whose files are added to those that are there.
    pub fn commit(&self, repo: &str, digit: char) -> &Self {
        self.repo(repo, |repo| repo.commit = digit.to_string().repeat(40))
    }

    /// A branch or tag of the commit that is there.
    pub fn revision(&self, repo: &str, name: &str) -> &Self {
        self.repo(repo, |repo| drop(repo.revisions.insert(name.to_owned(), repo.commit.clone())))
    }

    /// From now on the repository is shown to this token alone.
    pub fn private(&self, repo: &str, token: &str, is_gated: bool) -> &Self {
        self.repo(repo, |repo| (repo.token, repo.is_gated) = (Some(token.to_owned()), is_gated))
    }

    /// What goes wrong with the next requests for a file.
    pub fn faults(&self, file: &str, faults: impl IntoIterator<Item = Fault>) -> &Self {
        let mut state = self.state.lock().unwrap();
        state.faults.entry(file.to_owned()).or_default().extend(faults);
        drop(state);
        self
    }

    /// What goes wrong with the next requests for lists.
    pub fn list_faults(&self, faults: impl IntoIterator<Item = Fault>) -> &Self {
        self.state.lock().unwrap().list_faults.extend(faults);
        self
    }

    /// Where large files are said to be, in place of the second address.
    pub fn redirect(&self, location: &str) -> &Self {
        self.state.lock().unwrap().redirect = Some(location.to_owned());
        self
    }

    /// Everything that was asked for.
    pub fn seen(&self) -> Vec<Seen> {
        self.state.lock().unwrap().seen.clone()
    }

    /// Requests for the content of a file, at the address that has it.
    pub fn asked_for(&self, file: &str) -> Vec<Seen> {
        let is_content = |seen: &Seen| seen.path.split('?').next().unwrap().ends_with(file);
        let all: Vec<Seen> = self.seen().into_iter().filter(is_content).collect();
        let is_large = all.iter().any(|seen| seen.is_store);
        all.into_iter().filter(|seen| seen.is_store == is_large).collect()
    }

    fn repo(&self, name: &str, change: impl FnOnce(&mut Repo)) -> &Self {
        let mut state = self.state.lock().unwrap();
        let new = || Repo { commit: "c".repeat(40), ..Repo::default() };
        change(state.repos.entry(name.to_owned()).or_insert_with(new));
        drop(state);
        self
    }

    fn serve(&self, listener: TcpListener, is_store: bool) {
        let own = self.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let own = own.clone();
                // A client that goes is no error.
                thread::spawn(move || drop(own.answer(stream, is_store)));
            }
        });
    }

    fn answer(&self, stream: TcpStream, is_store: bool) -> std::io::Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
        let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
        let mut headers = BTreeMap::new();
        for line in lines.map_while(Result::ok).take_while(|line| !line.is_empty()) {
            if let Some((name, value)) = line.split_once(':') {
                headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
            }
        }
        let seen = Seen { is_store, path, headers };
        self.state.lock().unwrap().seen.push(seen.clone());
        let mut out = Out(stream);
        if is_store {
            let name = decoded(seen.path.split('?').next().unwrap().trim_start_matches('/'));
            let (repo, file) = name.split_once("/-/").unwrap_or_default();
            return self.content(&mut out, repo, file, &seen);
        }
        match seen.path.strip_prefix("/api/models/") {
            Some(rest) => self.list(&mut out, rest, &seen),
            None => self.resolve(&mut out, &seen),
        }
    }

    /// A repository that whoever asks may see; otherwise it is refused as the hub does.
    fn allowed(&self, out: &mut Out, name: &str, seen: &Seen) -> Option<Repo> {
        let repo = self.state.lock().unwrap().repos.get(name).cloned();
        let given = seen.headers.get("authorization").map(String::as_str);
        if given.is_some_and(|given| given == "Bearer hf_bad") {
            let message = "Invalid credentials in Authorization header".to_owned();
            let _ = out.head(401, &[("X-Error-Message", message)], Some(0));
            return None;
        }
        let code = match &repo {
            None => "RepoNotFound",
            Some(Repo { token: None, .. }) => return repo,
            Some(Repo { token: Some(token), .. }) if given == Some(&format!("Bearer {token}")) => {
                return repo;
            }
            Some(repo) if repo.is_gated => "GatedRepo",
            Some(_) => "RepoNotFound",
        };
        let status = match (code, given) {
            ("GatedRepo", Some(_)) => 403,
            (_, None) => 401,
            (_, Some(_)) => 404,
        };
        let _ = out.head(status, &[("X-Error-Code", code.to_owned())], Some(0));
        None
    }

    fn list(&self, out: &mut Out, rest: &str, seen: &Seen) -> std::io::Result<()> {
        let (name, revision) = rest.split_once("/revision/").unwrap_or((rest, "main"));
        let Some(mut repo) = self.allowed(out, name, seen) else { return Ok(()) };
        let fault = self.state.lock().unwrap().list_faults.pop_front();
        match fault {
            Some(Fault::Status(status, headers)) => return out.head(status, &headers, Some(0)),
            Some(Fault::Flipped) => return out.text("<html>a page</html>"),
            Some(Fault::Hang(_)) => {
                thread::sleep(Duration::from_secs(60));
                return Ok(());
            }
            _ => {}
        }
        let revision = decoded(revision.split('?').next().unwrap());
        match repo.revisions.get(&revision) {
            Some(commit) => repo.commit.clone_from(commit),
            None if revision == "main" || revision == repo.commit => {}
            None => {
                let code = "RevisionNotFound".to_owned();
                return out.head(404, &[("X-Error-Code", code)], Some(0));
            }
        }
        let list: Vec<Value> = repo.files.iter().map(|(name, file)| listed(name, file)).collect();
        let tags = ["text-generation", "license:apache-2.0"];
        let listed = json!({"id": name, "sha": repo.commit, "tags": tags, "siblings": list});
        out.text(&listed.to_string())
    }

    fn resolve(&self, out: &mut Out, seen: &Seen) -> std::io::Result<()> {
        let path = seen.path.trim_start_matches('/');
        let (name, rest) = path.split_once("/resolve/").unwrap_or((path, ""));
        let Some(repo) = self.allowed(out, name, seen) else { return Ok(()) };
        let file = decoded(rest.split_once('/').map_or("", |(_, file)| file));
        let Some(found) = repo.files.get(&file) else {
            return out.head(404, &[("X-Error-Code", "EntryNotFound".to_owned())], Some(0));
        };
        if !found.is_large {
            return self.content(out, name, &file, seen);
        }
        let store = || format!("http://{}/{name}/-/{file}?signature=x", self.store);
        let location = self.state.lock().unwrap().redirect.clone().unwrap_or_else(store);
        let headers = [
            ("Location", location),
            ("X-Linked-ETag", format!("\"{}\"", found.hash())),
            ("X-Linked-Size", found.bytes.len().to_string()),
        ];
        out.head(302, &headers, Some(0))
    }

    fn content(&self, out: &mut Out, repo: &str, name: &str, seen: &Seen) -> std::io::Result<()> {
        let (mut bytes, mark, fault) = {
            let mut state = self.state.lock().unwrap();
            let Some(file) = state.repos.get(repo).and_then(|repo| repo.files.get(name)).cloned()
            else {
                return out.head(404, &[], Some(0));
            };
            let fault = state.faults.get_mut(name).and_then(VecDeque::pop_front);
            if let Some(Fault::NewMark(mark)) = fault {
                state.marks.insert(name.to_owned(), mark);
            }
            let mark = state.marks.get(name).map_or_else(|| file.hash(), |mark| (*mark).to_owned());
            (file.bytes, format!("\"{mark}\""), fault)
        };
        let total = bytes.len();
        let asked = seen.headers.get("range").filter(|_| {
            let same = seen.headers.get("if-range").is_none_or(|asked| *asked == mark);
            same && !matches!(fault, Some(Fault::Whole))
        });
        let from = asked.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-'));
        let from: usize = from.map_or(0, |from| from.parse().unwrap());
        let from = if matches!(fault, Some(Fault::OtherPart)) { from / 2 } else { from };
        let mut headers = vec![("ETag", mark), ("Accept-Ranges", "bytes".to_owned())];
        if asked.is_some() {
            headers.push(("Content-Range", format!("bytes {from}-{}/{total}", total - 1)));
        }
        bytes.drain(..from);
        let status = if asked.is_some() { 206 } else { 200 };
        out.faulty(status, &headers, bytes, fault)
    }
}

fn listed(name: &str, file: &HubFile) -> Value {
    let size = file.listed_size.unwrap_or(file.bytes.len() as u64);
    if file.is_large {
        let lfs = json!({"sha256": file.hash(), "size": size, "pointerSize": 134});
        json!({"rfilename": name, "size": size, "blobId": "d".repeat(40), "lfs": lfs})
    } else {
        json!({"rfilename": name, "size": size, "blobId": file.hash()})
    }
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        match digits.and_then(|two| u8::from_str_radix(two, 16).ok()) {
            Some(value) if *byte == b'%' => {
                bytes.push(value);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*byte);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).unwrap()
}

/// A connection to write to.
struct Out(TcpStream);

impl Out {
    fn head(
        &mut self,
        status: u16,
        headers: &[(&'static str, String)],
        length: Option<usize>,
    ) -> std::io::Result<()> {
        let mut text = format!("HTTP/1.1 {status} x\r\nConnection: close\r\n");
        for (name, value) in headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        if let Some(length) = length {
            text.push_str(&format!("Content-Length: {length}\r\n"));
        }
        self.0.write_all(format!("{text}\r\n").as_bytes())
    }

    fn text(&mut self, text: &str) -> std::io::Result<()> {
        self.head(200, &[], Some(text.len()))?;
        self.0.write_all(text.as_bytes())
    }

    fn faulty(
        &mut self,
        status: u16,
        headers: &[(&'static str, String)],
        mut bytes: Vec<u8>,
        fault: Option<Fault>,
    ) -> std::io::Result<()> {
        let n = bytes.len();
        match fault {
            Some(Fault::Status(status, headers)) => return self.head(status, &headers, Some(0)),
            Some(Fault::Short(n)) => bytes.truncate(n),
            Some(Fault::Flipped) => bytes[n / 2] ^= 1,
            Some(Fault::Longer) => bytes.extend([7; 9]),
            _ => {}
        }
        self.head(status, headers, Some(bytes.len()))?;
        match fault {
            Some(Fault::Cut(at)) => self.0.write_all(&bytes[..at.min(n)]),
            Some(Fault::Hang(at)) => {
                self.0.write_all(&bytes[..at.min(n)])?;
                thread::sleep(Duration::from_secs(60));
                Ok(())
            }
            Some(Fault::Slow(at_once, wait)) => bytes.chunks(at_once).try_for_each(|piece| {
                thread::sleep(wait);
                self.0.write_all(piece)
            }),
            _ => self.0.write_all(&bytes),
        }
    }
}
