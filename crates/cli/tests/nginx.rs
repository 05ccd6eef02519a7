//! `packaging/nginx.conf` before two servers that refuse, are slow or are gone, as scripts make
//! them. `shared` has two real ones behind it.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::TempFolder;
use crate::support::serving::{Headers, send};

/// nginx over two servers: one port takes turns, the other goes by the header `x-document`.
pub struct Nginx {
    child: Child,
    pub in_turns: String,
    pub sticky: String,
}

impl Nginx {
    /// With what is replaced in the file. `None` where there is no nginx, which CI does not allow.
    pub fn start(
        folder: &TempFolder,
        servers: [&str; 2],
        replaced: &[(&str, &str)],
    ) -> Option<Self> {
        let paths = std::env::var_os("PATH").unwrap_or_default();
        let paths = std::env::split_paths(&paths).chain([PathBuf::from("/usr/sbin")]);
        let Some(program) = paths.map(|path| path.join("nginx")).find(|path| path.is_file()) else {
            assert!(std::env::var_os("REQUIRE_NGINX").is_none(), "there is no nginx");
            // Not `eprintln`, which tests that pass keep for themselves.
            let _ =
                writeln!(std::io::stderr(), "NOT RUN: two servers behind nginx: it is not here");
            return None;
        };
        let (in_turns, sticky) = (free_address(), free_address());
        let (turns, by_header) = (format!("listen {in_turns};"), format!("listen {sticky};"));
        let common = [
            ("10.0.0.1:8080", servers[0]),
            ("10.0.0.2:8080", servers[1]),
            ("listen 80;", &turns),
            ("listen 81;", &by_header),
            ("# For a test: ", ""),
        ];
        let mut words = include_str!("../../../packaging/nginx.conf").to_owned();
        for (old, new) in common.iter().chain(replaced) {
            assert!(words.contains(old), "the file holds no {old}");
            words = words.replace(old, new);
        }
        let child = Command::new(program)
            .arg("-p")
            .arg(folder.path())
            .arg("-c")
            .arg(folder.write("nginx.conf", words))
            .arg("-e")
            .arg(folder.file("error.log"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let end = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(&sticky).is_err() {
            let log = || fs::read_to_string(folder.file("error.log")).unwrap_or_default();
            assert!(Instant::now() < end, "nginx listens: {}", log());
            thread::sleep(Duration::from_millis(10));
        }
        Some(Self { child, in_turns, sticky })
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// What a scripted server does with a request.
#[derive(Clone, Copy, PartialEq)]
enum Does {
    Answers,
    /// Its queue is full.
    Refuses,
    /// Answers after this time.
    Waits(Duration),
    /// Ends while it has the request.
    Breaks,
}

/// A server that does what it is told, and counts what it gets.
struct Scripted {
    name: char,
    address: String,
    does: Arc<Mutex<Does>>,
    n_asked: Arc<AtomicUsize>,
}

impl Scripted {
    fn start(name: char) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let scripted = Self {
            name,
            address,
            does: Arc::new(Mutex::new(Does::Answers)),
            n_asked: Arc::default(),
        };
        let (does, n_asked) = (Arc::clone(&scripted.does), Arc::clone(&scripted.n_asked));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (does, n_asked) = (Arc::clone(&does), Arc::clone(&n_asked));
                thread::spawn(move || serve(name, stream, &does, &n_asked));
            }
        });
        scripted
    }

    fn set(&self, does: Does) {
        *self.does.lock().unwrap() = does;
    }

    fn n_asked(&self) -> usize {
        self.n_asked.load(Ordering::SeqCst)
    }
}

/// Answers the requests of a connection with the server's name and what it was sent.
fn serve(name: char, stream: TcpStream, does: &Mutex<Does>, n_asked: &AtomicUsize) {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut line, mut n_body) = (String::new(), 0);
        while line != "\r\n" {
            line.clear();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if let Some(n) = line.to_ascii_lowercase().strip_prefix("content-length: ") {
                n_body = n.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; n_body];
        reader.read_exact(&mut body).unwrap();
        n_asked.fetch_add(1, Ordering::SeqCst);
        let does = *does.lock().unwrap();
        let head = match does {
            Does::Breaks => return,
            Does::Refuses => "429 Too Many Requests\r\nRetry-After: 7",
            Does::Answers => "200 OK",
            Does::Waits(time) => {
                thread::sleep(time);
                "200 OK"
            }
        };
        let said = format!("{name} {}", String::from_utf8(body).unwrap());
        let answer = format!("HTTP/1.1 {head}\r\ncontent-length: {}\r\n\r\n{said}", said.len());
        if reader.get_mut().write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

const BODY: &str = "{\"text\": \"a document\"}";

/// The status of a request, and the whole answer.
fn post(address: &str, headers: Headers<'_>) -> (u16, String) {
    let mut answer = String::new();
    send(address, "POST", "/v1/contexts", headers, BODY).read_to_string(&mut answer).unwrap();
    (answer.split(' ').nth(1).unwrap().parse().unwrap(), answer)
}

fn answers(address: &str, headers: Headers<'_>) -> char {
    let (status, answer) = post(address, headers);
    assert_eq!(status, 200, "{answer}");
    let said = answer.split_once("\r\n\r\n").unwrap().1;
    assert!(said.contains(BODY), "the whole body is passed on: {answer}");
    // Behind the length of a chunk, if there are chunks.
    said.chars().find(|letter| letter.is_uppercase()).unwrap()
}

fn is_refused(address: &str, headers: Headers<'_>) {
    let (status, answer) = post(address, headers);
    assert!(status == 429 && answer.contains("Retry-After: 7"), "{answer}");
}

const DOCUMENT: Headers<'static> = &[("x-document", "of a test")];

#[test]
fn a_full_queue_is_no_dead_server() {
    let folder = TempFolder::new();
    let servers = [Scripted::start('A'), Scripted::start('B')];
    let addresses = servers.each_ref().map(|server| &server.address[..]);
    let Some(nginx) = Nginx::start(&folder, addresses, &[]) else { return };
    let ports = [(&nginx.in_turns, &[][..]), (&nginx.sticky, DOCUMENT)];

    // Both are full: every client reads so, and when to ask again.
    servers.iter().for_each(|server| server.set(Does::Refuses));
    for (port, headers) in ports {
        (0..5).for_each(|_| is_refused(port, headers));
    }
    // As soon as they are not, both answer.
    servers.iter().for_each(|server| server.set(Does::Answers));
    let mut names: Vec<_> = (0..4).map(|_| answers(&nginx.in_turns, &[])).collect();
    names.sort_unstable();
    assert_eq!(names, ['A', 'A', 'B', 'B']);

    // What one refuses the other answers, and no more than that.
    let holder = answers(&nginx.sticky, DOCUMENT);
    let [one, other] = &servers;
    let (one, other) = if one.name == holder { (one, other) } else { (other, one) };
    one.set(Does::Refuses);
    assert_eq!(answers(&nginx.sticky, DOCUMENT), other.name);
    assert!((0..4).all(|_| answers(&nginx.in_turns, &[]) == other.name));
    one.set(Does::Answers);
    assert!((0..10).all(|_| answers(&nginx.sticky, DOCUMENT) == holder), "it has the document");
}

#[test]
fn a_dead_server_is_left_out_and_the_other_one_answers_or_refuses() {
    let folder = TempFolder::new();
    let servers = [Scripted::start('A'), Scripted::start('B')];
    let addresses = servers.each_ref().map(|server| &server.address[..]);
    let Some(nginx) = Nginx::start(&folder, addresses, &[]) else { return };

    // One ends while it has a request, which the other one answers; the next ones go there at once.
    let holder = answers(&nginx.sticky, DOCUMENT);
    let [one, other] = &servers;
    let (one, other) = if one.name == holder { (one, other) } else { (other, one) };
    one.set(Does::Breaks);
    let before = one.n_asked();
    for (port, headers) in [(&nginx.in_turns, &[][..]), (&nginx.sticky, DOCUMENT)] {
        assert!((0..8).all(|_| answers(port, headers) == other.name));
    }
    let n_lost = one.n_asked() - before;
    assert!(n_lost <= 2, "{n_lost} requests of 16 went there: more than one a port");

    // One does not listen at all, and the other one is full: that is what clients read.
    let folder = TempFolder::new();
    let Some(nginx) = Nginx::start(&folder, [&free_address(), &other.address], &[]) else { return };
    other.set(Does::Refuses);
    for (port, headers) in [(&nginx.in_turns, &[][..]), (&nginx.sticky, DOCUMENT)] {
        (0..5).for_each(|_| is_refused(port, headers));
    }
    other.set(Does::Answers);
    assert!((0..5).all(|_| answers(&nginx.in_turns, &[]) == other.name));
}

#[test]
fn a_reading_that_takes_long_is_not_begun_a_second_time() {
    let folder = TempFolder::new();
    let servers = [Scripted::start('A'), Scripted::start('B')];
    let addresses = servers.each_ref().map(|server| &server.address[..]);
    let shorter = [("proxy_read_timeout 1d;", "proxy_read_timeout 1s;")];
    let Some(nginx) = Nginx::start(&folder, addresses, &shorter) else { return };
    servers.iter().for_each(|server| server.set(Does::Waits(Duration::from_secs(3))));
    for (port, headers) in [(&nginx.in_turns, &[][..]), (&nginx.sticky, DOCUMENT)] {
        let before: usize = servers.iter().map(Scripted::n_asked).sum();
        let (status, answer) = post(port, headers);
        assert_eq!(status, 504, "{answer}");
        let after: usize = servers.iter().map(Scripted::n_asked).sum();
        assert_eq!(after - before, 1, "one server reads it");
    }
}
