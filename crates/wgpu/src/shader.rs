//! The shader files and the step that makes a variant of one.
//!
//! A file is WGSL. Lines that begin with `//#` steer what becomes of it:
//!
//! - `//# import FILE [FROM=TO ..]` puts another file in place of the line, each word FROM in it
//!   replaced by TO;
//! - `//# if NAME`, `//# if NAME == 3`, `//# if NAME != 3`, `//# else`, `//# end` keep or drop
//!   lines by a constant of the variant (a constant that was not given counts as 0).
//!
//! The constants of a variant are also written above the text, as `const NAME: u32 = 3u;`, so most
//! choices need no `if`.

use std::fmt::Write;

use smallvec::SmallVec;

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        /// Every shader file by its name: one for each op, then what several share.
        pub const FILES: &[(&str, &str)] = &[
            $(($name, include_str!(concat!("../../../shaders/", $name, ".wgsl")))),*
        ];
    };
}

files![
    "argmax",
    "attend_blocks",
    "attend_chunk",
    "attend_list",
    "block_reduce",
    "centroid_scores",
    "cluster_rest",
    "cluster_rows",
    "cluster_stats",
    "column_mass",
    "embed",
    "gelu_mul",
    "gram",
    "kmeans_assign",
    "kmeans_update",
    "kv_gather",
    "kv_keys",
    "kv_scatter",
    "lse_merge",
    "matmul",
    "matvec",
    "owner_counts",
    "pool_scores",
    "project_heads",
    "query_gate",
    "query_sums",
    "look_up_rows",
    "rest_lists",
    "rms_norm",
    "rope",
    "rotate_rows",
    "row_means",
    "score_blocks",
    "select_clusters",
    "silu_mul",
    "split_signs",
    "top_k",
    "shared/all_lanes",
    "shared/attend_merge",
    "shared/attend_shares",
    "shared/attend_tiles",
    "shared/codes",
    "shared/common",
    "shared/element",
    "shared/gelu",
    "shared/kv_rows",
    "shared/norm_matvec",
    "shared/order",
    "shared/packed",
    "shared/pool",
    "shared/radix",
    "shared/reduce",
    "shared/round_rows",
    "shared/row4",
    "shared/scan",
    "shared/selected_rows",
    "shared/subgroups",
    "shared/tile_embed",
    "shared/tile_product",
    "shared/tile_sort",
    "shared/tiles",
    "shared/write_halves",
];

/// A named constant of a variant.
pub type Define = (&'static str, u32);

/// A shader with its constants: the key of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Variant {
    pub stem: &'static str,
    pub entry: &'static str,
    /// In line: a dispatch allocates nothing to look its pipeline up.
    pub defines: SmallVec<[Define; 8]>,
}

/// A variant, and which of its bindings are written.
#[cfg(not(target_arch = "wasm32"))]
pub(crate) type Listed = (Variant, Vec<bool>);

/// A variant that cannot be made; a mistake in a shader file.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("shader {file}, line {line}: {what}")]
pub struct ShaderError {
    /// The file by its name in [`FILES`].
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// What is wrong.
    pub what: String,
}

/// The text of shader `stem` with these constants, `enable` lines first.
pub fn expand(stem: &str, defines: &[Define], enables: &[&str]) -> Result<String, ShaderError> {
    let mut out = String::new();
    for feature in enables {
        let _ = writeln!(out, "enable {feature};");
    }
    for (name, value) in defines {
        let _ = writeln!(out, "const {name}: u32 = {value}u;");
    }
    append(&mut out, stem, &[], defines, 0)?;
    Ok(out)
}

fn append(
    out: &mut String,
    stem: &str,
    renames: &[(&str, &str)],
    defines: &[Define],
    depth: usize,
) -> Result<(), ShaderError> {
    let fail = |line: usize, what: String| ShaderError { file: stem.into(), line, what };
    let text = FILES.iter().find(|(name, _)| *name == stem).map(|(_, text)| *text);
    let text = text.ok_or_else(|| fail(0, "no such file".into()))?;
    if depth > 8 {
        return Err(fail(0, "imports itself".into()));
    }
    // For each open `if`: whether its lines are kept.
    let mut kept: Vec<bool> = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let Some(command) = line.trim_start().strip_prefix("//#") else {
            if kept.iter().all(|keep| *keep) {
                rename(out, line, renames);
                out.push('\n');
            }
            continue;
        };
        let mut renamed = String::new();
        rename(&mut renamed, command, if command.contains("import") { &[] } else { renames });
        let words: Vec<&str> = renamed.split_whitespace().collect();
        match words.as_slice() {
            ["if", name] => kept.push(value(defines, name) != 0),
            ["if", name, "==", n] => kept.push(Ok(value(defines, name)) == n.parse()),
            ["if", name, "!=", n] => kept.push(Ok(value(defines, name)) != n.parse()),
            ["else"] => match kept.last_mut() {
                Some(keep) => *keep = !*keep,
                None => return Err(fail(i + 1, "else without if".into())),
            },
            ["end"] => {
                kept.pop().ok_or_else(|| fail(i + 1, "end without if".into()))?;
            }
            ["import", file, pairs @ ..] => {
                if kept.iter().all(|keep| *keep) {
                    let pairs: Option<Vec<_>> =
                        pairs.iter().map(|pair| pair.split_once('=')).collect();
                    let pairs = pairs.ok_or_else(|| fail(i + 1, "expected FROM=TO".into()))?;
                    append(out, file, &pairs, defines, depth + 1)?;
                }
            }
            _ => return Err(fail(i + 1, format!("unknown line '{line}'"))),
        }
    }
    if !kept.is_empty() {
        return Err(fail(text.lines().count(), "if without end".into()));
    }
    Ok(())
}

fn value(defines: &[Define], name: &str) -> u32 {
    defines.iter().find(|(n, _)| *n == name).map_or(0, |(_, v)| *v)
}

/// Appends `line` with whole words replaced. A word that begins with FROM and an underscore is
/// renamed too: an import names its functions after what it is imported for.
fn rename(out: &mut String, line: &str, renames: &[(&str, &str)]) {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut rest = line;
    while let Some(start) = rest.find(is_word) {
        out.push_str(&rest[..start]);
        rest = &rest[start..];
        let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let word = &rest[..end];
        let found = renames.iter().find_map(|(from, to)| {
            let tail = word.strip_prefix(from)?;
            (tail.is_empty() || tail.starts_with('_')).then_some((*to, tail))
        });
        match found {
            Some((to, tail)) => {
                out.push_str(to);
                out.push_str(tail);
            }
            None => out.push_str(word),
        }
        rest = &rest[end..];
    }
    out.push_str(rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_renamed_with_their_tails() {
        let mut out = String::new();
        rename(&mut out, "fn X_load(i: u32) { return X[i] + XY + aX_; }", &[("X", "weight")]);
        assert_eq!(out, "fn weight_load(i: u32) { return weight[i] + XY + aX_; }");
    }

    #[test]
    fn every_file_expands_by_itself() {
        for (name, _) in FILES {
            expand(name, &[], &[]).unwrap_or_else(|e| panic!("{e}"));
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = expand("nothing", &[], &[]).unwrap_err();
        assert_eq!(error.to_string(), "shader nothing, line 0: no such file");
    }
}
