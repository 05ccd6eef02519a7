//! The ops' parity corpus on this browser's device: cases against the f64 reference, op by op, so
//! that a page can show how far it is.

use longview_ops::Op;
use longview_ops::parity::{ParityStatus, parity_part};
use longview_wgpu::WgpuBackend;
use wasm_bindgen::prelude::*;

use super::device::{adapter_name, open_device};
use super::values::{DeviceReport, NotRunReport, OpenOptions, ParityReport};
use super::values::{coded, from_js, to_js};

/// A device whose ops are compared with the reference.
#[wasm_bindgen]
pub struct Parity {
    adapter: String,
    backend: WgpuBackend,
}

#[wasm_bindgen]
impl Parity {
    /// Opens a device.
    #[wasm_bindgen(unchecked_return_type = "Parity")]
    pub async fn open(
        #[wasm_bindgen(unchecked_param_type = "OpenOptions")] options: JsValue,
    ) -> Result<Parity, JsValue> {
        let backend = open_device(&from_js::<OpenOptions>(options)?, false).await?;
        Ok(Self { adapter: adapter_name().await.unwrap_or_default(), backend })
    }

    /// What is known of the device.
    #[wasm_bindgen(unchecked_return_type = "DeviceInfo")]
    pub fn device(&self) -> Result<JsValue, JsValue> {
        to_js(&DeviceReport::of(&self.backend, &self.adapter))
    }

    /// Names of all ops.
    pub fn ops() -> Vec<String> {
        Op::ALL.iter().map(|op| op.stem().to_owned()).collect()
    }

    /// Runs every `every`-th case of an op.
    #[wasm_bindgen(unchecked_return_type = "ParityResult")]
    pub async fn run(&self, op: &str, every: usize) -> Result<JsValue, JsValue> {
        let Some(op) = Op::ALL.iter().copied().find(|known| known.stem() == op) else {
            let message = format!("unknown op '{op}': one of {}", Self::ops().join(", "));
            return Err(coded("bad-input", &message));
        };
        let mut report = ParityReport::default();
        for row in parity_part(&self.backend, op, every).await {
            match row.status {
                ParityStatus::Passed { cases, worst, .. } => {
                    report.passed += cases;
                    report.worst = worst;
                }
                ParityStatus::Failed { passed, failed, messages } => {
                    report.passed += passed;
                    report.failed += failed;
                    report.messages.extend(messages);
                }
                ParityStatus::LeftOut { .. } => (),
                ParityStatus::NotRun { cases, reason } => {
                    report.not_run.push(NotRunReport { cases, reason });
                }
            }
        }
        to_js(&report)
    }
}
