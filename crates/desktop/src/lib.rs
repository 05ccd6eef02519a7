//! Longview as a desktop app: open a document, read it once, ask about it, see what an answer rests
//! on.
//!
//! The window draws and never waits. What takes long is on other threads and comes back as
//! messages: the engine ([`engine`]), dialogs ([`dialogs`]), disks ([`files`]), rows of large texts
//! ([`document`]). Views draw [`state::State`] and collect [`state::Action`]s; [`app`] is the one
//! place that changes anything. So tests drive the same window against a script, and against the
//! embedded model.

pub mod app;
pub mod dialogs;
pub mod document;
pub mod engine;
mod export;
mod figures;
pub mod files;
pub mod fit;
pub mod instance;
pub mod models;
pub mod refusals;
mod sample;
pub mod settings;
pub mod state;
pub mod store;
pub mod strings;
mod text;
mod theme;
mod views;
