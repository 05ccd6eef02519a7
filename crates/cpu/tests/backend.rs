//! The backend against the reference, and its queues: a module of the library's tests. Allocations
//! are counted in a program of their own, since its allocator counts for the whole process.

mod common;
mod parity;
mod quantised;
mod queues;
mod rows;
mod search;
mod sources;
