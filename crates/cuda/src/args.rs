//! The structs that kernels get: each kernel takes one, by value.
//!
//! `kernel_args!` declares the Rust twin of a struct in a `.cu` file: the same name, the same
//! fields in the same order. Addresses come first, then numbers, and nothing is left to padding
//! ([`bytemuck::Pod`] refuses it): fill up with a field `unused`. A test of the emulation compares
//! names, offsets and sizes with what the C++ compiler says of the `.cu` file.

use bytemuck::{Pod, Zeroable};

/// Where a kernel finds an array. 0 where there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct Address(pub u64);

impl Address {
    /// Of an array that is not there.
    pub const NONE: Self = Self(0);

    /// Whether it is a multiple of `bytes`.
    pub fn is_aligned(self, bytes: u64) -> bool {
        self.0.is_multiple_of(bytes)
    }
}

/// A field of a struct of arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name, here and in the `.cu` file.
    pub name: &'static str,
    /// Bytes from the begin of the struct.
    pub offset: u32,
    /// How many bytes it takes.
    pub size: u32,
}

/// How a struct of arguments lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The struct's name, here and in its `.cu` file.
    pub name: &'static str,
    /// Bytes of the whole struct.
    pub size: u32,
    /// Its fields by their offsets.
    pub fields: &'static [Field],
}

/// A struct of arguments; made by `kernel_args!`.
pub trait KernelArgs: Pod {
    /// How it lies in memory.
    const LAYOUT: Layout;
}

/// Declares a struct of arguments.
macro_rules! kernel_args {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
        #[repr(C)]
        pub(crate) struct $name {
            $(pub $field: $type),+
        }

        impl $crate::args::KernelArgs for $name {
            const LAYOUT: $crate::args::Layout = $crate::args::Layout {
                name: stringify!($name),
                size: size_of::<$name>() as u32,
                fields: &[$($crate::args::Field {
                    name: stringify!($field),
                    offset: std::mem::offset_of!($name, $field) as u32,
                    size: size_of::<$type>() as u32,
                }),+],
            };
        }
    };
}
