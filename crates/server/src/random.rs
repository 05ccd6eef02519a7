//! Random numbers from the system.

use std::hash::{BuildHasher, Hasher, RandomState};

/// 64 bits. The keys of each state are random: those of a thread's first come from the system.
pub(crate) fn bits() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// A name that nobody else has, in 32 hex digits: two servers never meet by it.
pub(crate) fn name() -> String {
    format!("{:016x}{:016x}", bits(), bits())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unlike() {
        let names: BTreeSet<_> = (0..1000).map(|_| name()).collect();
        assert_eq!(names.len(), 1000);
        let halves: BTreeSet<_> = names.iter().flat_map(|n| [&n[..16], &n[16..]]).collect();
        assert_eq!(halves.len(), 2000, "both halves are random");
        assert!(names.iter().all(|name| name.len() == 32));
    }
}
