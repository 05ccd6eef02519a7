//! A program with a CUDA context of its own that uses the CUDA backend, on the stand-in of the
//! driver library (`driver/libcuda.cpp`), which the loader must find first. Says what is wrong, and
//! else how many calls of the driver were looked at.

#![expect(clippy::print_stdout, reason = "a program of a test: its answer")]

use std::error::Error;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};

use longview_core::DType;
use longview_cuda::{
    CopyCall, CudaBackend, CudaOptions, Driver, DriverError, Grid, Kernel, KernelCall, Memory,
    NvidiaDriver, Place, Work,
};
use longview_ops::{Backend, View, ViewMut};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// Error codes of the driver.
const OUT_OF_MEMORY: c_int = 2;
const ALREADY_MAPPED: c_int = 208;
const ILLEGAL_ADDRESS: c_int = 700;

/// The part of the stand-in that is for tests.
struct StandIn(libloading::Library);

impl StandIn {
    fn open() -> Outcome<Self> {
        // SAFETY: the loader finds the stand-in, which does nothing at its start; a driver of
        // NVIDIA lacks what is asked for next.
        let library = unsafe { libloading::Library::new("libcuda.so") }?;
        Ok(Self(library))
    }

    /// Calls a function without arguments.
    fn ask<T>(&self, name: &str) -> Outcome<T> {
        // SAFETY: the functions that are asked for here take nothing and return such a value.
        unsafe { Ok(self.0.get::<unsafe extern "C" fn() -> T>(name.as_bytes())?()) }
    }

    fn fail(&self, call: &str, with: c_int) -> Outcome {
        let call = CString::new(call)?;
        // SAFETY: the signature is that of the stand-in.
        unsafe {
            let fail = self.0.get::<unsafe extern "C" fn(*const c_char, c_int)>(b"lv_fail")?;
            fail(call.as_ptr(), with);
        }
        Ok(())
    }
}

/// Whose context has to be current after each call.
struct Caller {
    stand_in: StandIn,
    /// Null for a caller without a context.
    context: *mut c_void,
    depth: usize,
}

impl Caller {
    /// Fails if another context is current than before.
    fn look(&self, after: &str) -> Outcome {
        let current: *mut c_void = self.stand_in.ask("lv_current")?;
        let depth: usize = self.stand_in.ask("lv_depth")?;
        if (current, depth) == (self.context, self.depth) {
            return Ok(());
        }
        Err(format!("after {after} another context is current ({depth} deep)").into())
    }

    /// What `f` gives, with a look at the context behind it.
    fn does<T>(&self, what: &str, f: impl FnOnce() -> T) -> Outcome<T> {
        let result = f();
        self.look(what)?;
        Ok(result)
    }

    /// Has a call of the driver fail in `f`, which has to say so.
    fn fails<T>(
        &self,
        call: &str,
        with: c_int,
        f: impl FnOnce() -> Result<T, DriverError>,
    ) -> Outcome<DriverError> {
        self.stand_in.fail(call, with)?;
        let result = self.does(&format!("{call} failed"), f)?;
        if !self.stand_in.ask::<bool>("lv_has_failed")? {
            return Err(format!("{call} was never called").into());
        }
        result.err().ok_or_else(|| format!("{call} failed and nobody was told").into())
    }
}

fn main() -> Outcome {
    for has_context in [false, true] {
        let stand_in = StandIn::open()?;
        if has_context {
            stand_in.ask::<*mut c_void>("lv_new_context")?;
        }
        let (context, depth) = (stand_in.ask("lv_current")?, stand_in.ask("lv_depth")?);
        let caller = Caller { stand_in, context, depth };
        opens_and_refuses(&caller)?;
        works(&caller)?;
        serves_a_backend(&caller)?;
        if has_context {
            caller.stand_in.ask::<()>("lv_leave_context")?;
        }
        println!("{} calls", caller.stand_in.ask::<c_uint>("lv_n_calls")?);
    }
    Ok(())
}

fn open() -> Result<NvidiaDriver, Box<dyn Error>> {
    Ok(NvidiaDriver::open(&CudaOptions::default())?)
}

/// Whatever goes wrong while a device is opened, nothing is left behind.
fn opens_and_refuses(caller: &Caller) -> Outcome {
    let calls = ["cuCtxCreate_v2", "cuCtxPushCurrent_v2", "cuStreamCreate", "cuDeviceGetName"];
    for call in calls {
        caller.stand_in.fail(call, OUT_OF_MEMORY)?;
        if caller.does(call, || NvidiaDriver::open(&CudaOptions::default()).is_ok())? {
            return Err(format!("{call} failed and the device opened").into());
        }
    }
    // What a kernel did stays with the process.
    caller.stand_in.fail("cuCtxCreate_v2", ILLEGAL_ADDRESS)?;
    let opened = caller.does("open", || NvidiaDriver::open(&CudaOptions::default()))?;
    let words = opened.err().map(|error| error.to_string()).unwrap_or_default();
    if !words.contains("start the program again") {
        return Err(format!("what to do after a fault is not said: {words}").into());
    }
    let driver = caller.does("open", open)??;
    caller.does("reopen", || driver.reopen().map(drop))??;
    caller.does("drop of the driver", || drop(driver))?;
    Ok(())
}

/// The bytes of the arguments of a kernel; the stand-in does not look at them.
fn args_of(kernel: Kernel) -> Vec<u64> {
    vec![0; (kernel.facts().args.size as usize).div_ceil(8)]
}

/// Every call of the driver, right and refused.
fn works(caller: &Caller) -> Outcome {
    let driver = open()?;
    let device = caller.does("alloc", || driver.alloc(100))??;
    let mut host = caller.does("alloc_host", || driver.alloc_host(100_000_000))??;
    let zeros = |memory: &dyn Fn(&[u8]) -> bool, bytes: Option<&[u8]>| bytes.is_some_and(memory);
    if !zeros(&|bytes| bytes.iter().all(|byte| *byte == 0), host.host_bytes()) {
        return Err("pinned memory does not begin as zeros".into());
    }
    let refused = caller.fails("cuMemAlloc_v2", OUT_OF_MEMORY, || driver.alloc(100))?;
    // Windows says the second one where no more can be pinned.
    for with in [OUT_OF_MEMORY, ALREADY_MAPPED] {
        let of_host = caller.fails("cuMemHostAlloc", with, || driver.alloc_host(100))?;
        if (&refused, &of_host) != (&DriverError::OutOfMemory, &DriverError::OutOfMemory) {
            return Err(format!("not out of memory, but {refused} and {of_host}").into());
        }
    }
    caller.fails("cuMemsetD8Async", ILLEGAL_ADDRESS, || driver.alloc(100))?;
    let stream = caller.does("new_stream", || driver.new_stream())??;
    caller.fails("cuStreamCreate", OUT_OF_MEMORY, || driver.new_stream())?;
    let event = caller.does("new_event", || driver.new_event())??;
    caller.fails("cuEventCreate", OUT_OF_MEMORY, || driver.new_event())?;

    host.host_bytes_mut().ok_or("host memory without bytes")?[..8].fill(7);
    let copy = CopyCall::new(&Place::new(&device, 0), &Place::new(&host, 0), 8);
    let back = CopyCall::new(&Place::new(&host, 8), &Place::new(&device, 0), 8);
    let args = args_of(Kernel::silu_mul);
    let bytes: Vec<u8> = args.iter().flat_map(|word| word.to_ne_bytes()).collect();
    // As the stream has them: at a word.
    let n = Kernel::silu_mul.facts().args.size as usize;
    // SAFETY: words are bytes.
    let aligned = unsafe { std::slice::from_raw_parts(args.as_ptr().cast::<u8>(), n) };
    debug_assert_eq!(bytes[..n], *aligned);
    let call = KernelCall { kernel: Kernel::silu_mul, grid: Grid::over(1, 1), args: aligned };
    let (copy, back, launch) = (Work::Copy(copy), Work::Copy(back), Work::Launch(call));
    // SAFETY: copies lie in both memories; kernels do nothing here.
    unsafe {
        for work in [copy, launch, back] {
            caller.does("run", || driver.run(&stream, work))??;
        }
        caller.fails("cuMemcpyAsync", ILLEGAL_ADDRESS, || driver.run(&stream, copy))?;
        caller.fails("cuLaunchKernel", ILLEGAL_ADDRESS, || driver.run(&stream, launch))?;
        let other = KernelCall { kernel: Kernel::gelu_mul, ..call };
        let first = || driver.run(&stream, Work::Launch(other));
        for call in ["cuModuleLoadData", "cuModuleGetFunction", "cuFuncSetAttribute"] {
            caller.fails(call, ILLEGAL_ADDRESS, first)?;
        }
        if host.host_bytes().is_none_or(|bytes| bytes[8..16] != [7; 8]) {
            return Err("copies did not go there and back".into());
        }
        let new = || driver.new_graph(&[call, other]);
        for call in ["cuGraphCreate", "cuGraphAddKernelNode_v2", "cuGraphInstantiateWithFlags"] {
            caller.fails(call, OUT_OF_MEMORY, new)?;
        }
        let mut graph = caller.does("new_graph", new)??;
        caller.does("set_node", || driver.set_node(&mut graph, 1, other))??;
        let update = "cuGraphExecKernelNodeSetParams_v2";
        caller.fails(update, OUT_OF_MEMORY, || driver.set_node(&mut graph, 1, other))?;
        caller.does("launch_graph", || driver.launch_graph(&stream, &mut graph))??;
        let launch = || driver.launch_graph(&stream, &mut graph);
        caller.fails("cuGraphLaunch", ILLEGAL_ADDRESS, launch)?;
        caller.does("drop of a graph", || drop(graph))?;
    }
    caller.does("record", || driver.record(&stream, &event))??;
    caller.fails("cuEventRecord", ILLEGAL_ADDRESS, || driver.record(&stream, &event))?;
    caller.does("wait", || driver.wait(&stream, &event))??;
    caller.fails("cuStreamWaitEvent", ILLEGAL_ADDRESS, || driver.wait(&stream, &event))?;
    caller.does("synchronize_event", || driver.synchronize_event(&event))??;
    let waits = || driver.synchronize_event(&event);
    caller.fails("cuEventSynchronize", ILLEGAL_ADDRESS, waits)?;
    caller.does("synchronize", || driver.synchronize(&stream))??;
    caller.fails("cuStreamSynchronize", ILLEGAL_ADDRESS, || driver.synchronize(&stream))?;
    // Every call enters the context first.
    caller.fails("cuCtxPushCurrent_v2", ILLEGAL_ADDRESS, || driver.synchronize(&stream))?;
    caller.does("drop of a stream", || drop(stream))?;
    caller.does("drop of an event", || drop(event))?;
    caller.does("drop of device memory", || drop(device))?;
    // A context that broke: nothing is freed, and nothing is left behind.
    caller.stand_in.fail("cuCtxSynchronize", ILLEGAL_ADDRESS)?;
    caller.does("drop of host memory", || drop(host))?;
    caller.does("drop of the driver", || drop(driver))
}

/// Bytes that are written and read.
const LONG: usize = 16 << 10;

/// The backend above it.
fn serves_a_backend(caller: &Caller) -> Outcome {
    let backend = caller.does("the backend", || CudaBackend::on(open()?).map_err(Box::from))?;
    let backend = backend.map_err(|e: Box<dyn Error>| e)?;
    let is_integrated = std::env::var_os("LONGVIEW_STAND_IN_INTEGRATED").is_some();
    let capabilities = backend.capabilities();
    if capabilities.unified_memory != is_integrated {
        return Err(format!("unified memory: {}", capabilities.unified_memory).into());
    }
    // The driver says 1 MiB; of memory that is the host's the system says more.
    let is_little = capabilities.memory_bytes.is_some_and(|bytes| bytes <= 1 << 20);
    if cfg!(target_os = "linux") && is_little == is_integrated {
        return Err(format!("memory for planning: {:?}", capabilities.memory_bytes).into());
    }
    // A limit is said in words, and everything goes on.
    caller.stand_in.fail("cuMemHostAlloc", ALREADY_MAPPED)?;
    let refused = caller.does("alloc_host", || backend.alloc_host(DType::F32, 4, "rows"))?;
    let message = refused.err().map(|error| error.to_string()).unwrap_or_default();
    if !message.contains("rows in pinned host memory") || backend.is_lost() {
        return Err(format!("pinned memory that is refused is told as '{message}'").into());
    }
    // So long that it is a copy: the stand-in runs no kernel, and short ones are brought by one.
    let mut buffer = caller.does("alloc", || backend.alloc(DType::F32, LONG / 4, "x"))??;
    caller.does("write", || backend.write(ViewMut::all(&mut buffer), &[5; LONG]))??;
    let mut out = [0; LONG];
    let read = || pollster::block_on(backend.read(View::all(&buffer), &mut out));
    caller.does("read", read)??;
    if out != [5; LONG] {
        return Err(format!("wrote fives, read {:?}", &out[..16]).into());
    }
    caller.does("drop of the backend", || drop((buffer, backend)))
}
