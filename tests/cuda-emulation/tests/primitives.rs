//! What `common.cuh` offers, as the emulation gives it: against plain Rust, in both orders of
//! threads; and the mistakes that must be noticed.

use std::process::Command;

use half::{bf16, f16};
use longview_core::SplitMix64;
use longview_cuda_emulation::{EmulatedOptions, Inputs, Primitives, THREADS, sanitizer};

fn both_orders() -> [Primitives; 2] {
    both_orders_on((8, 0))
}

fn both_orders_on(compute_capability: (u32, u32)) -> [Primitives; 2] {
    [false, true].map(|backward| {
        let options =
            EmulatedOptions { backward, n_workers: 3, compute_capability, ..Default::default() };
        Primitives::new(options).expect("the kernels are compiled as C++")
    })
}

/// In both orders, on devices without and with what came with compute capability 8.0; with whether
/// it has that.
fn all_devices() -> impl Iterator<Item = (Primitives, bool)> {
    let on = |capability| both_orders_on(capability).map(|device| (device, capability >= (8, 0)));
    [(7, 5), (8, 0)].into_iter().flat_map(on)
}

#[test]
fn lanes_and_threads_exchange_numbers() {
    let mut rng = SplitMix64::new(7);
    let x: Vec<f32> = (0..THREADS).map(|_| rng.next_normal()).collect();
    for mut primitives in both_orders() {
        let written = primitives.run("exchange", 1, Inputs { x: &x, ..Inputs::default() }).unwrap();
        for i in 0..THREADS {
            let (warp, lane) = (i / 32 * 32, i % 32);
            let at = |array: usize| written.out[array * THREADS + i];
            assert_eq!(at(0), x[warp + (lane + 1) % 32]);
            assert_eq!(at(1), x[warp + (lane ^ 5)]);
            assert_eq!(at(2), x[if lane < 3 { i } else { i - 3 }]);
            assert_eq!(at(3), x[if lane + 3 < 32 { i + 3 } else { i }]);
            let sum = |x: &[f32]| x.iter().map(|v| f64::from(*v)).sum::<f64>();
            assert!((f64::from(at(4)) - sum(&x[warp..warp + 32])).abs() < 1e-5);
            assert!((f64::from(at(5)) - sum(&x)).abs() < 1e-5);
            assert_eq!(at(7), x[THREADS - 1 - i]);
            let votes = (0..32).map(|l| u32::from(x[warp + l] > 0.0) << l).sum::<u32>();
            let word = |array: usize| written.words[array * THREADS + i];
            assert_eq!(word(0), votes);
            assert_eq!(word(1), x[i].to_bits().count_ones());
            assert_eq!(word(2), (x[i].to_bits() >> (i % 32)).leading_zeros());
            let [a, b] = [x[i], x[THREADS - 1 - i]].map(|x| x.to_bits().to_le_bytes());
            let products = a.iter().zip(b).map(|(a, b)| i32::from(*a as i8) * i32::from(b as i8));
            assert_eq!(word(5).cast_signed(), i as i32 + products.sum::<i32>());
            let which = (i * 0x1111 + 0x0246) & 0x7777;
            let byte = |j: usize| [a, b].concat()[which >> (4 * j) & 7];
            assert_eq!(word(6), u32::from_le_bytes(std::array::from_fn(byte)));
        }
    }
}

#[test]
fn numbers_are_converted_as_ieee_says() {
    let [mut primitives, _] = both_orders();
    for first in (0..=u16::MAX).step_by(THREADS) {
        let halves: Vec<u16> = (0..THREADS as u16).map(|i| first + i).collect();
        // Between a half and the next one, in the middle and a little beside it.
        let between = |bits: &u16| {
            let (low, high) = (f16::from_bits(*bits), f16::from_bits(bits.wrapping_add(1)));
            let middle = (low.to_f32() + high.to_f32()) / 2.0;
            f32::from_bits(middle.to_bits().wrapping_add(u32::from(bits % 3)).wrapping_sub(1))
        };
        let x: Vec<f32> = halves.iter().map(between).collect();
        let written =
            primitives.run("exchange", 1, Inputs { x: &x, halves: &halves, words: &[] }).unwrap();
        for i in 0..THREADS {
            let (widened, wanted) =
                (written.out[6 * THREADS + i], f16::from_bits(halves[i]).to_f32());
            let both_nan = widened.is_nan() && wanted.is_nan();
            assert!(both_nan || widened.to_bits() == wanted.to_bits(), "{:#x}", halves[i]);
            let narrow = f16::from_bits(written.words[3 * THREADS + i] as u16);
            let wanted = f16::from_f32(x[i]);
            let both_nan = narrow.is_nan() && wanted.is_nan();
            assert!(both_nan || narrow.to_bits() == wanted.to_bits(), "{:e}", x[i]);
            let narrow = bf16::from_bits(written.words[4 * THREADS + i] as u16);
            let wanted = bf16::from_f32(x[i]);
            let both_nan = narrow.is_nan() && wanted.is_nan();
            assert!(both_nan || narrow.to_bits() == wanted.to_bits(), "{:e}", x[i]);
        }
    }
}

#[test]
fn atomics_of_many_blocks_meet() {
    let n_blocks = 400;
    let n = (n_blocks * THREADS) as u32;
    for mut primitives in both_orders() {
        let begin = [0, 0, u32::MAX];
        let written = primitives
            .run("atomics", n_blocks, Inputs { words: &begin, ..Inputs::default() })
            .unwrap();
        assert_eq!(written.words[..3], [n * (n - 1) / 2, n - 1, 0]);
        assert_eq!(written.words[4..6], [0, n - 1]);
        assert_eq!(written.out[0], n as f32);
        assert!(written.words[8..8 + n_blocks].iter().all(|word| *word == 1));
    }
}

#[test]
fn warps_multiply_bytes_exactly() {
    let mut rng = SplitMix64::new(12);
    let bytes: Vec<u8> = (0..768).map(|_| rng.below(256) as u8).collect();
    let halves: Vec<u16> = bytes.chunks(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect();
    for (mut primitives, _) in all_devices() {
        let inputs = Inputs { halves: &halves, ..Inputs::default() };
        let written = primitives.run("byte_products", 1, inputs).unwrap();
        for (i, word) in written.words[..256].iter().enumerate() {
            let byte = |at: usize| i32::from(bytes[at] as i8);
            let (row, column) = (i % 128 / 8, i % 8);
            let (width, start) = if i < 128 { (16, 1) } else { (32, 2) };
            let term = |k| byte(row * width + k) * byte((16 + column) * width + k);
            let wanted = start + (0..width).map(term).sum::<i32>();
            assert_eq!(word.cast_signed(), wanted, "{row}, {column}, {width}");
        }
    }
}

#[test]
fn warps_multiply_matrices() {
    let mut rng = SplitMix64::new(11);
    let halves: Vec<u16> = (0..384).map(|_| f16::from_f32(rng.next_normal()).to_bits()).collect();
    let product = |widen: fn(u16) -> f64, row: usize, column: usize| -> f64 {
        let term = |k| widen(halves[row * 16 + k]) * widen(halves[256 + column * 16 + k]);
        (0..16).map(term).sum()
    };
    for (mut primitives, has_bf16) in all_devices() {
        let written =
            primitives.run("products", 1, Inputs { halves: &halves, ..Inputs::default() }).unwrap();
        for row in 0..16 {
            for column in 0..8 {
                let at = row * 8 + column;
                let wanted = product(|h| f16::from_bits(h).to_f64(), row, column);
                assert!((f64::from(written.out[at]) - wanted).abs() < 1e-4, "{row}, {column}");
                let wanted = product(|h| bf16::from_bits(h).to_f64(), row, column);
                let wanted = if has_bf16 { wanted } else { 0.0 };
                let got = f64::from(written.out[128 + at]);
                assert!((got - wanted).abs() <= 1e-5 * (1.0 + wanted.abs()), "{row}, {column}");
            }
        }
        // Register m of lane l has elements (2 (l % 4), l / 4) and the one below of matrix m.
        for (i, word) in written.words[..128].iter().enumerate() {
            let (m, lane) = (i / 32, i % 32);
            let (row, column) = (m % 2 * 8 + 2 * (lane % 4), m / 2 * 8 + lane / 4);
            let wanted = [halves[row * 16 + column], halves[(row + 1) * 16 + column]];
            assert_eq!([*word as u16, (word >> 16) as u16], wanted, "{m}, {lane}");
        }
        // What is not there was copied as zeros.
        for lane in 0..32 {
            let unit = 256 + lane * 8;
            let word = u32::from(*halves.get(unit).unwrap_or(&0))
                | u32::from(*halves.get(unit + 1).unwrap_or(&0)) << 16;
            assert_eq!(written.words[128 + lane], word, "{lane}");
        }
    }
}

/// To 10 bits behind the point, ties away from zero.
fn tf32(value: f32) -> f32 {
    let unit = f64::from(f32::from_bits(value.to_bits() & 0x7f80_0000)) / 1024.0;
    ((f64::from(value) / unit).round() * unit) as f32
}

#[test]
fn warps_multiply_tf32() {
    let mut rng = SplitMix64::new(13);
    let mut x: Vec<f32> = (0..192).map(|_| rng.next_normal()).collect();
    // Ties, on either side of zero, and the nearest below one.
    for (at, bits) in [0x3f80_1000, 0xbf80_1000, 0x3f80_3000, 0x3f80_0fff].into_iter().enumerate() {
        x[at] = f32::from_bits(bits);
    }
    let rounded: Vec<f32> = x.iter().map(|v| tf32(*v)).collect();
    let expected = [1.0 + 1.0 / 1024.0, -1.0 - 1.0 / 1024.0, 1.0 + 2.0 / 1024.0, 1.0];
    assert_eq!(rounded[..4], expected);
    let words = |v: &f32| [v.to_bits() as u16, (v.to_bits() >> 16) as u16];
    let halves: Vec<u16> = x.iter().flat_map(words).collect();
    for mut primitives in both_orders() {
        let written = primitives
            .run("tf32_products", 1, Inputs { halves: &halves, ..Inputs::default() })
            .unwrap();
        let got: Vec<f32> = written.words[..192].iter().map(|w| f32::from_bits(*w)).collect();
        assert_eq!(got, rounded);
        for (row, column) in (0..16).flat_map(|row| (0..8).map(move |column| (row, column))) {
            let term =
                |k| f64::from(rounded[row * 8 + k]) * f64::from(rounded[128 + column * 8 + k]);
            let wanted = 1.0 + (0..8).map(term).sum::<f64>();
            let got = f64::from(written.out[row * 8 + column]);
            assert!((got - wanted).abs() < 1e-5, "{row}, {column}: {got}, {wanted}");
        }
    }
}

#[test]
fn who_does_not_wait_for_a_copy_reads_what_was_there() {
    let halves: Vec<u16> = (1..=256).collect();
    for (mut primitives, is_async) in all_devices() {
        let written = primitives
            .run("copy_without_wait", 1, Inputs { halves: &halves, ..Inputs::default() })
            .unwrap();
        for lane in 0..32 {
            let first = u32::from(halves[8 * lane]) | u32::from(halves[8 * lane + 1]) << 16;
            // Without asynchronous copies a thread has copied when it goes on.
            assert_eq!(written.words[lane], if is_async { 7 } else { first });
            assert_eq!(written.words[32 + lane], first);
        }
    }
}

#[test]
fn mistakes_end_the_launch_with_a_message() {
    let expected = [
        (0, "for lanes of its warp that do not come"),
        (1, "barriers do not match: lines "),
        (2, "an address that is no multiple of 16"),
    ];
    for (which, message) in expected {
        for mut primitives in both_orders() {
            let error = primitives.mistake(which).unwrap_err();
            assert!(error.starts_with("mistakes, block (0, 0, 0): "), "{error}");
            assert!(error.contains(message), "{error}");
            // The device is lost, for ever.
            assert_eq!(primitives.mistake(4).unwrap_err(), error);
        }
    }
}

/// A missing barrier gives wrong numbers, in one order at least.
#[test]
fn a_missing_barrier_shows() {
    let right: Vec<u32> = (0..THREADS as u32).rev().collect();
    let are_right =
        both_orders().map(|mut primitives| primitives.mistake(4).unwrap()[..THREADS] == right);
    assert_ne!(are_right, [true, true]);
}

#[test]
#[expect(clippy::print_stderr, reason = "a test that did not run says so")]
fn the_sanitizer_sees_what_a_device_would_not_do() {
    let Some(sanitizer) = sanitizer() else {
        eprintln!("NOT RUN: the C++ compiler has no address sanitizer");
        return;
    };
    let expected =
        [(3, "heap-buffer-overflow"), (5, "use-after-poison"), (6, "misaligned address")];
    for (which, message) in expected {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mistake"));
        let output = command.arg(which.to_string()).envs(sanitizer.env.clone()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && stderr.contains(message), "{which}: {stderr}");
        assert!(stderr.contains("primitives.cu:"), "{stderr}");
    }
}
