//! Which of several devices takes which case, where every case on every device would cost more than
//! it proves.

use std::collections::BTreeSet;

/// For each case, in order, the devices of `n` that take it. Every case has its turn at one. It is
/// also taken where it brings what no other case brings that is taken there: `brings` says of each
/// case what it makes its device do, such as the constants of its kernels. So whatever a case of
/// these brings is brought at every device.
pub fn turns<T: Ord>(brings: &[BTreeSet<T>], n: usize) -> Vec<Vec<usize>> {
    let mut takers: Vec<_> = (0..brings.len()).map(|case| vec![turn(case, n)]).collect();
    for device in 0..n {
        let own = takers.iter().zip(brings).filter(|(takers, _)| takers.contains(&device));
        let mut brought: BTreeSet<&T> = own.flat_map(|(_, brings)| brings).collect();
        for (takers, brings) in takers.iter_mut().zip(brings) {
            if brings.iter().any(|what| !brought.contains(what)) {
                brought.extend(brings);
                takers.push(device);
            }
        }
    }
    takers
}

/// The sum of the digits of `case` to the base `n`, which falls in step with none of the loops that
/// the corpus is made of.
fn turn(mut case: usize, n: usize) -> usize {
    let mut sum = 0;
    while n > 1 && case > 0 {
        sum += case % n;
        case /= n;
    }
    sum % n.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_shared_evenly_and_follow_no_loop() {
        for (n, step) in [(1, 1), (2, 2), (3, 3), (3, 4), (3, 9)] {
            let mut taken = vec![0; n];
            (0..90 * n).step_by(step).for_each(|case| taken[turn(case, n)] += 1);
            let (least, most) = (taken.iter().min().unwrap(), taken.iter().max().unwrap());
            assert!(2 * least > *most, "{n} devices, every {step}: {taken:?}");
        }
    }

    #[test]
    fn what_one_case_brings_is_brought_everywhere() {
        let brings: Vec<_> = (0..30).map(|i| BTreeSet::from([i % 2, 100 * (i / 29)])).collect();
        let takers = turns(&brings, 3);
        assert_eq!(takers[29].len(), 3, "the last alone brings 100");
        let n_more = takers.iter().filter(|takers| takers.len() > 1).count();
        assert_eq!(n_more, 1, "the rest is brought in turns: {takers:?}");
        for device in 0..3 {
            let taken = takers.iter().zip(&brings).filter(|(takers, _)| takers.contains(&device));
            let brought: BTreeSet<_> = taken.flat_map(|(_, brings)| brings).collect();
            assert_eq!(brought.len(), 3, "device {device}");
        }
    }

    #[test]
    fn one_device_takes_all() {
        assert_eq!(turns(&[BTreeSet::from([1]), BTreeSet::new()], 1), [[0], [0]]);
    }
}
