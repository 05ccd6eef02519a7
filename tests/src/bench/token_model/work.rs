//! What a launch reads and writes, by its real arguments.

use longview_core::kv8;
use longview_cuda::{CopyCall, Grid, Kernel};
use longview_cuda_emulation::{EmulatedDriver, Given};

/// A command of a decoded token.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The kernel's name; `copy` for a copy.
    pub name: &'static str,
    /// Blocks in all.
    pub n_blocks: u64,
    /// What it was launched with; `None` for a copy.
    pub(super) kernel: Option<(Kernel, Grid)>,
    /// What it does to memory.
    pub(super) work: Work,
}

/// Bytes, and what must come one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Work {
    /// Of device memory, read and written.
    pub device_bytes: f64,
    /// Over the bus, whether rows miss or not.
    pub link_bytes: f64,
    /// Over the bus, as if all rows missed: the share of misses of it moves, and is written to the
    /// device.
    pub missed_bytes: f64,
    /// Loads from cache that wait for each other.
    pub chain: f64,
    /// Ways over the bus that wait for each other.
    pub link_chain: f64,
    /// Bytes that a thread asks for at once.
    pub in_flight: f64,
}

/// What only an executed kernel would know, because it reads it from device memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Clusters of a head.
    pub n_clusters: f64,
    /// Tokens that a head attends at most.
    pub budget: f64,
    /// Bytes of what the host tells, in a mean launch.
    pub told_bytes: f64,
}

struct Args<'a> {
    driver: &'a EmulatedDriver,
    kernel: Kernel,
    words: &'a [u64],
}

impl Args<'_> {
    /// A field of 4 or 8 bytes.
    ///
    /// # Panics
    /// If the struct has no such field: the model is about other kernels then.
    fn get(&self, name: &str) -> u64 {
        let layout = self.kernel.facts().args;
        let field = layout.fields.iter().find(|field| field.name == name);
        let field = field.unwrap_or_else(|| panic!("{} has no {name}", layout.name));
        let word = self.words[field.offset as usize / 8];
        if field.size == 8 { word } else { u64::from((word >> (field.offset % 8 * 8)) as u32) }
    }

    fn n(&self, name: &str) -> f64 {
        self.get(name) as f64
    }

    /// A product of fields.
    fn of(&self, names: &[&str]) -> f64 {
        names.iter().map(|name| self.n(name)).product()
    }

    fn is_host(&self, name: &str) -> bool {
        self.driver.is_host(self.get(name))
    }
}

impl Launch {
    /// A command that was recorded.
    ///
    /// # Panics
    /// If it is of a kernel that no decoded token was made of before: [`work`] is to learn it.
    pub(super) fn new(driver: &EmulatedDriver, given: &Given, sizes: &Sizes) -> Self {
        match given {
            Given::Copy(CopyCall { bytes, to_host, from_host, .. }) => {
                let bytes = *bytes as f64;
                let work = if *to_host || *from_host {
                    Work { link_bytes: bytes, link_chain: 1.0, ..Work::default() }
                } else {
                    Work { device_bytes: 2.0 * bytes, ..Work::default() }
                };
                Self { name: "copy", n_blocks: 1, kernel: None, work }
            }
            Given::Launch { kernel, grid, args } => {
                let args = Args { driver, kernel: *kernel, words: args };
                let n_blocks = grid.blocks.iter().map(|n| u64::from(*n)).product();
                let name = kernel.facts().name;
                let kernel = Some((*kernel, *grid));
                Self { name, n_blocks, kernel, work: work(name, &args, sizes) }
            }
        }
    }
}

/// Bytes of a KV row, of a kernel that has the rows' type in its name.
fn row_bytes(name: &str, head_dim: f64) -> f64 {
    if name.contains("q8") {
        return kv8::row_bytes(head_dim as usize) as f64;
    }
    2.0 * head_dim * if name.contains("f32") { 4.0 } else { 2.0 }
}

/// Bytes that x of rounded rows takes.
fn rounded_bytes(n_in: f64, planes: f64) -> f64 {
    n_in / 32.0 * (32.0 * planes + 16.0)
}

fn streamed(device_bytes: f64, in_flight: f64) -> Work {
    Work { device_bytes, in_flight, ..Work::default() }
}

fn is_product(name: &str) -> bool {
    ["norm_matvec", "matvec", "tile_product", "tile_layers"].iter().any(|s| name.starts_with(s))
}

/// Of kernels that multiply a few rows by matrices.
fn work_of_product(name: &str, a: &Args<'_>) -> Work {
    match name {
        _ if name.starts_with("norm_matvec") => {
            let rows = a.n("n_out_0") + a.n("n_out_1") + a.n("n_out_2");
            let x = a.of(&["n_rows", "n_in"]) * 4.0;
            // The squares are summed first.
            let work = streamed(rows * a.n("row_units") * 16.0 + x, 64.0);
            Work { chain: 2.0, ..work }
        }
        _ if name.starts_with("matvec") => {
            let x = a.of(&["n_rows", "n_in"]) + 2.0 * a.of(&["n_rows", "n_out"]);
            streamed(a.of(&["n_out", "row_units"]) * 16.0 + 4.0 * x, 64.0)
        }
        _ if name.starts_with("tile_product") => {
            let weight = (a.n("n_out") / 16.0).ceil() * a.n("tile_units") * 16.0;
            let x = a.n("n_rows") * rounded_bytes(a.n("n_in"), a.n("planes"));
            streamed(weight + x + 8.0 * a.of(&["n_rows", "n_out"]), 64.0)
        }
        _ => {
            let tiles: f64 =
                ["n_out_0", "n_out_1", "n_out_2"].iter().map(|n| (a.n(n) / 16.0).ceil()).sum();
            let outs = a.n("n_out_0") + a.n("n_out_1") + a.n("n_out_2");
            let bytes = tiles * a.n("tile_units") * 16.0 + 4.0 * a.n("n_in") + 8.0 * outs;
            // Each block prepares x before it multiplies: a pass of its threads is a load from
            // cache, and about as long of arithmetic on four columns a thread. The squares of a
            // norm come first, four loads at once. That weights are on their way to other blocks
            // meanwhile does not count.
            let threads = f64::from(a.kernel.facts().threads);
            let rounding = 2.0 * (a.n("n_in") / threads / 4.0).ceil();
            let is_normed = a.get("norm") != 0;
            let norm = if is_normed { 1.0 + (a.n("n_in") / threads / 4.0).ceil() } else { 0.0 };
            Work { chain: rounding + norm, ..streamed(bytes, 64.0) }
        }
    }
}

/// A step in shared memory that others wait for, or a barrier, by a load from cache. An assumption.
const SHARED_STEP: f64 = 0.25;

/// Of a step of the device cache, whose table is in shared memory or is not. A thread takes 4 slots
/// or tokens at a time.
fn work_of_look_up(name: &str, a: &Args<'_>, s: &Sizes) -> Work {
    let at_once = 4.0 * f64::from(a.kernel.facts().threads);
    let (slots, tokens) = ((a.n("n_slots") / at_once).ceil(), (s.budget / at_once).ceil());
    let step = SHARED_STEP;
    let is_large = name == "look_up_rows_large";
    let place = if is_large { 1.0 } else { step };
    // The number of clusters, the clusters and their starts come while slots are read, which is
    // done again for each chunk where there are several. Some lane of a warp goes through about 8
    // places of the table to enter a slot, and through as many to find a row, which it looks for in
    // 10 steps before. A sum over the threads is a dozen steps.
    let slots = slots * (8.0 * place + 14.0 * step) + 2.0 * (slots - 1.0).max(0.0);
    let tokens = tokens * (9.0 * place + 22.0 * step);
    let chain = 3.0 + 12.0 * step + slots + tokens;
    let table = if is_large { 4.0 * a.n("n_slots") + 8.0 * a.n("table_len") } else { 0.0 };
    let bytes = a.n("n_kv_heads") * (8.0 * a.n("n_slots") + table);
    Work { chain, ..streamed(bytes, 16.0) }
}

/// Blocks read their operands from device memory once; what comes again is in cache. Intermediate
/// results of a few KB count as device memory, though they mostly stay in the L2 cache.
fn work(name: &str, a: &Args<'_>, s: &Sizes) -> Work {
    // The kernel's file says how much a thread has under way.
    match name {
        _ if is_product(name) => work_of_product(name, a),
        "round_rows" => {
            let n_in = 32.0 * a.n("n_groups");
            streamed(4.0 * n_in + rounded_bytes(n_in, a.n("planes")), 128.0)
        }
        _ if name.starts_with("rms_norm") => {
            let work = streamed(2.0 * 4.0 * a.of(&["n_rows", "width"]), 16.0);
            Work { chain: 2.0, ..work }
        }
        "rope" => streamed(2.0 * 4.0 * a.of(&["n_tokens", "n_heads", "head_dim"]), 16.0),
        "norm_rope" => {
            let heads = a.n("n_q_heads") + a.n("n_k_heads");
            let work = streamed(2.0 * 4.0 * heads * a.of(&["n_tokens", "head_dim"]), 16.0);
            Work { chain: 2.0, ..work }
        }
        "silu_mul" | "gelu_mul" => streamed(3.0 * 4.0 * a.n("n"), 16.0),
        _ if name.starts_with("kv_scatter") => {
            let n_rows = a.of(&["n_tokens", "n_kv_heads"]);
            let row = row_bytes(name, a.n("head_dim"));
            let mut work = streamed(n_rows * 8.0 * a.n("head_dim"), 16.0);
            for (there, to) in [("rows", "dst"), ("more_rows", "more_dst")] {
                if a.get(there) == 0 {
                    continue;
                }
                // Nobody waits for what is written over the bus.
                let bytes =
                    if a.is_host(to) { &mut work.link_bytes } else { &mut work.device_bytes };
                *bytes += n_rows * row;
            }
            work
        }
        _ if name.starts_with("centroid_logits") => {
            let n = s.n_clusters.min(a.n("room"));
            let size = if name.contains("f32") { 4.0 } else { 2.0 };
            let centroids = n * a.of(&["n_kv_heads", "head_dim"]) * size;
            streamed(centroids + 4.0 * n * (a.n("n_q_heads") + a.n("n_kv_heads")), 64.0)
        }
        "centroid_pool" => {
            let n = s.n_clusters.min(a.n("room"));
            let work = streamed(4.0 * n * (a.n("n_q_heads") + 2.0 * a.n("n_kv_heads")), 16.0);
            // Each block joins the pairs of all blocks first.
            Work { chain: 4.0, ..work }
        }
        "select_clusters" => {
            let n = s.n_clusters.min(a.n("score_stride"));
            // A thread loads 8 scores and sizes at once and keeps them; where there are more, each
            // of two rounds and the collection loads them again. A round adds up 8 sizes, about two
            // lanes of a warp in the same bin, and sums over the threads; at the end up to 64
            // entries are counted, four at once.
            let chunks = (n / f64::from(a.kernel.facts().threads) / 8.0).ceil();
            let loads = if chunks > 1.0 { 3.0 * chunks } else { 1.0 };
            let steps = 2.0 * (16.0 * chunks + 14.0) + 8.0 * chunks + 32.0;
            Work { chain: 1.0 + loads + SHARED_STEP * steps, ..streamed(0.0, 64.0) }
        }
        "look_up_rows" | "look_up_rows_large" => work_of_look_up(name, a, s),
        "cluster_rows" => {
            // The number of clusters, these, and their starts and takes; then a sum over the
            // threads, and for each of a thread's rows ten steps that look for its cluster.
            let rows = (s.budget / f64::from(a.kernel.facts().threads)).ceil();
            Work { chain: 3.0 + SHARED_STEP * (12.0 + 10.0 * rows), ..streamed(0.0, 16.0) }
        }
        _ if name.starts_with("kv_gather") => {
            let unit = name.rsplit('_').next().and_then(|unit| unit.parse().ok()).unwrap_or(0.0);
            let row = a.n("row_units") * unit;
            let n_rows = s.budget.min(a.n("list_stride")) * a.n("n_kv_heads");
            if !a.is_host("src") {
                return streamed(2.0 * n_rows * row, 16.0);
            }
            // The list, then the rows.
            let work = Work { chain: 2.0, link_chain: 1.0, ..streamed(0.0, 16.0) };
            Work { missed_bytes: n_rows * row, ..work }
        }
        "attend_list_merge" => {
            let n = a.of(&["n_tokens", "n_q_heads", "n_splits"]);
            // States and the sums of 32 splits come together; a warp joins the states in two sums
            // over its lanes.
            let chain = (a.n("n_splits") / 32.0).ceil() + 12.0 * SHARED_STEP;
            Work { chain, ..streamed(n * (4.0 * a.n("head_dim") + 8.0), 128.0) }
        }
        _ if name.starts_with("attend_list") => {
            let room = a.n("room");
            let listed = a.get("rows") != 0;
            let n_rows = if listed { room.min(s.budget) } else { room };
            let kv = n_rows * a.n("n_kv_heads") * row_bytes(name, a.n("head_dim"));
            let states = a.of(&["n_tokens", "n_q_heads", "n_splits"]) * 4.0 * a.n("head_dim");
            // Four units of 16 bytes; the list comes before the rows, the queries before both.
            Work { chain: 2.0 + f64::from(u8::from(listed)), ..streamed(kv + states, 64.0) }
        }
        "lse_merge" => streamed(3.0 * 4.0 * a.of(&["n_rows", "head_dim"]), 16.0),
        "argmax_parts" => streamed(4.0 * a.n("width"), 16.0),
        "argmax_merge" => Work { chain: 2.0, ..streamed(8.0 * a.n("n_parts"), 16.0) },
        _ if name.starts_with("embed") => {
            let size = if name.ends_with("f32") { 4.0 } else { 2.0 };
            let work = streamed((size + 4.0) * a.of(&["n_tokens", "width"]), 16.0);
            Work { chain: 1.0, ..work }
        }
        _ if name.starts_with("tile_embed") => {
            Work { chain: 1.0, ..streamed(5.0 * a.of(&["n_tokens", "width"]), 16.0) }
        }
        "upload_words" => {
            Work { link_bytes: s.told_bytes, link_chain: 1.0, ..streamed(s.told_bytes, 16.0) }
        }
        _ => panic!("the model of a token does not know {name}"),
    }
}
