//! A static server, for looking at what was built: this machine only, no special headers.

use std::fs::File;
use std::path::{Component, Path, PathBuf};

use anyhow::{Result, anyhow};
use tiny_http::{Header, Request, Response, Server};

/// Serves `folder` until the program is ended.
pub(super) fn run(folder: &Path, port: u16) -> Result<()> {
    let server = Server::http(("127.0.0.1", port))
        .map_err(|e| anyhow!("port {port}: {e}; take another with --port"))?;
    println!("http://127.0.0.1:{port}/ shows {}; Ctrl-C ends it", folder.display());
    for request in server.incoming_requests() {
        // A browser that goes away in the middle of a file is no reason to stop.
        let _ = answer(folder, request);
    }
    Ok(())
}

fn answer(folder: &Path, request: Request) -> Result<()> {
    let found = place(request.url()).map(|place| folder.join(place));
    let path = match found {
        Some(path) if path.is_dir() => Some(path.join("index.html")),
        other => other,
    };
    let opened = path.and_then(|path| Some((File::open(&path).ok()?, path)));
    let Some((file, path)) = opened else {
        return Ok(request.respond(Response::from_string("not here").with_status_code(404))?);
    };
    let kind = Header::from_bytes("Content-Type", content_type(&path));
    let kind = kind.map_err(|()| anyhow!("a header of plain words"))?;
    Ok(request.respond(Response::from_file(file).with_header(kind))?)
}

/// The path below the folder that a URL names; none for one that leaves it.
fn place(url: &str) -> Option<PathBuf> {
    let path = url.split(['?', '#']).next()?.trim_start_matches('/');
    let path = Path::new(path);
    path.components().all(|part| matches!(part, Component::Normal(_))).then(|| path.to_owned())
}

/// What browsers insist on: modules of JavaScript and of WebAssembly must say what they are.
fn content_type(path: &Path) -> &'static str {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript",
        Some("css") => "text/css",
        Some("json") => "application/json",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("wasm") => "application/wasm",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_stay_in_the_folder() {
        assert_eq!(place("/"), Some(PathBuf::new()));
        assert_eq!(place("/assets/a.js?v=1#x"), Some(PathBuf::from("assets/a.js")));
        assert_eq!(place("/../Cargo.toml"), None);
        assert_eq!(place("/assets/../../x"), None);
    }

    #[test]
    fn modules_say_what_they_are() {
        assert_eq!(content_type(Path::new("a/b.wasm")), "application/wasm");
        assert_eq!(content_type(Path::new("b.js")), "text/javascript");
        assert_eq!(content_type(Path::new("weights")), "application/octet-stream");
    }
}
