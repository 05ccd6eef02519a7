//! Where the hub is, where the cache is, and who asks: the variables of `huggingface_hub`.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ureq::http::Uri;

use crate::error::LibraryError;
use crate::origin::Origin;

/// The hub, unless HF_ENDPOINT names another.
const HUB: &str = "https://huggingface.co";

/// Tokens are about 40 bytes long.
const MAX_TOKEN: usize = 4096;

/// How models are looked for and downloaded.
#[derive(Clone, Debug)]
pub struct Settings {
    pub(crate) endpoint: Endpoint,
    pub(crate) cache: PathBuf,
    pub(crate) token: Option<Token>,
    pub(crate) offline: Offline,
    /// How long and how often it is tried.
    pub patience: Patience,
}

/// How long and how often something is tried.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Attempts in a row that bring nothing, or less than a mebibyte.
    pub attempts: u32,
    /// The pause before the second attempt; it doubles before each further one.
    pub pause: Duration,
    /// The longest pause, also where the hub asks for one.
    pub longest_pause: Duration,
    /// How long nothing may come before the connection counts as lost.
    pub silence: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            attempts: 5,
            pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(300),
            silence: Duration::from_secs(30),
        }
    }
}

/// Why nothing is downloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offline {
    /// It is.
    No,
    /// Whoever calls says so.
    Asked,
    /// HF_HUB_OFFLINE says so.
    Variable,
}

/// What proves to the hub who asks. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    pub(crate) fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }

    fn new(text: &str, variable: &'static str) -> Result<Option<Self>, LibraryError> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(None);
        }
        if text.len() > MAX_TOKEN || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            let reason = "holds no token: one is a word of letters, digits and `_`".to_owned();
            return Err(LibraryError::Setting { variable, reason });
        }
        Ok(Some(Self(text.to_owned())))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// The address of a hub.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    base: String,
    pub(crate) origin: Origin,
}

impl Endpoint {
    fn parse(text: &str) -> Result<Self, LibraryError> {
        let wrong = |reason: String| LibraryError::Setting { variable: "HF_ENDPOINT", reason };
        let base = text.trim().trim_end_matches('/');
        let uri = base.parse::<Uri>().ok().filter(|uri| uri.query().is_none());
        let origin = uri.as_ref().and_then(Origin::of).filter(|_| !base.contains(['#', '?']));
        match origin {
            Some(origin) => Ok(Self { base: base.to_owned(), origin }),
            // It may hold a password.
            None => Err(wrong(format!(
                "must be the address of a hub, such as {HUB}, without a user, `?` or `#`"
            ))),
        }
    }

    /// The address of `path`, which begins with a slash.
    pub(crate) fn join(&self, path: &str) -> Result<Uri, LibraryError> {
        let whole = format!("{}{path}", self.base);
        let wrong = |error| LibraryError::Setting {
            variable: "HF_ENDPOINT",
            reason: format!("makes no address of {path} ({error})"),
        };
        whole.parse().map_err(wrong)
    }

    /// The page of a repository, for people.
    pub(crate) fn page(&self, repo: &str) -> String {
        format!("{}/{repo}", self.base)
    }
}

impl Settings {
    /// As the environment says. `offline`: nothing is downloaded whatever it says.
    ///
    /// # Errors
    /// For an address or a token that is none, and where no folder can be found for the cache.
    pub fn from_environment(offline: bool) -> Result<Self, LibraryError> {
        Self::from_variables(offline, |name| std::env::var_os(name))
    }

    /// As [`Settings::from_environment`], with variables from elsewhere.
    ///
    /// # Errors
    /// As there.
    pub fn from_variables(
        offline: bool,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, LibraryError> {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let home = home(&variable);
        let endpoint = variable("HF_ENDPOINT");
        let endpoint = endpoint.as_ref().map(|text| text.to_string_lossy());
        Ok(Self {
            endpoint: Endpoint::parse(endpoint.as_deref().unwrap_or(HUB))?,
            cache: cache(&variable, home.as_deref())?,
            token: token(&variable, home.as_deref())?,
            offline: match (offline, is_true(variable("HF_HUB_OFFLINE"))) {
                (_, true) => Offline::Variable,
                (true, false) => Offline::Asked,
                (false, false) => Offline::No,
            },
            patience: Patience::default(),
        })
    }

    /// The folder that models lie in.
    pub fn cache(&self) -> &Path {
        &self.cache
    }

    /// Whether nothing is downloaded.
    pub fn is_offline(&self) -> bool {
        self.offline != Offline::No
    }
}

type Variable<'a> = &'a dyn Fn(&str) -> Option<OsString>;

fn is_true(value: Option<OsString>) -> bool {
    let value = value.unwrap_or_default().to_string_lossy().to_ascii_uppercase();
    ["1", "ON", "YES", "TRUE"].contains(&value.as_str())
}

/// A folder or file that a variable names; `~` is the user's home.
fn path(variable: Variable<'_>, name: &str) -> Option<PathBuf> {
    let path = PathBuf::from(variable(name)?);
    match path.strip_prefix("~") {
        Ok(rest) => Some(user_home(variable)?.join(rest)),
        Err(_) => Some(path),
    }
}

fn user_home(variable: Variable<'_>) -> Option<PathBuf> {
    let name = if cfg!(windows) { "USERPROFILE" } else { "HOME" };
    variable(name).map(PathBuf::from)
}

/// HF_HOME.
fn home(variable: Variable<'_>) -> Option<PathBuf> {
    let cache = || {
        let own = path(variable, "XDG_CACHE_HOME");
        own.or_else(|| Some(user_home(variable)?.join(".cache")))
    };
    path(variable, "HF_HOME").or_else(|| Some(cache()?.join("huggingface")))
}

fn cache(variable: Variable<'_>, home: Option<&Path>) -> Result<PathBuf, LibraryError> {
    let named = path(variable, "HF_HUB_CACHE").or_else(|| path(variable, "HUGGINGFACE_HUB_CACHE"));
    named.or_else(|| Some(home?.join("hub"))).ok_or_else(|| LibraryError::Setting {
        variable: "HF_HOME",
        reason: "is not set and neither is HOME; set it to the folder for models".to_owned(),
    })
}

/// From HF_TOKEN, or the file that logging in with `hf` writes.
fn token(variable: Variable<'_>, home: Option<&Path>) -> Result<Option<Token>, LibraryError> {
    if let Some(text) = variable("HF_TOKEN") {
        return Token::new(&text.to_string_lossy(), "HF_TOKEN");
    }
    let Some(file) = path(variable, "HF_TOKEN_PATH").or_else(|| Some(home?.join("token"))) else {
        return Ok(None);
    };
    match fs::read_to_string(file) {
        Ok(text) => Token::new(&text, "HF_TOKEN_PATH"),
        // Who has not logged in has no such file.
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &[(&str, &str)]) -> Result<Settings, LibraryError> {
        let find = |name: &str| pairs.iter().find(|(known, _)| *known == name);
        Settings::from_variables(false, |name| find(name).map(|(_, value)| value.into()))
    }

    #[test]
    fn the_cache_is_where_python_looks() {
        let cache = |pairs: &[(&str, &str)]| settings(pairs).unwrap().cache;
        let home = if cfg!(windows) { "USERPROFILE" } else { "HOME" };
        assert_eq!(cache(&[(home, "/u")]), Path::new("/u/.cache/huggingface/hub"));
        let xdg = ("XDG_CACHE_HOME", "/c");
        assert_eq!(cache(&[(home, "/u"), xdg]), Path::new("/c/huggingface/hub"));
        let own = ("HF_HOME", "~/hf");
        assert_eq!(cache(&[(home, "/u"), xdg, own]), Path::new("/u/hf/hub"));
        let hub = ("HF_HUB_CACHE", "/models");
        assert_eq!(cache(&[own, hub]), Path::new("/models"));
        let old = ("HUGGINGFACE_HUB_CACHE", "/old");
        assert_eq!(cache(&[own, hub, old]), Path::new("/models"));
        assert_eq!(cache(&[own, old]), Path::new("/old"));
        assert!(settings(&[]).unwrap_err().to_string().contains("HF_HOME: is not set"));
    }

    #[test]
    fn a_token_is_never_shown_and_is_a_word() {
        let with = |token: &str| settings(&[("HF_HOME", "/nowhere"), ("HF_TOKEN", token)]);
        let shown = with(" hf_secret\n").unwrap();
        assert_eq!(shown.token.as_ref().unwrap().header(), "Bearer hf_secret");
        assert!(!format!("{shown:?}").contains("secret"));
        assert_eq!(with(" ").unwrap().token, None);
        let error = with("hf_secret\r\nX: y").unwrap_err().to_string();
        assert!(error.starts_with("HF_TOKEN: ") && !error.contains("secret"), "{error}");
    }

    #[test]
    fn a_token_may_lie_in_a_file() {
        let folder = std::env::temp_dir().join(format!("longview-token-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("token"), "hf_file\n").unwrap();
        fs::write(folder.join("other"), "hf_other\n").unwrap();
        let (home, other) = (folder.to_str().unwrap(), folder.join("other"));
        let header = |pairs: &[(&str, &str)]| settings(pairs).unwrap().token.unwrap().header();
        assert_eq!(header(&[("HF_HOME", home)]), "Bearer hf_file");
        let named = ("HF_TOKEN_PATH", other.to_str().unwrap());
        assert_eq!(header(&[("HF_HOME", home), named]), "Bearer hf_other");
        assert_eq!(header(&[("HF_HOME", home), named, ("HF_TOKEN", "x")]), "Bearer x");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn an_endpoint_is_an_address_of_the_web() {
        let with = |text: &str| settings(&[("HF_HOME", "/x"), ("HF_ENDPOINT", text)]);
        let base = |text: &str| with(text).unwrap().endpoint.join("/api").unwrap().to_string();
        assert_eq!(base("http://127.0.0.1:80/"), "http://127.0.0.1:80/api");
        assert_eq!(base("https://mirror.example/hf/"), "https://mirror.example/hf/api");
        assert_eq!(base(""), "https://huggingface.co/api");
        for wrong in ["hub", "ftp://x", "https://", "https://u:p@x", "https://x/?y", "file:///x"] {
            let error = with(wrong).unwrap_err().to_string();
            assert!(error.starts_with("HF_ENDPOINT: must be"), "{wrong}: {error}");
        }
    }

    #[test]
    fn offline_is_asked_for_in_two_ways() {
        let offline = |value: &str| {
            settings(&[("HF_HOME", "/x"), ("HF_HUB_OFFLINE", value)]).unwrap().offline
        };
        assert_eq!([offline("1"), offline("true")], [Offline::Variable; 2]);
        assert_eq!([offline("0"), offline("")], [Offline::No; 2]);
        let home = |name: &str| (name == "HF_HOME").then(|| "/x".into());
        assert!(Settings::from_variables(true, home).unwrap().is_offline());
    }
}
