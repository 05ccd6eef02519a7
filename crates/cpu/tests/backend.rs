//! The backend against the reference, and its queues. Allocations are counted in a program of their
//! own, since its allocator counts for the whole process.

mod common;
mod parity;
mod quantised;
mod queues;
mod rows;
mod search;
mod sources;
