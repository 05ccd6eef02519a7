//! The device of this browser.

use js_sys::{Function, Promise, Reflect};
use longview_wgpu::{StartError, WgpuBackend, WgpuOptions};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;

use super::values::{OpenOptions, coded};

/// Opens the device that `options` ask for.
pub(super) async fn open_device(
    options: &OpenOptions,
    spares_software: bool,
) -> Result<WgpuBackend, JsValue> {
    let navigator = Reflect::get(&js_sys::global(), &"navigator".into())?;
    let gpu = Reflect::get(&navigator, &"gpu".into())?;
    if gpu.is_undefined() || gpu.is_null() {
        return Err(coded(
            "no-webgpu",
            "this browser has no WebGPU: use a current Chrome, Edge, Firefox or Safari, over https \
             or from this machine",
        ));
    }
    if options.adapter.as_deref() == Some("software") {
        ask_for_software(&gpu)?;
    }
    let level = match options.tier.as_deref() {
        None => None,
        Some(name) => Some(name.parse().map_err(|_| {
            coded("bad-input", &format!("unknown shader level '{name}': core, f16 or subgroups"))
        })?),
    };
    let options = WgpuOptions { shader_level: level, spares_software, ..WgpuOptions::default() };
    WgpuBackend::new(&options).await.map_err(|error| match error {
        StartError::NoAdapter { .. } => coded(
            "no-adapter",
            "this browser has WebGPU but no adapter for it: turn on hardware acceleration, update \
             the graphics driver, or use another browser",
        ),
        StartError::ShaderLevel { .. } => coded("bad-input", &error.to_string()),
        other => coded("no-adapter", &other.to_string()),
    })
}

/// What the browser says of its adapter: description, or vendor and architecture. The binding in
/// use passes on the first alone, which most browsers leave empty.
pub(super) async fn adapter_name() -> Result<String, JsValue> {
    let gpu = Reflect::get(&Reflect::get(&js_sys::global(), &"navigator".into())?, &"gpu".into())?;
    let request: Function = Reflect::get(&gpu, &"requestAdapter".into())?.dyn_into()?;
    let adapter = JsFuture::from(Promise::resolve(&request.call0(&gpu)?)).await?;
    let info = Reflect::get(&adapter, &"info".into())?;
    let said = |name: &str| {
        let value = Reflect::get(&info, &name.into()).ok();
        value.and_then(|value| value.as_string()).filter(|text| !text.is_empty())
    };
    let parts = [said("vendor"), said("architecture")].into_iter().flatten().collect::<Vec<_>>();
    Ok(said("description").unwrap_or_else(|| parts.join(" ")))
}

/// Lets every request for an adapter ask for one that computes on the CPU: the option is missing
/// from the binding in use.
fn ask_for_software(gpu: &JsValue) -> Result<(), JsValue> {
    let name = JsValue::from("requestAdapter");
    let request: Function = Reflect::get(gpu, &name)?.dyn_into()?;
    let receiver = gpu.clone();
    let asked = Closure::<dyn FnMut(JsValue) -> Result<JsValue, JsValue>>::new(move |given| {
        let options = js_sys::Object::new();
        if let Some(given) = js_sys::Object::try_from(&given) {
            js_sys::Object::assign(&options, given);
        }
        Reflect::set(&options, &"forceFallbackAdapter".into(), &JsValue::TRUE)?;
        request.call1(&receiver, &options)
    });
    Reflect::set(gpu, &name, &asked.into_js_value())?;
    Ok(())
}
