//! The real device: [`Driver`] over libcuda, which is loaded at run time.
//!
//! cudarc's thin layer is used, call by call: its safe one tracks events for every slice, which is
//! what a graph cannot capture. The library is probed before the first call, because cudarc panics
//! where it is missing; and only calls that the driver of [`NEEDED`] has are made.
//!
//! A context of its own, not the primary one: it can be destroyed and made again after a fault,
//! while buffers of the old one still wait to be dropped.

mod context;
mod cublaslt;
mod lt_functions;
mod refusal;
mod zeros;

use std::ffi::{CString, c_int, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock};

use cudarc::driver::sys::{
    self, CUDA_KERNEL_NODE_PARAMS, CUdevice_attribute, CUevent, CUevent_flags, CUfunction,
    CUfunction_attribute, CUgraph, CUgraphExec, CUgraphNode, CUmodule, CUresult, CUstream,
};
use cudarc::driver::{DriverError as CudaError, result};

use self::context::Context;
use self::cublaslt::CublasLt;
use self::refusal::{in_words, told};
use crate::driver::{
    CopyCall, DeviceFacts, Driver, DriverError, DriverResult, KernelCall, Memory, ProductCall, Work,
};
use crate::error::StartError;
use crate::kernels::{Kernel, SOURCES};
use crate::lock::lock;
use crate::options::CudaOptions;
use crate::target::Target;

/// The CUDA that speaks the embedded PTX: 12.1.
const NEEDED: c_int = 12_010;

/// Portable, mapped, and not write-combined: the host reads it too.
const HOST_FLAGS: u32 = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;

/// A GPU of NVIDIA.
pub struct NvidiaDriver {
    /// Dropped in the context that it was made in.
    library: Result<CublasLt, String>,
    context: Arc<Context>,
    options: CudaOptions,
    facts: DeviceFacts,
    target: Target,
    /// What zeroes new memory.
    zeroing: NvidiaStream,
    /// By file, loaded when a kernel of it is first launched.
    modules: Mutex<Vec<Option<CUmodule>>>,
    /// By kernel.
    functions: Vec<OnceLock<Function>>,
}

// SAFETY: handles of modules belong to the context, which any thread may use.
unsafe impl Send for NvidiaDriver {}
// SAFETY: as above, and the table of modules is behind a lock.
unsafe impl Sync for NvidiaDriver {}

impl Drop for NvidiaDriver {
    fn drop(&mut self) {
        // What the library frees is in this context.
        let _entered = self.context.enter();
        self.library = Err(String::new());
    }
}

struct Function(CUfunction);

// SAFETY: a function is launched from any thread whose current context is that of its module.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// A stream.
pub struct NvidiaStream {
    raw: CUstream,
    context: Arc<Context>,
}

// SAFETY: the driver takes calls on one stream from several threads, in some order.
unsafe impl Send for NvidiaStream {}
// SAFETY: as above.
unsafe impl Sync for NvidiaStream {}

/// An event.
pub struct NvidiaEvent {
    raw: CUevent,
    context: Arc<Context>,
}

// SAFETY: as for streams.
unsafe impl Send for NvidiaEvent {}
// SAFETY: as for streams.
unsafe impl Sync for NvidiaEvent {}

/// Device memory, or pinned host memory with the same address on both sides.
pub struct NvidiaMemory {
    address: u64,
    len: u64,
    is_host: bool,
    context: Arc<Context>,
}

/// A chain of nodes.
pub struct NvidiaGraph {
    raw: CUgraph,
    /// What is launched; null until it is whole.
    exec: CUgraphExec,
    nodes: Vec<CUgraphNode>,
    context: Arc<Context>,
}

// SAFETY: a graph is used by one thread at a time, whichever it is.
unsafe impl Send for NvidiaGraph {}

/// What a refusal of pinned memory is. Systems give a program less of it than there is, and say so
/// in many ways: Windows maps it into the GPU's space, where it has no place left. None of them
/// breaks the context; one that is broken says so at the next call.
fn refusal_of_pinned(error: CudaError) -> DriverError {
    match error.0 {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY
        | CUresult::CUDA_ERROR_INVALID_VALUE
        | CUresult::CUDA_ERROR_MAP_FAILED
        | CUresult::CUDA_ERROR_ALREADY_MAPPED
        | CUresult::CUDA_ERROR_OPERATING_SYSTEM
        | CUresult::CUDA_ERROR_NOT_SUPPORTED => DriverError::OutOfMemory,
        _ => DriverError::Lost(in_words(error)),
    }
}

/// Whether a new context is refused with what a kernel did before in this process. Such an error
/// stays with the process, whatever contexts it destroys: so says CUDA's document of these errors,
/// and so did an H100 (driver 580).
fn is_of_a_fault(error: CUresult) -> bool {
    matches!(
        error,
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
            | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
            | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUresult::CUDA_ERROR_INVALID_PC
            | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUresult::CUDA_ERROR_LAUNCH_FAILED
            | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
            | CUresult::CUDA_ERROR_ASSERT
    )
}

impl NvidiaDriver {
    /// Opens a device. Never panics where there is no driver.
    pub fn open(options: &CudaOptions) -> Result<Self, StartError> {
        // SAFETY: loads libcuda by its name, as every CUDA program does.
        if !unsafe { sys::is_culib_present() } {
            return Err(StartError::NoDriver);
        }
        check_version()?;
        let no_device = |e| StartError::NoDevice { reason: in_words(e) };
        result::init().map_err(no_device)?;
        let n_devices = result::device::get_count().map_err(no_device)?.max(0) as usize;
        if n_devices == 0 {
            return Err(StartError::NoDevice { reason: "it counts none".into() });
        }
        let wanted = options.device.unwrap_or(0);
        if wanted >= n_devices {
            return Err(StartError::NoSuchDevice { wanted, n_devices });
        }
        let refused = |e| StartError::Device { reason: in_words(e) };
        let device = result::device::get(wanted as c_int).map_err(refused)?;
        let (mut facts, target) = facts_of(device)?;
        facts.n_multiprocessors = options.n_multiprocessors.unwrap_or(facts.n_multiprocessors);
        let context = Context::create(device).map_err(|error| {
            if is_of_a_fault(error.0) {
                StartError::AfterFault { reason: in_words(error) }
            } else {
                refused(error)
            }
        })?;
        let context = Arc::new(context);
        let refused = |e: DriverError| StartError::Device { reason: e.to_string() };
        let _entered = context.enter().map_err(refused)?;
        // Before memory is counted: what the library takes for itself is not to be planned with.
        let library = if options.own_products {
            Err("this device was opened to go without".into())
        } else {
            CublasLt::open()
        };
        // What other programs hold is not ours to plan with.
        let free = result::mem_get_info().map(|(free, _)| free as u64).ok();
        let free = if facts.unified_memory { free.max(available_memory()) } else { free };
        let zeroing = NvidiaStream::new(&context).map_err(refused)?;
        Ok(Self {
            library,
            options: *options,
            facts: DeviceFacts { memory_bytes: free, ..facts },
            target,
            zeroing,
            modules: Mutex::new(vec![None; SOURCES.len()]),
            functions: Kernel::ALL.iter().map(|_| OnceLock::new()).collect(),
            context,
        })
    }

    /// The kernel's function; its file is loaded the first time, which is in the warm-up.
    fn function(&self, kernel: Kernel) -> DriverResult<CUfunction> {
        let place = &self.functions[kernel as usize];
        if let Some(function) = place.get() {
            return Ok(function.0);
        }
        let module = self.module(kernel.source())?;
        let name = CString::new(kernel.facts().name)
            .map_err(|_| DriverError::Lost("a kernel's name has a zero in it".into()))?;
        // SAFETY: the module is loaded in the current context and is never unloaded before it.
        let function = told(unsafe { result::module::get_function(module, name) })?;
        self.allow_shared_memory(function)?;
        Ok(place.get_or_init(|| Function(function)).0)
    }

    /// Adds a node after the last one; the context must be current.
    ///
    /// # Safety
    /// As for [`Driver::run`], whenever the graph is launched.
    unsafe fn add_node(&self, graph: &mut NvidiaGraph, call: &KernelCall<'_>) -> DriverResult<()> {
        let before = graph.nodes.last().map_or(ptr::null(), ptr::from_ref);
        let n_before = usize::from(!before.is_null());
        let mut node: CUgraphNode = ptr::null_mut();
        let mut params = [call.args.as_ptr().cast_mut().cast::<c_void>()];
        let params = self.node_params(call, &mut params)?;
        let raw = graph.raw;
        // SAFETY: the graph exists, the node before is one of it, and the parameters are copied.
        let result =
            unsafe { sys::cuGraphAddKernelNode_v2(&mut node, raw, before, n_before, &params) };
        told(result.result())?;
        graph.nodes.push(node);
        Ok(())
    }

    /// A launch as a node; `params` points to its arguments.
    fn node_params(
        &self,
        call: &KernelCall<'_>,
        params: &mut [*mut c_void; 1],
    ) -> DriverResult<CUDA_KERNEL_NODE_PARAMS> {
        let [x, y, z] = call.grid.blocks;
        Ok(CUDA_KERNEL_NODE_PARAMS {
            func: self.function(call.kernel)?,
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: call.kernel.facts().threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: call.grid.dynamic_shared,
            kernelParams: params.as_mut_ptr(),
            extra: ptr::null_mut(),
            kern: ptr::null_mut(),
            ctx: ptr::null_mut(),
        })
    }

    fn module(&self, source: usize) -> DriverResult<CUmodule> {
        let mut modules = lock(&self.modules);
        if let Some(module) = modules[source] {
            return Ok(module);
        }
        let source_file = &SOURCES[source];
        let ptx = CString::new(source_file.ptx(self.target))
            .map_err(|_| DriverError::Lost("PTX with a zero in it".into()))?;
        // SAFETY: the image is PTX that ends with a zero.
        let module = unsafe { result::module::load_data(ptx.as_ptr().cast()) };
        let module = module.map_err(|e| match e.0 {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => DriverError::OutOfMemory,
            _ => DriverError::Lost(format!("kernels/{}.cu: {}", source_file.stem, in_words(e))),
        })?;
        modules[source] = Some(module);
        Ok(module)
    }

    /// Dynamic shared memory up to what the device has: beyond 48 KiB a function must ask for it.
    fn allow_shared_memory(&self, function: CUfunction) -> DriverResult<()> {
        use CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN as MOST;
        use CUfunction_attribute::{
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as DYNAMIC,
            CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES as FIXED,
        };
        let device = told(result::device::get(self.options.device.unwrap_or(0) as c_int))?;
        // SAFETY: device and function are valid, and the attributes are of their kind.
        unsafe {
            let most = told(result::device::get_attribute(device, MOST))?;
            let fixed = told(result::function::get_function_attribute(function, FIXED))?;
            told(result::function::set_function_attribute(function, DYNAMIC, most - fixed))
        }
    }
}

/// Fails for a driver that does not speak the embedded PTX.
fn check_version() -> Result<(), StartError> {
    let mut version = 0;
    // SAFETY: writes one integer; the call is as old as the driver interface.
    let answer = unsafe { sys::cuDriverGetVersion(&mut version) }.result();
    answer.map_err(|e| StartError::Device { reason: in_words(e) })?;
    if version >= NEEDED {
        return Ok(());
    }
    let in_words = |version: c_int| format!("{}.{}", version / 1000, version % 1000 / 10);
    Err(StartError::DriverTooOld { found: in_words(version), needed: in_words(NEEDED) })
}

fn facts_of(device: sys::CUdevice) -> Result<(DeviceFacts, Target), StartError> {
    use CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
        CU_DEVICE_ATTRIBUTE_INTEGRATED as INTEGRATED,
        CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN as SHARED,
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as MULTIPROCESSORS,
    };
    let refused = |e| StartError::Device { reason: in_words(e) };
    let name = result::device::get_name(device).map_err(refused)?;
    // SAFETY: the device is valid and the attributes are of devices.
    let get = |attribute| unsafe { result::device::get_attribute(device, attribute) };
    let get = |attribute| get(attribute).map(|n| n.max(0) as u32).map_err(refused);
    let compute_capability = (get(MAJOR)?, get(MINOR)?);
    let n_multiprocessors = get(MULTIPROCESSORS)?;
    let Some(target) = Target::of(compute_capability) else {
        let in_words = |(major, minor): (u32, u32)| format!("{major}.{minor}");
        return Err(StartError::DeviceTooOld {
            name,
            found: in_words(compute_capability),
            needed: in_words(Target::ALL[0].capability()),
        });
    };
    let unified_memory = get(INTEGRATED)? != 0;
    let facts = DeviceFacts {
        name,
        compute_capability,
        n_multiprocessors,
        unified_memory,
        memory_bytes: None,
        shared_bytes: get(SHARED)?,
    };
    Ok((facts, target))
}

/// What the system could give, where Linux tells. A driver whose device shares the host's memory
/// counts the page cache as used, which is all of a model's file once it was read.
fn available_memory() -> Option<u64> {
    available_in(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

/// The bytes in the line of MemAvailable, which counts in units of 1,024.
fn available_in(meminfo: &str) -> Option<u64> {
    let rest = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    rest.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

impl NvidiaStream {
    /// The context must be current.
    fn new(context: &Arc<Context>) -> DriverResult<Self> {
        // It never waits for the stream that everybody shares.
        let raw = told(result::stream::create(result::stream::StreamKind::NonBlocking))?;
        Ok(Self { raw, context: Arc::clone(context) })
    }
}

impl Drop for NvidiaStream {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: the stream exists, and is used no more; the driver finishes its work first.
            let _ = unsafe { result::stream::destroy(self.raw) };
        }
    }
}

impl NvidiaGraph {
    /// An empty one; the context must be current.
    fn new(context: &Arc<Context>) -> DriverResult<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is written on success.
        told(unsafe { sys::cuGraphCreate(&mut raw, 0) }.result())?;
        let context = Arc::clone(context);
        Ok(Self { raw, exec: ptr::null_mut(), nodes: Vec::new(), context })
    }
}

impl Drop for NvidiaGraph {
    fn drop(&mut self) {
        // It may still run.
        let Ok(_entered) = self.context.synchronize() else { return };
        // SAFETY: both were made by the calls that go with these, and are used no more.
        unsafe {
            if !self.exec.is_null() {
                let _ = sys::cuGraphExecDestroy(self.exec);
            }
            let _ = sys::cuGraphDestroy(self.raw);
        }
    }
}

impl Drop for NvidiaEvent {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: the event exists and is used no more; work that waits for it still does.
            let _ = unsafe { result::event::destroy(self.raw) };
        }
    }
}

impl Drop for NvidiaMemory {
    fn drop(&mut self) {
        // Where the context is broken its memory is gone already.
        let Ok(_entered) = self.context.synchronize() else { return };
        // SAFETY: the memory was made by the call that goes with this one, all work that may use
        // it is done, and nobody has the address any more.
        let _ = unsafe {
            if self.is_host {
                result::free_host(self.address as *mut c_void)
            } else {
                result::free_sync(self.address)
            }
        };
    }
}

impl Memory for NvidiaMemory {
    fn address(&self) -> u64 {
        self.address
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn host_bytes(&self) -> Option<&[u8]> {
        // SAFETY: pinned memory of that length, written when it was made; work that writes it is
        // finished, as the caller promises.
        let bytes =
            || unsafe { std::slice::from_raw_parts(self.address as *const u8, self.len as usize) };
        self.is_host.then(bytes)
    }

    fn host_bytes_mut(&mut self) -> Option<&mut [u8]> {
        // SAFETY: as above, and nobody else on the host has the memory.
        let bytes = || unsafe {
            std::slice::from_raw_parts_mut(self.address as *mut u8, self.len as usize)
        };
        self.is_host.then(bytes)
    }
}

impl Driver for NvidiaDriver {
    const NAME: &'static str = "cuda";

    type Memory = NvidiaMemory;
    type Stream = NvidiaStream;
    type Event = NvidiaEvent;
    type Graph = NvidiaGraph;

    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    fn reopen(&self) -> Result<Self, StartError> {
        Self::open(&self.options)
    }

    fn alloc(&self, bytes: u64) -> DriverResult<NvidiaMemory> {
        let _entered = self.context.enter()?;
        // SAFETY: a plain allocation in the current context.
        let address = told(unsafe { result::malloc_sync(bytes as usize) })?;
        let context = Arc::clone(&self.context);
        let memory = NvidiaMemory { address, len: bytes, is_host: false, context };
        // SAFETY: the memory has that length, and nobody else has it yet.
        told(unsafe { result::memset_d8_async(address, 0, bytes as usize, self.zeroing.raw) })?;
        self.synchronize(&self.zeroing)?;
        Ok(memory)
    }

    fn alloc_host(&self, bytes: u64) -> DriverResult<NvidiaMemory> {
        let _entered = self.context.enter()?;
        // With one address space for both sides, the host's address is the kernels' too.
        // SAFETY: a plain allocation in the current context.
        let host = unsafe { result::malloc_host(bytes as usize, HOST_FLAGS) };
        let host = host.map_err(refusal_of_pinned)?;
        // SAFETY: the memory has that length, and nobody else has it yet.
        zeros::fill(unsafe { std::slice::from_raw_parts_mut(host.cast(), bytes as usize) });
        let context = Arc::clone(&self.context);
        Ok(NvidiaMemory { address: host as u64, len: bytes, is_host: true, context })
    }

    fn new_stream(&self) -> DriverResult<NvidiaStream> {
        let _entered = self.context.enter()?;
        NvidiaStream::new(&self.context)
    }

    fn new_event(&self) -> DriverResult<NvidiaEvent> {
        let _entered = self.context.enter()?;
        let raw = told(result::event::create(CUevent_flags::CU_EVENT_DISABLE_TIMING))?;
        Ok(NvidiaEvent { raw, context: Arc::clone(&self.context) })
    }

    unsafe fn run(&self, stream: &NvidiaStream, work: Work<'_>) -> DriverResult<()> {
        let _entered = self.context.enter()?;
        let call = match work {
            Work::Launch(call) => call,
            Work::Copy(CopyCall { to, from, bytes, .. }) => {
                // SAFETY: the caller's word; the driver sees by the addresses which side is which.
                let result = unsafe { sys::cuMemcpyAsync(to, from, bytes as usize, stream.raw) };
                return told(result.result());
            }
        };
        let function = self.function(call.kernel)?;
        let [x, y, z] = call.grid.blocks;
        let threads = call.kernel.facts().threads;
        let shared = call.grid.dynamic_shared;
        let mut params = [call.args.as_ptr().cast_mut().cast::<c_void>()];
        // SAFETY: the one parameter is a struct of the size that the kernel declares, which the
        // driver copies; what its addresses point to is the caller's promise.
        told(unsafe {
            result::launch_kernel(
                function,
                (x, y, z),
                (threads, 1, 1),
                shared,
                stream.raw,
                &mut params,
            )
        })
    }

    unsafe fn new_graph(&self, calls: &[KernelCall<'_>]) -> DriverResult<NvidiaGraph> {
        let _entered = self.context.enter()?;
        let mut graph = NvidiaGraph::new(&self.context)?;
        for call in calls {
            // SAFETY: the caller's word.
            unsafe { self.add_node(&mut graph, call)? };
        }
        let mut exec = ptr::null_mut();
        // SAFETY: the graph is whole, and `exec` is written on success.
        told(unsafe { sys::cuGraphInstantiateWithFlags(&mut exec, graph.raw, 0) }.result())?;
        graph.exec = exec;
        Ok(graph)
    }

    unsafe fn set_node(
        &self,
        graph: &mut NvidiaGraph,
        i: usize,
        call: KernelCall<'_>,
    ) -> DriverResult<()> {
        let _entered = self.context.enter()?;
        let mut params = [call.args.as_ptr().cast_mut().cast::<c_void>()];
        let params = self.node_params(&call, &mut params)?;
        let (exec, node) = (graph.exec, graph.nodes[i]);
        // SAFETY: the node is one of this graph, of a kernel; arguments are copied.
        told(unsafe { sys::cuGraphExecKernelNodeSetParams_v2(exec, node, &params) }.result())
    }

    unsafe fn launch_graph(
        &self,
        stream: &NvidiaStream,
        graph: &mut NvidiaGraph,
    ) -> DriverResult<()> {
        let _entered = self.context.enter()?;
        // SAFETY: both exist; what the nodes point to is the caller's word.
        told(unsafe { sys::cuGraphLaunch(graph.exec, stream.raw) }.result())
    }

    fn library(&self) -> Result<(), String> {
        self.library.as_ref().map(drop).map_err(Clone::clone)
    }

    fn takes_product(&self, call: &ProductCall) -> bool {
        let entered = self.context.enter();
        entered.is_ok() && self.library.as_ref().is_ok_and(|library| library.takes(call))
    }

    unsafe fn multiply(&self, stream: &NvidiaStream, call: &ProductCall) -> DriverResult<()> {
        let _entered = self.context.enter()?;
        let library = self.library.as_ref().map_err(|e| DriverError::Lost(e.clone()))?;
        // A stream of the driver is one of the runtime. SAFETY: the caller's word.
        let result = unsafe { library.multiply(stream.raw.cast(), call) };
        let refused = || Err("cublasLtMatmul: there is no kernel for this product".into());
        result.unwrap_or_else(refused).map_err(DriverError::Lost)
    }

    fn record(&self, stream: &NvidiaStream, event: &NvidiaEvent) -> DriverResult<()> {
        let _entered = self.context.enter()?;
        // SAFETY: both exist as long as these values.
        told(unsafe { result::event::record(event.raw, stream.raw) })
    }

    fn wait(&self, stream: &NvidiaStream, event: &NvidiaEvent) -> DriverResult<()> {
        use sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        let _entered = self.context.enter()?;
        // SAFETY: both exist as long as these values.
        told(unsafe { result::stream::wait_event(stream.raw, event.raw, CU_EVENT_WAIT_DEFAULT) })
    }

    fn synchronize_event(&self, event: &NvidiaEvent) -> DriverResult<()> {
        let _entered = self.context.enter()?;
        // SAFETY: the event exists as long as this value.
        told(unsafe { result::event::synchronize(event.raw) })
    }

    fn synchronize(&self, stream: &NvidiaStream) -> DriverResult<()> {
        let _entered = self.context.enter()?;
        // SAFETY: the stream exists as long as this value.
        told(unsafe { result::stream::synchronize(stream.raw) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_found_among_the_lines_of_the_system() {
        let text = "MemTotal:       128000000 kB\nMemFree:         1000 kB\n\
                    MemAvailable:    115655000 kB\nCached:  9 kB\n";
        assert_eq!(available_in(text), Some(115_655_000 * 1024));
        assert_eq!(available_in("MemFree: 1 kB\n"), None);
        assert_eq!(available_in("MemAvailable: many kB\n"), None);
    }

    /// Whatever this machine has: an answer, and no panic.
    #[test]
    fn a_machine_without_a_driver_is_told_so() {
        match NvidiaDriver::open(&CudaOptions::default()) {
            Ok(driver) => assert!(driver.facts().compute_capability >= (7, 5)),
            Err(error) => assert!(error.to_string().contains("device"), "{error}"),
        }
    }
}
