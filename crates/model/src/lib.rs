//! Hugging Face model folders and GGUF files as calls on Longview's ops.
//!
//! A folder is read in full and checked before anything is computed: [`config`] bounds every
//! dimension, [`weights`] compares every tensor with it, [`tokenizer`] and [`chat`] turn
//! conversations into token ids. The [`transformer`] knows neither the device (it is generic over
//! `ops::Backend`) nor where keys and values live ([`attention`] is a trait that others implement).

pub mod arch;
pub mod attention;
pub mod batch;
pub mod chat;
pub mod config;
pub mod document;
pub mod export;
pub mod folder;
pub mod generation;
pub mod gguf;
mod json;
pub mod rope;
pub mod source;
mod text;
pub mod tokenizer;
pub mod transformer;
pub mod weights;

#[cfg(test)]
mod mutation_tests;
#[cfg(test)]
mod testing;
