//! Which crate may know which, read from the manifests.

use super::files::{File, Kind, Repo, package_name};

/// How a manifest names a dependency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// In the product, or in its build.
    Product,
    /// In tests, examples and benches.
    Dev,
}

#[derive(Debug, PartialEq, Eq)]
struct Dependency {
    name: String,
    role: Use,
    line: usize,
}

/// Crates that never appear among the dependencies of another. Dev-dependencies are free.
struct Absence {
    package: &'static str,
    never: &'static [&'static str],
    why: &'static str,
}

const BACKENDS: &[&str] = &["longview-cpu", "longview-wgpu", "longview-cuda"];

const FACES: &[&str] =
    &["longview-cli", "longview-server", "longview-desktop", "longview-web", "longview-eval"];

const ABSENCES: &[Absence] = &[
    Absence {
        package: "longview-core",
        never: &["longview-ops", "longview-scheduler", "longview-model", "longview-engine"],
        why: "core is below everything",
    },
    Absence {
        package: "longview-ops",
        never: &["longview-scheduler", "longview-model", "longview-engine"],
        why: "the contract does not know who calls it",
    },
    Absence {
        package: "longview-cpu",
        never: &[
            "longview-scheduler",
            "longview-model",
            "longview-engine",
            "longview-wgpu",
            "longview-cuda",
        ],
        why: "a backend knows the contract alone",
    },
    Absence {
        package: "longview-wgpu",
        never: &["longview-scheduler", "longview-model", "longview-engine", "longview-cpu"],
        why: "a backend knows the contract alone",
    },
    Absence {
        package: "longview-cuda",
        never: &[
            "longview-scheduler",
            "longview-model",
            "longview-engine",
            "longview-cpu",
            "longview-wgpu",
        ],
        why: "a backend knows the contract alone",
    },
    Absence {
        package: "longview-scheduler",
        never: &["longview-model", "longview-engine", "tokenizers"],
        why: "policies run without a model or a tokenizer",
    },
    Absence {
        package: "longview-model",
        never: &["longview-engine"],
        why: "a model is calls on ops and the scheduler",
    },
    Absence {
        package: "longview-library",
        never: &[
            "longview-ops",
            "longview-scheduler",
            "longview-model",
            "longview-engine",
            "longview-cli",
        ],
        why: "what is downloaded is files, whoever reads them",
    },
    Absence {
        package: "longview-web",
        never: &["longview-library"],
        why: "a page gets its files from the browser",
    },
];

/// Packages that are generic over the backend.
const GENERIC: &[&str] =
    &["longview-core", "longview-ops", "longview-scheduler", "longview-model", "longview-engine"];

/// A dependency that only some packages may name.
struct Only {
    dependency: &'static str,
    packages: &'static [&'static str],
    why: &'static str,
}

const ONLY: &[Only] = &[
    Only { dependency: "gemm", packages: &["longview-cpu"], why: "kernels stay in their backend" },
    Only { dependency: "wgpu", packages: &["longview-wgpu"], why: "one crate names the device" },
    Only { dependency: "naga", packages: &["longview-wgpu"], why: "one crate names the device" },
    Only { dependency: "cudarc", packages: &["longview-cuda"], why: "one crate names the device" },
    Only {
        dependency: "tokenizers",
        packages: &["longview-model"],
        why: "the model owns its tokenizer",
    },
    Only { dependency: "ureq", packages: &["longview-library"], why: "one crate downloads" },
    Only {
        dependency: "anyhow",
        packages: &["longview-cli", "longview-scale", "longview-tests", "xtask", "xtask-bindgen"],
        why: "libraries have errors of their own, that carry the values",
    },
    Only {
        dependency: "clap",
        packages: &["longview-cli", "longview-dynamo-worker", "longview-scale", "longview-server"],
        why: "faces read arguments",
    },
];

/// Manifests that break [`ABSENCES`] or [`ONLY`].
pub(crate) fn broken(repo: &Repo) -> Vec<String> {
    packages(repo).flat_map(|(name, file)| broken_in(name, file)).collect()
}

/// Packages that do not inherit the lints of the workspace.
pub(crate) fn own_lints(repo: &Repo) -> Vec<String> {
    let inherits = |file: &File| {
        let lines: Vec<_> = file.text.lines().map(str::trim).collect();
        lines.windows(2).any(|pair| pair == ["[lints]", "workspace = true"])
    };
    let without = packages(repo).filter(|(_, file)| !inherits(file));
    without.map(|(_, file)| file.problem(0, "add `[lints]` with `workspace = true`")).collect()
}

/// The packages of the workspace, with their manifests.
fn packages(repo: &Repo) -> impl Iterator<Item = (&str, &File)> {
    let manifests = repo.files.iter().filter(|file| file.kind() == Kind::Manifest);
    manifests.filter_map(|file| Some((package_name(&file.text)?, file)))
}

fn broken_in(package: &str, file: &File) -> Vec<String> {
    let mut problems = Vec::new();
    let named = dependencies(&file.text);
    for dependency in named.iter().filter(|dependency| dependency.role == Use::Product) {
        let message = |why| format!("{package} must not know `{}`: {why}", dependency.name);
        let reasons = reasons_against(package, &dependency.name);
        problems.extend(reasons.map(|why| file.problem(dependency.line, &message(why))));
    }
    problems
}

fn reasons_against<'a>(package: &'a str, name: &'a str) -> impl Iterator<Item = &'static str> {
    let absences = ABSENCES.iter().filter(move |a| a.package == package && a.never.contains(&name));
    let only = ONLY.iter().filter(move |o| o.dependency == name && !o.packages.contains(&package));
    let backend = GENERIC.contains(&package) && BACKENDS.contains(&name);
    let is_library = GENERIC.contains(&package) || BACKENDS.contains(&package);
    let face = is_library && FACES.contains(&name);
    let backend = backend.then_some("faces choose the backend, all else is generic over it");
    let face = face.then_some("nothing but a face knows a face");
    absences.map(|a| a.why).chain(only.map(|o| o.why)).chain(backend).chain(face)
}

/// The dependencies of a manifest. Not all of TOML: the forms that manifests here have.
fn dependencies(manifest: &str) -> Vec<Dependency> {
    let mut found = Vec::new();
    let mut role = None;
    for (line, text) in manifest.lines().map(str::trim).enumerate() {
        if let Some(section) = text.strip_prefix('[') {
            let section = section.trim_end_matches(']');
            role = role_of(section);
            // `[dependencies.name]`: what follows are settings of this one.
            if let Some((table, name)) = section.rsplit_once('.')
                && let Some(role) = role_of(table)
            {
                found.push(Dependency { name: name.into(), role, line });
            }
        } else if let (Some(role), Some(name)) = (role, entry(text)) {
            found.push(Dependency { name, role, line });
        }
    }
    found
}

fn role_of(section: &str) -> Option<Use> {
    match section.rsplit('.').next() {
        Some("dev-dependencies") => Some(Use::Dev),
        Some("dependencies" | "build-dependencies") if section != "workspace.dependencies" => {
            Some(Use::Product)
        }
        _ => None,
    }
}

/// The name in `name = ..`, `name.workspace = true` or `alias = { package = "name" }`.
fn entry(text: &str) -> Option<String> {
    let (key, value) = text.split_once('=').filter(|_| !text.starts_with('#'))?;
    let renamed = value.split_once("package = \"").and_then(|(_, rest)| rest.split('"').next());
    let name = renamed.unwrap_or_else(|| key.trim().trim_end_matches(".workspace"));
    Some(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::files::snippet;

    fn manifest(name: &str, rest: &str) -> File {
        let text = format!("[package]\nname = \"{name}\"\n\n[lints]\nworkspace = true\n\n{rest}");
        snippet("crates/a/Cargo.toml", &text)
    }

    fn reported(name: &str, rest: &str) -> usize {
        broken(&Repo::of(vec![manifest(name, rest)])).len()
    }

    #[test]
    fn dependencies_are_read_in_every_form() {
        let text = "\
[dependencies]
a = \"1\"
b.workspace = true
# c = 2
d = { package = \"e\", version = \"1\" }
[target.'cfg(unix)'.dependencies]
f = { workspace = true }
[dependencies.g]
features = [\"x\"]
[dev-dependencies]
h = \"1\"
[build-dependencies]
i = \"1\"
[features]
j = []
";
        let found = dependencies(text);
        let names: Vec<_> = found.iter().map(|d| (d.name.as_str(), d.role)).collect();
        let product = ["a", "b", "e", "f", "g"].map(|name| (name, Use::Product));
        assert_eq!(names[..5], product);
        assert_eq!(names[5..], [("h", Use::Dev), ("i", Use::Product)]);
        assert_eq!(found.iter().map(|d| d.line).collect::<Vec<_>>(), [1, 2, 4, 6, 7, 10, 12]);
        assert!(dependencies("[workspace.dependencies]\na = \"1\"\n").is_empty());
    }

    #[test]
    fn layers_hold_in_the_product_and_not_in_tests() {
        let cpu = "longview-cpu = { workspace = true }";
        for package in GENERIC {
            assert_eq!(reported(package, &format!("[dependencies]\n{cpu}")), 1, "{package}");
            assert_eq!(reported(package, &format!("[dev-dependencies]\n{cpu}")), 0, "{package}");
        }
        assert_eq!(reported("longview-cli", &format!("[dependencies]\n{cpu}")), 0);
        assert_eq!(reported("longview-engine", "[dependencies]\nlongview-cli = \"1\""), 1);
        assert_eq!(reported("longview-scheduler", "[dependencies]\nlongview-model = \"1\""), 1);
        assert_eq!(reported("longview-model", "[dependencies]\nlongview-scheduler = \"1\""), 0);
        assert_eq!(reported("longview-library", "[dependencies]\nlongview-model = \"1\""), 1);
        assert_eq!(reported("longview-web", "[dependencies]\nlongview-library = \"1\""), 1);
        assert_eq!(reported("longview-cli", "[dependencies]\nlongview-library = \"1\""), 0);
    }

    #[test]
    fn some_dependencies_have_one_owner() {
        assert_eq!(reported("longview-cpu", "[dependencies]\ngemm = \"0.19\""), 0);
        assert_eq!(reported("longview-model", "[dependencies]\ngemm = \"0.19\""), 1);
        assert_eq!(reported("longview-ops", "[dependencies]\nanyhow = \"1\""), 1);
        assert_eq!(reported("longview-ops", "[dev-dependencies]\nanyhow = \"1\""), 0);
        assert_eq!(reported("xtask", "[dependencies]\nanyhow = \"1\""), 0);
        assert_eq!(reported("longview-library", "[dependencies]\nureq = \"3\""), 0);
        assert_eq!(reported("longview-cli", "[dependencies]\nureq = \"3\""), 1);
    }

    #[test]
    fn a_package_without_the_lints_is_reported() {
        let repo = |text| Repo::of(vec![snippet("crates/a/Cargo.toml", text)]);
        assert_eq!(own_lints(&repo("[package]\nname = \"a\"\n")).len(), 1);
        assert!(own_lints(&Repo::of(vec![manifest("a", "")])).is_empty());
        assert!(own_lints(&repo("[workspace]\n")).is_empty());
    }
}
