//! Sessions in files: what is opened goes on as what was saved, and no file that is not whole, or
//! not this model's, is used.

mod append;
mod damage;
mod engine;
mod golden;
mod round_trip;
mod support;
