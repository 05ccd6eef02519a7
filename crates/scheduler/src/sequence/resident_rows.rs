//! Layers that recall with all their rows on the device: nothing is fetched, and what a choice
//! names is attended where it lies.
//!
//! The host store has all rows as well: it is what indexes are made of and files are written from.
//! The device's rows have its order, so rows that an index has moved there are carried over again.

use longview_core::LayerId;
use longview_ops::Backend;

use super::kv_sequence::Sequence;
use super::options::{Placement, SequenceOptions};
use super::stale_rows::Stale;
use crate::error::SchedulerError;
use crate::layout::{HostRows, KvShape};
use crate::policy::{Policy, Residency};
use crate::recall::RecallMode;

/// Whether layers that recall have all their rows on the device. One list names the rows of one
/// buffer, so those of a layer have to fit into one.
pub(super) fn has_resident_rows(
    shape: &KvShape,
    policy: &Policy,
    options: &SequenceOptions,
) -> bool {
    wants_resident_rows(shape, policy, options)
        && options.max_buffer_bytes.is_none_or(|most| shape.layer_bytes() as u64 <= most)
}

/// [`has_resident_rows`] where buffers may be as large as they need to be. Rows of 8 bits are never
/// resident: the device would have to round them as the host store does.
pub(super) fn wants_resident_rows(
    shape: &KvShape,
    policy: &Policy,
    options: &SequenceOptions,
) -> bool {
    options.resident_rows
        && options.placement == Placement::Device
        && options.recall == RecallMode::Exact
        && shape.host_rows == HostRows::Plain
        && matches!(policy.residency, Residency::Recall { .. })
}

impl<B: Backend> Sequence<B> {
    /// Carries rows of a layer to the device whose copies there are not what the host store has.
    pub(super) fn load_stale(&mut self, layer: LayerId) -> Result<(), SchedulerError> {
        let Some(stale) = self.layers[layer].resident else { return Ok(()) };
        self.load_rows(layer, stale.among(self.n_tokens))?;
        self.layers[layer].resident = Some(Stale::NONE);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use longview_core::HeadId;

    use super::super::fixture::{
        TestSequence, check_rows, clusters, full, heavy_hitters, inject, made, on_device, shape,
    };
    use super::super::options::HostStoreKind;
    use super::*;
    use crate::policy::Residual;
    use crate::sequence::KvPlan;
    use crate::store::fixture::{read_floats, row};

    const STORES: [HostStoreKind; 2] = [HostStoreKind::Auto, HostStoreKind::Plain];

    fn resident(policy: Policy, store: HostStoreKind) -> TestSequence {
        let options = SequenceOptions { resident_rows: true, ..on_device(full(), store).options };
        made(policy, options)
    }

    /// Every row that the host has is on the device, in its place.
    fn check_device(sequence: &TestSequence) {
        let n = sequence.n_tokens();
        for layer in shape().layers() {
            let state = &sequence.layers[layer];
            let device = read_floats(&sequence.backend, state.device.as_ref().unwrap());
            for (head, rows) in shape().heads().zip(device.chunks_exact(state.device_rows * 8)) {
                let want = &state.positions[head];
                let want = want.iter().flat_map(|at| row(layer, head, *at as usize));
                assert_eq!(rows[..n * 8], want.collect::<Vec<f32>>(), "layer {layer}, {head:?}");
            }
        }
    }

    #[test]
    fn only_rows_that_are_recalled_one_buffer_a_layer_stay_on_the_device() {
        let is_resident = |sequence: TestSequence| {
            let has = sequence.has_resident_rows();
            let layers = sequence.layers.iter().filter(|layer| layer.recall().is_some());
            layers.for_each(|layer| assert_eq!(layer.resident.is_some(), has));
            has
        };
        assert!(is_resident(resident(clusters(), HostStoreKind::Plain)));
        assert!(!is_resident(on_device(clusters(), HostStoreKind::Plain)), "nobody asked");
        assert!(!is_resident(resident(full(), HostStoreKind::Plain)), "nothing is recalled");
        let bytes = shape().layer_bytes() as u64;
        let limited = |most| {
            let options = resident(full(), HostStoreKind::Plain).options;
            made(clusters(), SequenceOptions { max_buffer_bytes: Some(most), ..options })
        };
        assert!(is_resident(limited(bytes)));
        assert!(!is_resident(limited(bytes - 1)));
        let options = resident(full(), HostStoreKind::Plain).options;
        let largest = |on: &SequenceOptions| KvPlan::largest_buffer(&shape(), &clusters(), on).1;
        assert_eq!(largest(&options), bytes);
        assert!(largest(&SequenceOptions { resident_rows: false, ..options }) < bytes);
    }

    /// Through segments, their order, a cut, more of the prompt, and another policy and back.
    #[test]
    fn the_device_has_the_rows_of_the_host_in_their_order() {
        for store in STORES {
            let mut sequence = resident(clusters(), store);
            inject(&mut sequence, 20);
            pollster::block_on(sequence.finish_prefill()).unwrap();
            assert!(sequence.layers.iter().all(|layer| layer.permuted_to > 0));
            check_rows(&sequence);
            check_device(&sequence);
            pollster::block_on(sequence.truncate(13)).unwrap();
            check_rows(&sequence);
            check_device(&sequence);
            inject(&mut sequence, 5);
            pollster::block_on(sequence.finish_prefill()).unwrap();
            check_rows(&sequence);
            check_device(&sequence);
            pollster::block_on(sequence.set_policy(full())).unwrap();
            pollster::block_on(sequence.set_policy(clusters())).unwrap();
            assert!(sequence.has_resident_rows());
            check_rows(&sequence);
            check_device(&sequence);
        }
    }

    /// Rows go to the device and back with the policy; what is refused changes neither.
    #[test]
    fn a_refused_policy_leaves_rows_where_they_lie() {
        for before in [false, true] {
            let mut sequence = resident(clusters(), HostStoreKind::Plain);
            sequence = if before { sequence } else { on_device(clusters(), HostStoreKind::Plain) };
            inject(&mut sequence, 20);
            pollster::block_on(sequence.finish_prefill()).unwrap();
            let layers = |sequence: &TestSequence| {
                let resident = sequence.layers.iter().filter(|layer| layer.resident.is_some());
                (sequence.has_resident_rows(), resident.count() > 0)
            };
            let refused = sequence.set_policy_and_residency(heavy_hitters(), !before);
            pollster::block_on(refused).unwrap_err();
            assert_eq!(layers(&sequence), (before, before));
            let changed = sequence.set_policy_and_residency(clusters(), !before);
            pollster::block_on(changed).unwrap();
            assert_eq!(layers(&sequence), (!before, !before));
            check_rows(&sequence);
            if !before {
                check_device(&sequence);
            }
        }
    }

    #[test]
    fn a_fresh_device_gets_all_rows() {
        for store in STORES {
            let mut sequence = resident(clusters(), store);
            inject(&mut sequence, 20);
            pollster::block_on(sequence.finish_prefill()).unwrap();
            sequence.recover(&std::sync::Arc::new(longview_ops::ReferenceBackend::new())).unwrap();
            check_device(&sequence);
        }
    }

    /// A cut of the last rows carries nothing to the device.
    #[test]
    fn rows_that_did_not_move_are_not_carried_again() {
        let mut sequence = resident(clusters(), HostStoreKind::Plain);
        inject(&mut sequence, 20);
        pollster::block_on(sequence.finish_prefill()).unwrap();
        let n_indexed = sequence.layers[1].n_indexed;
        // What nobody wrote shows what was carried.
        let row_bytes = shape().row_bytes();
        sequence.store.write_rows(LayerId(1), HeadId(0), 0, &vec![0; row_bytes]);
        pollster::block_on(sequence.truncate(n_indexed + 1)).unwrap();
        let state = &sequence.layers[1];
        let device = read_floats(&sequence.backend, state.device.as_ref().unwrap());
        assert_eq!(device[..8], row(LayerId(1), HeadId(0), 0));
    }

    #[test]
    fn the_plan_has_the_rows_and_what_lists_them() {
        for policy in [clusters(), Policy { residual: Residual::Means, ..clusters() }] {
            let sequence = resident(policy.clone(), HostStoreKind::Plain);
            let plan = KvPlan::new(&shape(), &policy, &sequence.options);
            assert_eq!(plan.device_kv_bytes(), sequence.device_kv_bytes());
            assert_eq!((plan.window_bytes, plan.cache_bytes), (0, 2 * 2 * 24 * 32));
        }
    }
}
