//! Reference of the dense ops.

use std::cmp::Ordering;

use half::bf16;

use super::access::{floats, ints, present, put, put_ints};
use super::buffer::{RefWeight, Rounding};
use super::checks::{below, dot};
use super::device::ReferenceBackend as R;
use crate::desc::checks::ensure;
use crate::desc::{
    Argmax, ArgmaxParams, Embed, GeluMul, Gram, Linear, RmsNorm, Rope, SiluMul, TopK,
};
use crate::error::OpResult;
use crate::op::Op;

/// `out[t] = table[ids[t]]`.
pub(super) fn embed(mut d: Embed<'_, R>) -> OpResult<()> {
    d.check()?;
    let width = d.p.width as usize;
    shaped(Op::Embed, "table", d.table, d.table.n_rows, width)?;
    let ids = ints(&d.ids);
    ids.iter().try_for_each(|id| below(Op::Embed, "token id", *id, d.table.n_rows))?;
    for (t, id) in ids.into_iter().enumerate() {
        let row: Vec<f64> = d.table.row(id).iter().map(|x| x * f64::from(d.p.scale)).collect();
        put(&mut d.out, t * width, &row);
    }
    Ok(())
}

/// `out = x / sqrt(mean(x^2) + eps) * weight (+ out)`.
pub(super) fn rms_norm(mut d: RmsNorm<'_, R>) -> OpResult<()> {
    d.check()?;
    let width = d.p.width as usize;
    shaped(Op::RmsNorm, "weight", d.weight, 1, width)?;
    let mut out = if d.p.accumulate == 1 { present(&d.out) } else { vec![0.0; d.out.len] };
    for (r, x) in floats(&d.x).chunks_exact(width).enumerate() {
        let mean_square = dot(x, x) / width as f64;
        let root = (mean_square + f64::from(d.p.eps)).sqrt();
        for (i, (x, w)) in x.iter().zip(d.weight.row(0)).enumerate() {
            out[r * width + i] += x / root * w;
        }
    }
    put(&mut d.out, 0, &out);
    Ok(())
}

/// `out = x W^T (+ bias) (+ out)`.
pub(super) fn linear(op: Op, mut d: Linear<'_, R>) -> OpResult<()> {
    d.check(op)?;
    let (n_in, n_out) = (d.p.n_in as usize, d.p.n_out as usize);
    shaped(op, "weight", d.weight, n_out, n_in)?;
    if let Some(bias) = d.bias {
        shaped(op, "bias", bias, 1, n_out)?;
    }
    let mut x = floats(&d.x);
    match d.weight.rounding {
        Rounding::Nothing => (),
        Rounding::Bf16 => x.iter_mut().for_each(|x| *x = bf16::from_f32(*x as f32).to_f64()),
        Rounding::Units(largest) => x.chunks_mut(32).for_each(|unit| round_unit(unit, largest)),
    }
    let mut out = if d.p.accumulate == 1 { present(&d.out) } else { vec![0.0; d.out.len] };
    for t in 0..d.p.n_rows as usize {
        for o in 0..n_out {
            let product = dot(&x[t * n_in..(t + 1) * n_in], d.weight.row(o));
            out[t * n_out + o] += product + d.bias.map_or(0.0, |bias| bias.values[o]);
        }
    }
    put(&mut d.out, 0, &out);
    Ok(())
}

/// Activations as `Activations::Int8` has them, with codes up to `largest`. Which way a number is
/// rounded is decided in f32.
fn round_unit(unit: &mut [f64], largest: i32) {
    let most = unit.iter().fold(0.0f32, |most, x| most.max((*x as f32).abs()));
    if unit.iter().any(|x| !x.is_finite()) {
        return unit.fill(f64::NAN);
    }
    let inverse = largest as f32 / most;
    for x in unit {
        let code = if inverse.is_finite() { (*x as f32 * inverse).round_ties_even() } else { 0.0 };
        *x = f64::from(code) * f64::from(most) / f64::from(largest);
    }
}

/// The rotation of pairs `(i, i + rotary_dim / 2)` by the token's angles.
pub(super) fn rope(mut d: Rope<'_, R>) -> OpResult<()> {
    d.check()?;
    let (n_heads, head_dim) = (d.p.n_heads as usize, d.p.head_dim as usize);
    let (rotary_dim, half) = (d.p.rotary_dim as usize, d.p.rotary_dim as usize / 2);
    let (x, table) = (floats(&d.x), floats(&d.table));
    let mut out = x.clone();
    for t in 0..d.p.n_tokens as usize {
        let (cos, sin) = table[t * rotary_dim..(t + 1) * rotary_dim].split_at(half);
        for head in 0..n_heads {
            let at = (t * n_heads + head) * head_dim;
            for i in 0..half {
                let (a, b) = (x[at + i], x[at + i + half]);
                out[at + i] = a * cos[i] - b * sin[i];
                out[at + i + half] = b * cos[i] + a * sin[i];
            }
        }
    }
    put(&mut d.out, 0, &out);
    Ok(())
}

/// `out = gate / (1 + exp(-gate)) * up`.
pub(super) fn silu_mul(mut d: SiluMul<'_, R>) -> OpResult<()> {
    d.check()?;
    let silu = |gate: f64| gate / (1.0 + (-gate).exp());
    let pairs = floats(&d.gate).into_iter().zip(floats(&d.up));
    let out: Vec<f64> = pairs.map(|(gate, up)| silu(gate) * up).collect();
    put(&mut d.out, 0, &out);
    Ok(())
}

/// `out = gate / (1 + exp(-2 u)) * up`, `u = sqrt(2 / pi) (gate + 0.044715 gate^3)`.
pub(super) fn gelu_mul(mut d: GeluMul<'_, R>) -> OpResult<()> {
    d.check()?;
    let u = |gate: f64| std::f64::consts::FRAC_2_PI.sqrt() * (gate + 0.044_715 * gate.powi(3));
    let gelu = |gate: f64| gate / (1.0 + (-2.0 * u(gate)).exp());
    let pairs = floats(&d.gate).into_iter().zip(floats(&d.up));
    let out: Vec<f64> = pairs.map(|(gate, up)| gelu(gate) * up).collect();
    put(&mut d.out, 0, &out);
    Ok(())
}

/// The first not-a-number, else the first of the largest.
pub(super) fn argmax(mut d: Argmax<'_, R>) -> OpResult<()> {
    d.check()?;
    for (r, x) in floats(&d.x).chunks_exact(d.p.width as usize).enumerate() {
        let best = x.iter().position(|v| v.is_nan()).unwrap_or_else(|| first_largest(x));
        let is_number = x[best] < f64::INFINITY;
        let bit = if is_number { 0 } else { ArgmaxParams::NOT_FINITE as usize };
        put_ints(&mut d.out, r, &[best | bit]);
    }
    Ok(())
}

/// Not-a-numbers, then falling; equals by index.
pub(super) fn top_k(mut d: TopK<'_, R>) -> OpResult<()> {
    d.check()?;
    let k = d.p.k as usize;
    for (r, x) in floats(&d.x).chunks_exact(d.p.width as usize).enumerate() {
        let (nans, mut order): (Vec<usize>, Vec<usize>) =
            (0..x.len()).partition(|i| x[*i].is_nan());
        // The sort is stable, and of numbers that are not not-a-number any two can be compared.
        order.sort_by(|i, j| x[*j].partial_cmp(&x[*i]).unwrap_or(Ordering::Equal));
        let best: Vec<usize> = nans.into_iter().chain(order).take(k).collect();
        let values: Vec<f64> = best.iter().map(|i| x[*i]).collect();
        put(&mut d.values, r * k, &values);
        put_ints(&mut d.ids, r * k, &best);
    }
    Ok(())
}

/// `out[h / G] += sum over t of x x^T`.
pub(super) fn gram(mut d: Gram<'_, R>) -> OpResult<()> {
    d.check()?;
    let (n_heads, group, width) = (d.p.n_heads as usize, d.p.group as usize, d.p.head_dim as usize);
    let (x, mut out) = (floats(&d.x), present(&d.out));
    for t in 0..d.p.n_tokens as usize {
        for head in 0..n_heads {
            let v = &x[(t * n_heads + head) * width..][..width];
            let sum = &mut out[head / group * width * width..][..width * width];
            for i in 0..width {
                for j in 0..width {
                    sum[i * width + j] += v[i] * v[j];
                }
            }
        }
    }
    put(&mut d.out, 0, &out);
    Ok(())
}

/// Index of the first of the largest elements.
pub(super) fn first_largest(x: &[f64]) -> usize {
    (1..x.len()).fold(0, |best, i| if x[i] > x[best] { i } else { best })
}

/// A weight's shape; `check` cannot see it, since weights are opaque to the contract.
fn shaped(op: Op, name: &str, weight: &RefWeight, n_rows: usize, n_cols: usize) -> OpResult<()> {
    ensure(op, weight.n_rows == n_rows && weight.n_cols == n_cols, || {
        let (rows, cols) = (weight.n_rows, weight.n_cols);
        format!("{name} is [{rows}, {cols}], expected [{n_rows}, {n_cols}]")
    })
}
