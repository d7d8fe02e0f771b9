//! A row sixteen columns at a time, and what is left at its end.
#![allow(unsafe_code)]

use crate::cpu::{LANES, V16};

/// Calls `$body` for each group of sixteen columns with its start and its number of columns.
macro_rules! columns {
    ($n:expr, |$at:ident, $width:ident| $body:expr) => {{
        let n: usize = $n;
        let mut $at = 0;
        while $at + LANES <= n {
            let $width = LANES;
            $body;
            $at += LANES;
        }
        if $at < n {
            let $width = n - $at;
            $body;
        }
    }};
}

#[inline(always)]
pub(super) unsafe fn get<V: V16>(p: *const f32, at: usize, width: usize) -> V {
    // SAFETY: the caller vouches for `width` values at `p + at`.
    unsafe {
        if width == LANES {
            V::load(p.add(at))
        } else {
            V::load_part(p.add(at), width)
        }
    }
}

#[inline(always)]
pub(super) unsafe fn put<V: V16>(v: V, p: *mut f32, at: usize, width: usize) {
    // SAFETY: the caller vouches for `width` values at `p + at`.
    unsafe {
        if width == LANES {
            v.store(p.add(at));
        } else {
            v.store_part(p.add(at), width);
        }
    }
}
