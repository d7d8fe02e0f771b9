//! Which kernel computes a product, in how many blocks, and how much of a processor's memory each gets. None
//! of it changes a bit.

use super::args::{Format, Linear};
use super::driver::{DeviceError, Driver, Limits, Size, launch};

/// Most rows of the kernels that compute what is beside in further blocks.
pub(super) const FEW_ROWS: usize = 4;
/// Outputs of a strip, and inputs that lie side by side.
const STRIP: u32 = 32;
const GROUP: u32 = 8;
/// Rows and strips of a block of the kernels for many rows, and their threads.
const MANY: (u32, u32, u32) = (64, 2, 160);
/// Parts of the weights that a block holds at least, for one is used while another comes, and at most.
const PARTS: (u32, u32) = (2, 16);
/// Bytes that a block needs beside them.
const BESIDE: u32 = 2 << 10;
/// Most bytes of a block's parts: with one row the next kernels' blocks should find room beside, with more two
/// blocks beside each other would only hinder each other.
const ROOM_ONE: u32 = 100 << 10;
const ROOM_MAX: u32 = 200 << 10;

/// How a block of the streaming kernels shares its rows and outputs.
#[derive(Clone, Copy)]
enum Shape {
    /// Rows of a warp and warps, one strip.
    R1x1,
    R1x4,
    R2x2,
    R2x4,
    R4x2,
    R4x4,
    R8x4,
    /// Two strips.
    R4x4Two,
    R8x4Two,
}

impl Shape {
    /// Rows of a warp, warps, strips.
    fn sizes(self) -> (u32, u32, u32) {
        match self {
            Self::R1x1 => (1, 1, 1),
            Self::R1x4 => (1, 4, 1),
            Self::R2x2 => (2, 2, 1),
            Self::R2x4 => (2, 4, 1),
            Self::R4x2 => (4, 2, 1),
            Self::R4x4 => (4, 4, 1),
            Self::R8x4 => (8, 4, 1),
            Self::R4x4Two => (4, 4, 2),
            Self::R8x4Two => (8, 4, 2),
        }
    }

    fn rows(self) -> u32 {
        let (each, warps, _) = self.sizes();
        each * warps
    }

    /// Inputs of a part, as the kernels have them.
    fn inputs(self, format: Format) -> u32 {
        let (one, more) = match format {
            Format::F32 => (128, 64),
            _ => (256, 128),
        };
        match self {
            Self::R1x1 => one,
            Self::R4x4Two | Self::R8x4Two => 64,
            _ => more,
        }
    }

    /// Bytes of a part.
    fn part(self, format: Format) -> u32 {
        let (inputs, (each, warps, strips)) = (self.inputs(format), self.sizes());
        let eight = format.bits() as u32;
        let scales = match format {
            Format::Q8 | Format::Q4 => inputs / 32 * STRIP * 2,
            _ => 0,
        };
        strips * (inputs / GROUP * STRIP * eight + scales) + each * warps * inputs * 4
    }

    /// Blocks that a processor computes at a time, at most.
    fn at_once(self) -> u32 {
        if self.rows() <= 8 { 6 } else { 3 }
    }
}

/// The kernel for a product on such a device; `args.room` is set.
pub(super) fn linear_launch(args: &mut Linear, limits: &Limits) -> (&'static str, Size) {
    let (rows, strips) = (args.rows, args.w.out.div_ceil(STRIP));
    let format = args.w.format;
    args.room = 0;
    // So many outputs fill a device with blocks that take more of them.
    let wide = strips > 2 * limits.processors;
    let shape = match (rows, wide) {
        (0..=1, _) => Shape::R1x1,
        (2..=4, false) => Shape::R1x4,
        (2..=4, true) => Shape::R2x2,
        (5..=8, false) => Shape::R2x4,
        (5..=8, true) => Shape::R4x2,
        (9..=16, true) => Shape::R4x4Two,
        (9..=32, false) => Shape::R4x4,
        (17..=32, true) => Shape::R8x4Two,
        _ => {
            let (each, of, threads) = MANY;
            let grid = [strips.div_ceil(of), rows.div_ceil(each), 1];
            // Nearly as many blocks as processors are enough.
            if grid[0] * grid[1] >= limits.processors * 3 / 4 {
                let size = Size::from((grid, threads));
                return (KERNELS_MANY[format as usize], size);
            }
            Shape::R8x4
        }
    };
    let (_, warps, of) = shape.sizes();
    // Only the kernels for a few rows look at what is beside.
    let beside = if rows as usize <= FEW_ROWS {
        args.beside.count * args.beside.blocks
    } else {
        0
    };
    let grid = [strips.div_ceil(of) + beside, rows.div_ceil(shape.rows()), 1];
    let each = (grid[0] * grid[1]).div_ceil(limits.processors.max(1));
    let most = if rows <= 1 { ROOM_ONE } else { ROOM_MAX };
    let fits = (limits.room / each.clamp(1, shape.at_once())).saturating_sub(BESIDE);
    let (part, inputs) = (shape.part(format), shape.inputs(format));
    let steps = args.w.inp.div_ceil(inputs).max(PARTS.0);
    let parts = (fits.min(most) / part).clamp(PARTS.0, PARTS.1).min(steps);
    // What is beside has parts of another size.
    let least = if beside > 0 { 2 * (20 << 10) } else { 0 };
    args.room = (parts * part).max(least);
    let size = Size {
        grid,
        block: 32 * (warps + 1),
        room: args.room,
    };
    (KERNELS[format as usize][shape as usize], size)
}

/// Starts a product.
pub(super) fn launch_linear(driver: &dyn Driver, mut args: Linear) -> Result<(), DeviceError> {
    let (kernel, size) = linear_launch(&mut args, &driver.limits());
    launch(driver, kernel, size, &args)
}

macro_rules! names {
    ($($format:literal)*) => {
        /// Names by format and shape.
        const KERNELS: [[&str; 9]; 4] = [$([
            concat!("stream_", $format, "_1x1"),
            concat!("stream_", $format, "_1x4"),
            concat!("stream_", $format, "_2x2"),
            concat!("stream_", $format, "_2x4"),
            concat!("stream_", $format, "_4x2"),
            concat!("stream_", $format, "_4x4"),
            concat!("stream_", $format, "_8x4"),
            concat!("stream_", $format, "_4x4_two"),
            concat!("stream_", $format, "_8x4_two"),
        ]),*];
        const KERNELS_MANY: [&str; 4] = [$(concat!("many_", $format)),*];
    };
}
names!("f32" "bf16" "q8" "q4");

#[cfg(test)]
mod tests {
    use super::super::args::Matrix;
    use super::super::layers;
    use super::*;

    fn linear(rows: u32, (out, inp): (u32, u32), format: Format) -> Linear {
        let w = Matrix {
            data: 0,
            scales: 0,
            out,
            inp,
            format,
            unused: 0,
        };
        Linear::plain(w, (0, inp as usize), (0, out as usize), rows as usize)
    }

    #[test]
    fn blocks_cover_a_product_and_fit_a_processor() {
        let limits = [(132, 228 << 10), (108, 164 << 10), (20, 100 << 10)];
        for (processors, room) in limits {
            let limits = Limits {
                processors,
                room,
                cache: 0,
            };
            for format in [Format::F32, Format::Bf16, Format::Q8, Format::Q4] {
                for (out, inp) in [(1, 1), (1_024, 3_072), (24_576, 4_096), (151_936, 1_024)] {
                    for rows in [1, 2, 4, 5, 8, 9, 16, 17, 32, 33, 64, 65, 512] {
                        let mut args = linear(rows, (out, inp), format);
                        let (kernel, size) = linear_launch(&mut args, &limits);
                        assert!(layers::KERNELS.contains(&kernel), "{kernel}");
                        assert_eq!(size.room, args.room);
                        assert!(size.room + 1_024 < room, "{kernel}: {} bytes", size.room);
                        let strips = if kernel.ends_with("two") || kernel.starts_with("many") {
                            2
                        } else {
                            1
                        };
                        assert!(size.grid[0] * strips * STRIP >= out, "{kernel}");
                        assert!(size.grid[1] * 64 >= rows, "{kernel}");
                    }
                }
            }
        }
    }
}
