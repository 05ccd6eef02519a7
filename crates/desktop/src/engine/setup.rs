//! How an engine is made: the model, the device, and how much it may attend and take.

use std::path::PathBuf;
use std::sync::Arc;

use longview_scheduler::{AttentionBound, PolicyOptions, Preset};
use longview_startup::{DeviceChoice, embedded};
use serde::{Deserialize, Serialize};

use super::worker::OpenEngine;

/// Where the model comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelSource {
    /// It is inside the program.
    #[default]
    Embedded,
    /// A Hugging Face folder or a GGUF file.
    Path(PathBuf),
    /// A model of the hub by its name, and where it was downloaded to.
    Hub(String, PathBuf),
}

impl ModelSource {
    /// What to call it.
    pub fn name(&self) -> String {
        match self {
            Self::Embedded => embedded::NAME.to_owned(),
            Self::Path(path) => {
                path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
            }
            Self::Hub(name, _) => name.clone(),
        }
    }

    /// The folder or the file; `None` if it is inside the program.
    pub fn path(&self) -> Option<&PathBuf> {
        match self {
            Self::Embedded => None,
            Self::Path(path) | Self::Hub(_, path) => Some(path),
        }
    }

    /// The model in words that open it again from any folder.
    pub fn words(&self) -> String {
        match self {
            Self::Embedded | Self::Hub(..) => self.name(),
            Self::Path(path) => {
                std::path::absolute(path).as_deref().unwrap_or(path).display().to_string()
            }
        }
    }
}

/// How an engine is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineSetup {
    /// The model.
    pub model: ModelSource,
    /// The device.
    pub device: DeviceChoice,
    /// Bytes of the device's memory to plan with, in place of what it says that it has.
    pub device_memory: Option<u64>,
    /// How tokens are chosen.
    pub policy: Preset,
    /// Whether answers say how much was left out at most.
    pub bounds: bool,
    /// Whether other programs ask too, whose prompts need a context though no document is open.
    pub serves: bool,
}

impl Default for EngineSetup {
    fn default() -> Self {
        Self {
            model: ModelSource::Embedded,
            device: DeviceChoice::Auto,
            device_memory: None,
            policy: Preset::DEFAULT,
            bounds: true,
            serves: false,
        }
    }
}

impl EngineSetup {
    /// The policy under which documents are read and asked.
    pub fn policy(&self) -> PolicyOptions {
        let mut policy = PolicyOptions::new(self.policy);
        // Only indexes of clusters limit what a row may weigh.
        if self.bounds && matches!(self.policy, Preset::Longview | Preset::Clusterkv) {
            policy.attention_bound = Some(AttentionBound::Sampled);
        }
        policy
    }
}

/// Makes what opens an engine as a setup says.
pub type Engines = Arc<dyn Fn(&EngineSetup) -> OpenEngine + Send + Sync + 'static>;
