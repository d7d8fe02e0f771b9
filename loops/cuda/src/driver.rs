//! What a device has to be able to do, and memory on it.
#![allow(unsafe_code)]

use std::sync::Arc;

use super::launches::{Launch, Launches, Size};
use hone_nn::DeviceError;

/// What a device has.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Processors, each of which computes some blocks at a time.
    pub processors: u32,
    /// Bytes of a processor's own memory, which its blocks share.
    pub room: u32,
    /// Bytes of the cache that all share.
    pub cache: u64,
}

/// A device: memory, and kernels that run in the order they are launched.
///
/// Copies and launches of one driver are in one order; those of its [`Driver::second`] are in
/// another.
///
/// # Safety
/// Memory that [`Driver::alloc`] returned is valid until it is freed.
pub unsafe trait Driver: Send + Sync {
    /// What the device is called.
    fn name(&self) -> String;

    /// The same device and memory with an order of launches of its own, that gives way to this one
    /// wherever both have something to do.
    ///
    /// # Errors
    /// The device failed.
    fn second(&self) -> Result<Arc<dyn Driver>, DeviceError>;

    /// What it has.
    fn limits(&self) -> Limits;

    /// Bytes of free and of all memory.
    fn memory(&self) -> Result<(u64, u64), DeviceError>;

    /// Zeroed memory.
    fn alloc(&self, bytes: usize) -> Result<u64, DeviceError>;

    /// Gives memory back.
    ///
    /// # Safety
    /// `at` came from [`Driver::alloc`] and nothing uses it any more.
    unsafe fn free(&self, at: u64);

    /// Copies to the device, after everything launched before.
    ///
    /// # Safety
    /// The device's memory holds that many bytes.
    unsafe fn write(&self, to: u64, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Sets bytes to 0, after everything launched before.
    ///
    /// # Safety
    /// The device's memory holds that many bytes.
    unsafe fn clear(&self, at: u64, bytes: usize) -> Result<(), DeviceError>;

    /// Copies to memory that no launched kernel uses, from any thread and beside the launches.
    ///
    /// # Safety
    /// As for [`Driver::write`], and nothing uses that memory yet.
    unsafe fn fill(&self, to: u64, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Waits for everything launched before and copies from the device.
    ///
    /// # Safety
    /// The device's memory holds that many bytes.
    unsafe fn read(&self, from: u64, to: &mut [u8]) -> Result<(), DeviceError>;

    /// Waits for everything launched before.
    ///
    /// # Errors
    /// The device failed.
    fn wait(&self) -> Result<(), DeviceError>;

    /// Starts a kernel.
    ///
    /// # Safety
    /// The argument is the struct that the kernel takes, and its pointers are valid for what the
    /// kernel does with them.
    unsafe fn launch(&self, launch: &Launch) -> Result<(), DeviceError>;

    /// Starts kernels one after the other. A list that comes again may be prepared.
    ///
    /// # Safety
    /// As for [`Driver::launch`].
    unsafe fn launch_all(&self, launches: &Launches) -> Result<(), DeviceError> {
        for launch in launches.iter() {
            // SAFETY: the caller vouches for each.
            unsafe { self.launch(&launch)? };
        }
        Ok(())
    }
}

/// Memory of a device, given back when dropped.
pub(super) struct Buffer {
    driver: Arc<dyn Driver>,
    at: u64,
    bytes: usize,
}

impl Buffer {
    /// Zeroed memory of at least `bytes` bytes.
    pub(super) fn zeroed(driver: &Arc<dyn Driver>, bytes: usize) -> Result<Self, DeviceError> {
        let bytes = bytes.max(16);
        Ok(Self {
            driver: Arc::clone(driver),
            at: driver.alloc(bytes)?,
            bytes,
        })
    }

    /// Memory that holds `values`.
    pub(super) fn holding<T: Plain>(
        driver: &Arc<dyn Driver>,
        values: &[T],
    ) -> Result<Self, DeviceError> {
        let bytes = as_bytes(values);
        let buffer = Self::zeroed(driver, bytes.len())?;
        // SAFETY: the buffer is new and as long as the values.
        unsafe { driver.fill(buffer.at, bytes)? };
        Ok(buffer)
    }

    pub(super) fn at(&self) -> u64 {
        self.at
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Replaces the first values, in the order of launches.
    pub(super) fn write<T: Plain>(&self, values: &[T]) -> Result<(), DeviceError> {
        let bytes = as_bytes(values);
        assert!(bytes.len() <= self.bytes, "buffer too short");
        // SAFETY: the length was checked.
        unsafe { self.driver.write(self.at, bytes) }
    }

    /// Sets bytes from `from` on to 0, in the order of launches.
    pub(super) fn clear_at(&self, from: usize, bytes: usize) -> Result<(), DeviceError> {
        assert!(from + bytes <= self.bytes, "buffer too short");
        // SAFETY: the length was checked.
        unsafe { self.driver.clear(self.at + from as u64, bytes) }
    }

    /// Sets values from index `first` on that nothing uses yet.
    pub(super) fn fill_at<T: Plain>(&self, first: usize, values: &[T]) -> Result<(), DeviceError> {
        let bytes = as_bytes(values);
        let from = first * size_of::<T>();
        assert!(from + bytes.len() <= self.bytes, "buffer too short");
        // SAFETY: the length was checked.
        unsafe { self.driver.fill(self.at + from as u64, bytes) }
    }

    /// Reads values, from byte `from` on.
    pub(super) fn read<T: Plain>(&self, from: usize, to: &mut [T]) -> Result<(), DeviceError> {
        let bytes = size_of_val(to);
        assert!(from + bytes <= self.bytes, "buffer too short");
        // SAFETY: the values are plain bytes of which any are valid; the length was checked.
        unsafe {
            let bytes = std::slice::from_raw_parts_mut(to.as_mut_ptr().cast(), bytes);
            self.driver.read(self.at + from as u64, bytes)
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: it was allocated by this driver, and its owner is gone.
        unsafe { self.driver.free(self.at) }
    }
}

/// Memory that grows on demand; what it held is lost then.
#[derive(Default)]
pub(super) struct Growing(Option<Buffer>);

impl Growing {
    /// At least `bytes` bytes. Where there are not so many it has as many as before again, so that
    /// what was reserved stays so.
    pub(super) fn take(
        &mut self,
        driver: &Arc<dyn Driver>,
        bytes: usize,
    ) -> Result<&Buffer, DeviceError> {
        if self.0.as_ref().is_none_or(|buffer| buffer.bytes() < bytes) {
            // The old one goes first, so that both need not fit. Some room is left, so that what
            // grows by little stays where it is.
            let before = self.0.take().map_or(0, |buffer| buffer.bytes());
            let step = 1 << (bytes.max(4_096).ilog2() - 3);
            let larger = Buffer::zeroed(driver, bytes.next_multiple_of(step));
            if larger.is_err() && before > 0 {
                // Another may have been faster; then the next pass asks for it.
                self.0 = Buffer::zeroed(driver, before).ok();
            }
            self.0 = Some(larger?);
        }
        Ok(self.0.as_ref().expect("set above"))
    }
}

/// Gives out a piece of memory from its start on.
#[derive(Default)]
pub(super) struct Cut(pub(super) u64);

impl Cut {
    /// Room for so many numbers of four bytes.
    pub(super) fn floats(&mut self, count: usize) -> u64 {
        let at = self.0;
        self.0 += (count * size_of::<f32>()).next_multiple_of(256) as u64;
        at
    }
}

/// Values without padding or pointers of this machine.
///
/// # Safety
/// Every byte of a value is initialised.
pub(super) unsafe trait Plain: Copy {}
// SAFETY: numbers.
unsafe impl Plain for u8 {}
// SAFETY: numbers.
unsafe impl Plain for u16 {}
// SAFETY: numbers.
unsafe impl Plain for u32 {}
// SAFETY: numbers.
unsafe impl Plain for f32 {}
// SAFETY: repr(C), and every gap is a field.
unsafe impl Plain for super::args::Linear {}
// SAFETY: as above.
unsafe impl Plain for super::args::Draw {}
// SAFETY: as above.
unsafe impl Plain for super::args::LossRow {}
// SAFETY: as above, and any bits are a value.
unsafe impl Plain for super::args::Drawn {}

/// Starts a kernel; `args` is the struct that it takes, over buffers of the sizes it names.
pub(super) fn launch<T>(
    driver: &dyn Driver,
    kernel: &'static str,
    size: impl Into<Size>,
    args: &T,
) -> Result<(), DeviceError> {
    let Size { grid, block, room } = size.into();
    let launch = Launch {
        kernel,
        grid,
        block,
        room,
        args: std::ptr::from_ref(args).cast(),
    };
    // SAFETY: the callers in this folder pass the struct of the kernel they name, and buffers that
    // they sized for it.
    unsafe { driver.launch(&launch) }
}

/// Starts recorded kernels.
pub(super) fn start(driver: &dyn Driver, launches: &Launches) -> Result<(), DeviceError> {
    // SAFETY: as for `launch`.
    unsafe { driver.launch_all(launches) }
}

fn as_bytes<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: see `Plain`.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}
