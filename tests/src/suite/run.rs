//! The whole suite on one backend, as a program: names, results, and a last line that counts.
//!
//! A check that panics has failed, and the next one goes on, with a fresh device where the old one
//! was lost. What cannot be run says `NOT RUN` and why.

use std::any::Any;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use longview_cpu::{CpuBackend, CpuOptions};
use longview_cuda::{CudaBackend, CudaOptions};
use longview_cuda_emulation::EmulatedOptions;
use longview_ops::Op;
use longview_ops::parity::{ParitySummary, format_parity, run_parity};
use longview_scheduler::{PolicyOptions, Preset};
use longview_wgpu::{WgpuBackend, WgpuOptions};
use pollster::block_on;

use super::{faults, golden, parity, policy, quantised, selection};
use crate::backends::{Probe, cuda_emulated};
use crate::bench::decode::{DecodeRequest, decode};
use crate::bench::{self, Device, Request};
use crate::{files, policy_checks};

/// What the suite runs on.
pub const BACKENDS: [&str; 4] = ["cuda", "cuda-emulated", "wgpu", "cpu"];

/// Its parts, in the order in which they run. After the last check of the last one a real device is
/// gone for the process.
pub const SECTIONS: [&str; 6] = ["parity", "golden", "policy", "selection", "bench", "faults"];

/// Checks of policies that need a host store that kernels read.
const MAPPED: [&str; 5] = [
    "the_device_attends_what_the_host_would_to_the_bit",
    "cuts_policies_and_lost_devices_leave_the_device_cache_right",
    "a_step_that_the_device_resolves_waits_once",
    "what_the_device_chose_is_there_for_who_looks",
    "speculation_reads_once_a_step_and_exact_recall_once_a_layer_more",
];

/// What is asked for.
#[derive(Clone, Debug)]
pub struct SuiteRequest {
    /// One of [`BACKENDS`].
    pub backend: &'static str,
    /// Some of [`SECTIONS`].
    pub sections: Vec<&'static str>,
    /// Ops of the parity run; none: all.
    pub ops: Vec<Op>,
    /// Only checks whose name contains this, or one of several texts with commas between them (not
    /// those of `parity` and `bench`).
    pub filter: String,
    /// Short benches: to see that they run.
    pub quick: bool,
}

impl SuiteRequest {
    /// What can be asked for.
    pub const USAGE: &str = "[--backend cuda|cuda-emulated|wgpu|cpu] [--only SECTION,..] \
                             [--op NAME,..] [--filter TEXT,..] [--quick]; sections: parity, \
                             golden, policy, selection, faults, bench";

    /// Reads what follows the program's name.
    pub fn parse(args: impl IntoIterator<Item = String>) -> Result<Self> {
        let mut request = Self {
            backend: BACKENDS[0],
            sections: SECTIONS.to_vec(),
            ops: Vec::new(),
            filter: String::new(),
            quick: false,
        };
        let mut args = args.into_iter();
        while let Some(option) = args.next() {
            if option == "--quick" {
                request.quick = true;
                continue;
            }
            let value = args.next().with_context(|| format!("{option} needs a value"));
            match option.as_str() {
                "--backend" => request.backend = known(&value?, &BACKENDS)?,
                "--only" => {
                    let value = value?;
                    let sections = value.split(',').map(|name| known(name, &SECTIONS));
                    request.sections = sections.collect::<Result<_>>()?;
                }
                "--op" => {
                    let value = value?;
                    let ops = value.split(',').map(|name| name.parse().map_err(anyhow::Error::msg));
                    request.ops = ops.collect::<Result<_>>()?;
                }
                "--filter" => request.filter = value?,
                _ => bail!("unknown option '{option}'"),
            }
        }
        Ok(request)
    }
}

fn known(name: &str, all: &[&'static str]) -> Result<&'static str> {
    let found = all.iter().find(|known| **known == name);
    found.copied().with_context(|| format!("unknown name '{name}': one of {}", all.join(", ")))
}

/// How it went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Checks and cases were run.
    Done {
        /// Right.
        passed: usize,
        /// Wrong.
        failed: usize,
        /// Told to be left out.
        not_run: usize,
    },
    /// There is no such device.
    NotRun(String),
}

/// Runs what is asked for; a line as soon as something is known.
pub fn run(request: &SuiteRequest, out: &mut dyn Write) -> Result<Outcome> {
    match request.backend {
        "cuda" => suite(request, out, &|| {
            block_on(CudaBackend::new(&CudaOptions::default())).map_err(|e| e.to_string())
        }),
        "cuda-emulated" => suite(request, out, &|| cuda_emulated(EmulatedOptions::default())),
        "wgpu" => suite(request, out, &|| {
            block_on(WgpuBackend::new(&WgpuOptions::default())).map_err(|e| e.to_string())
        }),
        _ => suite(request, out, &|| {
            CpuBackend::new(CpuOptions::default()).map_err(|e| e.to_string())
        }),
    }
}

type Open<B> = dyn Fn() -> Result<B, String>;

struct Suite<'a, B: Probe> {
    request: &'a SuiteRequest,
    out: &'a mut dyn Write,
    open: &'a Open<B>,
    backend: Arc<B>,
    passed: usize,
    failed: usize,
    not_run: usize,
    /// Why the device can be opened no more.
    end: Option<String>,
}

fn suite<B: Probe>(request: &SuiteRequest, out: &mut dyn Write, open: &Open<B>) -> Result<Outcome> {
    let backend = match open() {
        Ok(backend) => Arc::new(backend),
        Err(reason) => return Ok(Outcome::NotRun(reason)),
    };
    writeln!(out, "{}: {}", request.backend, backend.capabilities().device)?;
    let (passed, failed, not_run, end) = (0, 0, 0, None);
    let mut suite = Suite { request, out, open, backend, passed, failed, not_run, end };
    // Failures are told where they happen, in one line each.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let result = request.sections.iter().try_for_each(|section| suite.section(section));
    std::panic::set_hook(hook);
    result?;
    let Suite { passed, failed, not_run, .. } = suite;
    Ok(Outcome::Done { passed, failed, not_run })
}

impl<B: Probe> Suite<'_, B> {
    fn section(&mut self, section: &str) -> Result<()> {
        writeln!(self.out, "\n== {section}")?;
        match section {
            "parity" => self.parity(),
            "golden" => self.golden(),
            "policy" => self.policy(),
            "selection" => self.selection(),
            "faults" => self.faults(),
            _ => self.bench(),
        }
    }

    fn parity(&mut self) -> Result<()> {
        let ops = &self.request.ops;
        let rows = if ops.is_empty() {
            run_parity(&*self.backend, None)
        } else {
            ops.iter().flat_map(|op| run_parity(&*self.backend, Some(*op))).collect()
        };
        write!(self.out, "{}", format_parity(&rows))?;
        let sum = ParitySummary::of(&rows);
        self.passed += sum.passed;
        self.failed += sum.failed;
        self.not_run += sum.not_run;
        for place in parity::PLACES {
            let ops = self.request.ops.clone();
            self.check(place.0, &|backend| {
                let is_wanted = |op| ops.is_empty() || ops.contains(&op);
                let failures = parity::failures_elsewhere(&**backend, &[place], is_wanted);
                assert!(failures.is_empty(), "{}", failures.join("\n"));
                None
            })?;
        }
        if ops_name_matmul(&self.request.ops) {
            let name = "products of a library are those of our kernels";
            self.check(name, &parity::products_of_a_library_are_those_of_our_kernels)?;
            macro_rules! checks {
                ($($check:ident),+) => {
                    $(self.named(stringify!($check), &quantised::$check)?;)+
                };
            }
            checks!(
                a_quantised_row_depends_on_no_other_row,
                a_group_of_quantised_layers_gives_what_single_layers_give,
                fused_calls_of_a_quantised_row_are_right,
                what_is_no_number_stays_in_its_row
            );
        }
        Ok(())
    }

    fn golden(&mut self) -> Result<()> {
        let policies =
            [("full", PolicyOptions::new(Preset::Full)), ("clusterkv", golden::clusterkv(512))];
        let fixtures =
            golden::fixtures().with_context(|| files::fixtures().display().to_string())?;
        for path in fixtures {
            let fixture = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            for (name, policy) in &policies {
                self.named(&format!("{fixture} {name}"), &|backend| {
                    golden::check(backend, &path, policy, true);
                    None
                })?;
            }
            if B::ROUNDS_ACTIVATIONS {
                let (_, policy) = &policies[1];
                self.named(&format!("{fixture} rounded"), &|backend| {
                    golden::check_rounded(backend, &path, policy);
                    None
                })?;
            }
        }
        Ok(())
    }

    fn policy(&mut self) -> Result<()> {
        macro_rules! on_the_backend {
            ($($check:ident),+) => {$(
                self.named(stringify!($check), &|backend| {
                    let is_mapped = backend.capabilities().reads_host_memory;
                    if MAPPED.contains(&stringify!($check)) && !is_mapped {
                        return Some("its kernels read no host memory");
                    }
                    policy::$check(backend);
                    None
                })?;
            )+};
        }
        policy_checks!(on_the_backend);
        Ok(())
    }

    fn selection(&mut self) -> Result<()> {
        self.named("the_same_index_gives_the_same_lists", &|backend| {
            selection::the_same_index_gives_the_same_lists(backend);
            None
        })?;
        self.named("end_to_end_recalls_the_same_tokens", &|backend| {
            selection::end_to_end_recalls_the_same_tokens(backend);
            None
        })?;
        self.named("end_to_end_recalls_the_same_rows_of_8_bits", &|backend| {
            selection::end_to_end_recalls_the_same_rows_of_8_bits(backend);
            None
        })
    }

    fn faults(&mut self) -> Result<()> {
        macro_rules! checks {
            ($($check:ident),+) => { $(self.named(stringify!($check), &faults::$check)?;)+ };
        }
        checks!(
            tokens_are_launched_as_graphs,
            too_much_memory_is_an_error_that_passes,
            memory_that_is_used_up_comes_back,
            a_model_that_does_not_fit_is_refused,
            a_device_lost_between_calls_changes_no_token,
            a_device_lost_at_the_end_of_a_prefill_leaves_nothing_out,
            a_policy_that_cannot_be_had_leaves_the_one_before,
            a_session_begins_on_the_device_after_the_lost_one,
            a_policy_is_changed_on_the_device_after_the_lost_one,
            a_device_lost_in_a_call_costs_that_call_alone,
            a_kernel_that_faults_costs_the_device_at_most
        );
        Ok(())
    }

    /// Ops, tokens and steps over long contexts. Speed is told, not judged.
    fn bench(&mut self) -> Result<()> {
        if let Some(reason) = self.end.clone() {
            return self.tell("bench", "NOT RUN", Some(&reason));
        }
        let device = match self.request.backend {
            "cuda" => Device::Cuda(CudaOptions::default()),
            "wgpu" => Device::Wgpu(WgpuOptions::default()),
            "cpu" => Device::Cpu(CpuOptions::default()),
            _ => return self.tell("bench", "NOT RUN", Some("its speed says nothing")),
        };
        let quick = self.request.quick;
        bench::run(&Request { device, filter: String::new(), quick }, self.out)?;
        if quick {
            return self.tell("bench decode", "NOT RUN", Some("--quick"));
        }
        let device = ["--device".to_owned(), self.request.backend.to_owned()];
        writeln!(self.out)?;
        decode(&DecodeRequest::parse(device)?, self.out)
    }

    /// A check that the filter may leave out.
    fn named(&mut self, name: &str, check: &dyn Fn(&Arc<B>) -> faults::NotRun) -> Result<()> {
        let mut texts = self.request.filter.split(',');
        if texts.any(|text| name.contains(text)) { self.check(name, check) } else { Ok(()) }
    }

    fn check(&mut self, name: &str, check: &dyn Fn(&Arc<B>) -> faults::NotRun) -> Result<()> {
        if let Some(reason) = self.end.clone() {
            return self.tell(name, "NOT RUN", Some(&reason));
        }
        let start = Instant::now();
        let backend = Arc::clone(&self.backend);
        let result = catch_unwind(AssertUnwindSafe(|| check(&backend)));
        let took = start.elapsed().as_secs_f64();
        if backend.is_lost() {
            drop(backend);
            match (self.open)() {
                Ok(fresh) => self.backend = Arc::new(fresh),
                Err(reason) => self.end = Some(reason),
            }
        }
        match result {
            Ok(None) => {
                self.passed += 1;
                self.tell(name, &format!("ok      {took:>7.2} s"), None)
            }
            Ok(Some(reason)) => self.tell(name, "NOT RUN", Some(reason)),
            Err(panic) => {
                self.failed += 1;
                self.tell(name, &format!("FAILED  {took:>7.2} s"), Some(&words(&*panic)))
            }
        }
    }

    fn tell(&mut self, name: &str, result: &str, words: Option<&str>) -> Result<()> {
        self.not_run += usize::from(result == "NOT RUN");
        match words {
            Some(words) => writeln!(self.out, "{result}  {name}: {words}")?,
            None => writeln!(self.out, "{result}  {name}")?,
        }
        Ok(self.out.flush()?)
    }
}

/// Whether products are among the ops that are asked for.
fn ops_name_matmul(ops: &[Op]) -> bool {
    ops.is_empty() || ops.contains(&Op::Matmul)
}

/// What a panic says.
fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no words").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use longview_ops::Backend;

    fn parse(line: &str) -> Result<SuiteRequest> {
        SuiteRequest::parse(line.split_whitespace().map(String::from))
    }

    #[test]
    fn everything_on_cuda_unless_told_otherwise() {
        let request = parse("").unwrap();
        assert_eq!((request.backend, request.sections.len()), ("cuda", SECTIONS.len()));
        let line = "--backend cpu --only parity,golden --op rope,embed --filter llama --quick";
        let request = parse(line).unwrap();
        assert_eq!((request.backend, &request.sections[..]), ("cpu", &["parity", "golden"][..]));
        assert_eq!(request.ops, [Op::Rope, Op::Embed]);
        assert!(request.quick && request.filter == "llama");
    }

    #[test]
    fn mistakes_are_named() {
        let message = |line| format!("{:#}", parse(line).unwrap_err());
        assert!(message("--backend tpu").starts_with("unknown name 'tpu': one of cuda, "));
        assert!(message("--only speed").starts_with("unknown name 'speed': one of parity, "));
        assert!(message("--op softmax").starts_with("unknown op 'softmax'"));
        assert_eq!(message("--op"), "--op needs a value");
        assert_eq!(message("--all x"), "unknown option '--all'");
    }

    /// A failure is one line, the device is opened again, and the next check goes on.
    #[test]
    fn a_check_that_fails_does_not_stop_the_others() {
        let request = parse("--backend cuda-emulated").unwrap();
        let mut out = Vec::new();
        let open: &Open<_> = &|| cuda_emulated(EmulatedOptions::default());
        let backend = Arc::new(open().expect("the kernels are compiled as C++"));
        let (passed, failed, not_run, end) = (0, 0, 0, None);
        let mut suite =
            Suite { request: &request, out: &mut out, open, backend, passed, failed, not_run, end };
        suite.check("loses", &|b| panic!("lost: {}", b.lose())).unwrap();
        suite.check("goes on", &|b| b.is_lost().then_some("it is still lost")).unwrap();
        suite.check("cannot", &|_| Some("not here")).unwrap();
        assert_eq!((suite.passed, suite.failed, suite.not_run), (1, 1, 1));
        suite.open = &|| Err("it is gone".into());
        suite.check("ends", &|b| panic!("lost: {}", b.lose())).unwrap();
        suite.check("comes after", &|_| None).unwrap();
        assert_eq!((suite.passed, suite.failed, suite.not_run), (1, 2, 2));
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("loses: lost: true") && text.contains("NOT RUN  cannot: not here"));
        assert!(text.contains("NOT RUN  comes after: it is gone"));
    }
}
