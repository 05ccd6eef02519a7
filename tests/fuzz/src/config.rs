//! `config.json` and `generation_config.json`, which both are JSON objects: the same bytes are
//! read as each.

use std::path::Path;

use longview_model::config::ModelConfig;
use longview_model::generation::GenerationDefaults;
use longview_model::rope::RopeTable;
use longview_model::weights::expected_tensors;

use crate::outcome::Outcome;

pub(super) fn run(bytes: &[u8]) -> Outcome {
    let Ok(text) = std::str::from_utf8(bytes) else { return Outcome::Refused };
    Outcome::of(GenerationDefaults::parse(text, Path::new("generation_config.json")));
    let config = ModelConfig::parse(text, Path::new("config.json"));
    if let Ok(config) = &config {
        use_all(config);
    }
    Outcome::of(config)
}

/// What a model is planned by.
fn use_all(config: &ModelConfig) {
    assert!(!expected_tensors(config).is_empty());
    assert!(config.group_size() > 0 && config.q_width() > 0 && config.kv_width() > 0);
    let context = config.max_position_embeddings;
    if config.check_context(context).is_err() {
        assert!(config.max_exact_context().is_some());
    }
    let table = RopeTable::new(&config.rope, context);
    assert!(table.inv_freq().iter().all(|frequency| frequency.is_finite()), "{:?}", config.rope);
    let mut rows = vec![0.0; 2 * table.row_len()];
    table.fill_rope_rows(&[0, context as u32 - 1], &mut rows);
    assert!(rows.iter().all(|value| value.is_finite()), "{:?}", config.rope);
}
