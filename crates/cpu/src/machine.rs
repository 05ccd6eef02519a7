//! What the operating system tells about processor and memory.

/// Cores to use when nobody says: one thread for each physical core.
pub fn physical_cores() -> usize {
    let logical = std::thread::available_parallelism().map_or(1, |n| n.get());
    logical.div_ceil(threads_per_core())
}

/// The processor's name, or its architecture.
pub(crate) fn model_name() -> String {
    cpuinfo("model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// Memory that could be used now: what the kernel calls available, or what the control group
/// leaves.
pub fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let available = field(&text, "MemAvailable")?.split_whitespace().next()?.parse::<u64>().ok()?;
    let system = available * 1024;
    Some(group_memory().map_or(system, |group| group.min(system)))
}

/// What the memory limit of the control group (version 2, else 1) leaves.
fn group_memory() -> Option<u64> {
    let text = |path: &str| std::fs::read_to_string(path).ok();
    let number = |path: &str| text(path)?.trim().parse::<u64>().ok();
    let left = |[limit, used, stat]: [&str; 3], cached: [&str; 2]| {
        let (limit, used) = (number(limit)?, number(used).unwrap_or(0));
        Some(limit.saturating_sub(used.saturating_sub(file_pages(&text(stat)?, cached))))
    };
    let v2 = || {
        let files =
            ["memory.max", "memory.current", "memory.stat"].map(|f| format!("/sys/fs/cgroup/{f}"));
        left(files.each_ref().map(String::as_str), ["active_file", "inactive_file"])
    };
    let v1 = || {
        let files = ["memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat"];
        let files = files.map(|f| format!("/sys/fs/cgroup/memory/{f}"));
        left(files.each_ref().map(String::as_str), ["total_active_file", "total_inactive_file"])
    };
    v2().or_else(v1)
}

/// Bytes of files that were read: they count as used, and go when the group needs their room.
fn file_pages(stat: &str, names: [&str; 2]) -> u64 {
    let lines = stat.lines().filter_map(|line| line.split_once(' '));
    let of_files = lines.filter(|(name, _)| names.contains(name));
    of_files.filter_map(|(_, bytes)| bytes.trim().parse::<u64>().ok()).sum()
}

/// Hardware threads of the first core, as Linux lists them (`0,64` or `0-1`).
fn threads_per_core() -> usize {
    let path = "/sys/devices/system/cpu/cpu0/topology/thread_siblings_list";
    std::fs::read_to_string(path).map_or(1, |list| count_list(list.trim()))
}

fn count_list(list: &str) -> usize {
    let count = |part: &str| match part.split_once('-') {
        Some((a, b)) => match (a.parse::<usize>(), b.parse::<usize>()) {
            (Ok(a), Ok(b)) if a <= b => b - a + 1,
            _ => 1,
        },
        None => 1,
    };
    list.split(',').map(count).sum::<usize>().max(1)
}

fn cpuinfo(key: &str) -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    field(&text, key).map(str::to_owned)
}

/// The value of the first `key: value` line.
fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let line = text.lines().find(|line| line.starts_with(key))?;
    line.split_once(':').map(|(_, value)| value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sibling_lists_are_counted() {
        assert_eq!(count_list("0"), 1);
        assert_eq!(count_list("0,64"), 2);
        assert_eq!(count_list("0-3"), 4);
        assert_eq!(count_list(""), 1);
    }

    #[test]
    fn files_that_were_read_leave_memory_free() {
        let stat = "cache 9\nrss 100\nactive_file 5\ninactive_file 70\ntotal_active_file 1000\n";
        assert_eq!(file_pages(stat, ["active_file", "inactive_file"]), 75);
        assert_eq!(file_pages("", ["active_file", "inactive_file"]), 0);
    }

    #[test]
    fn fields_are_found_by_the_start_of_the_line() {
        let text = "MemTotal: 10 kB\nMemAvailable:    7 kB\n";
        assert_eq!(field(text, "MemAvailable"), Some("7 kB"));
        assert_eq!(field(text, "Swap"), None);
    }
}
