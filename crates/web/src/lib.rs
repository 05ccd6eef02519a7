//! The browser demo: a document, questions about it, and recall at work.
//!
//! `browser` puts a [`longview_reader::Reader`] behind a class that JavaScript calls from a worker,
//! on WebGPU, with weights read from the page's storage in pieces and all keys and values in array
//! buffers outside of the program's memory. Elsewhere there is nothing here: what the page shows is
//! tested in the reader.

#[cfg(target_arch = "wasm32")]
pub mod browser;
