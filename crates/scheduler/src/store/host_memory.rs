//! Memory of the host, whoever made it.

use std::ops::Range;
use std::sync::Arc;

use longview_ops::{Backend, ForkSpans, OpError, OpResult};

use super::host_bytes::HostBytesMut;

/// Bytes of the host, which kernels reach or do not.
pub(super) enum Memory<B: Backend> {
    Mapped(Arc<B>, B::Buffer),
    Plain(Box<dyn HostBytesMut>),
}

impl<B: Backend> Memory<B> {
    pub fn read(&self, at: usize, out: &mut [u8]) {
        match self {
            Self::Plain(bytes) => bytes.read(at, out),
            Self::Mapped(backend, buffer) => {
                let bytes = backend.host_bytes(buffer).expect("made by alloc_host");
                out.copy_from_slice(&bytes[at..at + out.len()]);
            }
        }
    }

    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        match self {
            Self::Plain(all) => all.write(at, bytes),
            Self::Mapped(backend, buffer) => {
                let all = backend.host_bytes_mut(buffer).expect("made by alloc_host");
                all[at..at + bytes.len()].copy_from_slice(bytes);
            }
        }
    }

    pub fn buffer(&self) -> Option<&B::Buffer> {
        match self {
            Self::Mapped(_, buffer) => Some(buffer),
            Self::Plain(_) => None,
        }
    }

    pub fn buffer_mut(&mut self) -> Option<&mut B::Buffer> {
        match self {
            Self::Mapped(_, buffer) => Some(buffer),
            Self::Plain(_) => None,
        }
    }

    /// [`Backend::expect_host`]; memory of the host alone is taken bit by bit.
    pub fn expect(&mut self, spans: &[Range<usize>]) {
        if let Self::Mapped(backend, buffer) = self {
            backend.expect_host(buffer, spans);
        }
    }

    /// Memory with the same elements of `size` bytes in the spans.
    pub fn fork(&mut self, spans: ForkSpans<'_>, size: usize, label: String) -> OpResult<Self> {
        match self {
            Self::Mapped(backend, buffer) => {
                let fork = backend.fork_host(buffer, spans, &label)?.expect("made by alloc_host");
                Ok(Self::Mapped(Arc::clone(backend), fork))
            }
            Self::Plain(bytes) => {
                let used = spans.used.iter().map(|span| span.start * size..span.end * size);
                let used: Vec<_> = used.collect();
                let needed = used.iter().map(|span| span.len() as u64).sum();
                let none = OpError::OutOfMemory { backend: "host", label, bytes: needed };
                bytes.fork(&used).map(Self::Plain).ok_or(none)
            }
        }
    }

    /// [`Backend::share_host`]; memory of the host alone needs nothing of the kind.
    pub fn share(&mut self, spans: ForkSpans<'_>) -> OpResult<bool> {
        match self {
            Self::Mapped(backend, buffer) => backend.share_host(buffer, spans),
            Self::Plain(_) => Ok(false),
        }
    }

    pub fn shared_bytes(&self) -> u64 {
        match self {
            Self::Mapped(backend, buffer) => backend.shared_host_bytes(buffer),
            Self::Plain(bytes) => bytes.shared_bytes(),
        }
    }
}
