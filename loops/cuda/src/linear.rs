//! Which kernel computes a product, in how many blocks, and how much of a processor's memory each gets. None
//! of it changes a bit.

use super::args::{Format, Linear};
use super::driver::{Driver, Limits, launch};
use super::launches::Size;
use hone_nn::DeviceError;

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

/// The streaming kernels by most rows of a block. Wide ones take two strips, but for that of four rows.
#[derive(Clone, Copy)]
enum Shape {
    One,
    Four,
    FourWide,
    Eight,
    EightWide,
    Sixteen,
    SixteenWide,
    ThirtyTwo,
    ThirtyTwoWide,
}

impl Shape {
    /// Rows, strips, and warps that add.
    fn sizes(self) -> (u32, u32, u32) {
        match self {
            Self::One => (1, 1, 1),
            Self::Four => (4, 1, 4),
            Self::FourWide => (4, 1, 2),
            Self::Eight => (8, 1, 4),
            Self::EightWide => (8, 2, 4),
            Self::Sixteen => (16, 1, 4),
            Self::SixteenWide => (16, 2, 4),
            Self::ThirtyTwo => (32, 1, 4),
            Self::ThirtyTwoWide => (32, 2, 4),
        }
    }

    /// Inputs of a part, as the kernels have them.
    fn inputs(self, format: Format) -> u32 {
        let (one, more) = match format {
            Format::F32 => (128, 64),
            _ => (256, 128),
        };
        match self {
            Self::One => one,
            Self::ThirtyTwoWide => 64,
            _ => more,
        }
    }

    /// Bytes of a part.
    fn part(self, format: Format) -> u32 {
        let (inputs, (rows, strips, _)) = (self.inputs(format), self.sizes());
        let eight = format.bits() as u32;
        let scales = match format {
            Format::Q8 | Format::Q4 => inputs / 32 * STRIP * 2,
            _ => 0,
        };
        // Rows of which a warp reads several stand apart.
        let apart = match self {
            Self::One | Self::Four | Self::FourWide | Self::Eight => 0,
            _ => 16,
        };
        strips * (inputs / GROUP * STRIP * eight + scales) + rows * (inputs * 4 + apart)
    }

    /// Blocks of strips and rows.
    fn grid(self, (strips, rows): (u32, u32)) -> [u32; 2] {
        let (each, of, _) = self.sizes();
        [strips.div_ceil(of), rows.div_ceil(each)]
    }

    /// Whether such blocks keep all processors busy nearly to the end.
    fn is_even(self, product: (u32, u32), processors: u32) -> bool {
        let [x, y] = self.grid(product).map(u64::from);
        let (blocks, processors) = (x * y, u64::from(processors.max(1)));
        blocks * 10 >= blocks.div_ceil(processors) * processors * 9
    }

    /// Blocks that a processor computes at a time, at most.
    fn at_once(self) -> u32 {
        let (rows, ..) = self.sizes();
        if rows <= 8 { 6 } else { 3 }
    }
}

/// The kernel for a product on such a device; `args.room` is set.
pub(super) fn linear_launch(args: &mut Linear, limits: &Limits) -> (&'static str, Size) {
    let (rows, strips) = (args.rows, args.w.out.div_ceil(STRIP));
    let format = args.w.format;
    args.room = 0;
    let (each, of, threads) = MANY;
    let many = [strips.div_ceil(of), rows.div_ceil(each), 1];
    // Nearly as many blocks as processors are enough.
    if rows > 32 && many[0] * many[1] >= limits.processors * 3 / 4 {
        let size = Size::from((many, threads));
        return (KERNELS_MANY[format as usize], size);
    }
    // The first that comes out even, or the smallest.
    let (larger, smallest): (&[Shape], Shape) = match rows {
        0..=1 => (&[], Shape::One),
        // So many outputs fill a device with fewer threads for each.
        2..=4 if strips > 2 * limits.processors => (&[], Shape::FourWide),
        2..=4 => (&[], Shape::Four),
        5..=8 => (&[Shape::EightWide], Shape::Eight),
        9..=16 => (&[Shape::SixteenWide], Shape::Sixteen),
        _ => (&[Shape::ThirtyTwoWide, Shape::ThirtyTwo], Shape::Sixteen),
    };
    let even = |shape: &Shape| shape.is_even((strips, rows), limits.processors);
    let shape = larger.iter().copied().find(even).unwrap_or(smallest);
    let (_, _, warps) = shape.sizes();
    // Only the kernels for a few rows look at what is beside.
    let beside = if rows as usize <= FEW_ROWS {
        args.beside.count * args.beside.blocks
    } else {
        0
    };
    let [x, y] = shape.grid((strips, rows));
    let grid = [x + beside, y, 1];
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
            concat!("stream_", $format, "_1"),
            concat!("stream_", $format, "_4"),
            concat!("stream_", $format, "_4_wide"),
            concat!("stream_", $format, "_8"),
            concat!("stream_", $format, "_8_wide"),
            concat!("stream_", $format, "_16"),
            concat!("stream_", $format, "_16_wide"),
            concat!("stream_", $format, "_32"),
            concat!("stream_", $format, "_32_wide"),
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
                        let two = kernel.ends_with("_wide") && !kernel.ends_with("4_wide");
                        let strips = if two || kernel.starts_with("many") {
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
