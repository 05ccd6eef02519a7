//! The code that calls NVIDIA's driver library, on a stand-in of it. `src/bin/caller.rs` is the
//! program; it needs a loader that finds the stand-in first.

use std::process::Command;

use longview_cuda_emulation::stand_in_of_the_driver;

/// Whatever is called and whatever fails, the caller's context is the current one afterwards; and
/// what a device says of its memory is believed.
#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "the stand-in is found by LD_LIBRARY_PATH")]
fn the_callers_context_is_current_after_every_call() {
    let folder = stand_in_of_the_driver().expect("the stand-in was compiled");
    for is_integrated in [false, true] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_caller"));
        command.env("LD_LIBRARY_PATH", folder);
        if is_integrated {
            command.env("LONGVIEW_STAND_IN_INTEGRATED", "1");
        }
        let output = command.output().expect("it starts");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}{error}");
        let counts = text.lines().map(|line| line.strip_suffix(" calls")?.parse::<u32>().ok());
        let counts: Vec<_> = counts.collect();
        assert_eq!(counts.len(), 2, "without a context of its own and with one: {text}");
        assert!(counts.iter().all(|n| n.is_some_and(|n| n > 200)), "{text}");
    }
}
