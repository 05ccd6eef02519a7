//! Options that several commands share, named as llama.cpp names them.

mod engine;
mod policy;
mod rope;
mod sampling;

pub use engine::{EngineArgs, kv_types};
#[cfg(feature = "evaluation")]
pub use policy::PolicyFile;
pub use policy::{PolicyArgs, TuningArgs};
pub use rope::RopeArgs;
pub use sampling::SamplingArgs;

use clap::builder::{PossibleValuesParser, TypedValueParser};

/// A parser for one of the names in `all`, so that help and completions list them.
pub fn one_of<T: Copy + Send + Sync + 'static>(
    all: &'static [(T, &'static str)],
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(all.iter().map(|(_, name)| *name)).map(move |name: String| {
        let found = all.iter().find(|(_, known)| *known == name);
        found.expect("the parser lets known names through").0
    })
}
