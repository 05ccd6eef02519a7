//! Shader levels: which optional features of WGSL the shaders use.

/// What shaders may use. Each level computes the same; a higher one is meant to be faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ShaderLevel {
    /// WGSL without optional features: halves are packed in words.
    Core,
    /// With `shader-f16`: halves are loaded as such.
    F16,
    /// With subgroup operations of any size (and f16 where there is f16).
    Subgroups,
}

impl ShaderLevel {
    /// All levels, lowest first.
    pub const ALL: [ShaderLevel; 3] = [ShaderLevel::Core, ShaderLevel::F16, ShaderLevel::Subgroups];

    /// The name on command lines.
    pub fn name(self) -> &'static str {
        match self {
            ShaderLevel::Core => "core",
            ShaderLevel::F16 => "f16",
            ShaderLevel::Subgroups => "subgroups",
        }
    }
}

impl std::fmt::Display for ShaderLevel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for ShaderLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        ShaderLevel::ALL
            .into_iter()
            .find(|level| level.name() == text)
            .ok_or_else(|| format!("unknown shader level '{text}': core, f16 or subgroups"))
    }
}
