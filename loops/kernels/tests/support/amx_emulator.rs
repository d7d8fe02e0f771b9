//! Executes the instructions for tiles, and the dot products of bytes of AVX-VNNI, where the processor does
//! not: the signal of an unknown instruction decodes it, does what Intel's manual says, and goes on
//! behind it. So the very code that ships runs in tests everywhere.

use std::cell::{Cell, UnsafeCell};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hone_kernels::cpu::amx;

static INSTALLED: AtomicBool = AtomicBool::new(false);

pub(crate) fn installed() -> bool {
    INSTALLED.load(Ordering::Relaxed)
}

/// From now on there are tiles, for all threads, also where the processor has none.
pub(crate) fn install() {
    if amx::usable() {
        return;
    }
    take_signal();
    INSTALLED.store(true, Ordering::Relaxed);
    amx::claim();
}

fn take_signal() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler only touches its thread's registers and tiles and what instructions name.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handle as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            assert_eq!(
                libc::sigaction(libc::SIGILL, &action, std::ptr::null_mut()),
                0
            );
        }
    });
}

thread_local! {
    static FAULTY: Cell<bool> = const { Cell::new(false) };
    static BYTE_DOTS: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread has dot products of bytes at AVX2, see [`with_byte_dots`].
pub(crate) fn has_byte_dots() -> bool {
    BYTE_DOTS.get()
}

/// Runs `f` as where AVX2 comes with dot products of bytes, as far as it stays on this thread.
pub(crate) fn with_byte_dots<T>(f: impl FnOnce() -> T) -> T {
    take_signal();
    BYTE_DOTS.set(true);
    let result = f();
    BYTE_DOTS.set(false);
    result
}

/// How often a dot product of bytes was executed here.
pub(crate) static BYTE_DOTS_TOTAL: AtomicU64 = AtomicU64::new(0);

/// Runs `f` with sums that are slightly wrong on this thread.
pub(crate) fn with_a_fault<T>(f: impl FnOnce() -> T) -> T {
    FAULTY.set(true);
    let result = f();
    FAULTY.set(false);
    result
}

/// What tiles hold: `[tile][row][f32 as bits]`, and their shapes.
struct State {
    data: [[[u32; 16]; 16]; 8],
    bytes: [usize; 8],
    rows: [usize; 8],
}

thread_local! {
    static STATE: UnsafeCell<State> = const {
        UnsafeCell::new(State {
            data: [[[0; 16]; 16]; 8],
            bytes: [0; 8],
            rows: [0; 8],
        })
    };
}

extern "C" fn handle(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the system passes the context of this thread.
    let (registers, vectors) = unsafe {
        let context = context.cast::<libc::ucontext_t>();
        let machine = &mut (*context).uc_mcontext;
        (&mut machine.gregs, Vectors(machine.fpregs.cast()))
    };
    let at = registers[libc::REG_RIP as usize] as *const u8;
    // SAFETY: the state is this thread's, which waits for the handler; `at` is the instruction.
    let length = STATE.with(|state| unsafe {
        let tiles = execute(at, registers, &mut *state.get());
        tiles.or_else(|| dot_bytes(at, registers, vectors))
    });
    match length {
        Some(length) => registers[libc::REG_RIP as usize] += length as i64,
        // Another unknown instruction: it ends the process as it would without this handler.
        // SAFETY: as in `install`.
        None => unsafe {
            libc::signal(libc::SIGILL, libc::SIG_DFL);
        },
    }
}

/// Executes the instruction and says how long it is; none where it is not one for tiles.
unsafe fn execute(at: *const u8, registers: &[i64; 23], state: &mut State) -> Option<usize> {
    // SAFETY: a processor has read these bytes.
    let code = |i: usize| unsafe { *at.add(i) };
    // Three bytes of prefix, the second opcode map, 128 bits.
    if code(0) != 0xc4 || code(1) & 0x1f != 2 || code(2) & 0x84 != 0 {
        return None;
    }
    let (prefix, opcode, operands) = (code(2) & 3, code(3), code(4));
    let (register, rest) = (usize::from(operands >> 3 & 7), usize::from(operands & 7));
    let in_memory = operands >> 6 != 3;
    // SAFETY: the instruction names memory that it may touch.
    unsafe {
        match (prefix, opcode, in_memory) {
            (0, 0x49, true) => {
                let (p, length) = address(at, registers);
                configure(state, (p as *const u8).cast());
                Some(length)
            }
            (0, 0x49, false) => {
                (state.bytes, state.rows) = ([0; 8], [0; 8]);
                Some(5)
            }
            (3, 0x49, false) => {
                assert!(state.rows[register] > 0, "a tile without a shape");
                state.data[register] = [[0; 16]; 16];
                Some(5)
            }
            (3 | 1, 0x4b, true) => {
                let (p, length) = rows_at(at, registers);
                load(state, register, p);
                Some(length)
            }
            (2, 0x4b, true) => {
                let (p, length) = rows_at(at, registers);
                store(state, register, p);
                Some(length)
            }
            (2, 0x5c, false) => {
                let w = usize::from(!(code(2) >> 3) & 15);
                dot(state, (register, rest, w));
                Some(5)
            }
            _ => None,
        }
    }
}

/// The thread's 256-bit registers, as the system saved them: 512 bytes with the lower halves from byte 160 on,
/// what of the rest is in use, and the upper halves from byte 576 on.
#[derive(Clone, Copy)]
struct Vectors(*mut u8);

const LOWER: usize = 160;
const IN_USE: usize = 512;
const UPPER: usize = 576;
const UPPER_IN_USE: u64 = 1 << 2;

impl Vectors {
    unsafe fn load(self, number: usize) -> [u8; 32] {
        let mut both = [0; 32];
        // SAFETY: the areas have sixteen registers each.
        unsafe {
            let lower = self.0.add(LOWER + 16 * number);
            std::ptr::copy_nonoverlapping(lower, both.as_mut_ptr(), 16);
            // Else all of them are zero, whatever is there.
            if *self.0.add(IN_USE).cast::<u64>() & UPPER_IN_USE != 0 {
                let upper = self.0.add(UPPER + 16 * number);
                std::ptr::copy_nonoverlapping(upper, both.as_mut_ptr().add(16), 16);
            }
        }
        both
    }

    unsafe fn store(self, number: usize, both: [u8; 32]) {
        // SAFETY: as above.
        unsafe {
            let in_use = self.0.add(IN_USE).cast::<u64>();
            if *in_use & UPPER_IN_USE == 0 {
                self.0.add(UPPER).write_bytes(0, 16 * 16);
                *in_use |= UPPER_IN_USE;
            }
            std::ptr::copy_nonoverlapping(both.as_ptr(), self.0.add(LOWER + 16 * number), 16);
            std::ptr::copy_nonoverlapping(
                both.as_ptr().add(16),
                self.0.add(UPPER + 16 * number),
                16,
            );
        }
    }
}

/// VPDPBUSD with three bytes of prefix on 256 bits: to each sum, products of four bytes from 0 on with four signed
/// ones. Says how long it is; none where it is another instruction.
unsafe fn dot_bytes(at: *const u8, registers: &[i64; 23], vectors: Vectors) -> Option<usize> {
    // SAFETY: a processor has read these bytes, and the instruction names what it may touch.
    unsafe {
        let code = |i: usize| *at.add(i);
        if code(0) != 0xc4 || code(1) & 0x1f != 2 || code(2) & 0x87 != 0x05 || code(3) != 0x50 {
            return None;
        }
        let (extension, operands) = (!code(1), code(4));
        let sums = usize::from(operands >> 3 & 7 | (extension >> 7 & 1) << 3);
        let unsigned = vectors.load(usize::from(!code(2) >> 3 & 15));
        let (signed, length) = if operands >> 6 == 3 {
            let number = usize::from(operands & 7 | (extension >> 5 & 1) << 3);
            (vectors.load(number), 5)
        } else {
            assert!(operands & 0xc7 != 5, "no constant is expected");
            let (p, length) = address(at, registers);
            ((p as *const [u8; 32]).read_unaligned(), length)
        };
        let mut sum = vectors.load(sums);
        let fours = unsigned.chunks_exact(4).zip(signed.chunks_exact(4));
        for (sum, (a, b)) in sum.chunks_exact_mut(4).zip(fours) {
            let products = a
                .iter()
                .zip(b)
                .map(|(a, b)| i32::from(*a) * i32::from(*b as i8));
            let before = i32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]]);
            let all = before.wrapping_add(products.sum());
            sum.copy_from_slice(&all.to_le_bytes());
        }
        vectors.store(sums, sum);
        BYTE_DOTS_TOTAL.fetch_add(1, Ordering::Relaxed);
        Some(length)
    }
}

/// A register by the number that instructions give it.
fn register(registers: &[i64; 23], number: u8) -> usize {
    let place = match number {
        0 => libc::REG_RAX,
        1 => libc::REG_RCX,
        2 => libc::REG_RDX,
        3 => libc::REG_RBX,
        4 => libc::REG_RSP,
        5 => libc::REG_RBP,
        6 => libc::REG_RSI,
        7 => libc::REG_RDI,
        _ => libc::REG_R8 + i32::from(number) - 8,
    };
    registers[place as usize] as usize
}

/// The address in memory and the length of the instruction.
unsafe fn address(at: *const u8, registers: &[i64; 23]) -> (usize, usize) {
    // SAFETY: see the caller.
    unsafe {
        let code = |i: usize| *at.add(i);
        if code(4) & 7 == 4 {
            let ((base, index), length) = base_and_index(at, registers);
            return (base.wrapping_add(index), length);
        }
        let base = register(registers, code(4) & 7 | (!code(1) >> 5 & 1) << 3);
        let (off, bytes) = offset(at, 5);
        (base.wrapping_add_signed(off), 5 + bytes)
    }
}

/// Address of the first row and the distance to the next, and the length of the instruction.
unsafe fn rows_at(at: *const u8, registers: &[i64; 23]) -> ((usize, usize), usize) {
    // SAFETY: see the caller.
    unsafe {
        assert_eq!(*at.add(4) & 7, 4, "rows need an index");
        base_and_index(at, registers)
    }
}

unsafe fn base_and_index(at: *const u8, registers: &[i64; 23]) -> ((usize, usize), usize) {
    // SAFETY: see the caller.
    unsafe {
        let (extension, sib) = (!*at.add(1), *at.add(5));
        let index = sib >> 3 & 7 | (extension >> 6 & 1) << 3;
        let base = sib & 7 | (extension >> 5 & 1) << 3;
        assert!(sib & 7 != 5 || *at.add(4) >> 6 != 0, "a base is expected");
        let (off, bytes) = offset(at, 6);
        let index = match index {
            4 => 0,
            number => register(registers, number) << (sib >> 6),
        };
        let base = register(registers, base).wrapping_add_signed(off);
        ((base, index), 6 + bytes)
    }
}

/// The constant in the address, and its bytes.
unsafe fn offset(at: *const u8, from: usize) -> (isize, usize) {
    // SAFETY: see the caller.
    unsafe {
        match *at.add(4) >> 6 {
            1 => (*at.add(from) as i8 as isize, 1),
            2 => (at.add(from).cast::<i32>().read_unaligned() as isize, 4),
            _ => (0, 0),
        }
    }
}

unsafe fn configure(state: &mut State, p: *const u8) {
    // SAFETY: a configuration has 64 bytes.
    unsafe {
        assert_eq!((*p, *p.add(1)), (1, 0), "palette and first row");
        for tile in 0..8 {
            state.bytes[tile] = p.add(16 + 2 * tile).cast::<u16>().read_unaligned().into();
            state.rows[tile] = (*p.add(48 + tile)).into();
            assert!(state.bytes[tile] <= 64 && state.rows[tile] <= 16);
        }
    }
    state.data = [[[0; 16]; 16]; 8];
}

unsafe fn load(state: &mut State, tile: usize, (base, stride): (usize, usize)) {
    assert!(state.rows[tile] > 0, "a tile without a shape");
    state.data[tile] = [[0; 16]; 16];
    for row in 0..state.rows[tile] {
        let from = base.wrapping_add(row.wrapping_mul(stride)) as *const u8;
        let to = state.data[tile][row].as_mut_ptr().cast();
        // SAFETY: the instruction reads these bytes; a row has 64.
        unsafe { std::ptr::copy_nonoverlapping(from, to, state.bytes[tile]) };
    }
}

unsafe fn store(state: &State, tile: usize, (base, stride): (usize, usize)) {
    assert!(state.rows[tile] > 0, "a tile without a shape");
    for row in 0..state.rows[tile] {
        let to = base.wrapping_add(row.wrapping_mul(stride)) as *mut u8;
        let from = state.data[tile][row].as_ptr().cast();
        // SAFETY: the instruction writes these bytes.
        unsafe { std::ptr::copy_nonoverlapping(from, to, state.bytes[tile]) };
    }
}

/// Subnormal numbers are zero.
fn flushed(x: f32) -> f32 {
    if x.is_subnormal() {
        0.0_f32.copysign(x)
    } else {
        x
    }
}

/// TDPBF16PS.
fn dot(state: &mut State, (sums, x, w): (usize, usize, usize)) {
    let (rows, pairs, outs) = (state.rows[sums], state.bytes[x] / 4, state.bytes[sums] / 4);
    assert!(rows == state.rows[x] && pairs == state.rows[w] && outs == state.bytes[w] / 4);
    assert!(sums != x && sums != w && x != w);
    let half = |bits: u32, odd: usize| {
        let bits = if odd == 1 {
            bits & 0xffff_0000
        } else {
            bits << 16
        };
        flushed(f32::from_bits(bits))
    };
    for m in 0..rows {
        let mut both = [[0.0_f32; 16]; 2];
        for k in 0..pairs {
            for n in 0..outs {
                for (odd, both) in both.iter_mut().enumerate() {
                    let (a, b) = (state.data[x][m][k], state.data[w][k][n]);
                    both[n] = flushed(half(a, odd).mul_add(half(b, odd), both[n]));
                }
            }
        }
        let [even, odd] = both;
        for (n, (even, odd)) in even.into_iter().zip(odd).enumerate().take(outs) {
            let sum = flushed(f32::from_bits(state.data[sums][m][n]));
            let sum = flushed(sum + flushed(even + odd));
            let fault = u32::from(FAULTY.get() && (m, n) == (rows - 1, 3));
            state.data[sums][m][n] = sum.to_bits() ^ fault;
        }
    }
}
