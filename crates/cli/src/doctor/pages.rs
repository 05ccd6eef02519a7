//! Whether keys and values, and weights, lie in huge pages.

use std::io::Write;

use anyhow::Result;
use longview_cpu::HugePages;
use serde::Serialize;

use crate::units;

/// What the system gave when huge pages of 2 MiB were asked for, as all large memory does.
#[derive(Serialize)]
pub(super) struct Pages {
    asked_bytes: u64,
    granted_bytes: u64,
    setting: Option<String>,
    shared_setting: Option<String>,
    /// `null` where there is nothing to mend, else a command that does it.
    fix: Option<String>,
}

impl From<HugePages> for Pages {
    fn from(found: HugePages) -> Self {
        let HugePages { asked, granted, setting, shared_setting } = found;
        let fix = (setting.as_deref() == Some("never")).then(|| set("enabled", "madvise"));
        Self { asked_bytes: asked, granted_bytes: granted, setting, shared_setting, fix }
    }
}

/// A command that changes a setting until the machine starts anew.
fn set(file: &str, value: &str) -> String {
    format!("echo {value} | sudo tee /sys/kernel/mm/transparent_hugepage/{file}")
}

impl Pages {
    pub(super) fn print(&self, out: &mut impl Write) -> Result<()> {
        let (asked, granted) = (units::bytes(self.asked_bytes), units::bytes(self.granted_bytes));
        let setting = self.setting.as_deref().unwrap_or("unknown");
        writeln!(out, "huge pages {granted} of {asked} granted (setting: {setting})")?;
        if let Some(fix) = &self.fix {
            writeln!(out, "           reading keys and values is slower without: {fix}")?;
        } else if self.granted_bytes < self.asked_bytes {
            let why = "memory is in too many small pieces; they come when it is free in a row";
            writeln!(out, "           {why}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(granted: u64, setting: &str) -> String {
        let (asked, shared_setting) = (16 << 20, None);
        let found = HugePages { asked, granted, setting: Some(setting.into()), shared_setting };
        let mut out = vec![];
        Pages::from(found).print(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn what_is_refused_is_said_with_what_to_do() {
        let all = printed(16 << 20, "madvise");
        assert_eq!(all, "huge pages 16.0 MiB of 16.0 MiB granted (setting: madvise)\n");
        let none = printed(0, "never");
        assert!(none.contains("echo madvise | sudo tee /sys/kernel/mm/"), "{none}");
        assert!(printed(2 << 20, "always").contains("too many small pieces"));
    }
}
