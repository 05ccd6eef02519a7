//! GGUF files: a header read in two ways, then the model that it tells of, with all its tensors.

use std::fmt::Display;
use std::sync::Arc;

use longview_model::folder::ModelFolder;
use longview_model::gguf::Header;
use longview_model::source::FolderFiles;
use longview_model::tokenizer::Specials;
use longview_model::weights::expected_tensors;

use crate::outcome::Outcome;

pub(super) fn run(bytes: &[u8]) -> Outcome {
    let file = bytes.to_vec();
    let whole = Header::parse(bytes, bytes.len() as u64);
    let in_runs = Header::read(&file);
    let place = |header: Header| (header.version, header.tensors);
    let read = [whole, in_runs].map(|header| header.ok().map(place));
    assert_eq!(read[0], read[1], "a header depends on how it is read");
    let mut files = FolderFiles { name: "m".into(), ..FolderFiles::default() };
    files.weights.insert("m.gguf".to_owned(), Arc::new(file));
    Outcome::of(use_all(&files))
}

/// Opens the model and reads all that it holds.
fn use_all(files: &FolderFiles) -> Result<(), String> {
    let model = ModelFolder::from_files(files).map_err(text)?;
    let mut n_bytes = 0;
    for tensor in expected_tensors(&model.config) {
        n_bytes += model.tensors.source(&tensor.name).map_err(text)?.bytes.len();
    }
    assert!(n_bytes > 0, "a model without weights");
    model.tensors.digest(&model.config).map_err(text)?;
    model.eos_token_ids();
    if let Some(tokenizer) = &model.tokenizer {
        let ids = tokenizer.encode("abc ab<|end|>\u{e9} 12", Specials::Add).map_err(text)?;
        tokenizer.decode(&ids, false).map_err(text)?;
    }
    model.chat.map_or(Ok(()), |chat| chat.check().map_err(text))
}

fn text(error: impl Display) -> String {
    error.to_string()
}
