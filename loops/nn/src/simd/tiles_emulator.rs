//! Executes the instructions for tiles where the processor does not: the signal of an unknown
//! instruction decodes it, does what Intel's manual says, and goes on behind it. So the very code that
//! ships runs in tests everywhere.

use std::cell::{Cell, UnsafeCell};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

static INSTALLED: AtomicBool = AtomicBool::new(false);

pub(crate) fn installed() -> bool {
    INSTALLED.load(Ordering::Relaxed)
}

/// From now on there are tiles, for all threads, also where the processor has none.
pub(crate) fn install() {
    if super::usable() {
        return;
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler only touches its thread's tiles and what instructions name.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handle as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            assert_eq!(
                libc::sigaction(libc::SIGILL, &action, std::ptr::null_mut()),
                0
            );
        }
        INSTALLED.store(true, Ordering::Relaxed);
    });
}

thread_local! {
    static FAULTY: Cell<bool> = const { Cell::new(false) };
}

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
    let registers = unsafe {
        let context = context.cast::<libc::ucontext_t>();
        &mut (*context).uc_mcontext.gregs
    };
    let at = registers[libc::REG_RIP as usize] as *const u8;
    // SAFETY: the state is this thread's, which waits for the handler; `at` is the instruction.
    let length = STATE.with(|state| unsafe { execute(at, registers, &mut *state.get()) });
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
