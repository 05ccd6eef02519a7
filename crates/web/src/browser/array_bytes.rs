//! Keys and values in array buffers: a page has more memory than a program of 32 bits can address.

use std::ops::Range;

use js_sys::{Array, Function, Reflect, Uint8Array};
use longview_scheduler::HostBytesMut;
use send_wrapper::SendWrapper;
use wasm_bindgen::prelude::*;

/// One layer's rows; only this thread ever touches them.
struct ArrayBytes(SendWrapper<Uint8Array>);

impl HostBytesMut for ArrayBytes {
    fn read(&self, at: usize, out: &mut [u8]) {
        self.0.subarray(at as u32, (at + out.len()) as u32).copy_to(out);
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.0.subarray(at as u32, (at + bytes.len()) as u32).copy_from(bytes);
    }

    fn fork(&self, used: &[Range<usize>]) -> Option<Box<dyn HostBytesMut>> {
        let fork = new_bytes(self.0.length() as usize)?;
        for span in used {
            fork.set(&self.0.subarray(span.start as u32, span.end as u32), span.start as u32);
        }
        Some(Box::new(ArrayBytes(SendWrapper::new(fork))))
    }
}

/// `len` zeroed bytes, or `None` where the browser has no room for them.
pub(super) fn array_buffer(len: usize) -> Option<Box<dyn HostBytesMut>> {
    Some(Box::new(ArrayBytes(SendWrapper::new(new_bytes(len)?))))
}

fn new_bytes(len: usize) -> Option<Uint8Array> {
    let constructor = Reflect::get(&js_sys::global(), &"Uint8Array".into()).ok()?;
    let constructor: Function = constructor.dyn_into().ok()?;
    // Called in a way that catches: without room the constructor throws.
    let bytes = Reflect::construct(&constructor, &Array::of1(&(len as f64).into())).ok()?;
    Some(bytes.unchecked_into())
}
