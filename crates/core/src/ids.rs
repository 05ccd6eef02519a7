//! Newtypes for integers that are easily mistaken for each other. They index slices that have an
//! entry for each, so that a number becomes an id once and stays one.

use std::ops::{Index, IndexMut};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord,
            bytemuck::Pod, bytemuck::Zeroable,
        )]
        #[repr(transparent)]
        pub struct $name(pub u32);

        impl $name {
            /// The id of the entry at `index`.
            ///
            /// # Panics
            /// If there are more than 2^32 of them.
            // Loops over layers and heads of other crates make them. What may panic is not inlined
            // across crates unless it says so.
            #[inline]
            pub const fn new(index: usize) -> Self {
                assert!(index <= u32::MAX as usize, "an id has 32 bits");
                Self(index as u32)
            }

            /// The value as an array index.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }

        impl<T> Index<$name> for [T] {
            type Output = T;

            fn index(&self, id: $name) -> &T {
                &self[id.index()]
            }
        }

        impl<T> IndexMut<$name> for [T] {
            fn index_mut(&mut self, id: $name) -> &mut T {
                &mut self[id.index()]
            }
        }

        impl<T> Index<$name> for Vec<T> {
            type Output = T;

            fn index(&self, id: $name) -> &T {
                &self[id.index()]
            }
        }

        impl<T> IndexMut<$name> for Vec<T> {
            fn index_mut(&mut self, id: $name) -> &mut T {
                &mut self[id.index()]
            }
        }
    };
}

id! {
    /// The place of a token in its sequence, 0 for the first; what RoPE rotates by.
    TokenPos
}
id! {
    /// The number of a cluster within one (layer, KV head); ids are given once and never reused.
    ClusterId
}
id! {
    /// The number of a KV row in the device cache of one (layer, KV head).
    Slot
}
id! {
    /// The number of a transformer layer, 0 for the one next to the embedding.
    LayerId
}
id! {
    /// The number of a KV head within its layer.
    HeadId
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_the_entry_at_its_index() {
        let (mut list, array) = (vec![5, 6, 7], [[1, 2], [3, 4]]);
        list[LayerId::new(1)] += 10;
        assert_eq!(list, [5, 16, 7]);
        assert_eq!(list[..2][HeadId(0)], 5);
        assert_eq!(array[LayerId(1)][HeadId(0)], 3);
        assert_eq!(LayerId::new(1), LayerId(1));
    }

    #[test]
    #[should_panic(expected = "an id has 32 bits")]
    fn an_index_beyond_32_bits_is_no_id() {
        Slot::new(1 << 32);
    }
}
