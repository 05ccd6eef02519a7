//! Compiled pipelines on disk, so that the next start of a program does not compile them again.
//!
//! Only Vulkan gives them to the program; other drivers keep such files themselves. A file holds
//! what the driver made, for one kind of adapter. Drivers trust it, so it has a checksum and lies
//! in a folder of this user alone (`cache_file`). Nothing depends on it: one that is missing,
//! damaged or of another driver is as none, and one that cannot be written is not written.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::cache_file::{checksum, read, write};

/// The pipelines of a device, and the file that they go to.
pub(crate) struct PipelineFile {
    pub cache: wgpu::PipelineCache,
    path: PathBuf,
    /// Checksum of what the file has.
    on_disk: AtomicU64,
}

impl PipelineFile {
    /// With what the file in `folder` has. `None` where the device gives no pipelines away.
    pub fn open(device: &wgpu::Device, info: &wgpu::AdapterInfo, folder: &Path) -> Option<Self> {
        if !device.features().contains(wgpu::Features::PIPELINE_CACHE) {
            return None;
        }
        let path = folder.join(wgpu::util::pipeline_cache_key(info)?);
        let found = read(&path);
        let on_disk = AtomicU64::new(found.as_deref().map_or(0, checksum));
        let descriptor = wgpu::PipelineCacheDescriptor {
            label: Some("pipelines"),
            data: found.as_deref(),
            // What is of another driver is not used.
            fallback: true,
        };
        // SAFETY: the bytes come from `get_data`, as far as their checksum and a folder that only
        // this user writes to can say; wgpu compares adapter and driver.
        let cache = unsafe { device.create_pipeline_cache(&descriptor) };
        Some(Self { cache, path, on_disk })
    }

    /// Writes what was compiled since.
    pub fn save(&self) {
        let Some(data) = self.cache.get_data() else { return };
        let sum = checksum(&data);
        if self.on_disk.swap(sum, Ordering::Relaxed) == sum {
            return;
        }
        // Whoever cannot write compiles again at the next start, and no more.
        if write(&self.path, &data).is_err() {
            self.on_disk.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use pollster::block_on;

    use std::fs;

    use crate::cache_file::read;
    use crate::testing::{self, Folder};
    use crate::{WgpuBackend, WgpuOptions};

    /// Needs an adapter, as `tests/backend.rs` does.
    #[test]
    fn a_device_keeps_its_pipelines_and_starts_with_a_damaged_file_too() {
        if testing::none_is_promised() {
            return;
        }
        let folder = Folder::new("device");
        let options =
            WgpuOptions { pipeline_folder: Some(folder.0.clone()), ..WgpuOptions::default() };
        let open = || block_on(WgpuBackend::new(&options)).expect("an adapter");
        let backend = open();
        let path = backend.gpu.pipelines.as_ref().map(|pipelines| pipelines.path.clone());
        drop(backend);
        // Other drivers keep such files themselves.
        let Some(path) = path else { return testing::not_run("no pipelines are given away") };
        // Mesa's software device gives a header alone, and keeps kernels in files of its own.
        assert!(read(&path).is_some());
        let first = fs::read(&path).expect("what was written");
        drop(open());
        assert!(fs::read(&path).is_ok_and(|second| second == first), "nothing new");
        fs::write(&path, &first[..first.len() / 2]).unwrap();
        drop(open());
        assert!(read(&path).is_some(), "written anew");
    }
}
