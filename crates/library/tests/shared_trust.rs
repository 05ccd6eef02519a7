//! Documents that machines share: what a storage or its address may not do.

use std::fs::{self, File};
#[cfg(unix)]
use std::path::{Path, PathBuf};

use longview_library::shared::{Share, ShareError, ShareKey};
use longview_object_server::{BUCKET, ObjectServer, files_below};

#[cfg(unix)]
use crate::shared::TempFolder;
use crate::shared::{KEY, Machine, PART, bytes, machines, tokens};

/// Longer than any answer may be. The files have holes, and take no room.
const TOO_LONG: u64 = 300 << 20;

#[test]
fn an_object_that_is_too_long_is_not_right() {
    let (server, _, a, _) = machines();
    let tokens = tokens(1);
    a.publish(&a.read("The text.", &tokens, &bytes(1))).unwrap();
    for (what, n_bytes) in
        [("/parts/", TOO_LONG), ("/parts/", PART + 1), ("/index/", TOO_LONG), ("/text", TOO_LONG)]
    {
        let files = files_below(&server.folder());
        let file = files.iter().find(|file| file.to_string_lossy().contains(what)).unwrap();
        let right = fs::read(file).unwrap();
        let b = Machine::new(crate::shared::share(server.address()));
        let found = b.nearest(&tokens).unwrap().expect("it is there");
        File::options().write(true).open(file).unwrap().set_len(n_bytes).unwrap();
        if what == "/index/" {
            assert_eq!(b.nearest(&tokens).unwrap(), None);
        } else {
            let error = b.fetch(&found).unwrap_err().to_string();
            assert!(error.contains("left alone"), "{what}: {error}");
            let is_seen = b.nearest(&tokens).unwrap().is_some();
            assert_eq!(is_seen, what == "/text", "a session with such a part is a miss");
        }
        assert!(!b.share.rests(), "{what}: the storage answers");
        fs::write(file, right).unwrap();
    }
}

/// A share in a folder with this mode, something in it, and modes of folders and files below.
#[cfg(unix)]
fn modes_below(mode: u32, older: bool) -> (u32, [Vec<u32>; 2]) {
    use std::os::unix::fs::PermissionsExt;
    let folder = TempFolder::new();
    let mode_of = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(mode)).unwrap();
    let key = ShareKey::new(KEY).unwrap();
    let share = Share::open_with(folder.0.to_str().unwrap(), &key, &[]).unwrap();
    let machine = Machine::new(share);
    let all = || {
        let (mut folders, mut files) = (vec![folder.0.clone()], Vec::new());
        let mut at = 0;
        while at < folders.len() {
            for entry in fs::read_dir(&folders[at]).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() { folders.push(path) } else { files.push(path) }
            }
            at += 1;
        }
        (folders.split_off(1), files)
    };
    machine.publish(&machine.read("The text.", &tokens(1), &bytes(1))).unwrap();
    if older {
        // As versions made them that did not look at modes.
        all().0.iter().for_each(|path| {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        });
        machine.publish(&machine.read("Another text.", &tokens(2), &bytes(2))).unwrap();
    }
    let (folders, files) = all();
    let (first, of_one) = (folders[0].clone(), |paths: Vec<PathBuf>| {
        let mut modes: Vec<u32> = paths.iter().map(|path| mode_of(path)).collect();
        modes.sort_unstable();
        modes.dedup();
        modes
    });
    // Those below one that is closed are out of reach.
    let folders = if older { vec![first] } else { folders };
    (mode_of(&folder.0), [of_one(folders), of_one(files)])
}

#[test]
#[cfg(unix)]
fn what_is_in_a_folder_is_its_owners_or_of_its_group() {
    for mode in [0o755, 0o777, 0o700, 0o2755, 0o770] {
        assert_eq!(modes_below(mode, false), (mode, [vec![0o700], vec![0o600]]), "{mode:o}");
    }
    assert_eq!(modes_below(0o755, true), (0o755, [vec![0o700], vec![0o600]]));
    // Whoever set up the folder for a group said so.
    for mode in [0o2770, 0o2775] {
        assert_eq!(modes_below(mode, false), (mode, [vec![0o2770], vec![0o660]]), "{mode:o}");
    }
}

#[test]
fn nothing_goes_to_another_machine_in_clear() {
    let server = ObjectServer::start().unwrap();
    // This machine, by an address that is not known to be its own.
    let port = server.address().port();
    let open = |bucket: &str, more: &[(&str, &str)]| {
        let mut environment = ObjectServer::environment(server.address());
        environment[0].1 = format!("http://0.0.0.0:{port}");
        let more = more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        environment.extend(more);
        let key = ShareKey::new(KEY).unwrap();
        Machine::new(Share::open_with(&format!("{bucket}/x"), &key, &environment).unwrap())
    };
    let is_refused = |machine: Machine, variable: &str| {
        let error = machine.nearest(&tokens(1)).unwrap_err();
        assert!(matches!(error, ShareError::Storage { .. }), "{error}");
        let error = error.to_string();
        assert!(error.contains(variable) && error.contains("http://0.0.0.0"), "{error}");
    };
    let bucket = format!("s3://{BUCKET}");
    let machine = open(&bucket, &[]);
    let read = machine.read("The text.", &tokens(1), &bytes(1));
    let error = machine.publish(&read).unwrap_err().to_string();
    assert!(error.contains("AWS_ALLOW_HTTP"), "{error}");
    assert!(files_below(&server.folder()).is_empty(), "nothing was sent");
    is_refused(machine, "AWS_ALLOW_HTTP=true");
    is_refused(open(&bucket, &[("AWS_ALLOW_HTTP", "false")]), "AWS_ALLOW_HTTP=true");
    let there = format!("http://0.0.0.0:{port}");
    let google = [("GOOGLE_BASE_URL", &*there), ("GOOGLE_SKIP_SIGNATURE", "true")];
    is_refused(open("gs://bucket", &google), "GOOGLE_ALLOW_HTTP=true");
    let microsoft = [
        ("AZURE_STORAGE_ENDPOINT", &*there),
        ("AZURE_STORAGE_ACCOUNT_NAME", "account"),
        ("AZURE_STORAGE_ACCOUNT_KEY", "bm8gc2VjcmV0"),
    ];
    is_refused(open("az://container", &microsoft), "AZURE_ALLOW_HTTP=true");
    // Who says so may.
    assert_eq!(open(&bucket, &[("AWS_ALLOW_HTTP", "true")]).nearest(&tokens(1)).unwrap(), None);
}
