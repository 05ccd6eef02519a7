//! How the device finds the rows of what it selected: in its cache, fetching those that are
//! missing, or among all rows, where these lie on it.

use longview_core::LayerId;
use longview_ops::{Backend, KvView, OpResult};

use super::decode::{Recalling, Token};
use super::kv_sequence::Sequence;
use super::layer_state::{Layer, LayerState};
use crate::error::SchedulerError;
use crate::layout::SelectionId;
use crate::recall::{DeviceLookup, RecallPath};
use crate::store::DeviceRows;

impl Token {
    /// Lets the device find the rows of what it selected, and fetch those that it does not have.
    pub fn look_up_on_device<B: Backend>(
        &self,
        sequence: &mut Sequence<B>,
        recalling: &Recalling,
    ) -> Result<(), SchedulerError> {
        let selection = recalling.id();
        if sequence.layers[self.layer].resident.is_some() {
            return Ok(sequence.list_resident(self.layer, selection)?);
        }
        let Sequence { backend, shape, store, layers, lists, coded, layout, .. } = sequence;
        let Sequence { recall: path, stats, .. } = sequence;
        lists.upload(&**backend)?;
        let Some(RecallPath { selector, device_cache: Some(cache), .. }) = path else {
            return Ok(());
        };
        let Layer { state, device, device_rows, slots, .. } = &mut layers[self.layer];
        let LayerState::Recall(recall) = state else { return Ok(()) };
        stats.attended_rows += lists.counts().iter().map(|n| u64::from(*n)).sum::<u64>();
        // Slots of 8 bits are by themselves, with a list that recalled rows alone are in.
        let lookup = match (coded, slots) {
            (Some(coded), Some(slots)) => {
                let Some(forms) = store.two_forms(self.layer) else { return Ok(()) };
                DeviceLookup {
                    selection,
                    own: recall.selection,
                    index: recall.selected_index(),
                    selector,
                    lists: &mut coded.lists,
                    apart: lists.counts(),
                    src: KvView::new(forms.rounded, shape.capacity),
                    dst: slots.rows_mut(),
                    first_slot_row: 0,
                }
            }
            _ => {
                let (Some(buffer), Some(src)) = (device, store.buffer(self.layer)) else {
                    return Ok(());
                };
                DeviceLookup {
                    selection,
                    own: recall.selection,
                    index: recall.selected_index(),
                    selector,
                    lists,
                    apart: &[],
                    src: KvView::new(src, shape.capacity),
                    dst: DeviceRows { buffer, head_stride: *device_rows },
                    first_slot_row: layout.first_slot_row(),
                }
            }
        };
        Ok(cache.run(&**backend, shape, lookup)?)
    }
}

impl<B: Backend> Sequence<B> {
    /// Lets the device add the rows that a selection names to those that are attended anyway.
    pub(super) fn list_resident(&mut self, layer: LayerId, selection: SelectionId) -> OpResult<()> {
        let Self { backend, layers, lists, recall: path, .. } = self;
        lists.upload(&**backend)?;
        let Some(RecallPath { selector, resident: Some(resident), .. }) = path else {
            return Ok(());
        };
        let Some(recall) = layers[layer].recall() else { return Ok(()) };
        let index = recall.selected_index();
        resident.add(&**backend, lists, index, (selector, selection, recall.selection))
    }
}
