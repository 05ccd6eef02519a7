//! What a person has chosen, as it is kept from one start to the next.

use eframe::egui::ThemePreference;
use longview_scheduler::Preset;
use longview_startup::DeviceChoice;
use serde::{Deserialize, Serialize};

use crate::engine::{EngineSetup, ModelSource, Serve};

/// Sizes of the window's text and controls, in percent.
pub const SCALES: std::ops::RangeInclusive<u32> = 100..=200;
/// Budgets that can be chosen, in tokens.
pub const BUDGETS: std::ops::RangeInclusive<usize> = 128..=8192;
/// Models by their path that are remembered.
const MOST_OTHERS: usize = 8;

/// What was chosen. What is missing in a file is as it is at first; what is unknown stays unread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// The model.
    pub model: ModelSource,
    /// Models that were opened by their path, the last first.
    pub others: Vec<ModelSource>,
    /// The device, as `--device` names it.
    pub device: String,
    /// Bytes of the device's memory to plan with.
    pub device_memory: Option<u64>,
    /// Bytes that what was read may take in the library.
    pub disk_quota: Option<u64>,
    /// The policy, by its name.
    pub policy: String,
    /// Whether answers say how much was left out at most.
    pub bounds: bool,
    /// Tokens that a step may attend, if a person chose that.
    pub budget: Option<usize>,
    /// `system`, `light` or `dark`.
    pub theme: String,
    /// Percent.
    pub scale: u32,
    /// Whether and how the library is served to other programs.
    pub serve: Serve,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            model: ModelSource::Embedded,
            others: Vec::new(),
            device: "auto".to_owned(),
            device_memory: None,
            disk_quota: None,
            policy: Preset::DEFAULT.name().to_owned(),
            bounds: true,
            budget: None,
            theme: "system".to_owned(),
            scale: *SCALES.start(),
            serve: Serve::default(),
        }
    }
}

/// Devices by their names.
pub const DEVICES: [(&str, DeviceChoice); 4] = [
    ("auto", DeviceChoice::Auto),
    ("cuda", DeviceChoice::Cuda),
    ("wgpu", DeviceChoice::Wgpu),
    ("cpu", DeviceChoice::Cpu),
];

const THEMES: [(&str, ThemePreference); 3] = [
    ("system", ThemePreference::System),
    ("light", ThemePreference::Light),
    ("dark", ThemePreference::Dark),
];

/// The device of this name.
pub fn device_named(name: &str) -> Option<DeviceChoice> {
    DEVICES.iter().find(|(known, _)| *known == name).map(|(_, device)| *device)
}

impl Settings {
    /// How an engine is made. Names of a newer program mean what is chosen at first.
    pub fn setup(&self) -> EngineSetup {
        EngineSetup {
            model: self.model.clone(),
            device: device_named(&self.device).unwrap_or(DeviceChoice::Auto),
            device_memory: self.device_memory,
            policy: self.policy.parse().unwrap_or(Preset::DEFAULT),
            bounds: self.bounds,
            serves: self.serve.on,
        }
    }

    /// The budget that was chosen, if it is one that can be.
    pub fn budget(&self) -> Option<usize> {
        self.budget.map(|tokens| tokens.clamp(*BUDGETS.start(), *BUDGETS.end()))
    }

    /// The theme.
    pub fn theme(&self) -> ThemePreference {
        let found = THEMES.iter().find(|(name, _)| *name == self.theme);
        found.map_or(ThemePreference::System, |(_, theme)| *theme)
    }

    /// Chooses a theme.
    pub fn set_theme(&mut self, theme: ThemePreference) {
        let found = THEMES.iter().find(|(_, known)| *known == theme);
        self.theme = found.map_or("system", |(name, _)| name).to_owned();
    }

    /// What the window's sizes are multiplied with.
    pub fn zoom(&self) -> f32 {
        self.scale.clamp(*SCALES.start(), *SCALES.end()) as f32 / 100.0
    }

    /// Chooses a model, and remembers it if nothing else would.
    pub fn use_model(&mut self, model: ModelSource) {
        if matches!(model, ModelSource::Path(_)) {
            self.others.retain(|other| *other != model);
            self.others.insert(0, model.clone());
            self.others.truncate(MOST_OTHERS);
        }
        self.model = model;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_another_version_is_read_as_far_as_it_is_understood() {
        let text = r#"{"device": "cpu", "policy": "of-tomorrow", "theme": "dark", "new": 1}"#;
        let settings: Settings = serde_json::from_str(text).unwrap();
        let setup = settings.setup();
        assert_eq!((setup.device, setup.policy), (DeviceChoice::Cpu, Preset::DEFAULT));
        assert_eq!((settings.theme(), settings.zoom()), (ThemePreference::Dark, 1.0));
        let again: Settings =
            serde_json::from_str(&serde_json::to_string(&settings).unwrap()).unwrap();
        assert_eq!(again, settings);
    }

    #[test]
    fn models_by_path_are_remembered_once() {
        let mut settings = Settings::default();
        for name in ["a", "b", "a"] {
            settings.use_model(ModelSource::Path(name.into()));
        }
        settings.use_model(ModelSource::Embedded);
        assert_eq!(settings.others, ["a", "b"].map(|name| ModelSource::Path(name.into())));
    }
}
