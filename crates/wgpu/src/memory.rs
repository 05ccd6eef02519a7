//! How much memory an adapter has: WebGPU does not say, the driver below it may.

/// Bytes of the largest heap that is the device's own, whether free or not; `None` where the driver
/// is not asked (Metal, DX12, browsers). A device that shares the host's memory has one heap: that.
#[cfg(any(target_os = "linux", target_os = "android", target_os = "windows"))]
pub(crate) fn device_bytes(adapter: &wgpu::Adapter) -> Option<u64> {
    /// `VK_MEMORY_HEAP_DEVICE_LOCAL_BIT`.
    const DEVICE_LOCAL: u32 = 1;
    // SAFETY: the handle is asked one question, and `adapter` keeps it alive meanwhile.
    let vulkan = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
    let instance = vulkan.shared_instance().raw_instance();
    // SAFETY: the physical device belongs to this instance.
    let memory =
        unsafe { instance.get_physical_device_memory_properties(vulkan.raw_physical_device()) };
    let heaps = memory.memory_heaps_as_slice().iter();
    heaps.filter(|heap| heap.flags.as_raw() & DEVICE_LOCAL != 0).map(|heap| heap.size).max()
}

/// As above, where nobody is asked.
#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "windows")))]
pub(crate) fn device_bytes(_: &wgpu::Adapter) -> Option<u64> {
    None
}
