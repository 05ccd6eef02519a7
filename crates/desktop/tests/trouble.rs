//! What goes wrong around the window: disks, models, the network, settings, and an end in the
//! middle of something. Each message names the thing and what to do, and nothing is lost.

use std::path::PathBuf;

use longview_desktop::document::Document;
use longview_desktop::strings;
use longview_library::documents::{Documents, Id, NewDocument};

use crate::support::script::Script;
use crate::support::{Setup, Window};

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("longview-trouble-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn library(&self) -> Documents {
        Documents::open(&self.0.join("library")).unwrap()
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn documents(window: &Window) -> &[Document] {
    &window.0.state().state().documents
}

fn put(library: &Documents, name: &str) -> Id {
    let text = format!("{name}, and what is told there.");
    library.add(NewDocument { text: &text, name: Some(name), sources: Vec::new() }).unwrap().id
}

#[test]
fn a_document_has_one_name_everywhere() {
    let folder = Folder::new("names");
    let library = folder.library();
    put(&library, "story");
    let files =
        [folder.file("story.txt", "A story of a harbour."), folder.file("b.md", "The end.")];
    let (_script, open) = Script::new();
    let mut setup = Setup::new(open);
    setup.library = Some(library.clone());
    setup.files = files.to_vec();
    let mut window = setup.window();
    // Files are called as they are.
    window.wait_for(&strings::file_of_order(1, "b.md"));
    window.click(strings::OPEN_EACH);
    let names = |window: &Window| {
        let in_library: Vec<String> =
            library.list().unwrap().into_iter().map(|document| document.name).collect();
        let all_kept = documents(window).iter().all(|document| document.kept.is_some());
        let has_all = documents(window).iter().all(|d| in_library.contains(&d.title));
        (documents(window).len() == 2 && all_kept && has_all, in_library)
    };
    window.until("both, named as in the library", |window| names(window).0);
    assert!(names(&window).1.contains(&"story-2".to_owned()), "another one is called story");
    window.wait_for(&strings::more("story-2"));
    assert!(!window.sees_part("story.txt"));
    // Of several files.
    window.drop_files(&[folder.file("one.txt", "First."), folder.file("two.txt", "Second.")]);
    window.click(strings::OPEN_AS_ONE);
    window.until("one document of both", |_| {
        library.list().unwrap().iter().any(|document| document.name == "one and 1 more")
    });
    window.wait_for(&strings::more("one and 1 more"));
}
