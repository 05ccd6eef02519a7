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
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let v2 = || {
        let limit = number("/sys/fs/cgroup/memory.max")?;
        Some(limit.saturating_sub(number("/sys/fs/cgroup/memory.current").unwrap_or(0)))
    };
    let v1 = || {
        let limit = number("/sys/fs/cgroup/memory/memory.limit_in_bytes")?;
        let used = number("/sys/fs/cgroup/memory/memory.usage_in_bytes").unwrap_or(0);
        Some(limit.saturating_sub(used))
    };
    v2().or_else(v1)
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
    fn fields_are_found_by_the_start_of_the_line() {
        let text = "MemTotal: 10 kB\nMemAvailable:    7 kB\n";
        assert_eq!(field(text, "MemAvailable"), Some("7 kB"));
        assert_eq!(field(text, "Swap"), None);
    }
}
