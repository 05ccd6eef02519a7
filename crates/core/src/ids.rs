//! Newtypes for integers that are easily mistaken for each other.

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
