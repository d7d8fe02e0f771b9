//! A GPU through NVIDIA's driver, which is loaded when it is first asked for: a machine without one
//! starts the same program.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use hone_cuda::{Driver, KERNELS, Launch, Launches, Limits, Repeats};
use hone_nn::DeviceError;

/// The kernels, compiled by build.rs: machine code for the architectures it names, and PTX that
/// the driver compiles for newer ones.
static IMAGE: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/kernels.fatbin")));

/// As the driver reads it.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

/// What all orders of a GPU share.
struct Gpu {
    name: String,
    context: sys::CUcontext,
    kernels: HashMap<&'static str, sys::CUfunction>,
    limits: Limits,
    /// Whether a kernel may begin while the one before it ends.
    overlaps: bool,
}

/// Launches that the driver has prepared.
struct Graph(sys::CUgraphExec);

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: nobody has it any more; the driver waits for what runs of it. A device that failed
        // keeps it; nothing can be done.
        let _ = unsafe { result::graph::exec_destroy(self.0) };
    }
}

/// A GPU, and an order in which it computes.
pub(super) struct Nvidia {
    gpu: Arc<Gpu>,
    /// What is computed, in order.
    compute: sys::CUstream,
    /// Copies beside it.
    copies: sys::CUstream,
    /// Where graphs are recorded; nothing is ever computed there.
    recording: sys::CUstream,
    /// Lists of launches that come again.
    graphs: Mutex<Repeats<Graph>>,
}

/// Which of two orders goes first where both have something to do.
#[derive(Clone, Copy)]
enum Rank {
    First,
    Second,
}

// SAFETY: the driver's handles may be used from any thread that has the context, and every call
// here makes it current first.
unsafe impl Send for Nvidia {}
// SAFETY: as above; the driver's own calls are thread-safe.
unsafe impl Sync for Nvidia {}
// SAFETY: as above.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

/// A call failed that a thread with the context made; also where what it needs beside has no memory.
fn failed(doing: &'static str) -> impl FnOnce(DriverError) -> DeviceError {
    move |error| match error.0 {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => DeviceError::Memory {
            what: doing.to_owned(),
            needed: 0,
            free: result::mem_get_info().map_or(0, |(free, _)| free as u64),
        },
        _ => DeviceError::Failed {
            doing,
            why: error.to_string(),
        },
    }
}

fn none(error: DriverError) -> DeviceError {
    DeviceError::None(error.to_string())
}

impl Nvidia {
    /// The device of that number.
    pub(super) fn open(number: i32) -> Result<Self, DeviceError> {
        // SAFETY: only looks whether the driver's library can be loaded.
        if !unsafe { sys::is_culib_present() } {
            return Err(DeviceError::None(
                "NVIDIA's driver library libcuda.so was not found".to_owned(),
            ));
        }
        result::init().map_err(none)?;
        if result::device::get_count().map_err(none)? <= number {
            return Err(DeviceError::None("the driver shows no device".to_owned()));
        }
        let device = result::device::get(number).map_err(none)?;
        let name = result::device::get_name(device).map_err(none)?;
        let doing = "starting";
        // SAFETY: the device exists; the context, the module and its functions live as long as the
        // process; the image is a fat binary of nvcc, and the names are those of its kernels.
        unsafe {
            let context = result::primary_ctx::retain(device).map_err(failed(doing))?;
            result::ctx::set_current(context).map_err(failed(doing))?;
            let loading = "loading the kernels";
            let module = result::module::load_data(IMAGE.0.as_ptr().cast());
            let module = module.map_err(|error| match error.0 {
                sys::CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU => DeviceError::Unsupported(format!(
                    "{name} cannot run the kernels: they need compute capability 8.0 or newer"
                )),
                _ => failed(loading)(error),
            })?;
            use sys::CUdevice_attribute_enum as Has;
            let has = |what| result::device::get_attribute(device, what).map_err(failed(doing));
            let most = has(Has::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
            let limits = Limits {
                processors: has(Has::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.cast_unsigned(),
                room: has(Has::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?
                    .cast_unsigned(),
                cache: u64::from(has(Has::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?.cast_unsigned()),
            };
            let mut kernels = HashMap::new();
            for kernel in KERNELS {
                let symbol = CString::new(*kernel).map_err(|error| DeviceError::Failed {
                    doing,
                    why: error.to_string(),
                })?;
                let function = result::module::get_function(module, symbol);
                let function = function.map_err(failed(loading))?;
                if kernel.starts_with("stream_") {
                    // What it has itself counts as well.
                    let own = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES;
                    let own = result::function::get_function_attribute(function, own);
                    let own = own.map_err(failed(loading))?;
                    let asked = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
                    result::function::set_function_attribute(function, asked, most - own)
                        .map_err(failed(loading))?;
                }
                kernels.insert(*kernel, function);
            }
            let major = has(Has::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
            let gpu = Gpu {
                name,
                context,
                kernels,
                limits,
                overlaps: major >= 9,
            };
            Self::ordered(Arc::new(gpu), Rank::First)
        }
    }

    /// An order of launches and one of copies.
    fn ordered(gpu: Arc<Gpu>, rank: Rank) -> Result<Self, DeviceError> {
        gpu.here()?;
        let doing = "starting";
        let kind = || result::stream::StreamKind::NonBlocking;
        let range = result::stream::get_priority_range();
        let (least, greatest) = range.map_err(failed(doing))?;
        let priority = match rank {
            Rank::First => greatest,
            Rank::Second => least,
        };
        let ranked = || result::stream::create_with_priority(kind(), priority);
        let compute = ranked().map_err(failed(doing))?;
        let recording = ranked().map_err(failed(doing))?;
        let copies = result::stream::create(kind()).map_err(failed(doing))?;
        Ok(Self {
            gpu,
            compute,
            copies,
            recording,
            graphs: Mutex::default(),
        })
    }

    /// Records launches as the driver's own list, ready to be started.
    fn graph(&self, launches: &Launches) -> Result<Graph, DeviceError> {
        let preparing = "preparing launches";
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the streams live as long as this order; the lock on its graphs keeps others from
        // recording meanwhile, and what was recorded is destroyed here.
        unsafe {
            result::stream::begin_capture(self.recording, mode).map_err(failed(preparing))?;
            let mut each = launches.iter();
            let recorded = each.try_for_each(|launch| self.start(&launch, self.recording));
            let graph = result::stream::end_capture(self.recording).map_err(failed(preparing))?;
            let ready = recorded.and_then(|()| {
                let flags = sys::CUgraphInstantiate_flags(0);
                result::graph::instantiate(graph, flags).map_err(failed(preparing))
            });
            let _ = result::graph::destroy(graph);
            let ready = Graph(ready?);
            // Lack of memory for it shows here.
            result::graph::upload(ready.0, self.compute).map_err(failed(preparing))?;
            Ok(ready)
        }
    }

    /// Starts a kernel on a stream.
    ///
    /// # Safety
    /// As for [`Driver::launch`].
    unsafe fn start(&self, launch: &Launch, stream: sys::CUstream) -> Result<(), DeviceError> {
        let doing = "launching a kernel";
        let function = self.gpu.kernels.get(launch.kernel);
        let function = *function.ok_or_else(|| DeviceError::Failed {
            doing,
            why: format!("there is no {}", launch.kernel),
        })?;
        let mut params: [*mut c_void; 1] = [launch.args.cast_mut()];
        // SAFETY: numbers, of which 0 are valid.
        let mut overlap: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
        overlap.id =
            sys::CUlaunchAttributeID_enum::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        overlap.value.programmaticStreamSerializationAllowed = 1;
        let [x, y, z] = launch.grid;
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: launch.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: launch.room,
            hStream: stream,
            attrs: &raw mut overlap,
            numAttrs: u32::from(self.gpu.overlaps),
        };
        // SAFETY: the caller vouches for the argument, which the driver copies.
        unsafe {
            let none = std::ptr::null_mut();
            sys::cuLaunchKernelEx(&raw const config, function, params.as_mut_ptr(), none).result()
        }
        .map_err(failed(doing))
    }

    /// Makes the calling thread able to call.
    fn here(&self) -> Result<(), DeviceError> {
        self.gpu.here()
    }
}

impl Gpu {
    fn here(&self) -> Result<(), DeviceError> {
        // SAFETY: the context lives as long as the process.
        unsafe { result::ctx::set_current(self.context) }.map_err(failed("taking up a thread"))
    }
}

impl Drop for Nvidia {
    fn drop(&mut self) {
        if self.here().is_ok() {
            for stream in [self.compute, self.copies, self.recording] {
                // SAFETY: it was made for this order alone, which nobody uses any more. A device
                // that failed keeps it; nothing can be done.
                let _ = unsafe { result::stream::destroy(stream) };
            }
        }
    }
}

// SAFETY: memory is the driver's own.
unsafe impl Driver for Nvidia {
    fn name(&self) -> String {
        self.gpu.name.clone()
    }

    fn second(&self) -> Result<Arc<dyn Driver>, DeviceError> {
        Ok(Arc::new(Self::ordered(self.gpu.clone(), Rank::Second)?))
    }

    fn wait(&self) -> Result<(), DeviceError> {
        self.here()?;
        // SAFETY: the stream lives as long as this order.
        unsafe { result::stream::synchronize(self.compute) }.map_err(failed("computing"))
    }

    fn limits(&self) -> Limits {
        self.gpu.limits
    }

    fn memory(&self) -> Result<(u64, u64), DeviceError> {
        self.here()?;
        let (free, total) = result::mem_get_info().map_err(failed("asking for its memory"))?;
        Ok((free as u64, total as u64))
    }

    fn alloc(&self, bytes: usize) -> Result<u64, DeviceError> {
        let (free, _) = self.memory()?;
        let full = |error: DriverError| match error.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => DeviceError::Memory {
                what: "a buffer".to_owned(),
                needed: bytes as u64,
                free,
            },
            _ => failed("taking memory")(error),
        };
        // SAFETY: the new memory is as long as what is set in it.
        unsafe {
            let at = result::malloc_sync(bytes).map_err(full)?;
            let cleared = result::memset_d8_async(at, 0, bytes, self.copies)
                .and_then(|()| result::stream::synchronize(self.copies));
            cleared.map_err(|error| {
                self.free(at);
                failed("clearing memory")(error)
            })?;
            Ok(at)
        }
    }

    unsafe fn free(&self, at: u64) {
        if self.here().is_ok() {
            // SAFETY: the caller vouches for it. A device that failed keeps it; nothing can be done.
            let _ = unsafe { result::free_sync(at) };
        }
    }

    unsafe fn write(&self, to: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.here()?;
        // SAFETY: the caller vouches for the memory. The driver copies pageable memory before it
        // returns, so `bytes` may change afterwards.
        unsafe { result::memcpy_htod_async(to, bytes, self.compute) }
            .map_err(failed("copying to it"))
    }

    unsafe fn clear(&self, at: u64, bytes: usize) -> Result<(), DeviceError> {
        self.here()?;
        // SAFETY: the caller vouches for the memory.
        unsafe { result::memset_d8_async(at, 0, bytes, self.compute) }
            .map_err(failed("clearing memory"))
    }

    unsafe fn fill(&self, to: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.here()?;
        // SAFETY: the caller vouches for the memory.
        unsafe {
            result::memcpy_htod_async(to, bytes, self.copies).map_err(failed("copying to it"))?;
            result::stream::synchronize(self.copies).map_err(failed("copying to it"))
        }
    }

    unsafe fn read(&self, from: u64, to: &mut [u8]) -> Result<(), DeviceError> {
        self.here()?;
        // SAFETY: the caller vouches for the memory, and it is waited for.
        unsafe {
            result::memcpy_dtoh_async(to, from, self.compute).map_err(failed("copying from it"))?;
            result::stream::synchronize(self.compute).map_err(failed("computing"))
        }
    }

    unsafe fn launch(&self, launch: &Launch) -> Result<(), DeviceError> {
        self.here()?;
        // SAFETY: the caller vouches for it.
        unsafe { self.start(launch, self.compute) }
    }

    unsafe fn launch_all(&self, launches: &Launches) -> Result<(), DeviceError> {
        self.here()?;
        let mut graphs = self.graphs.lock().unwrap_or_else(PoisonError::into_inner);
        // Where none can be made it goes without, only slower.
        let told = |error: &DeviceError| tracing::debug!(%error, "launches start one by one");
        let make = || self.graph(launches).inspect_err(told).ok();
        let Some(graph) = graphs.prepared(launches, make) else {
            let mut each = launches.iter();
            // SAFETY: the caller vouches for each.
            return each.try_for_each(|launch| unsafe { self.start(&launch, self.compute) });
        };
        // SAFETY: both live as long as this order.
        unsafe { result::graph::launch(graph.0, self.compute) }.map_err(failed("starting launches"))
    }
}
