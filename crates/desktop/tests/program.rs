//! One program for all tests of the window: linking it takes longer than compiling a file of them.

#[path = "program/flows.rs"]
mod flows;
#[path = "program/pictures.rs"]
mod pictures;
#[path = "program/real.rs"]
mod real;
mod support;
