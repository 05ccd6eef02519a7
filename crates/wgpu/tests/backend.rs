//! The backend where the corpus of cases does not go. The corpus itself runs in `longview-tests`.

mod attention;
mod clusters;
mod common;
mod fused;
mod policy_ops;
mod runtime;
mod score_select;
mod shaders;
mod subgroups;
mod variants;
