//! Compiles the CUDA kernels as C++ into two shared libraries: one that is fast, one that looks at
//! every access (address and undefined-behaviour sanitizers).
//!
//! Each `.cu` gets a wrapper that includes it in a namespace of its own and says where the compiler
//! placed the fields of its structs of arguments. A file whose text depends on `HAS_SM80` gets two:
//! one for compute capability 8.0 and one for 7.5. The others are the same for both.

use std::env;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

type Failure = Box<dyn std::error::Error>;

/// Compute capabilities, times ten: one that has all that kernels ask for, and the oldest one that
/// is supported.
const NEW: u32 = 80;
const OLD: u32 = 75;

/// A way to build the library.
struct Variant {
    name: &'static str,
    flags: &'static [&'static str],
    opt_level: u32,
    /// Which files it has for [`OLD`] too, of those that differ.
    takes_old: fn(&Wrapper) -> bool,
}

/// A file of kernels for one compute capability.
struct Wrapper {
    stem: String,
    capability: u32,
    /// Whether it begins copies: for [`OLD`] these are loads and stores of its own.
    copies: bool,
}

impl Wrapper {
    /// What its file and its symbol are called.
    fn name(&self) -> String {
        match self.capability {
            OLD => format!("{}_{OLD}", self.stem),
            _ => self.stem.clone(),
        }
    }
}

/// Without the sanitizer of the Rust side, which cc would take over: the compiler of this library
/// would bring a runtime of its own, and a process can hold one alone. A load or a store at an
/// address that is no multiple of its type's alignment ends the process (SIGILL): a GPU refuses it,
/// and the processor would not.
const FAST: Variant = Variant {
    name: "fast",
    flags: &["-fno-sanitize=address", "-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"],
    opt_level: 2,
    takes_old: |_| true,
};

const SANITIZED: Variant = Variant {
    name: "sanitized",
    flags: &[
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
        "-fno-omit-frame-pointer",
    ],
    opt_level: 1,
    // The other differences lie in registers alone, and compile for half a minute.
    takes_old: |wrapper| wrapper.copies,
};

fn main() -> Result<(), Failure> {
    let root = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../..").canonicalize()?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let folders = [root.join("kernels"), root.join("tests/cuda-emulation/kernels")];
    let machine = root.join("tests/cuda-emulation/emulation");
    // Not the whole of kernels/: what is compiled to PTX below it is no input here. A new file is
    // listed in the table of kernels.
    println!("cargo::rerun-if-changed={}", root.join("crates/cuda/src/kernels.rs").display());
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", machine.display());
    println!("cargo::rerun-if-changed={}", folders[1].display());
    let stand_in = root.join("tests/cuda-emulation/driver/libcuda.cpp");
    println!("cargo::rerun-if-changed={}", stand_in.display());
    println!("cargo::rerun-if-changed={}", folders[0].join("shared").display());
    let by_capability = names_by_capability(&folders[0].join("shared/common.cuh"))?;
    let mut wrappers = Vec::new();
    for folder in &folders {
        for path in sorted(folder)? {
            let extension = path.extension().unwrap_or_default();
            if extension == "cu" {
                println!("cargo::rerun-if-changed={}", path.display());
                wrappers.extend(wrap(&path, &folders[0], &by_capability, &out)?);
            }
        }
    }
    let includes = [machine, folders[0].clone()];
    if env::var("CARGO_CFG_UNIX").is_err() || is_for_clippy() {
        // Fibers are made with what Unix has; elsewhere the library is absent, which its loader
        // says.
        println!("cargo::rustc-env=LONGVIEW_EMULATION=");
        println!("cargo::rustc-env=LONGVIEW_EMULATION_SANITIZED=");
        println!("cargo::rustc-env=LONGVIEW_EMULATION_SANITIZER=");
        println!("cargo::rustc-env=LONGVIEW_STAND_IN=");
        return Ok(());
    }
    let folder = stand_in_of_the_driver(&stand_in, &out)?;
    println!("cargo::rustc-env=LONGVIEW_STAND_IN={}", folder.display());
    let fast = library(&FAST, &wrappers, &includes, &out)?;
    println!("cargo::rustc-env=LONGVIEW_EMULATION={}", fast.display());
    let runtime = sanitizer_runtime();
    let sanitized = match &runtime {
        Some(_) => library(&SANITIZED, &wrappers, &includes, &out)?,
        None => PathBuf::new(),
    };
    println!("cargo::rustc-env=LONGVIEW_EMULATION_SANITIZED={}", sanitized.display());
    let runtime = runtime.unwrap_or_default();
    println!("cargo::rustc-env=LONGVIEW_EMULATION_SANITIZER={}", runtime.display());
    Ok(())
}

/// Whether nothing will run: clippy compiles build scripts anew, and what it calls them for is
/// thrown away. That was a second compilation of all kernels.
fn is_for_clippy() -> bool {
    let wrapper = env::var_os("RUSTC_WORKSPACE_WRAPPER").map(PathBuf::from);
    wrapper.is_some_and(|wrapper| wrapper.file_stem().is_some_and(|name| name == "clippy-driver"))
}

fn sorted(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut paths: Vec<_> = fs::read_dir(folder)?.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}

/// Functions of `common.cuh` that are not the same for every compute capability.
fn names_by_capability(common: &Path) -> Result<Vec<String>, Failure> {
    let text = fs::read_to_string(common)?;
    let mut names = vec![String::from("HAS_SM80")];
    // Whether each of the conditions that the line lies in asks for the compute capability.
    let mut conditions = Vec::new();
    for line in text.lines() {
        if line.starts_with("#if") {
            conditions.push(line.contains("HAS_SM80"));
        } else if line.starts_with("#endif") {
            conditions.pop();
        } else if conditions.contains(&true)
            && line.contains("DEVICE ")
            && let Some((head, _)) = line.split_once('(')
        {
            names.push(head.rsplit([' ', '&', '*']).next().unwrap_or_default().to_owned());
        }
    }
    if names.len() > 1 && conditions.is_empty() {
        return Ok(names);
    }
    Err(format!("{}: no function depends on HAS_SM80", common.display()).into())
}

/// The text of a file with what it includes, but for `common.cuh`.
fn whole_text(path: &Path, kernels: &Path) -> Result<String, Failure> {
    let mut text = fs::read_to_string(path)?;
    let included = |line: &str| {
        let name = line.strip_prefix("#include \"")?.strip_suffix('"')?;
        (name != "shared/common.cuh").then(|| kernels.join(name))
    };
    for path in text.lines().filter_map(included).collect::<Vec<_>>() {
        text += &whole_text(&path, kernels)?;
    }
    Ok(text)
}

/// Writes the wrappers of a file.
fn wrap(
    path: &Path,
    kernels: &Path,
    by_capability: &[String],
    out: &Path,
) -> Result<Vec<Wrapper>, Failure> {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let text = whole_text(path, kernels)?;
    let differs = by_capability.iter().any(|name| text.contains(name.as_str()));
    let copies = text.contains("copy_async(");
    let mut wrappers = Vec::new();
    for capability in [NEW, OLD].into_iter().take(1 + usize::from(differs)) {
        let wrapper = Wrapper { stem: stem.clone(), capability, copies };
        let text = text_of(&wrapper, path, differs)?;
        fs::write(out.join(format!("{}.cpp", wrapper.name())), text)?;
        wrappers.push(wrapper);
    }
    Ok(wrappers)
}

/// The text of a wrapper of the file at `path`.
fn text_of(wrapper: &Wrapper, path: &Path, differs: bool) -> Result<String, Failure> {
    let structs = structs(&fs::read_to_string(path)?);
    let (name, Wrapper { stem, capability, .. }) = (wrapper.name(), wrapper);
    let mut text = format!("#define LONGVIEW_EMULATED_SM {capability}\n");
    text += "#include \"shared/common.cuh\"\n#include <cstddef>\n\nnamespace {\n\n";
    text += "const lv::Kernel* lv_last_kernel = nullptr;\n\n";
    writeln!(text, "#include \"{}\"\n", path.display())?;
    for (name, fields) in &structs {
        writeln!(text, "const lv::Field {name}_fields[] = {{")?;
        for field in fields {
            let place = format!("offsetof({name}, {field}), sizeof({name}::{field})");
            writeln!(text, "    {{\"{field}\", {place}}},")?;
        }
        text += "};\n";
    }
    text += "const lv::Args lv_args[] = {\n";
    for (name, fields) in &structs {
        let n = fields.len();
        writeln!(text, "    {{\"{name}\", sizeof({name}), {n}, {name}_fields}},")?;
    }
    text += "};\n\n}  // namespace\n\n";
    let n = structs.len();
    writeln!(text, "extern const lv::File lv_file_{name};")?;
    writeln!(
        text,
        "const lv::File lv_file_{name} = {{\"{stem}\", &lv_last_kernel, lv_args, {n}, \
         {capability}, {differs}}};"
    )?;
    Ok(text)
}

/// The structs of arguments: names, and names of fields. A field is the last word before a `;`.
fn structs(text: &str) -> Vec<(String, Vec<String>)> {
    let mut structs: Vec<(String, Vec<String>)> = Vec::new();
    let mut is_inside = false;
    for line in text.lines() {
        let code = line.split("//").next().unwrap_or_default().trim();
        if let Some(name) = code.strip_prefix("struct ").and_then(|rest| rest.strip_suffix(" {")) {
            is_inside = name.ends_with("Args");
            if is_inside {
                structs.push((name.to_owned(), Vec::new()));
            }
        } else if code == "};" {
            is_inside = false;
        } else if let Some((_, fields)) = structs.last_mut().filter(|_| is_inside)
            && let Some(field) = code.strip_suffix(';')
        {
            let name = field.rsplit([' ', '*']).next().unwrap_or_default();
            fields.push(name.to_owned());
        }
    }
    structs
}

/// The list of the files of a library, for the loader.
fn files(names: &[String]) -> String {
    let mut text = String::from("#include \"machine.hpp\"\n\n");
    for name in names {
        text += &format!("extern const lv::File lv_file_{name};\n");
    }
    let list: Vec<_> = names.iter().map(|name| format!("&lv_file_{name}")).collect();
    text += &format!(
        "\nstatic const lv::File* const list[] = {{{}}};\n\n\
         extern \"C\" u32 lv_n_files() {{ return {}; }}\n\
         extern \"C\" const lv::File* lv_file(u32 i) {{ return list[i]; }}\n",
        list.join(", "),
        names.len()
    );
    text
}

/// Compiles and links.
fn library(
    variant: &Variant,
    wrappers: &[Wrapper],
    includes: &[PathBuf],
    out: &Path,
) -> Result<PathBuf, Failure> {
    let folder = out.join(variant.name);
    fs::create_dir_all(&folder)?;
    let is_taken = |wrapper: &&Wrapper| wrapper.capability != OLD || (variant.takes_old)(wrapper);
    let names: Vec<_> = wrappers.iter().filter(is_taken).map(Wrapper::name).collect();
    let list = folder.join("files.cpp");
    fs::write(&list, files(&names))?;
    let mut sources: Vec<_> = names.iter().map(|name| out.join(format!("{name}.cpp"))).collect();
    sources.extend([list, includes[0].join("machine.cpp"), includes[0].join("products.cpp")]);
    let mut build = cc::Build::new();
    build.cpp(true).std("c++17").pic(true).debug(false).opt_level(variant.opt_level);
    build.cargo_metadata(false).warnings(true).out_dir(&folder);
    build.define("LONGVIEW_EMULATED", None).flag("-g1");
    // Kernels read floats as vectors, as a GPU may; every product is rounded by itself, so results
    // do not depend on what the processor fuses; one shared library may use the fast way to
    // variables of a thread.
    build.flags(["-fno-strict-aliasing", "-ffp-contract=off", "-ftls-model=initial-exec"]);
    build.flags(["-Wno-unknown-pragmas", "-Wno-unused-function", "-Wno-unused-variable"]);
    // For old devices some kernels are empty.
    build.flag("-Wno-unused-parameter");
    build.flags(variant.flags).includes(includes);
    let objects = objects(&build, &sources, includes, &folder)?;
    link(&build, &objects, folder.join("liblongview_kernels.so"))
}

/// The objects of `sources`, in their order. Those whose text, with all that it includes, and whose
/// call of the compiler are as they were when the object was made are not compiled again: all
/// kernels take minutes, and most changes are in one file.
fn objects(
    build: &cc::Build,
    sources: &[PathBuf],
    includes: &[PathBuf],
    folder: &Path,
) -> Result<Vec<PathBuf>, Failure> {
    let compiler = build.try_get_compiler()?;
    let version = Command::new(compiler.path()).arg("--version").output()?.stdout;
    // Not the command, which has all of cargo's variables, and another one in each call.
    let call = format!("{:?} {:?}\n", compiler.path(), compiler.args());
    let call = call + &String::from_utf8_lossy(&version);
    let mut made = Vec::new();
    for source in sources {
        let mut text = call.clone();
        add_with_includes(source, includes, &mut Vec::new(), &mut text)?;
        let name = source.file_stem().unwrap_or_default().to_string_lossy();
        let record = folder.join(format!("{name}.made-of"));
        made.push((source, record, text));
    }
    // A record is the object's path in its first line, and what it was made of.
    let known = |record: &Path, text: &str| {
        let recorded = fs::read_to_string(record).ok()?;
        let (object, of) = recorded.split_once('\n')?;
        (of == text && Path::new(object).exists()).then(|| PathBuf::from(object))
    };
    let is_stale = |(_, record, text): &&(&PathBuf, PathBuf, String)| known(record, text).is_none();
    let stale: Vec<_> = made.iter().filter(is_stale).collect();
    let mut compile = build.clone();
    compile.files(stale.iter().map(|(source, ..)| source));
    stale.iter().try_for_each(|(_, record, _)| if_there(fs::remove_file(record)))?;
    for (object, (_, record, text)) in compile.try_compile_intermediates()?.iter().zip(&stale) {
        fs::write(record, format!("{}\n{text}", object.display()))?;
    }
    let object = |(source, record, text): &(&PathBuf, PathBuf, String)| {
        known(record, text).ok_or_else(|| format!("{}: no object", source.display()).into())
    };
    made.iter().map(object).collect()
}

/// What was done to a file that need not exist.
fn if_there(result: std::io::Result<()>) -> std::io::Result<()> {
    match result {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Adds the text of a file and of all that it includes by a path in quotes, each file once.
fn add_with_includes(
    path: &Path,
    includes: &[PathBuf],
    seen: &mut Vec<PathBuf>,
    text: &mut String,
) -> Result<(), Failure> {
    if seen.iter().any(|known| known == path) {
        return Ok(());
    }
    seen.push(path.to_owned());
    let own = fs::read_to_string(path)?;
    *text += &own;
    let included = |line: &str| {
        let name = line.trim().strip_prefix("#include \"")?.strip_suffix('"')?.to_owned();
        // A path of its own replaces the folder that it is joined to.
        includes.iter().map(|folder| folder.join(&name)).find(|path| path.exists())
    };
    own.lines()
        .filter_map(included)
        .try_for_each(|path| add_with_includes(&path, includes, seen, text))
}

/// The stand-in of NVIDIA's driver library, in a folder that a loader can be told of.
fn stand_in_of_the_driver(source: &Path, out: &Path) -> Result<PathBuf, Failure> {
    let folder = out.join("stand-in");
    fs::create_dir_all(&folder)?;
    let mut build = cc::Build::new();
    build.cpp(true).std("c++17").pic(true).debug(false).opt_level(1);
    build.cargo_metadata(false).warnings(true).out_dir(&folder);
    build.flag(FAST.flags[0]).file(source);
    let objects = build.try_compile_intermediates()?;
    link(&build, &objects, folder.join("libcuda.so"))?;
    Ok(folder)
}

/// Links a shared library.
fn link(build: &cc::Build, objects: &[PathBuf], library: PathBuf) -> Result<PathBuf, Failure> {
    let mut link = build.try_get_compiler()?.to_command();
    link.args(objects).args(["-shared", "-o"]).arg(&library);
    if link.status()?.success() {
        Ok(library)
    } else {
        Err(format!("cannot link: {link:?}").into())
    }
}

/// Where the address sanitizer's library is: a program that was not built with it must load it
/// first. `None` where the compiler has none.
fn sanitizer_runtime() -> Option<PathBuf> {
    let compiler = cc::Build::new().cpp(true).try_get_compiler().ok()?;
    let path = compiler.path();
    let output = Command::new(path).arg("-print-file-name=libasan.so").output().ok()?;
    let found = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    (found.is_absolute() && found.exists()).then_some(found)
}
