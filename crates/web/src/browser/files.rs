//! A model's files as the page hands them over.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use js_sys::{Array, Function, Reflect, Uint8Array};
use longview_core::RangeSource;
use longview_model::source::FolderFiles;
use send_wrapper::SendWrapper;
use serde::Deserialize;
use wasm_bindgen::prelude::*;

use super::values::{coded, from_js};

#[wasm_bindgen]
extern "C" {
    /// A file that is read in runs.
    pub(super) type Bytes;

    #[wasm_bindgen(method, getter, catch)]
    fn name(this: &Bytes) -> Result<String, JsValue>;

    #[wasm_bindgen(method, getter, catch)]
    fn size(this: &Bytes) -> Result<f64, JsValue>;

    #[wasm_bindgen(method, catch, js_name = readInto)]
    fn read_into(this: &Bytes, at: f64, out: &mut [u8]) -> Result<(), JsValue>;
}

/// A file of the page; only this thread ever touches it.
pub(super) struct PageFile {
    bytes: SendWrapper<Bytes>,
    size: u64,
}

impl RangeSource for PageFile {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        if at + out.len() as u64 > self.size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.bytes.read_into(at as f64, out).map_err(page_error)
    }
}

/// A function of the page that takes the bytes of a file in order.
pub(super) struct PageWriter(pub Function);

impl io::Write for PageWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = self.0.call1(&JsValue::NULL, &Uint8Array::from(bytes));
        taken.map(|_| bytes.len()).map_err(page_error)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What the page threw.
fn page_error(error: JsValue) -> io::Error {
    let message = Reflect::get(&error, &"message".into()).ok();
    let message = message.and_then(|message| message.as_string());
    io::Error::other(message.unwrap_or_else(|| "the page refused".into()))
}

/// One file of the page.
pub(super) fn page_file(bytes: JsValue) -> Result<PageFile, JsValue> {
    Ok(named_file(bytes)?.1)
}

fn named_file(bytes: JsValue) -> Result<(String, PageFile), JsValue> {
    let wrong = |_| coded("bad-input", "a file needs a name, a size and readInto");
    let bytes: Bytes = bytes.unchecked_into();
    let (name, size) = (bytes.name().map_err(wrong)?, bytes.size().map_err(wrong)? as u64);
    Ok((name, PageFile { bytes: SendWrapper::new(bytes), size }))
}

/// A model's files and what it is loaded for.
pub(super) struct ModelFiles {
    pub files: FolderFiles,
    pub context: usize,
    pub cache_bytes: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Plain {
    name: String,
    texts: BTreeMap<String, String>,
    context_tokens: usize,
    cache_bytes: Option<f64>,
}

/// Reads the page's object.
pub(super) fn model_files(model: &JsValue) -> Result<ModelFiles, JsValue> {
    let weights = Reflect::get(model, &"weights".into())?;
    let plain: Plain = from_js(model.clone())?;
    let mut files =
        FolderFiles { name: PathBuf::from(plain.name), texts: plain.texts, ..Default::default() };
    for bytes in Array::from(&weights).iter() {
        let (name, file) = named_file(bytes)?;
        files.weights.insert(name, Arc::new(file));
    }
    let cache_bytes = plain.cache_bytes.map(|bytes| bytes as u64);
    Ok(ModelFiles { files, context: plain.context_tokens, cache_bytes })
}
