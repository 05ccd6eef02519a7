//! The contract, its reference, and what compares with it.

mod by_hand;
mod comparator;
mod contract;
mod layout;
mod parity;
