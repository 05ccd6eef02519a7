//! `xtask-bindgen MODULE FOLDER`: writes what JavaScript needs to load a compiled crate.
//!
//! wasm-bindgen's program must have the version of its library to the digit, so it is built from
//! the lock file like everything else. A program of its own, because nothing but `cargo xtask web`
//! waits for it.

use std::path::Path;

use anyhow::{Result, bail};
use wasm_bindgen_cli_support::Bindgen;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [module, folder] = args.as_slice() else {
        bail!("usage: xtask-bindgen MODULE FOLDER");
    };
    let mut bindgen = Bindgen::new();
    bindgen.input_path(module).web(true)?.typescript(true);
    bindgen.remove_name_section(true).remove_producers_section(true);
    bindgen.omit_default_module_path(false);
    bindgen.generate(Path::new(folder))
}
