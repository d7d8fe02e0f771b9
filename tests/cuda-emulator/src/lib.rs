//! A device that is the processor: the same kernels, compiled by its own C++ compiler, one thread
//! after the other. It shows on any machine that the kernels and all that launches them are right;
//! it is far too slow to serve. It ships in no program but the bench. The tests of `hone-cuda` itself include this
//! file by path.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int, c_void};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use sha2::{Digest, Sha256};

use hone_cuda::{Driver, Launch, Launches, Limits, Repeats};
use hone_nn::DeviceError;

/// The sources, by file name.
const SOURCES: [(&str, &str); 14] = [
    ("emulator.cpp", include_str!("emulator.cpp")),
    ("emulator.h", include_str!("emulator.h")),
    (
        "kernels.cu",
        include_str!("../../../loops/cuda/src/kernels/kernels.cu"),
    ),
    (
        "common.cuh",
        include_str!("../../../loops/cuda/src/kernels/common.cuh"),
    ),
    (
        "linear.cuh",
        include_str!("../../../loops/cuda/src/kernels/linear.cuh"),
    ),
    (
        "rows.cuh",
        include_str!("../../../loops/cuda/src/kernels/rows.cuh"),
    ),
    (
        "cut.cuh",
        include_str!("../../../loops/cuda/src/kernels/cut.cuh"),
    ),
    (
        "sample.cuh",
        include_str!("../../../loops/cuda/src/kernels/sample.cuh"),
    ),
    (
        "attention.cuh",
        include_str!("../../../loops/cuda/src/kernels/attention.cuh"),
    ),
    (
        "attention_back.cuh",
        include_str!("../../../loops/cuda/src/kernels/attention_back.cuh"),
    ),
    (
        "backward.cuh",
        include_str!("../../../loops/cuda/src/kernels/backward.cuh"),
    ),
    (
        "experts.cuh",
        include_str!("../../../loops/cuda/src/kernels/experts.cuh"),
    ),
    (
        "loss.cuh",
        include_str!("../../../loops/cuda/src/kernels/loss.cuh"),
    ),
    (
        "stream.cuh",
        include_str!("../../../loops/cuda/src/kernels/stream.cuh"),
    ),
];
/// Follows every piece of memory, to see whether a kernel wrote beyond it.
const GUARD: [u8; 64] = [0xa5; 64];
/// What the emulated device has.
const MEMORY: u64 = 4 << 30;

type Emulate = unsafe extern "C" fn(*const c_char, *const u32, u32, *const c_void, c_int) -> c_int;

/// An emulated device.
#[derive(Clone)]
pub struct Emulator {
    emulate: Emulate,
    memory: Arc<Mutex<HashMap<u64, Box<[u64]>>>>,
    /// Bytes of all memory.
    total: Arc<AtomicU64>,
    /// Threads and blocks run from the last to the first.
    reverse: Arc<AtomicBool>,
    /// No kernel runs any more.
    broken: Arc<AtomicBool>,
    /// Launches that fail before the next one runs.
    failing: Arc<AtomicU64>,
    /// Lists that came again run from their copies, as a GPU's do.
    repeats: Arc<Mutex<Repeats<Launches>>>,
}

/// One kernel runs at a time in the whole process: threads are coroutines on global state.
static RUNNING: Mutex<()> = Mutex::new(());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Emulator {
    /// Compiles the kernels, unless that was done before, and loads them.
    ///
    /// # Errors
    /// There is no C++ compiler, or it refuses the kernels.
    pub fn new() -> Result<Self, DeviceError> {
        static LOADED: OnceLock<Result<Emulate, DeviceError>> = OnceLock::new();
        let loaded = LOADED.get_or_init(|| compiled().and_then(|path| load(&path)));
        Ok(Self {
            emulate: loaded.clone()?,
            memory: Arc::default(),
            total: Arc::new(AtomicU64::new(MEMORY)),
            reverse: Arc::default(),
            broken: Arc::default(),
            failing: Arc::default(),
            repeats: Arc::default(),
        })
    }

    /// Runs threads and blocks in the other order from now on. A kernel whose results depend on it
    /// lacks a barrier.
    pub fn turn_around(&self) {
        self.reverse.fetch_xor(true, Ordering::Relaxed);
    }

    /// Has so many bytes of memory free from now on, as where others take or leave the rest.
    pub fn leave(&self, bytes: u64) {
        self.total.store(self.used() + bytes, Ordering::Relaxed);
    }

    /// Fails whatever it is asked to compute, or works again.
    pub fn fail(&self, fails: bool) {
        self.broken.store(fails, Ordering::Relaxed);
    }

    /// Fails the next launches, so many.
    pub fn fail_times(&self, launches: u64) {
        self.failing.store(launches, Ordering::Relaxed);
    }

    fn used(&self) -> u64 {
        let used: usize = lock(&self.memory).values().map(|m| m.len() * 8).sum();
        used as u64
    }
}

fn failed(doing: &'static str, why: &dyn std::fmt::Display) -> DeviceError {
    let why = why.to_string();
    DeviceError::Failed { doing, why }
}

/// What tells the compiler that this processor multiplies and adds in one step, where it must be told.
fn fused() -> Option<&'static str> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("fma") {
        return Some("-mfma");
    }
    None
}

/// The library of these sources, made once and kept beside the tests.
fn compiled() -> Result<PathBuf, DeviceError> {
    const DOING: &str = "compiling the kernels for the processor";
    let mut hash = Sha256::new();
    for (name, text) in SOURCES {
        hash.update(name);
        hash.update(text);
    }
    hash.update(fused().unwrap_or_default());
    let hash: String = hash.finalize()[..8]
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    let program = std::env::current_exe().map_err(|e| failed(DOING, &e))?;
    let folder = program.parent().unwrap_or(Path::new(".")).join("kernels");
    let library = folder.join(format!("{hash}.so"));
    if library.exists() {
        return Ok(library);
    }
    let own = folder.join(format!("{hash}-{}", std::process::id()));
    fs::create_dir_all(&own).map_err(|e| failed(DOING, &e))?;
    for (name, text) in SOURCES {
        fs::write(own.join(name), text).map_err(|e| failed(DOING, &e))?;
    }
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let output = own.join("kernels.so");
    // Products and sums are fused where a kernel says so and nowhere else.
    let ran = Command::new(&compiler)
        .args(["-std=c++17", "-O2", "-ffp-contract=off", "-fPIC", "-shared"])
        // Memory of a block is read as what lies in it, and threads leave each other's stacks.
        .args(["-fno-strict-aliasing", "-U_FORTIFY_SOURCE"])
        .args(fused())
        .args([
            "-DHONE_EMULATOR",
            "-Wall",
            "-Werror",
            "-Wno-unknown-pragmas",
        ])
        .arg(own.join("emulator.cpp"))
        .arg("-o")
        .arg(&output)
        .output()
        .map_err(|e| failed(DOING, &format!("{compiler}: {e}")))?;
    if !ran.status.success() {
        return Err(failed(DOING, &String::from_utf8_lossy(&ran.stderr)));
    }
    // Another process may have been faster; its library is the same.
    fs::rename(&output, &library).map_err(|e| failed(DOING, &e))?;
    // What is left over does no harm.
    let _ = fs::remove_dir_all(&own);
    Ok(library)
}

fn load(path: &Path) -> Result<Emulate, DeviceError> {
    const DOING: &str = "loading the kernels for the processor";
    let path = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|e| failed(DOING, &e))?;
    // SAFETY: the library was compiled from our sources; it stays loaded for ever, and the symbol
    // has the declared form.
    unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        if library.is_null() {
            let why = std::ffi::CStr::from_ptr(libc::dlerror());
            return Err(failed(DOING, &why.to_string_lossy()));
        }
        let symbol = libc::dlsym(library, c"hone_emulate".as_ptr());
        if symbol.is_null() {
            return Err(failed(DOING, &"hone_emulate is missing"));
        }
        Ok(std::mem::transmute::<*mut c_void, Emulate>(symbol))
    }
}

// SAFETY: memory is kept in the map until it is freed.
unsafe impl Driver for Emulator {
    fn name(&self) -> String {
        "emulated on the processor".to_owned()
    }

    fn second(&self) -> Result<Arc<dyn Driver>, DeviceError> {
        // What is launched has run when its call returns, so there is no order to keep apart.
        Ok(Arc::new(self.clone()))
    }

    fn wait(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn limits(&self) -> Limits {
        // Those of a large device.
        Limits {
            processors: 132,
            room: 228 << 10,
            cache: 50 << 20,
        }
    }

    fn memory(&self) -> Result<(u64, u64), DeviceError> {
        let total = self.total.load(Ordering::Relaxed);
        Ok((total.saturating_sub(self.used()), total))
    }

    fn alloc(&self, bytes: usize) -> Result<u64, DeviceError> {
        // Sixteen-byte loads need such an alignment; the guard begins right after the last byte.
        let words = (bytes + GUARD.len() + 16).div_ceil(8) + 2;
        let (free, _) = self.memory()?;
        if words as u64 * 8 > free {
            let (what, needed) = ("a buffer".to_owned(), bytes as u64);
            return Err(DeviceError::Memory { what, needed, free });
        }
        let mut piece = vec![0u64; words].into_boxed_slice();
        let start = piece.as_mut_ptr() as u64;
        let at = start.next_multiple_of(16);
        // SAFETY: the piece is long enough for both.
        unsafe {
            let guard = (at as *mut u8).add(bytes);
            std::ptr::copy_nonoverlapping(GUARD.as_ptr(), guard, GUARD.len());
            // The length stands in the last word.
            piece[words - 1] = bytes as u64;
        }
        lock(&self.memory).insert(at, piece);
        Ok(at)
    }

    unsafe fn free(&self, at: u64) {
        let piece = lock(&self.memory)
            .remove(&at)
            .expect("memory is freed once");
        let bytes = piece[piece.len() - 1] as usize;
        let start = at as usize - piece.as_ptr() as usize;
        // SAFETY: the piece holds its guard, see `alloc`.
        let guard = unsafe {
            std::slice::from_raw_parts(piece.as_ptr().cast::<u8>().add(start + bytes), GUARD.len())
        };
        if !std::thread::panicking() {
            assert!(guard == GUARD, "a kernel wrote beyond {bytes} bytes");
        }
    }

    unsafe fn write(&self, to: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        // SAFETY: the caller vouches for the memory.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to as *mut u8, bytes.len()) };
        Ok(())
    }

    unsafe fn clear(&self, at: u64, bytes: usize) -> Result<(), DeviceError> {
        // SAFETY: the caller vouches for the memory.
        unsafe { std::ptr::write_bytes(at as *mut u8, 0, bytes) };
        Ok(())
    }

    unsafe fn fill(&self, to: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        // SAFETY: the same contract.
        unsafe { self.write(to, bytes) }
    }

    unsafe fn read(&self, from: u64, to: &mut [u8]) -> Result<(), DeviceError> {
        // SAFETY: the caller vouches for the memory.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    unsafe fn launch(&self, launch: &Launch) -> Result<(), DeviceError> {
        let one_less = |left: u64| left.checked_sub(1);
        let fails = self
            .failing
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less)
            .is_ok();
        if fails || self.broken.load(Ordering::Relaxed) {
            return Err(failed("running a kernel", &"it has stopped working"));
        }
        let name = CString::new(launch.kernel).map_err(|e| failed("naming a kernel", &e))?;
        let reverse = c_int::from(self.reverse.load(Ordering::Relaxed));
        let running = lock(&RUNNING);
        // SAFETY: the caller vouches for the argument.
        let code = unsafe {
            let grid = launch.grid.as_ptr();
            (self.emulate)(name.as_ptr(), grid, launch.block, launch.args, reverse)
        };
        drop(running);
        let why = match code {
            0 => return Ok(()),
            1 => "there is no such kernel",
            _ => "its threads wait for what never comes",
        };
        Err(failed(
            "running a kernel",
            &format!("{}: {why}", launch.kernel),
        ))
    }

    unsafe fn launch_all(&self, launches: &Launches) -> Result<(), DeviceError> {
        let copy = lock(&self.repeats)
            .prepared(launches, || Some(launches.clone()))
            .cloned();
        for launch in copy.as_ref().unwrap_or(launches).iter() {
            // SAFETY: the caller vouches for each.
            unsafe { self.launch(&launch)? };
        }
        Ok(())
    }
}
