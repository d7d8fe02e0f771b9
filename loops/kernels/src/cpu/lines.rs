//! What vectors lie in: lines of sixteen values, buffers of lines, and memory for weights.
#![allow(unsafe_code)]

/// Lanes in one vector; panels, rows and reductions are all counted in this unit.
pub const LANES: usize = 16;

/// Sixteen f32 values on a cache line of their own.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Line(pub [f32; LANES]);

/// Sixteen bf16 values (the upper halves of f32 bits).
#[repr(C, align(32))]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HalfLine(pub [u16; LANES]);

/// A cache-line aligned buffer of f32 that only grows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Buf {
    lines: Vec<Line>,
}

impl Buf {
    /// A buffer of zeros for `floats` values (rounded up to whole lines).
    pub fn zeros(floats: usize) -> Self {
        Self {
            lines: vec![Line([0.0; LANES]); floats.div_ceil(LANES)],
        }
    }

    /// Grows to hold `floats` values and one more line, which whole-vector reads of the last row
    /// may touch. Old content is kept.
    pub fn take(&mut self, floats: usize) -> &mut [f32] {
        let lines = floats.div_ceil(LANES) + 1;
        if self.lines.len() < lines {
            self.lines.resize(lines, Line([0.0; LANES]));
        }
        &mut self.as_mut()[..lines * LANES]
    }

    /// Memory it holds.
    pub fn bytes(&self) -> usize {
        self.lines.capacity() * size_of::<Line>()
    }

    pub fn as_slice(&self) -> &[f32] {
        // SAFETY: `Line` is repr(C) over [f32; 16], so the lines are contiguous f32 values.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.lines.len() * LANES) }
    }
}

impl AsMut<[f32]> for Buf {
    fn as_mut(&mut self) -> &mut [f32] {
        floats_of(&mut self.lines)
    }
}

/// The numbers of lines.
pub fn floats_of(lines: &mut [Line]) -> &mut [f32] {
    // SAFETY: as in `Buf::as_slice`, and the borrow is exclusive.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * LANES) }
}

/// Bytes of a large page, where the system has them.
pub const LARGE_PAGE: usize = 2 << 20;

/// An empty vector for `n` weights, on large pages where it is long and the system has them: weights
/// are read from end to end, and every page has to be found.
pub fn room_for<T>(n: usize) -> Vec<T> {
    let room = Vec::with_capacity(n);
    #[cfg(target_os = "linux")]
    {
        let start = room.as_ptr() as usize;
        let (first, end) = (
            start.next_multiple_of(LARGE_PAGE),
            start + n * size_of::<T>(),
        );
        if first < end {
            // SAFETY: advice on pages inside the vector's own memory. That it is not taken is no fault.
            unsafe { libc::madvise(first as *mut _, end - first, libc::MADV_HUGEPAGE) };
        }
    }
    room
}

/// `n` copies of a weight, see [`room_for`].
pub fn copies_of<T: Copy>(weight: T, n: usize) -> Vec<T> {
    let mut copies = room_for(n);
    copies.resize(n, weight);
    copies
}

/// Rounds a row length up to whole lines.
pub const fn padded(n: usize) -> usize {
    n.next_multiple_of(LANES)
}
