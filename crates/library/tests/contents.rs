//! Names and lists that are hostile. Nothing of them may lie outside of the cache.

use crate::support::server::{TestHub, noise};
use crate::support::{TestCache, add_folder, find, pull};

const REPO: &str = "org/model";

#[test]
fn hostile_names_of_weights_are_refused() {
    for file in [
        "../evil-Q4_K_M.gguf",
        "../../../../evil-Q4_K_M.gguf",
        "/tmp/evil-Q4_K_M.gguf",
        "a/../../evil-Q4_K_M.gguf",
        "..\\evil-Q4_K_M.gguf",
        "C:\\evil-Q4_K_M.gguf",
        "a\0-Q4_K_M.gguf",
        "\u{1b}[31m-Q4_K_M.gguf",
        "NUL.gguf",
        "com1/x-Q4_K_M.gguf",
        "a//x-Q4_K_M.gguf",
        &format!("{}-Q4_K_M.gguf", "x".repeat(300)),
    ] {
        let (hub, cache) = (TestHub::start(), TestCache::new());
        hub.file(REPO, file, noise(2000));
        let error = pull(&cache.library(&hub, &[]), REPO).unwrap_err().to_string();
        assert!(error.contains("which is refused: "), "{file:?}: {error}");
        assert!(!error.contains('\u{1b}'), "{error:?}");
        assert!(cache.all().is_empty(), "{file:?}: {:?}", cache.all());
    }
}

#[test]
fn hostile_names_in_an_index_are_refused() {
    for shard in ["../../../evil.safetensors", "/evil.safetensors", "con.safetensors"] {
        let (hub, cache) = (TestHub::start(), TestCache::new());
        let index = serde_json::json!({"weight_map": {"a": shard}}).to_string();
        hub.file(REPO, "config.json", "{}").file(REPO, "model.safetensors.index.json", index).file(
            REPO,
            shard,
            noise(2000),
        );
        let error = pull(&cache.library(&hub, &[]), REPO).unwrap_err().to_string();
        assert!(error.contains("which is refused: "), "{shard:?}: {error}");
        let inside = cache.repo(REPO).join("blobs");
        let outside = |path: &std::path::PathBuf| !path.starts_with(&inside);
        let all: Vec<_> = cache.all().into_iter().filter(outside).collect();
        assert!(all.iter().all(|path| path.to_string_lossy().contains(".locks")), "{all:?}");
    }
}

#[test]
fn hostile_names_of_other_files_are_left_where_they_are() {
    let (hub, cache) = (TestHub::start(), TestCache::new());
    add_folder(&hub, REPO);
    hub.file(REPO, "../../evil.txt", "x").file(REPO, "a:b?.png", "x");
    pull(&cache.library(&hub, &[]), REPO).unwrap();
    assert!(!cache.all().iter().any(|path| path.to_string_lossy().contains("evil")));
}

#[test]
fn hashes_that_are_paths_are_refused() {
    for hash in ["../../../../evil", &"G".repeat(64), "", &"a".repeat(63)] {
        let (hub, cache) = (TestHub::start(), TestCache::new());
        add_folder(&hub, REPO);
        hub.lie(REPO, "model.safetensors", |file| file.listed_hash = Some(hash.to_owned()));
        let error = pull(&cache.library(&hub, &[]), REPO).unwrap_err().to_string();
        assert!(error.contains("without the size or the hash of model.safetensors"), "{error}");
        assert!(cache.all().is_empty());
    }
}

#[test]
fn a_commit_that_is_a_path_is_refused() {
    let (hub, cache) = (TestHub::start(), TestCache::new());
    add_folder(&hub, REPO);
    hub.commit(REPO, '/');
    let error = pull(&cache.library(&hub, &[]), REPO).unwrap_err().to_string();
    assert!(error.contains("a commit that is none"), "{error}");
    assert!(cache.all().is_empty());
}

#[test]
fn repositories_without_weights_say_so() {
    let (hub, cache) = (TestHub::start(), TestCache::new());
    hub.file("org/pickle", "config.json", "{}").file(
        "org/pickle",
        "pytorch_model.bin",
        noise(2000),
    );
    hub.file("org/empty", "README.md", "x");
    let library = cache.library(&hub, &[]);
    let error = pull(&library, "org/pickle").unwrap_err().to_string();
    assert!(error.contains("pickles, which may run code and are never downloaded"), "{error}");
    let error = pull(&library, "org/empty").unwrap_err().to_string();
    assert!(error.contains("neither safetensors with config.json nor a GGUF file"), "{error}");
    assert!(find(&library, "org/empty").is_err());
}

#[test]
fn empty_files_are_files() {
    let (hub, cache) = (TestHub::start(), TestCache::new());
    add_folder(&hub, REPO);
    hub.file(REPO, "merges.txt", "");
    pull(&cache.library(&hub, &[]), REPO).unwrap();
    assert_eq!(std::fs::read(cache.file(REPO, "merges.txt")).unwrap(), b"");
}
