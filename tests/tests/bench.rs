//! The bench of ops still runs: a few cases and a few tokens of every backend, quickly. Speed is
//! not asserted, because tests share the machine.

use longview_cpu::CpuOptions;
use longview_tests::backends;
use longview_tests::bench::{Device, Request, run};
use longview_wgpu::WgpuOptions;

/// The lines of a quick run.
fn lines(device: Device, filter: &str) -> Vec<String> {
    let request = Request { device, filter: filter.into(), quick: true };
    let mut out = Vec::new();
    run(&request, &mut out).expect("it runs");
    let text = String::from_utf8(out).expect("text");
    text.lines().filter(|line| line.contains(filter)).map(String::from).collect()
}

/// Every number of a line of ops is one, and the share is of `limit`.
fn assert_measured(line: &str, limit: &str) {
    let (_, figures) = line.split_at(52);
    let numbers: Vec<f64> = figures.split_whitespace().filter_map(|w| w.parse().ok()).collect();
    assert!(numbers.len() == 4 && numbers.iter().all(|n| n.is_finite()), "{line}");
    assert!(numbers[0] > 0.0 && line.ends_with(&format!("% of {limit}")), "{line}");
}

#[test]
fn the_cpu_is_measured_against_its_own_limits() {
    let device = || Device::Cpu(CpuOptions { threads: 1, isa: None });
    let list = lines(device(), "attend_list f16 1024 of 32768");
    assert_eq!(list.len(), 1, "{list:?}");
    assert_measured(&list[0], "read");
    let product = lines(device(), "matmul bf16 512 x 256 -> 256");
    assert_measured(&product[0], "FMA");
    assert_eq!(lines(device(), "token").len(), 4, "two lines of a head, two policies");
}

#[test]
fn a_device_is_measured_against_its_copies_and_products() {
    if std::env::var_os("LONGVIEW_NO_GPU").is_some() {
        return backends::not_run();
    }
    let shader_level =
        backends::wgpu_shader_level().unwrap_or_else(|e| panic!("LONGVIEW_TIER: {e}"));
    let device = || Device::Wgpu(WgpuOptions { shader_level, ..WgpuOptions::default() });
    let list = lines(device(), "attend_list f16 1024 of 32768");
    assert_eq!(list.len(), 1, "{list:?}");
    assert_measured(&list[0], "copy");
    let tokens = lines(device(), "token clusterkv exact");
    let [token] = &tokens[..] else { panic!("{tokens:?}") };
    let figures: Vec<&str> = token.split_whitespace().skip(3).collect();
    let [speed, dispatches, submits, waits, up, down, ..] = figures[..] else { panic!("{token}") };
    for counted in [speed, dispatches, submits, waits, up, down] {
        assert!(counted.parse::<f64>().expect("a number") > 0.0, "{token}");
    }
}
