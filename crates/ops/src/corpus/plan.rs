//! The host data of one case, and how it goes into buffers and comes back.
//!
//! Every view lies inside a larger buffer at an offset that no alignment helps with, and what
//! surrounds it is poison: not-a-number, or an index far outside. A read past the end of an input
//! spoils the result, a write past the end of an output is found when the poison is looked at
//! again.

use std::ops::Range;

use longview_core::{DType, decode_f32, encode_f32, kv8};

use crate::backend::Backend;
use crate::buffer::{DeviceBuffer, KvView, View, ViewMut};
use crate::error::{OpError, OpResult};
use crate::weight::{QuantSource, WeightSource};

/// Poison elements before a plain view: odd, so that no vector load is aligned by luck.
const FRONT: usize = 37;
/// Poison elements after every view: more than the widest tile.
const BACK: usize = 131;

/// Elements of a buffer on the host.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// Numbers, to be rounded to the buffer's data type.
    Floats(Vec<f32>),
    /// Indices and counts; the bytes of [`DType::Q8`].
    Ints(Vec<u32>),
}

impl Values {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Values::Floats(v) => v.len(),
            Values::Ints(v) => v.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The numbers.
    ///
    /// # Panics
    /// If these are indices.
    pub fn floats(&self) -> &[f32] {
        match self {
            Values::Floats(v) => v,
            Values::Ints(_) => panic!("indices where numbers were expected"),
        }
    }

    /// The indices.
    ///
    /// # Panics
    /// If these are numbers.
    pub fn ints(&self) -> &[u32] {
        match self {
            Values::Ints(v) => v,
            Values::Floats(_) => panic!("numbers where indices were expected"),
        }
    }

    fn encode(&self, dtype: DType) -> Vec<u8> {
        match self {
            Values::Floats(v) => encode_f32(dtype, v),
            Values::Ints(v) if dtype == DType::Q8 => v.iter().map(|byte| *byte as u8).collect(),
            Values::Ints(v) => v.iter().flat_map(|i| i.to_le_bytes()).collect(),
        }
    }

    fn decode(dtype: DType, bytes: &[u8]) -> Self {
        if dtype.is_float() || dtype == DType::I8 {
            return Values::Floats(decode_f32(dtype, bytes));
        }
        if dtype == DType::Q8 {
            return Values::Ints(bytes.iter().copied().map(u32::from).collect());
        }
        let int = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        Values::Ints(bytes.chunks_exact(4).map(int).collect())
    }
}

/// A buffer that the op reads.
#[derive(Clone, Debug)]
pub struct Input {
    /// The descriptor's field.
    pub name: &'static str,
    /// How it is stored.
    pub dtype: DType,
    /// What it holds.
    pub values: Values,
    /// Poison elements before it.
    pub front: usize,
    /// In memory of [`Backend::alloc_host`].
    pub on_host: bool,
}

impl Input {
    /// F32 numbers.
    pub fn floats(name: &'static str, values: Vec<f32>) -> Self {
        Self::typed(name, DType::F32, values)
    }

    /// Numbers of any type.
    pub fn typed(name: &'static str, dtype: DType, values: Vec<f32>) -> Self {
        Self { name, dtype, values: Values::Floats(values), front: FRONT, on_host: false }
    }

    /// Indices or counts.
    pub fn ints(name: &'static str, values: Vec<u32>) -> Self {
        let values = Values::Ints(values);
        Self { name, dtype: DType::U32, values, front: FRONT, on_host: false }
    }

    /// KV rows, behind two rows of poison.
    pub fn kv(name: &'static str, dtype: DType, head_dim: usize, values: Vec<f32>) -> Self {
        let front = 2 * dtype.kv_row_len(head_dim);
        if dtype != DType::Q8 {
            return Self { front, ..Self::typed(name, dtype, values) };
        }
        let mut rows = vec![0; values.len() / (2 * head_dim) * dtype.kv_row_len(head_dim)];
        let encoded = rows.chunks_exact_mut(dtype.kv_row_len(head_dim));
        for (numbers, row) in values.chunks_exact(2 * head_dim).zip(encoded) {
            let (key, value) = numbers.split_at(head_dim);
            kv8::encode(key, value, row);
        }
        let values = Values::Ints(rows.into_iter().map(u32::from).collect());
        Self { name, dtype, values, front, on_host: false }
    }
}

/// A buffer that the op writes.
#[derive(Clone, Debug)]
pub struct OutputPlan {
    /// The descriptor's field.
    pub name: &'static str,
    /// How it is stored.
    pub dtype: DType,
    /// Elements of the view.
    pub len: usize,
    /// What the written elements hold before; poison where `None`.
    pub before: Option<Values>,
    /// The elements of the view that the op may write; all others must keep their poison.
    pub written: Vec<Range<usize>>,
    /// Poison elements before the view.
    pub front: usize,
    /// Whether a not-a-number is an answer here.
    pub may_be_nan: bool,
}

impl OutputPlan {
    /// F32 numbers, all written.
    pub fn floats(name: &'static str, len: usize) -> Self {
        Self::new(name, DType::F32, len)
    }

    /// Indices or counts, all written.
    pub fn ints(name: &'static str, len: usize) -> Self {
        Self::new(name, DType::U32, len)
    }

    /// The rows of a KV buffer that starts at element 0.
    pub fn kv(name: &'static str, dtype: DType, len: usize, written: Vec<Range<usize>>) -> Self {
        Self { front: 0, written, ..Self::new(name, dtype, len) }
    }

    fn new(name: &'static str, dtype: DType, len: usize) -> Self {
        let written = std::iter::once(0..len).collect();
        Self { name, dtype, len, before: None, written, front: FRONT, may_be_nan: false }
    }

    /// Written in place: the view holds `values` before.
    pub fn holding(mut self, values: Values) -> Self {
        assert_eq!(values.len(), self.len, "{}: initial values", self.name);
        self.before = Some(values);
        self
    }

    /// Only `ranges` of the view are written.
    pub fn only(mut self, ranges: Vec<Range<usize>>) -> Self {
        self.written = ranges;
        self
    }

    /// Not-a-number may be right.
    pub fn or_nan(mut self, may_be_nan: bool) -> Self {
        self.may_be_nan = may_be_nan;
        self
    }
}

/// A weight that the op reads.
#[derive(Clone, Debug)]
pub enum PlannedWeight {
    /// Plain numbers.
    Plain(WeightSource),
    /// Quantised blocks.
    Quantised(QuantSource),
}

/// All host data of a case: a pure function of the case.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Buffers read, in the order that the case's launch expects.
    pub inputs: Vec<Input>,
    /// Weights that the op reads, in the order of its descriptor.
    pub weights: Vec<PlannedWeight>,
    /// Buffers written.
    pub outputs: Vec<OutputPlan>,
}

impl Plan {
    /// Puts everything on the device.
    pub fn upload<B: Backend>(&self, backend: &B) -> OpResult<Buffers<B>> {
        let weights = self.weights.iter().cloned().map(|weight| match weight {
            PlannedWeight::Plain(source) => backend.load_weight(source),
            PlannedWeight::Quantised(source) => backend.load_quantised(source),
        });
        Ok(Buffers {
            inputs: self
                .inputs
                .iter()
                .map(|i| upload_input(backend, i))
                .collect::<OpResult<_>>()?,
            weights: weights.collect::<OpResult<_>>()?,
            outputs: self
                .outputs
                .iter()
                .map(|o| upload_output(backend, o))
                .collect::<OpResult<_>>()?,
        })
    }

    /// Reads the outputs back, guards included.
    pub async fn read_back<B: Backend>(
        &self,
        backend: &B,
        buffers: &Buffers<B>,
    ) -> OpResult<Outcome> {
        let mut outputs = Vec::new();
        for (plan, placed) in self.outputs.iter().zip(&buffers.outputs) {
            let mut bytes = vec![0; placed.buffer.len() * plan.dtype.size()];
            backend.read(View::all(&placed.buffer), &mut bytes).await?;
            outputs.push(split(plan, &bytes));
        }
        Ok(Outcome { outputs })
    }
}

/// A view inside a larger buffer.
pub struct Placed<B: Backend> {
    /// The whole buffer, poison included.
    pub buffer: B::Buffer,
    /// First element of the view.
    pub offset: usize,
    /// Elements of the view.
    pub len: usize,
}

impl<B: Backend> Placed<B> {
    /// To be read.
    pub fn view(&self) -> View<'_, B> {
        View::part(&self.buffer, self.offset, self.len)
    }

    /// To be written.
    pub fn view_mut(&mut self) -> ViewMut<'_, B> {
        ViewMut::part(&mut self.buffer, self.offset, self.len)
    }

    /// As KV rows.
    pub fn kv(&self, head_stride: usize) -> KvView<'_, B> {
        KvView { buffer: &self.buffer, offset: self.offset, head_stride }
    }
}

/// A case's data on a device.
pub struct Buffers<B: Backend> {
    /// See [`Plan::inputs`].
    pub inputs: Vec<Placed<B>>,
    /// See [`Plan::weights`].
    pub weights: Vec<B::Weight>,
    /// See [`Plan::outputs`].
    pub outputs: Vec<Placed<B>>,
}

/// A poison word that is no longer there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overwrite {
    /// Element, counted from the start of the view; negative before it.
    pub index: i64,
    /// The bits found.
    pub bits: u32,
}

/// One output as it came back.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// The descriptor's field.
    pub name: &'static str,
    /// How it is stored.
    pub dtype: DType,
    /// The written elements, in order.
    pub values: Values,
    /// Elements outside them that changed.
    pub overwritten: Vec<Overwrite>,
}

/// What a case gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// In the order of [`Plan::outputs`].
    pub outputs: Vec<Output>,
}

impl Outcome {
    /// The output of that name.
    ///
    /// # Panics
    /// If there is none.
    pub fn output(&self, name: &str) -> &Output {
        self.outputs.iter().find(|o| o.name == name).unwrap_or_else(|| panic!("no output {name}"))
    }
}

/// Not-a-number, or an index that is outside of everything.
fn poison(dtype: DType) -> &'static [u8] {
    match dtype {
        DType::F32 => &[0xA5, 0xA5, 0xC5, 0xFF],
        DType::U32 => &[0xEF, 0xBE, 0xAD, 0xDE],
        DType::F16 => &[0x5A, 0xFE],
        DType::BF16 => &[0xDA, 0xFF],
        // As a scale it is not-a-number.
        DType::Q8 => &[0xFF],
        // No code.
        DType::I8 => &[0x80],
    }
}

fn upload_input<B: Backend>(backend: &B, input: &Input) -> OpResult<Placed<B>> {
    let Input { name, dtype, values, front, on_host } = input;
    let len = values.len();
    let mut bytes = poison(*dtype).repeat(front + len + BACK);
    let start = front * dtype.size();
    bytes[start..start + len * dtype.size()].copy_from_slice(&values.encode(*dtype));
    let buffer = if *on_host {
        upload_to_host(backend, *dtype, &bytes, name)?
    } else {
        upload(backend, *dtype, &bytes, name)?
    };
    Ok(Placed { buffer, offset: *front, len })
}

fn upload_output<B: Backend>(backend: &B, plan: &OutputPlan) -> OpResult<Placed<B>> {
    let size = plan.dtype.size();
    let mut bytes = poison(plan.dtype).repeat(plan.front + plan.len + BACK);
    if let Some(values) = &plan.before {
        let before = values.encode(plan.dtype);
        for range in &plan.written {
            let part = range.start * size..range.end * size;
            let start = plan.front * size + part.start;
            bytes[start..start + part.len()].copy_from_slice(&before[part]);
        }
    }
    let buffer = upload(backend, plan.dtype, &bytes, plan.name)?;
    Ok(Placed { buffer, offset: plan.front, len: plan.len })
}

fn upload<B: Backend>(backend: &B, dtype: DType, bytes: &[u8], label: &str) -> OpResult<B::Buffer> {
    let mut buffer = backend.alloc(dtype, bytes.len() / dtype.size(), label)?;
    backend.write(ViewMut::all(&mut buffer), bytes)?;
    Ok(buffer)
}

fn upload_to_host<B: Backend>(
    backend: &B,
    dtype: DType,
    bytes: &[u8],
    label: &str,
) -> OpResult<B::Buffer> {
    let size = bytes.len() as u64;
    let lacking = || OpError::OutOfMemory {
        backend: backend.name(),
        label: format!("{label} in host memory that the backend says it reads"),
        bytes: size,
    };
    let mut buffer =
        backend.alloc_host(dtype, bytes.len() / dtype.size(), label)?.ok_or_else(lacking)?;
    backend.host_bytes_mut(&mut buffer).ok_or_else(lacking)?.copy_from_slice(bytes);
    Ok(buffer)
}

/// Separates written elements from poison and looks whether the poison is still there.
fn split(plan: &OutputPlan, bytes: &[u8]) -> Output {
    let size = plan.dtype.size();
    let mut is_written = vec![false; bytes.len() / size];
    for range in &plan.written {
        is_written[plan.front + range.start..plan.front + range.end].fill(true);
    }
    let (mut values, mut overwritten) = (Vec::new(), Vec::new());
    for (i, element) in bytes.chunks_exact(size).enumerate() {
        if is_written[i] {
            values.extend_from_slice(element);
        } else if element != poison(plan.dtype) {
            let mut word = [0; 4];
            word[..size].copy_from_slice(element);
            let index = i as i64 - plan.front as i64;
            overwritten.push(Overwrite { index, bits: u32::from_le_bytes(word) });
        }
    }
    let values = Values::decode(plan.dtype, &values);
    Output { name: plan.name, dtype: plan.dtype, values, overwritten }
}
