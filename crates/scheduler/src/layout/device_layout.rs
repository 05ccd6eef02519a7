//! The rows of a device buffer of a layer that does not attend to everything.

/// Rows of one head: `sinks | ring of pending rows | slots of the device cache`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLayout {
    /// First tokens.
    pub sinks: usize,
    /// Rows of the ring.
    pub ring: usize,
    /// Rows that recalled tokens may take.
    pub slots: usize,
}

impl DeviceLayout {
    /// All of them.
    pub fn rows(&self) -> usize {
        self.sinks + self.ring + self.slots
    }

    /// The device row of a row that is a sink or in the ring.
    pub fn row(&self, row: usize) -> usize {
        match row.checked_sub(self.sinks) {
            None => row,
            Some(after) => self.sinks + after % self.ring.max(1),
        }
    }

    /// The device row of slot 0.
    pub fn first_slot_row(&self) -> usize {
        self.sinks + self.ring
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sinks_stay_and_later_rows_go_round_the_ring() {
        let layout = DeviceLayout { sinks: 2, ring: 3, slots: 4 };
        let rows: Vec<usize> = (0..9).map(|row| layout.row(row)).collect();
        assert_eq!(rows, [0, 1, 2, 3, 4, 2, 3, 4, 2]);
        assert_eq!((layout.first_slot_row(), layout.rows()), (5, 9));
    }

    #[test]
    fn a_layout_without_a_ring_has_one_place_behind_the_sinks() {
        let layout = DeviceLayout { sinks: 1, ring: 0, slots: 0 };
        assert_eq!([layout.row(0), layout.row(1), layout.row(7)], [0, 1, 1]);
    }
}
