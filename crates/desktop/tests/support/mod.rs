//! A window with a scripted engine, and how tests wait for it.

pub mod flow;
pub mod http;
pub mod hub;
#[cfg(target_os = "linux")]
pub mod screen;
pub mod script;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use eframe::egui::accesskit::Role;
use eframe::egui::{DroppedFile, Theme, Vec2};
use egui_kittest::kittest::{By, NodeT as _, Queryable as _};
use egui_kittest::{Harness, Node};
use egui_system_font_provider::SystemFontProvider;
use longview_desktop::app::{App, Start};
use longview_desktop::dialogs::{Dialogs, NoDialog};
use longview_desktop::engine::{Engines, Failure, Host, OpenEngine};
use longview_desktop::settings::Settings;
use longview_desktop::store::Places;
use longview_desktop::strings;
use longview_library::Library;
use longview_library::documents::Documents;

/// Longer than anything here takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The usual size of a window.
pub const WIDE: Vec2 = Vec2::new(1280.0, 800.0);
/// A narrow one.
pub const NARROW: Vec2 = Vec2::new(520.0, 800.0);

/// A folder that goes with the test.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        let name = format!("longview-window-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    pub fn library(&self) -> Documents {
        Documents::open(&self.0.join("library")).unwrap()
    }

    pub fn file(&self, name: &str, text: &str) -> PathBuf {
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

/// Files that a person would choose.
#[derive(Default)]
pub struct Chosen {
    /// To open.
    pub open: Vec<PathBuf>,
    /// A folder of texts.
    pub folder: Option<PathBuf>,
    /// A model.
    pub model: Option<PathBuf>,
    /// To save as.
    pub save: Option<PathBuf>,
    /// Whether the system has no dialogs.
    pub has_no_dialogs: bool,
    /// Where answers go then.
    pub place: Option<PathBuf>,
}

impl Chosen {
    fn shown<T>(&self, chosen: T) -> Result<T, NoDialog> {
        if self.has_no_dialogs { Err(NoDialog) } else { Ok(chosen) }
    }
}

impl Dialogs for Chosen {
    fn open(&self) -> Result<Vec<PathBuf>, NoDialog> {
        self.shown(self.open.clone())
    }

    fn folder(&self) -> Result<Option<PathBuf>, NoDialog> {
        self.shown(self.folder.clone())
    }

    fn model(&self, _is_folder: bool) -> Result<Option<PathBuf>, NoDialog> {
        self.shown(self.model.clone())
    }

    fn save(&self, _suggested: &str) -> Result<Option<PathBuf>, NoDialog> {
        self.shown(self.save.clone())
    }

    fn place(&self) -> Option<PathBuf> {
        self.place.clone()
    }
}

/// How a window begins.
pub struct Setup {
    pub engines: Engines,
    pub settings: Settings,
    pub chosen: Chosen,
    pub files: Vec<PathBuf>,
    pub library: Option<Documents>,
    pub models: Option<Arc<Library>>,
    pub places: Option<Places>,
    pub host: Option<Host>,
    pub failures: Vec<Failure>,
    /// How long its end waits for the engine. Scripts let no step happen that no test asks for.
    pub patience: Duration,
    pub size: Vec2,
    pub theme: Theme,
    pub allows_missing_glyphs: bool,
    /// Whether fonts of the system are used, as in the program.
    pub has_system_fonts: bool,
}

impl Setup {
    /// A window over an engine that is the same whatever is chosen.
    pub fn new(open: OpenEngine) -> Self {
        Self::over(Arc::new(move |_| Arc::clone(&open)))
    }

    /// A window over these engines.
    pub fn over(engines: Engines) -> Self {
        Self {
            engines,
            settings: Settings { theme: "light".into(), ..Settings::default() },
            chosen: Chosen::default(),
            files: Vec::new(),
            library: None,
            models: None,
            places: None,
            host: None,
            failures: Vec::new(),
            patience: Duration::ZERO,
            size: WIDE,
            theme: Theme::Light,
            allows_missing_glyphs: false,
            has_system_fonts: false,
        }
    }

    /// The window.
    pub fn window(self) -> Window {
        let Self { size, theme, allows_missing_glyphs, has_system_fonts, mut settings, .. } = self;
        settings.theme = if theme == Theme::Dark { "dark" } else { "light" }.to_owned();
        let start = Start {
            engines: self.engines,
            settings,
            dialogs: Arc::new(self.chosen),
            files: self.files,
            reads: false,
            library: self.library,
            models: self.models,
            places: self.places,
            host: self.host,
            failures: self.failures,
            first: None,
            asks: None,
            exits: None,
            exits_answered: false,
            patience: self.patience,
        };
        let mut builder = Harness::builder()
            .with_size(size)
            .with_theme(theme)
            .with_max_steps(40)
            .with_render_cursor(false);
        if allows_missing_glyphs {
            builder = builder.allow_missing_glyphs();
        }
        Window(builder.wgpu().build_eframe(|context| {
            if has_system_fonts {
                context.egui_ctx.add_font_provider(Arc::new(SystemFontProvider::new()));
            }
            App::new(&context.egui_ctx, start)
        }))
    }
}

/// A window without a screen.
pub struct Window(pub Harness<'static, App>);

/// A file as the system hands it over.
#[derive(Debug)]
struct Dropped(PathBuf);

impl DroppedFile for Dropped {
    fn path(&self) -> &Path {
        &self.0
    }

    fn bytes(&self) -> Result<Vec<u8>, String> {
        std::fs::read(&self.0).map_err(|error| error.to_string())
    }
}

impl Window {
    /// Drops files, all at once.
    pub fn drop_files(&mut self, files: &[PathBuf]) {
        for file in files {
            self.0.input_mut().dropped_files.push(Arc::new(Dropped(file.clone())));
        }
        self.0.step();
    }

    /// Draws frames until `is_so`, as a screen would.
    pub fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> bool) {
        let begin = Instant::now();
        loop {
            self.0.step();
            if is_so(self) {
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "waited for: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for a widget or a text with this label.
    pub fn wait_for(&mut self, label: &str) {
        self.until(label, |window| window.sees(label));
    }

    /// Waits for a text that has this part.
    pub fn wait_for_part(&mut self, part: &str) {
        self.until(part, |window| window.sees_part(part));
    }

    /// Whether there is such a label.
    pub fn sees(&self, label: &str) -> bool {
        self.0.query_all_by_label(label).next().is_some()
    }

    /// Whether there is a label with this part.
    pub fn sees_part(&self, part: &str) -> bool {
        self.0.query_all_by_label_contains(part).next().is_some()
    }

    /// Clicks a button, once it can be, and draws what comes of it.
    pub fn click(&mut self, label: &str) {
        self.click_found(label, By::new().label(label));
    }

    /// Types a question.
    pub fn type_question(&mut self, text: &str) {
        let role = Role::MultilineTextInput;
        self.0.get_by_role_and_label(role, strings::QUESTION).focus();
        self.0.run_ok();
        self.0.get_by_role_and_label(role, strings::QUESTION).type_text(text);
        self.0.run_ok();
    }

    /// Clicks the last button with this label: that of a question above the window.
    pub fn click_last(&mut self, label: &str) {
        self.wait_for(label);
        let all: Vec<_> = self.0.query_all_by_label(label).collect();
        let button = all.iter().rfind(|node| node.accesskit_node().role() == Role::Button);
        button.expect("a button").click();
        self.0.run_ok();
    }

    /// Clicks the first button whose label has this part, once it can be.
    pub fn click_part(&mut self, part: &str) {
        self.click_found(part, By::new().label_contains(part));
    }

    fn click_found(&mut self, what: &str, by: By<'_>) {
        self.until(what, |window| {
            let all: Vec<_> = window.0.query_all(by.clone()).collect();
            let is_button = |node: &&Node<'_>| node.accesskit_node().role() == Role::Button;
            let found = all.iter().find(is_button).or(all.first());
            let can = found.filter(|node| !node.accesskit_node().is_disabled());
            can.inspect(|node| node.click()).is_some()
        });
        self.0.run_ok();
    }

    /// Closes a document by the menu of its row.
    pub fn close_document(&mut self, title: &str) {
        self.click(&strings::more(title));
        self.click(strings::CLOSE_DOCUMENT);
    }

    /// Draws until nothing moves, and compares with the picture of that name.
    pub fn picture(&mut self, name: &str) {
        self.0.run_ok();
        self.0.remove_cursor();
        self.0.run_ok();
        self.0.snapshot(name);
    }
}
