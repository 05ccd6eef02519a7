//! `--device cuda` and the automatic choice on machines whose CUDA is absent or of no use, and what
//! `longview doctor` says of it.

use crate::support::{Done, command, longview, needle};

/// Hidden from CUDA, a GPU is as absent as a driver that is not there.
fn without_cuda(words: &[&str]) -> Done {
    command(words).env("CUDA_VISIBLE_DEVICES", "").output().unwrap().into()
}

/// The words of `longview plan`, and more.
fn plan<'a>(model: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["plan", "-m", model], more].concat()
}

#[test]
fn without_a_gpu_every_command_says_why_and_what_to_do() {
    let model = needle();
    let model = model.to_str().unwrap();
    for words in [
        &["demo", "-c", "1024", "--json", "--device", "cuda"][..],
        &["run", "-m", model, "-p", "x", "--device", "cuda"],
        &["plan", "-m", model, "--device", "cuda"],
        &["plan", "-m", model, "--device", "cuda", "--cuda-device", "99"],
    ] {
        without_cuda(words).fails_with(&["NVIDIA driver", "--device"]);
    }
    // With a driver the number is what is wrong, without one the driver is.
    let words = ["plan", "-m", model, "--device", "cuda", "--cuda-device", "99"];
    longview(words).fails_with(&["driver", "device"]);
}

#[test]
fn the_automatic_choice_is_one_line() {
    let model = needle();
    let model = model.to_str().unwrap();
    let done = without_cuda(&plan(model, &[]));
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let chosen: Vec<_> = done.stderr.lines().filter(|line| line.starts_with("device: ")).collect();
    assert_eq!(chosen.len(), 1, "{}", done.stderr);
    let done = longview(plan(model, &["--device", "cpu"]));
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""), "a choice made is not repeated");
}

#[test]
fn doctor_says_what_is_missing_for_cuda_and_what_that_costs() {
    let json: serde_json::Value =
        serde_json::from_str(&without_cuda(&["doctor", "--json"]).ok()).unwrap();
    let backend = json["backends"].as_array().unwrap().iter().find(|b| b["name"] == "cuda");
    let backend = backend.expect("it is in the list");
    assert_eq!(backend["available"], false);
    assert!(backend["detail"].as_str().unwrap().contains("NVIDIA driver"), "{backend}");
    let cuda = &json["cuda"];
    assert!(cuda["devices"].as_array().unwrap().is_empty() && cuda["problem"].is_string());
    let names: Vec<_> =
        cuda["libraries"].as_array().unwrap().iter().map(|l| l["name"].clone()).collect();
    assert_eq!(names, ["libcuda", "libnvrtc", "libcublasLt"]);
    let text = without_cuda(&["doctor"]).ok();
    let lines = text.lines().filter(|line| line.starts_with("library "));
    assert_eq!(lines.count(), 3, "{text}");
    assert!(text.contains("backend    cuda  missing"), "{text}");
}

/// A driver that is there and of no use, where the loader finds one by a variable.
#[cfg(target_os = "linux")]
mod fake {
    use std::process::Command;

    use super::*;
    use crate::support::TempFolder;

    /// A libcuda with one device that nothing can be computed on.
    struct FakeDriver(TempFolder);

    impl FakeDriver {
        /// Of a version as the driver counts (12.4 is 12040); `init` is what it says when it
        /// starts.
        fn new(version: u32, init: u32) -> Self {
            let folder = TempFolder::new();
            let source = format!(
                r#"
                int cuDriverGetVersion(int *version) {{ *version = {version}; return 0; }}
                int cuInit(unsigned flags) {{ return {init}; }}
                int cuGetErrorString(int error, const char **text) {{ *text = "a fake"; return 0; }}
                int cuDeviceGetCount(int *n) {{ *n = 1; return 0; }}
                int cuDeviceGet(int *device, int ordinal) {{ *device = ordinal; return 0; }}
                int cuDeviceGetName(char *name, int len, int device) {{
                    const char fake[] = "Fake GPU";
                    for (int i = 0; i < sizeof fake; i++) name[i] = fake[i];
                    return 0;
                }}
                int cuDeviceTotalMem_v2(unsigned long *bytes, int device) {{
                    *bytes = 8ul << 30;
                    return 0;
                }}
                int cuDeviceGetAttribute(int *value, int attribute, int device) {{
                    *value = attribute == 75 ? 6 : attribute == 76 ? 1 : 20;
                    return 0;
                }}
                "#
            );
            let source = folder.write("cuda.c", source);
            let library = folder.file("libcuda.so");
            let mut cc = Command::new("cc");
            let status = cc.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).status();
            assert!(status.expect("a C compiler").success());
            Self(folder)
        }

        fn run(&self, words: &[&str]) -> Done {
            command(words).env("LD_LIBRARY_PATH", self.0.path()).output().unwrap().into()
        }
    }

    #[test]
    fn a_driver_of_no_use_fails_where_it_is_asked_for_and_else_is_a_warning() {
        let model = needle();
        let model = model.to_str().unwrap();
        for (driver, reason) in [
            (FakeDriver::new(11_080, 0), "speaks CUDA 11.8, the kernels need 12.1; update it"),
            (
                FakeDriver::new(12_040, 100),
                "the NVIDIA driver sees no device (CUDA_ERROR_NO_DEVICE",
            ),
            (
                FakeDriver::new(12_040, 0),
                "Fake GPU has compute capability 6.1, the kernels need 7.5",
            ),
        ] {
            driver.run(&plan(model, &["--device", "cuda"])).fails_with(&[reason, "--device"]);
            let done = driver.run(&plan(model, &[]));
            assert_eq!(done.code, Some(0), "{}", done.stderr);
            let warnings: Vec<_> =
                done.stderr.lines().filter(|line| line.starts_with("warning: ")).collect();
            assert!(warnings.len() == 1 && warnings[0].contains(reason), "{}", done.stderr);
            assert_eq!(done.stderr.lines().count(), 2, "and the choice: {}", done.stderr);
        }
        let no_such = plan(model, &["--device", "cuda", "--cuda-device", "99"]);
        let reason = "there is no CUDA device 99: the driver shows 1, counted from 0";
        FakeDriver::new(12_040, 0).run(&no_such).fails_with(&[reason, "longview doctor"]);
    }

    #[test]
    fn doctor_lists_a_device_that_cannot_be_used() {
        let text = FakeDriver::new(12_040, 0).run(&["doctor"]).ok();
        for part in [
            "speaks CUDA 12.4\n",
            "cuda gpu   0 Fake GPU, compute capability 6.1, 20 multiprocessors, no kernels for it\n",
            "memory 8.0 GiB, of which free unknown\n",
            "self-test: Fake GPU has compute capability 6.1, the kernels need 7.5",
            "library    libcuda     found   needed: ",
        ] {
            assert!(text.contains(part), "{part:?} is not in:\n{text}");
        }
    }
}
