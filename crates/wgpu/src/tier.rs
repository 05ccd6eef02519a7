//! Capability tiers: which features of WGSL the shaders use.

/// What shaders may use. Each tier computes the same; a higher one is meant to be faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// WGSL without optional features: halves are packed in words.
    Core,
    /// With `shader-f16`: halves are loaded as such.
    F16,
    /// With subgroup operations of any size (and f16 where there is f16).
    Subgroups,
}

impl Tier {
    /// All tiers, lowest first.
    pub const ALL: [Tier; 3] = [Tier::Core, Tier::F16, Tier::Subgroups];

    /// The name on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Tier::Core => "core",
            Tier::F16 => "f16",
            Tier::Subgroups => "subgroups",
        }
    }
}

impl std::fmt::Display for Tier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Tier {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Tier::ALL
            .into_iter()
            .find(|tier| tier.name() == text)
            .ok_or_else(|| format!("unknown tier '{text}': core, f16 or subgroups"))
    }
}
