//! What is downloaded, where it lies, and how it is found and removed.

use std::fs;
#[cfg(unix)]
use std::path::Path;
use std::thread;
use std::time::Duration;

use longview_library::{Format, LibraryError, Prefer, Wanted, Watch};

use crate::support::server::{Fault, TestHub, git_hash, noise, sha256};
use crate::support::{TestCache, add_folder, find, name, pull, pull_told};

const REPO: &str = "org/model";

#[test]
fn a_folder_lies_as_python_lays_it() {
    let (hub, cache) = (TestHub::start(), TestCache::new());
    add_folder(&hub, REPO);
    let library = cache.library(&hub, &[]);
    let (found, told) = pull_told(&library, REPO);
    let found = found.unwrap();
    assert_eq!((found.format, found.quant.as_deref()), (Format::Safetensors, None));
    assert_eq!(found.path, cache.repo(REPO).join("snapshots").join("c".repeat(40)));
    assert_eq!(told, [format!("plan 3 {} 0", 23 + 5000 + 300_000)]);
    let snapshot = format!("snapshots/{}", "c".repeat(40));
    let names = ["config.json", "model.safetensors", "tokenizer.json"];
    assert_eq!(cache.names(REPO, &snapshot), names, "no pickle, no optimizer, no page");
    let weights = sha256(&noise(300_000));
    let config = git_hash(b"{\"model_type\": \"llama\"}");
    let mut blobs = vec![weights.clone(), sha256(&noise(5000)), config];
    blobs.sort();
    assert_eq!(cache.names(REPO, "blobs"), blobs);
    assert_eq!(fs::read(cache.repo(REPO).join("refs/main")).unwrap(), "c".repeat(40).as_bytes());
    assert_eq!(fs::read(found.path.join("model.safetensors")).unwrap(), noise(300_000));
    #[cfg(unix)]
    {
        let link = fs::read_link(found.path.join("model.safetensors")).unwrap();
        assert_eq!(link, Path::new("../../blobs").join(weights));
    }
    assert_eq!(find(&library, REPO).unwrap().path, found.path);
}

#[test]
fn what_is_here_is_not_asked_for_again() {
    let (hub, cache) = (TestHub::start(), TestCache::new());
    add_folder(&hub, REPO);
    let library = cache.library(&hub, &[]);
    pull(&library, REPO).unwrap();
    hub.file(REPO, "config.json", "{\"model_type\": \"qwen2\"}").commit(REPO, 'e');
    let before = hub.seen().len();
    let (found, told) = pull_told(&library, REPO);
    assert_eq!(hub.seen().len() - before, 2, "the list and the config");
    assert_eq!(told, [format!("plan 3 {0} {1}", 305_023, 305_000)]);
    assert_eq!(found.unwrap().commit, "e".repeat(40));
    assert_eq!(find(&library, REPO).unwrap().commit, "e".repeat(40));
    let names: Vec<_> = library.list().unwrap().iter().map(|e| e.name.to_string()).collect();
    assert_eq!(names, ["org/model@cccccccccccc", "org/model"]);
    let removed = library.remove(&name("org/model@cccccccccccc")).unwrap();
    assert_eq!((removed.n_files, removed.bytes), (1, 23), "the rest is shared");
    assert!(find(&library, REPO).is_ok());
}

/// As it is on a Windows that makes no symbolic links.
#[test]
fn second_names_share_a_content_as_links_do() {
    let (hub, cache) = (TestHub::start(), TestCache::new());
    add_folder(&hub, REPO);
    let library = cache.library(&hub, &[]);
    let second_names = |commit: char| {
        let found = pull(&library, REPO).unwrap();
        assert!(found.path.ends_with(commit.to_string().repeat(40)));
        for entry in fs::read_dir(&found.path).unwrap() {
            let path = entry.unwrap().path();
            if path.is_symlink() {
                let content = path.canonicalize().unwrap();
                fs::remove_file(&path).unwrap();
                fs::hard_link(content, path).unwrap();
            }
        }
    };
    second_names('c');
    hub.file(REPO, "config.json", "{\"model_type\": \"qwen2\"}").commit(REPO, 'e');
    second_names('e');
    let removed = library.remove(&name("org/model@cccccccccccc")).unwrap();
    assert_eq!((removed.n_files, removed.bytes), (1, 23), "the rest is shared");
    assert!(find(&library, REPO).is_ok());
    let removed = library.remove(&name(REPO)).unwrap();
    assert_eq!((removed.n_files, removed.bytes), (3, 305_023));
}

#[test]
fn shards_are_those_that_the_index_names() {
    let (hub, cache) = (TestHub::start(), TestCache::new());
    let index = r#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#;
    hub.file(REPO, "config.json", "{}")
        .file(REPO, "model.safetensors.index.json", index)
        .file(REPO, "model-1.safetensors", noise(2000))
        .file(REPO, "model-2.safetensors", noise(3000))
        .file(REPO, "consolidated.safetensors", noise(9000));
    let library = cache.library(&hub, &[]);
    let found = pull(&library, REPO).unwrap();
    assert_eq!(found.bytes, 2 + index.len() as u64 + 5000);
    assert!(!cache.file(REPO, "consolidated.safetensors").exists());
    fs::remove_file(cache.file(REPO, "model-2.safetensors")).unwrap();
    let error = find(&library, REPO).unwrap_err();
    assert!(error.to_string().contains("without model-2.safetensors; `longview pull"), "{error}");
    pull(&library, REPO).unwrap();
    hub.file(REPO, "model.safetensors.index.json", r#"{"weight_map": {"a": "gone.safetensors"}}"#);
    let error = pull(&library, REPO).unwrap_err().to_string();
    assert!(error.contains("has no file gone.safetensors; it has consolidated"), "{error}");
}

fn add_quants(hub: &TestHub) {
    hub.file(REPO, "config.json", "{}")
        .file(REPO, "model-Q4_K_M.gguf", noise(4000))
        .file(REPO, "model-Q8_0.gguf", noise(8000))
        .file(REPO, "big/model-F16-00001-of-00002.gguf", noise(9000))
        .file(REPO, "big/model-F16-00002-of-00002.gguf", noise(1500))
        .file(REPO, "mmproj-F16.gguf", noise(2000));
}

#[test]
fn a_quantisation_is_chosen_as_llama_cpp_does() {
    let (hub, cache) = (TestHub::start(), TestCache::new());
    add_quants(&hub);
    let library = cache.library(&hub, &[]);
    let found = pull(&library, REPO).unwrap();
    assert_eq!((found.format, found.quant.as_deref()), (Format::Gguf, Some("Q4_K_M")));
    assert!(found.path.ends_with("model-Q4_K_M.gguf"));
    let found = pull(&library, "org/model:f16").unwrap();
    assert!(found.path.ends_with("big/model-F16-00001-of-00002.gguf"), "{:?}", found.path);
    assert!(found.path.with_file_name("model-F16-00002-of-00002.gguf").is_file());
    assert_eq!(found.bytes, 10_500);
    let error = pull(&library, "org/model:Q2_K").unwrap_err().to_string();
    assert!(error.contains("Q2_K; it has F16, Q4_K_M, Q8_0"), "{error}");
    let error = find(&library, "org/model:Q8_0").unwrap_err().to_string();
    assert!(error.contains("is not here; did you mean org/model:F16 or org/model:Q4_K_M"));
    let wanted = name(REPO);
    let wanted = Wanted { name: &wanted, file: Some("model-Q8_0.gguf"), prefer: Prefer::Gguf };
    let mut watch = Watch { on_event: &mut |_| {}, is_cancelled: &|| false };
    assert_eq!(library.pull(&wanted, &mut watch).unwrap().quant.as_deref(), Some("Q8_0"));
    let missing = Wanted { file: Some("nowhere.gguf"), ..wanted };
    let error = library.pull(&missing, &mut watch).unwrap_err().to_string();
    assert!(error.contains("has no file nowhere.gguf; it has big/"), "{error}");
}

#[test]
fn models_are_listed_and_removed() {
    let (hub, cache) = (TestHub::start(), TestCache::new());
    add_quants(&hub);
    let library = cache.library(&hub, &[]);
    assert!(library.list().unwrap().is_empty());
    for text in ["org/model", "org/model:F16"] {
        pull(&library, text).unwrap();
    }
    let list = library.list().unwrap();
    let shown: Vec<_> = list.iter().map(|e| (e.name.to_string(), e.bytes)).collect();
    let f16 = ("org/model:F16".to_owned(), 10_500);
    let q4 = ("org/model:Q4_K_M".to_owned(), 4000);
    assert_eq!(shown, [f16, q4.clone()]);
    assert!(list.iter().all(|entry| entry.missing.is_none() && entry.used.is_some()));
    let error = library.remove(&name("org/model:Q8_0")).unwrap_err().to_string();
    assert!(error.contains("did you mean org/model:F16"), "{error}");
    let error = library.remove(&name("org/modell")).unwrap_err().to_string();
    assert!(error.contains("org/modell: is not here; did you mean org/model?"), "{error}");
    let removed = library.remove(&name("org/model:f16")).unwrap();
    assert_eq!((removed.n_files, removed.bytes), (2, 10_500));
    let list = library.list().unwrap();
    assert_eq!((list[0].name.to_string(), list[0].bytes), q4);
    let removed = library.remove(&name(REPO)).unwrap();
    assert_eq!((removed.n_files, removed.bytes), (1, 4000));
    assert!(!cache.repo(REPO).exists() && library.list().unwrap().is_empty());
    let error = library.remove(&name(REPO)).unwrap_err().to_string();
    assert!(error.contains("is not here; `longview ls` lists"), "{error}");
}

#[test]
fn a_revision_is_a_branch_a_tag_or_a_commit() {
    let (hub, cache) = (TestHub::start(), TestCache::new());
    add_folder(&hub, REPO);
    hub.revision(REPO, "v1.0").revision(REPO, "refs/pr/7").commit(REPO, 'e');
    let library = cache.library(&hub, &[]);
    assert_eq!(pull(&library, "org/model@v1.0").unwrap().commit, "c".repeat(40));
    assert_eq!(pull(&library, "org/model@refs/pr/7").unwrap().commit, "c".repeat(40));
    assert!(cache.repo(REPO).join("refs/refs/pr/7").is_file());
    assert_eq!(pull(&library, REPO).unwrap().commit, "e".repeat(40));
    let commit = format!("org/model@{}", "e".repeat(40));
    assert_eq!(pull(&library, &commit).unwrap().commit, "e".repeat(40));
    assert_eq!(find(&library, "org/model@ccccccc").unwrap().commit, "c".repeat(40));
    let error = pull(&library, "org/model@v9").unwrap_err().to_string();
    assert!(error.contains("has no revision v9"), "{error}");
    assert!(matches!(find(&library, "org/model@v9"), Err(LibraryError::NotHere { .. })));
}

#[test]
fn what_python_downloaded_is_found() {
    let (hub, cache) = (TestHub::start(), TestCache::new());
    let (repo, commit) = (cache.repo("gpt2"), "a".repeat(40));
    let snapshot = repo.join("snapshots").join(&commit);
    fs::create_dir_all(repo.join("blobs")).unwrap();
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(repo.join("refs")).unwrap();
    fs::create_dir_all(repo.join(".no_exist").join(&commit)).unwrap();
    fs::write(repo.join("refs/main"), &commit).unwrap();
    fs::write(snapshot.join("config.json"), "{}").unwrap();
    let library = cache.library(&hub, &[("HF_HUB_OFFLINE", "1")]);
    let error = find(&library, "gpt2").unwrap_err().to_string();
    assert!(error.contains("gpt2: is here in part, without model.safetensors"), "{error}");
    assert!(library.list().unwrap()[0].missing.is_some());
    // A copy, as on a system without links.
    fs::write(snapshot.join("model.safetensors"), noise(100)).unwrap();
    assert_eq!(find(&library, "gpt2").unwrap().path, snapshot);
    assert_eq!(pull(&library, "gpt2").unwrap().bytes, 102);
    assert_eq!(library.remove(&name("gpt2")).unwrap().bytes, 102);
    assert!(hub.seen().is_empty());
}

#[test]
fn offline_nothing_is_asked_for() {
    let (hub, cache) = (TestHub::start(), TestCache::new());
    add_folder(&hub, REPO);
    let offline = cache.library(&hub, &[("HF_HUB_OFFLINE", "1")]);
    let error = pull(&offline, REPO).unwrap_err().to_string();
    assert!(error.contains("org/model: is not here, and offline nothing is downloaded"), "{error}");
    assert!(hub.seen().is_empty());
    pull(&cache.library(&hub, &[]), REPO).unwrap();
    let n_before = hub.seen().len();
    pull(&offline, REPO).unwrap();
    assert_eq!(hub.seen().len(), n_before);
}

#[test]
fn two_downloads_of_the_same_share_one() {
    let (hub, cache) = (TestHub::start(), TestCache::new());
    add_folder(&hub, REPO);
    hub.faults("model.safetensors", [Fault::Slow(30_000, Duration::from_millis(100))]);
    let libraries = [cache.library(&hub, &[]), cache.library(&hub, &[])];
    let told = thread::scope(|scope| {
        let all = libraries.each_ref().map(|library| scope.spawn(|| pull_told(library, REPO)));
        all.map(|thread| {
            let (found, told) = thread.join().unwrap();
            assert_eq!(
                fs::read(found.unwrap().path.join("model.safetensors")).unwrap().len(),
                300_000
            );
            told
        })
    });
    assert_eq!(hub.asked_for("model.safetensors").len(), 1);
    assert!(told.concat().iter().any(|line| line == "locked model.safetensors"), "{told:?}");
    assert!(cache.names(REPO, "blobs").iter().all(|name| !name.contains("incomplete")));
}

#[test]
fn a_model_is_not_removed_while_it_is_downloaded() {
    let (hub, cache) = (TestHub::start(), TestCache::new());
    add_folder(&hub, REPO);
    hub.faults("model.safetensors", [Fault::Slow(60_000, Duration::from_millis(100))]);
    let library = cache.library(&hub, &[]);
    thread::scope(|scope| {
        let pulling = scope.spawn(|| pull(&cache.library(&hub, &[]), REPO).map(drop));
        while hub.asked_for("model.safetensors").is_empty() {
            thread::sleep(Duration::from_millis(5));
        }
        let error = library.remove(&name(REPO)).unwrap_err().to_string();
        assert!(error.contains("is being downloaded by another program"), "{error}");
        pulling.join().unwrap().unwrap();
    });
    assert!(find(&library, REPO).is_ok());
}

#[test]
fn a_look_says_what_a_download_would_be_and_downloads_no_weights() {
    let (hub, cache) = (TestHub::start(), TestCache::new());
    add_folder(&hub, REPO);
    let library = cache.library(&hub, &[]);
    let name = name(REPO);
    let wanted = Wanted { name: &name, file: None, prefer: Prefer::Safetensors };
    let mut watch = Watch { on_event: &mut |_| {}, is_cancelled: &|| false };
    let remote = library.look(&wanted, &|_| true, &mut watch).unwrap();
    assert_eq!((remote.format, remote.n_files), (Format::Safetensors, 3));
    assert_eq!((remote.total_bytes, remote.present_bytes), (305_023, 0));
    assert_eq!(remote.license.as_deref(), Some("apache-2.0"));
    assert_eq!(remote.begin, b"{\"model_type\": \"llama\"}");
    assert!(hub.asked_for("model.safetensors").is_empty());

    let bytes = noise(900_000);
    hub.file("org/packed", "m-Q4_K_M.gguf", bytes.clone());
    let name = "org/packed".parse().unwrap();
    let wanted = Wanted { name: &name, file: None, prefer: Prefer::Safetensors };
    let is_enough = |begin: &[u8]| begin.len() >= 100_000;
    let remote = library.look(&wanted, &is_enough, &mut watch).unwrap();
    assert_eq!((remote.format, remote.begin_of_bytes), (Format::Gguf, 900_000));
    assert!((100_000..900_000).contains(&remote.begin.len()), "{}", remote.begin.len());
    assert!(bytes.starts_with(&remote.begin));
    let offline = cache.library(&hub, &[("HF_HUB_OFFLINE", "1")]);
    let refused = offline.look(&wanted, &is_enough, &mut watch).unwrap_err();
    assert!(matches!(refused, LibraryError::Offline { .. }), "{refused}");
}
