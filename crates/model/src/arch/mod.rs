//! What each architecture does differently, as data.
//!
//! Every model Longview runs is one decoder: norm, attention, norm, gated MLP. An architecture
//! is a row of flags, so that adding one is a small file here and never a copy of the transformer.

mod gemma3;
mod glm;
mod internlm2;
mod layout;
mod llama;
mod mistral;
mod phi3;
mod qwen2;
mod qwen3;
mod traits;

pub use self::layout::{GateUpLayout, Layout, QkvLayout, RotaryPairs};
pub use self::traits::{ArchTraits, BiasRule, SlidingRule};

/// A supported architecture, named as `architectures` in `config.json` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// `LlamaForCausalLM`: Llama 2, 3, 3.1, 3.2 and what follows their layout.
    Llama,
    /// `MistralForCausalLM`.
    Mistral,
    /// `Qwen2ForCausalLM`: Qwen2 and Qwen2.5.
    Qwen2,
    /// `Qwen3ForCausalLM`.
    Qwen3,
    /// `Phi3ForCausalLM`: Phi-3, Phi-3.5-mini, Phi-4 and Phi-4-mini.
    Phi3,
    /// `GlmForCausalLM`: GLM-4 of 2024.
    Glm,
    /// `Glm4ForCausalLM`: GLM-4 of 2025.
    Glm4,
    /// `InternLM2ForCausalLM`: InternLM2 and InternLM2.5.
    InternLm2,
    /// `Gemma3ForCausalLM`: the text models of Gemma 3.
    Gemma3,
}

/// Every supported architecture with its row.
const TABLE: [(Architecture, &ArchTraits); 9] = [
    (Architecture::Llama, &llama::TRAITS),
    (Architecture::Mistral, &mistral::TRAITS),
    (Architecture::Qwen2, &qwen2::TRAITS),
    (Architecture::Qwen3, &qwen3::TRAITS),
    (Architecture::Phi3, &phi3::TRAITS),
    (Architecture::Glm, &glm::GLM),
    (Architecture::Glm4, &glm::GLM4),
    (Architecture::InternLm2, &internlm2::TRAITS),
    (Architecture::Gemma3, &gemma3::TRAITS),
];

impl Architecture {
    /// The architecture whose class name is `name`.
    pub fn from_class_name(name: &str) -> Option<Self> {
        TABLE.iter().find(|(_, traits)| traits.class_name == name).map(|(arch, _)| *arch)
    }

    /// The architecture whose `model_type` is `name`, for configs that list no class.
    pub fn from_model_type(name: &str) -> Option<Self> {
        TABLE.iter().find(|(_, traits)| traits.model_type == name).map(|(arch, _)| *arch)
    }

    /// This architecture's flags.
    pub fn traits(self) -> &'static ArchTraits {
        TABLE.iter().find(|(arch, _)| *arch == self).expect("every variant has a row").1
    }

    /// The supported class names, comma separated, for messages.
    pub fn supported() -> String {
        TABLE.map(|(_, traits)| traits.class_name).join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_architecture_is_found_by_both_names() {
        for (arch, traits) in TABLE {
            assert_eq!(Architecture::from_class_name(traits.class_name), Some(arch));
            assert_eq!(Architecture::from_model_type(traits.model_type), Some(arch));
            assert_eq!(arch.traits().class_name, traits.class_name);
        }
        assert_eq!(Architecture::from_class_name("GPT2LMHeadModel"), None);
    }
}
