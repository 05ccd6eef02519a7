//! The class that the page's worker calls.
//!
//! Everything is in JavaScript's terms: plain objects in and out (`types.ts` declares them), errors
//! with a code as their name. One call at a time: a second one while the first is under way is an
//! error, so that a page cannot take the device's steps apart.

mod array_bytes;
mod device;
mod files;
mod parity;
mod values;

use std::cell::{Cell, RefCell};
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;

use js_sys::Function;
use longview_core::{HeadId, LayerId};
use longview_engine::{Engine, EngineOptions, KvResidency, Progress};
use longview_model::folder::ModelFolder;
use longview_reader::{Memory, Question, Reader, Step};
use longview_scheduler::{HostStoreKind, OPTIONS, PolicyOptions, Preset};
use longview_wgpu::WgpuBackend;
use wasm_bindgen::prelude::*;

use self::device::{adapter_name, open_device};
use self::values::{AskOptions, DeviceReport, MemoryReport, ModelReport, PolicyReport};
use self::values::{OpenOptions, PolicyValue, PrefillProgress, coded, from_js, to_js};

pub use self::parity::Parity;

/// Prompt tokens computed at a time: a stop is heard after each chunk.
const CHUNK: usize = 256;

/// Bytes of keys, values and index up to which all of them are on the device, where a step waits
/// for it once and not once a layer. No browser tells what memory there is.
const MOST_RESIDENT: u64 = 1 << 30;

#[wasm_bindgen(typescript_custom_section)]
const TYPES: &str = include_str!("types.ts");

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = console, js_name = error)]
    fn log_error(text: &str);
}

/// Says what a panic says: the page only sees that the program stopped.
#[wasm_bindgen(start)]
fn start() {
    std::panic::set_hook(Box::new(|panic| log_error(&panic.to_string())));
}

/// A device, and perhaps a model and a document on it.
#[wasm_bindgen]
pub struct Runtime {
    adapter: String,
    backend: RefCell<Arc<WgpuBackend>>,
    reader: RefCell<Option<Reader<WgpuBackend>>>,
    is_busy: Cell<bool>,
    memory: Rc<Cell<Memory>>,
}

/// The reader while a call uses it; it goes back when the call ends, however it ends.
struct Lease<'a> {
    runtime: &'a Runtime,
    reader: Option<Reader<WgpuBackend>>,
}

impl Lease<'_> {
    fn reader(&mut self) -> Result<&mut Reader<WgpuBackend>, JsValue> {
        let missing = || coded("bad-input", "there is no model yet: load one first");
        self.reader.as_mut().ok_or_else(missing)
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        if let Some(reader) = &self.reader {
            self.runtime.memory.set(reader.memory());
            *self.runtime.backend.borrow_mut() = Arc::clone(reader.engine().backend());
        }
        *self.runtime.reader.borrow_mut() = self.reader.take();
        self.runtime.is_busy.set(false);
    }
}

impl Runtime {
    fn lease(&self) -> Result<Lease<'_>, JsValue> {
        if self.is_busy.replace(true) {
            return Err(coded("bad-input", "another call is under way: wait for it, or stop it"));
        }
        Ok(Lease { runtime: self, reader: self.reader.borrow_mut().take() })
    }
}

#[wasm_bindgen]
impl Runtime {
    /// Opens a device.
    #[wasm_bindgen(unchecked_return_type = "Runtime")]
    pub async fn open(
        #[wasm_bindgen(unchecked_param_type = "OpenOptions")] options: JsValue,
    ) -> Result<Runtime, JsValue> {
        let backend = open_device(&from_js::<OpenOptions>(options)?, true).await?;
        Ok(Self {
            adapter: adapter_name().await.unwrap_or_default(),
            backend: RefCell::new(Arc::new(backend)),
            reader: RefCell::default(),
            is_busy: Cell::default(),
            memory: Rc::default(),
        })
    }

    /// What is known of the device.
    #[wasm_bindgen(unchecked_return_type = "DeviceInfo")]
    pub fn device(&self) -> Result<JsValue, JsValue> {
        to_js(&DeviceReport::of(&self.backend.borrow(), &self.adapter))
    }

    /// All policies with the options that mean something to them.
    #[wasm_bindgen(unchecked_return_type = "PolicyInfo[]")]
    pub fn policies(&self) -> Result<JsValue, JsValue> {
        let report = |(preset, name): &(Preset, &'static str)| {
            let info = preset.info();
            let is_default = *preset == Preset::DEFAULT;
            let (title, description) = (info.source, info.description);
            PolicyReport { name, title, description, options: info.options, is_default }
        };
        to_js(&Preset::ALL.iter().map(report).collect::<Vec<_>>())
    }

    /// All options of policies with what may be said and what they do.
    #[wasm_bindgen(js_name = policyOptions, unchecked_return_type = "PolicyOptionInfo[]")]
    pub fn policy_options(&self) -> Result<JsValue, JsValue> {
        let report = |o: &longview_scheduler::OptionInfo| values::OptionReport {
            name: o.name,
            value: o.value,
            help: o.help.trim(),
        };
        to_js(&OPTIONS.iter().map(report).collect::<Vec<_>>())
    }

    /// Loads a model in place of the one before.
    #[wasm_bindgen(js_name = loadModel, unchecked_return_type = "ModelInfo")]
    pub async fn load_model(
        &self,
        #[wasm_bindgen(unchecked_param_type = "ModelFiles")] model: JsValue,
        #[wasm_bindgen(unchecked_param_type = "(done: number, total: number) => void")]
        progress: Function,
    ) -> Result<JsValue, JsValue> {
        let mut lease = self.lease()?;
        lease.reader = None;
        self.memory.set(Memory::default());
        let backend = Arc::clone(&self.backend.borrow());
        let backend = if longview_ops::Backend::is_lost(&*backend) {
            Arc::new(longview_ops::Backend::reopen(&*backend).await.map_err(lost)?)
        } else {
            backend
        };
        let files::ModelFiles { files, context, cache_bytes } = files::model_files(&model)?;
        let options = EngineOptions {
            ctx_size: context,
            chunk_size: CHUNK,
            overlap: false,
            host_store: HostStoreKind::Elsewhere(array_bytes::array_buffer),
            kv_residency: KvResidency::Device,
            ..EngineOptions::default()
        };
        let wrong = |e| coded("bad-model", &format!("{e}"));
        let folder = ModelFolder::from_files(&files).map_err(wrong)?;
        let plan = Engine::plan(&*backend, &folder, &options, &PolicyOptions::new(Preset::DEFAULT));
        let fits = plan.is_ok_and(|plan| plan.kv.device_kv_bytes() <= MOST_RESIDENT);
        let kv_residency = if fits { KvResidency::Device } else { KvResidency::Host };
        let options = EngineOptions { kv_residency, ..options };
        let mut report = ModelReport::new(&files.name, &folder, context);
        let mut heard = |done: u64, total: u64| {
            // What the page does with it is its own business.
            let _ = progress.call2(&JsValue::NULL, &(done as f64).into(), &(total as f64).into());
        };
        let mut reader =
            Reader::load(backend, folder, options, &mut heard).await.map_err(values::error)?;
        reader.limit_device_bytes(cache_bytes);
        let fingerprint = reader.engine().fingerprint();
        let fingerprint = fingerprint.map_err(|e| values::error(e.into()))?;
        report.fingerprint = fingerprint.to_string();
        lease.reader = Some(reader);
        to_js(&report)
    }

    /// Allows keys, values and index that many bytes on the device, from the next document or
    /// question on; `null` allows any number.
    #[wasm_bindgen(js_name = limitDeviceBytes)]
    pub fn limit_device_bytes(&self, bytes: Option<f64>) -> Result<(), JsValue> {
        let mut lease = self.lease()?;
        lease.reader()?.limit_device_bytes(bytes.map(|bytes| bytes as u64));
        Ok(())
    }

    /// Tokens of a text by itself.
    #[wasm_bindgen(js_name = countTokens)]
    pub fn count_tokens(&self, text: &str) -> Result<f64, JsValue> {
        let mut lease = self.lease()?;
        Ok(lease.reader()?.count_tokens(text).map_err(values::error)? as f64)
    }

    /// Reads a document in place of the one before.
    #[wasm_bindgen(js_name = readDocument, unchecked_return_type = "ReadState")]
    pub async fn read_document(
        &self,
        text: String,
        #[wasm_bindgen(unchecked_param_type = "Policy")] policy: JsValue,
        #[wasm_bindgen(unchecked_param_type = "(p: PrefillProgress) => boolean")]
        progress: Function,
    ) -> Result<JsValue, JsValue> {
        let policy = from_js::<PolicyValue>(policy)?.options()?;
        let mut lease = self.lease()?;
        let mut heard = |p: Progress| tell(&progress, &PrefillProgress::new(p));
        let state = lease.reader()?.read(&text, &policy, &mut heard).await;
        to_js(&state.map_err(values::error)?)
    }

    /// Reads what is left of the document.
    #[wasm_bindgen(js_name = continueDocument, unchecked_return_type = "ReadState")]
    pub async fn continue_document(
        &self,
        #[wasm_bindgen(unchecked_param_type = "(p: PrefillProgress) => boolean")]
        progress: Function,
    ) -> Result<JsValue, JsValue> {
        let mut lease = self.lease()?;
        let mut heard = |p: Progress| tell(&progress, &PrefillProgress::new(p));
        let state = lease.reader()?.read_on(&mut heard).await;
        to_js(&state.map_err(values::error)?)
    }

    /// Answers a question about the document.
    #[wasm_bindgen(unchecked_return_type = "Answer")]
    pub async fn ask(
        &self,
        #[wasm_bindgen(unchecked_param_type = "Question")] question: JsValue,
        #[wasm_bindgen(unchecked_param_type = "(s: Step) => boolean")] step: Function,
    ) -> Result<JsValue, JsValue> {
        let asked = from_js::<AskOptions>(question)?;
        let question = Question {
            policy: asked.policy.options()?,
            text: asked.question,
            max_tokens: asked.max_tokens,
            temperature: asked.temperature.unwrap_or(0.0),
            map: asked.map.map(|map| (LayerId(map.layer), HeadId(map.head))),
        };
        let mut lease = self.lease()?;
        let mut heard = |s: &Step<'_>| match values::step(s) {
            Ok(value) => call(&step, &value),
            Err(_) => ControlFlow::Break(()),
        };
        let reader = lease.reader()?;
        let answer = reader.ask(&question, &mut heard).await.map_err(values::error)?;
        values::answer(&answer, reader.text())
    }

    /// Hands what was read of the document to `write`, in order and in pieces.
    #[wasm_bindgen(js_name = saveSession)]
    pub async fn save_session(
        &self,
        #[wasm_bindgen(unchecked_param_type = "(bytes: Uint8Array) => void")] write: Function,
    ) -> Result<(), JsValue> {
        let mut lease = self.lease()?;
        let mut out = files::PageWriter(write);
        lease.reader()?.save(b"{}", &mut out).await.map_err(values::error)
    }

    /// Opens a saved session of the same text in place of the document before.
    #[wasm_bindgen(js_name = openSession, unchecked_return_type = "ReadState")]
    pub async fn open_session(
        &self,
        #[wasm_bindgen(unchecked_param_type = "Bytes")] session: JsValue,
        text: String,
        #[wasm_bindgen(unchecked_param_type = "Policy")] policy: JsValue,
    ) -> Result<JsValue, JsValue> {
        let policy = from_js::<PolicyValue>(policy)?.options()?;
        let file = files::page_file(session)?;
        let mut lease = self.lease()?;
        let state = lease.reader()?.open(&file, &text, &policy).await;
        to_js(&state.map_err(values::error)?)
    }

    /// Where keys and values are, as of the last call that ended, and what this program takes.
    #[wasm_bindgen(unchecked_return_type = "Memory")]
    pub fn memory(&self) -> Result<JsValue, JsValue> {
        let Memory { device_bytes, host_bytes } = match self.reader.borrow().as_ref() {
            Some(reader) => reader.memory(),
            None => self.memory.get(),
        };
        let wasm_bytes = wasm_bindgen::memory().unchecked_into::<js_sys::WebAssembly::Memory>();
        let wasm_bytes = wasm_bytes.buffer().unchecked_into::<js_sys::ArrayBuffer>().byte_length();
        to_js(&MemoryReport { device_bytes, host_bytes, wasm_bytes: wasm_bytes.into() })
    }

    /// Destroys the device, as a driver fault would: for tests of recovery.
    #[wasm_bindgen(js_name = loseDevice)]
    pub fn lose_device(&self) {
        self.backend.borrow().destroy_device();
    }
}

/// Calls `listener` with `value`; anything but `false` says to go on.
fn tell<T: serde::Serialize>(listener: &Function, value: &T) -> ControlFlow<()> {
    match to_js(value) {
        Ok(value) => call(listener, &value),
        Err(_) => ControlFlow::Break(()),
    }
}

fn call(listener: &Function, value: &JsValue) -> ControlFlow<()> {
    match listener.call1(&JsValue::NULL, value) {
        Ok(answer) if answer.as_bool() != Some(false) => ControlFlow::Continue(()),
        _ => ControlFlow::Break(()),
    }
}

fn lost(error: longview_ops::OpError) -> JsValue {
    coded("device-lost", &error.to_string())
}
