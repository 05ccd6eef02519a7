//! One program for all tests of the window: linking it takes longer than compiling a file of them.

mod flows;
mod pictures;
mod real;
mod support;
