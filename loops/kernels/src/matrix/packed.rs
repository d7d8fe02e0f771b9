//! Weight matrices in the one layout every kernel reads.
#![allow(unsafe_code)]

use std::borrow::Cow;
use std::ops::Range;

use crate::cpu::{HalfLine, LANES, Line, copies_of, room_for};
use crate::format::block_quant::{Bits, GROUP, Quantised, WeightFormat};
use crate::format::exponent_coded::Compact;
use crate::format::gguf_blocks::BlockKind;
use crate::format::tensor_data::TensorData;
use crate::matrix::compute_type::ComputeType;
use crate::thread_pool::{Executor, Shards};

mod narrow;
mod products;

use self::narrow::Narrow;
use super::rows::{Rows, RowsMut, Store};

#[derive(Debug, Clone, PartialEq)]
enum Data {
    F32(Vec<Line>),
    Bf16(Vec<HalfLine>),
    /// bf16 in less memory; the same weights.
    Compact(Compact),
    /// Of few outputs, f32 and bf16; their products are those of f32.
    Narrow(Narrow<Line>),
    NarrowBf16(Narrow<HalfLine>),
    Quantised(Quantised),
}

/// A matrix `W [out, in]` stored as `[ceil(out / 16)][in][16]`, zero padded: sixteen outputs lie
/// side by side, so one vector holds `W[o..o+16][k]`.
#[derive(Debug, Clone, PartialEq)]
pub struct PackedMatrix {
    pub out: usize,
    pub inp: usize,
    data: Data,
    compute_type: ComputeType,
}

/// A matrix as it is stored: panels as [`PackedMatrix`] describes them.
pub enum Stored<'a> {
    F32(Cow<'a, [Line]>),
    Bf16(Cow<'a, [HalfLine]>),
    Quantised(&'a Quantised),
}

/// Reads a line of a matrix, and makes one.
type Lines<'a, T, L> = (
    &'a (dyn Fn(usize) -> [T; LANES] + Sync),
    &'a (dyn Fn([T; LANES]) -> L + Sync),
);

/// The bits that quantised parts are kept in under `format`: four where all have just those, else
/// eight. None where they are to be widened first, as those are that stand beside real numbers.
fn kept_bits(parts: &[TensorData], format: WeightFormat) -> Option<Bits> {
    let kind = |part: &TensorData| match part {
        TensorData::Blocks(blocks) => Some(blocks.kind()),
        _ => None,
    };
    let kinds: Option<Vec<BlockKind>> = parts.iter().map(kind).collect();
    let kinds = kinds.filter(|kinds| !kinds.is_empty())?;
    let four = |kind: &BlockKind| *kind == BlockKind::Q4_0;
    match format {
        WeightFormat::Stored | WeightFormat::Q4 if kinds.iter().all(four) => Some(Bits::Four),
        WeightFormat::Stored | WeightFormat::Q8 => Some(Bits::Eight),
        _ => None,
    }
}

impl PackedMatrix {
    pub fn zeros(out: usize, inp: usize) -> Self {
        let lines = out.div_ceil(LANES) * inp;
        Self {
            out,
            inp,
            data: Data::F32(vec![Line([0.0; LANES]); lines]),
            compute_type: ComputeType::F32,
        }
    }

    /// Whether `compute_type` is for such weights, and there are whole steps or groups of inputs.
    pub fn takes(&self, compute_type: ComputeType) -> bool {
        let codes = matches!(self.data, Data::Quantised(_));
        match compute_type {
            ComputeType::F32 => true,
            ComputeType::Bf16 | ComputeType::Amx => {
                (codes || matches!(self.data, Data::Bf16(_) | Data::Compact(_)))
                    && self.inp.is_multiple_of(2)
            }
            ComputeType::Int8 => codes && self.inp.is_multiple_of(GROUP),
        }
    }

    /// The same matrix, whose products with inputs are computed by `compute_type` where it
    /// [`Self::takes`] that, else by f32.
    pub fn with_compute_type(mut self, compute_type: ComputeType) -> Self {
        if !matches!(compute_type, ComputeType::Bf16 | ComputeType::Amx)
            && let Some(lines) = self.expanded(0..self.out.div_ceil(LANES), &Executor::new(1))
        {
            self.data = Data::Bf16(lines);
        }
        self.compute_type = match self.takes(compute_type) {
            true => compute_type,
            false => ComputeType::F32,
        };
        self
    }

    pub fn compute_type(&self) -> ComputeType {
        self.compute_type
    }

    /// The same matrix in less memory, where its products are those of bf16 and its exponents are few.
    pub fn compacted(self) -> Self {
        match (&self.data, self.compute_type) {
            (Data::Bf16(lines), ComputeType::Bf16 | ComputeType::Amx) => {
                match Compact::of(lines, self.inp) {
                    Some(compact) => Self {
                        data: Data::Compact(compact),
                        ..self
                    },
                    None => self,
                }
            }
            _ => self,
        }
    }

    /// The same matrix in less memory, where it has few outputs: to multiply f32 with, not to change.
    pub fn narrowed(self) -> Self {
        let data = match (&self.data, self.compute_type) {
            (Data::F32(lines), _) => Narrow::of(self.out, lines).map(Data::Narrow),
            (Data::Bf16(lines), ComputeType::F32) => {
                Narrow::of(self.out, lines).map(Data::NarrowBf16)
            }
            _ => None,
        };
        match data {
            Some(data) => Self { data, ..self },
            None => self,
        }
    }

    /// Some panels of a compact matrix as they were.
    fn expanded(&self, panels: Range<usize>, exec: &Executor) -> Option<Vec<HalfLine>> {
        match &self.data {
            Data::Compact(compact) => Some(compact.expanded(panels, exec)),
            _ => None,
        }
    }

    /// Stacks row-major parts `[out_i, inp]`. Stays bf16 when every part is.
    pub fn from_parts(inp: usize, parts: Vec<TensorData>) -> Self {
        let out = parts.iter().map(|p| p.len() / inp.max(1)).sum();
        let lines = usize::div_ceil(out, LANES) * inp;
        let mut row = 0;
        if parts.iter().all(|p| matches!(p, TensorData::Bf16(_))) {
            let mut data = copies_of(HalfLine([0; LANES]), lines);
            for part in parts {
                let TensorData::Bf16(values) = part else {
                    unreachable!("checked above");
                };
                for values in values.chunks_exact(inp) {
                    for (k, &v) in values.iter().enumerate() {
                        data[row / LANES * inp + k].0[row % LANES] = v;
                    }
                    row += 1;
                }
            }
            return Self {
                out,
                inp,
                data: Data::Bf16(data),
                compute_type: ComputeType::F32,
            };
        }
        let mut data = copies_of(Line([0.0; LANES]), lines);
        for part in parts {
            for values in part.into_f32().chunks_exact(inp) {
                for (k, &v) in values.iter().enumerate() {
                    data[row / LANES * inp + k].0[row % LANES] = v;
                }
                row += 1;
            }
        }
        Self {
            out,
            inp,
            data: Data::F32(data),
            compute_type: ComputeType::F32,
        }
    }

    /// Stacks parts as [`Self::from_parts`] and keeps them in `format`. Quantised parts that have it
    /// already stay as they are.
    pub fn stacked(inp: usize, parts: Vec<TensorData>, format: WeightFormat) -> Self {
        let Some(bits) = kept_bits(&parts, format) else {
            return Self::from_parts(inp, parts).into_format(format);
        };
        let blocks: Vec<_> = parts
            .iter()
            .filter_map(|part| match part {
                TensorData::Blocks(blocks) => Some(blocks),
                _ => None,
            })
            .collect();
        let out = parts.iter().map(|p| p.len() / inp.max(1)).sum();
        let data = Quantised::from_blocks(bits, out, inp, &blocks);
        Self {
            out,
            inp,
            data: Data::Quantised(data),
            compute_type: ComputeType::F32,
        }
    }

    /// Rows `range` as row-major f32.
    pub fn to_rows(&self, range: Range<usize>) -> Vec<f32> {
        let mut all = Vec::with_capacity(range.len() * self.inp);
        self.each_rows(range, &mut |rows| all.extend_from_slice(rows));
        all
    }

    /// The same, those of a panel at a time.
    pub fn each_rows(&self, range: Range<usize>, each: &mut dyn FnMut(&[f32])) {
        let (exec, mut rows) = (Executor::new(1), vec![0.0; LANES * self.inp]);
        for panel in range.start / LANES..range.end.div_ceil(LANES) {
            match self.expanded(panel..panel + 1, &exec) {
                Some(lines) => self.rows_of(&|k| widen_line(&lines[k]).0, &mut rows),
                None => self.rows_of(&|k| self.line(panel * self.inp + k), &mut rows),
            }
            let (first, end) = (panel * LANES, (panel + 1) * LANES);
            let (first, end) = (range.start.max(first) - first, range.end.min(end) - first);
            each(&rows[first * self.inp..end * self.inp]);
        }
    }

    /// Sixteen rows of which `line` has the values for one input.
    fn rows_of(&self, line: &dyn Fn(usize) -> [f32; LANES], rows: &mut [f32]) {
        for k0 in (0..self.inp).step_by(LANES) {
            let width = LANES.min(self.inp - k0);
            let mut block = [[0.0; LANES]; LANES];
            for (k, values) in block.iter_mut().enumerate().take(width) {
                *values = line(k0 + k);
            }
            for (lane, row) in rows.chunks_exact_mut(self.inp).enumerate() {
                let values = row[k0..k0 + width].iter_mut().zip(&block);
                values.for_each(|(to, from)| *to = from[lane]);
            }
        }
    }

    /// Copies row `row` (an embedding) to `to [in]`.
    pub fn lookup(&self, row: usize, to: &mut [f32]) {
        let start = row / LANES * self.inp;
        let lane = row % LANES;
        match &self.data {
            Data::F32(data) => {
                let panel = &data[start..start + self.inp];
                to.iter_mut()
                    .zip(panel)
                    .for_each(|(t, line)| *t = line.0[lane]);
            }
            Data::Bf16(data) => {
                let panel = &data[start..start + self.inp];
                let widen = |bits: u16| f32::from_bits(u32::from(bits) << 16);
                to.iter_mut()
                    .zip(panel)
                    .for_each(|(t, line)| *t = widen(line.0[lane]));
            }
            Data::Compact(data) => data.lookup(row, &mut to[..self.inp]),
            Data::Narrow(_) | Data::NarrowBf16(_) => {
                let values = to.iter_mut().take(self.inp).enumerate();
                values.for_each(|(k, t)| *t = self.line(k)[lane]);
            }
            Data::Quantised(data) => {
                let values = to.iter_mut().take(self.inp).enumerate();
                values.for_each(|(k, t)| *t = data.value(row, k));
            }
        }
    }

    /// Adds `from [in]` to row `row`.
    pub fn add_row(&mut self, row: usize, from: &[f32]) {
        let start = row / LANES * self.inp * LANES + row % LANES;
        let values = self.values_mut()[start..].iter_mut().step_by(LANES);
        values.zip(from).for_each(|(to, v)| *to += v);
    }

    /// The f32 values in panel order, padding included.
    ///
    /// # Panics
    /// When the matrix is not f32: only f32 matrices are trained.
    pub fn values_mut(&mut self) -> &mut [f32] {
        let Data::F32(lines) = &mut self.data else {
            panic!("only an f32 matrix has its values in place");
        };
        // SAFETY: `Line` is repr(C) over sixteen f32.
        unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * LANES) }
    }

    /// How the weights are stored, as fingerprints name it.
    pub fn format(&self) -> &'static str {
        match &self.data {
            Data::F32(_) | Data::Narrow(_) => WeightFormat::F32.as_str(),
            Data::Bf16(_) | Data::Compact(_) | Data::NarrowBf16(_) => WeightFormat::Bf16.as_str(),
            Data::Quantised(data) => match data.bits {
                Bits::Eight => WeightFormat::Q8.as_str(),
                Bits::Four => WeightFormat::Q4.as_str(),
            },
        }
    }

    /// The same for people, who pay for the memory.
    pub fn kept(&self) -> &'static str {
        match &self.data {
            Data::Compact(_) => "bf16 in 12 bits",
            _ => self.format(),
        }
    }

    /// The same matrix in `format`: rounded to codes, or as it is.
    pub fn into_format(self, format: WeightFormat) -> Self {
        let bits = match format {
            WeightFormat::Stored => return self,
            WeightFormat::F32 => {
                return match self.data {
                    Data::F32(_) => self,
                    _ => self.widened(),
                };
            }
            WeightFormat::Bf16 => return self.rounded(),
            WeightFormat::Q8 => Bits::Eight,
            WeightFormat::Q4 => Bits::Four,
        };
        let row = &mut |row: usize, to: &mut [f32]| self.lookup(row, to);
        let data = Quantised::new(bits, self.out, self.inp, row);
        let compute_type = self.compute_type;
        let all = Self {
            data: Data::Quantised(data),
            ..self
        };
        all.with_compute_type(compute_type)
    }

    /// The same matrix in f32.
    pub fn widened(&self) -> Self {
        let lines = match &self.data {
            Data::F32(lines) => lines.clone(),
            _ => self.lines().map(Line).collect(),
        };
        Self {
            out: self.out,
            inp: self.inp,
            data: Data::F32(lines),
            compute_type: ComputeType::F32,
        }
    }

    /// Every line of sixteen outputs as f32, in panel order.
    fn lines(&self) -> impl Iterator<Item = [f32; LANES]> + '_ {
        let expanded = self.expanded(0..self.out.div_ceil(LANES), &Executor::new(1));
        (0..self.line_count()).map(move |index| match &expanded {
            Some(lines) => widen_line(&lines[index]).0,
            None => self.line(index),
        })
    }

    fn line_count(&self) -> usize {
        self.out.div_ceil(LANES) * self.inp
    }

    /// The same matrix rounded to bf16 (to nearest, ties to even).
    pub fn rounded(&self) -> Self {
        let round = |v| half::bf16::from_f32(v).to_bits();
        let lines = match &self.data {
            Data::Bf16(lines) => lines.clone(),
            Data::Compact(_) => return self.clone(),
            _ => {
                let mut lines = room_for(self.line_count());
                lines.extend(self.lines().map(|line| HalfLine(line.map(round))));
                lines
            }
        };
        let all = Self {
            out: self.out,
            inp: self.inp,
            data: Data::Bf16(lines),
            compute_type: ComputeType::F32,
        };
        all.with_compute_type(self.compute_type)
    }

    /// The matrix as it is stored.
    pub fn stored(&self) -> Stored<'_> {
        match &self.data {
            Data::F32(lines) => Stored::F32(Cow::Borrowed(lines)),
            Data::Bf16(lines) => Stored::Bf16(Cow::Borrowed(lines)),
            Data::Compact(compact) => {
                let panels = 0..self.out.div_ceil(LANES);
                Stored::Bf16(Cow::Owned(compact.expanded(panels, &Executor::new(1))))
            }
            Data::Narrow(narrow) => Stored::F32(narrow.lines(self.inp).collect()),
            Data::NarrowBf16(narrow) => Stored::Bf16(narrow.lines(self.inp).collect()),
            Data::Quantised(data) => Stored::Quantised(data),
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        match &self.data {
            Data::F32(lines) => size_of_val(lines.as_slice()),
            Data::Bf16(lines) => size_of_val(lines.as_slice()),
            Data::Compact(data) => data.bytes(),
            Data::Narrow(narrow) => size_of_val(narrow.lines.as_slice()),
            Data::NarrowBf16(narrow) => size_of_val(narrow.lines.as_slice()),
            Data::Quantised(data) => data.bytes(),
        }
    }

    /// Panels of the transpose of rows `panels * 16` of this matrix: a matrix `[in, rows]` with
    /// `dX = dY W` then an ordinary linear layer. `to` is reused. A bf16 matrix whose products are
    /// those of bf16 stays one; others become f32, codes because their scales lie across.
    pub fn transpose(&self, panels: Range<usize>, to: &mut Self, exec: &Executor) {
        if let Some(lines) = self.expanded(panels.clone(), exec) {
            let (first, last) = (panels.start * LANES, self.out.min(panels.end * LANES));
            let some = Self {
                out: last - first,
                inp: self.inp,
                data: Data::Bf16(lines),
                compute_type: self.compute_type,
            };
            return some.transpose(0..panels.len(), to, exec);
        }
        let rows = (panels.end * LANES).min(self.out) - panels.start * LANES;
        (to.out, to.inp) = (self.inp, rows);
        let block = (panels, rows);
        if let (Data::Bf16(from), compute_type @ (ComputeType::Bf16 | ComputeType::Amx)) =
            (&self.data, self.compute_type)
            && rows.is_multiple_of(2)
        {
            to.compute_type = compute_type;
            if !matches!(to.data, Data::Bf16(_)) {
                to.data = Data::Bf16(Vec::new());
            }
            if let Data::Bf16(target) = &mut to.data {
                let line = |index: usize| from[index].0;
                self.transpose_to(
                    block,
                    (target, HalfLine([0; LANES])),
                    (&line, &HalfLine),
                    exec,
                );
            }
        } else {
            to.compute_type = ComputeType::F32;
            if !matches!(to.data, Data::F32(_)) {
                to.data = Data::F32(Vec::new());
            }
            if let Data::F32(target) = &mut to.data {
                let line = |index: usize| self.line(index);
                self.transpose_to(block, (target, Line([0.0; LANES])), (&line, &Line), exec);
            }
        }
    }

    /// Lines of the transpose to `target`, made of what `line` reads here.
    fn transpose_to<T: Copy + Default, L: Copy + Send>(
        &self,
        (panels, rows): (Range<usize>, usize),
        (target, zero): (&mut Vec<L>, L),
        lines: Lines<T, L>,
        exec: &Executor,
    ) {
        let blocks = self.inp.div_ceil(LANES);
        target.resize(blocks * rows, zero);
        let target = Shards::new(target.as_mut_slice());
        // A value moved costs about as much as eight multiply-adds.
        exec.split(blocks, 8 * rows * self.inp, &|part| {
            // SAFETY: parts are disjoint, and so are the target's panels, one for each block.
            let target = unsafe { target.slice(part.start * rows..part.end * rows) };
            self.transpose_blocks((&panels, rows), part, target, lines);
        });
    }

    /// Sixteen inputs at a time, `blocks` of them; `rows` are those of `panels`.
    fn transpose_blocks<T: Copy + Default, L>(
        &self,
        (panels, rows): (&Range<usize>, usize),
        blocks: Range<usize>,
        target: &mut [L],
        (line, made_of): Lines<T, L>,
    ) {
        for panel in panels.clone() {
            let row = (panel - panels.start) * LANES;
            let count = LANES.min(rows - row);
            for block_index in blocks.clone() {
                let k0 = block_index * LANES;
                let width = LANES.min(self.inp - k0);
                let mut block = [[T::default(); LANES]; LANES];
                for (k, values) in block.iter_mut().enumerate().take(width) {
                    *values = line(panel * self.inp + k0 + k);
                }
                let start = (block_index - blocks.start) * rows + row;
                for (lane, line) in target[start..start + count].iter_mut().enumerate() {
                    *line = made_of(std::array::from_fn(|k| block[k][lane]));
                }
            }
        }
    }

    /// Codes of row `row` as numbers and the scales of their groups, where weights are codes.
    pub fn codes_and_scales(&self, row: usize) -> Option<(Vec<f32>, Vec<f32>)> {
        let Data::Quantised(data) = &self.data else {
            return None;
        };
        let groups = self.inp.div_ceil(crate::format::block_quant::GROUP);
        let scale = |group| half::f16::from_bits(data.scale_bits(row, group)).to_f32();
        let code = |k| match data.bits {
            Bits::Eight => f32::from(data.code(row, k) as i8),
            Bits::Four => f32::from(data.code(row, k)) - 8.0,
        };
        let codes = (0..self.inp).map(code).collect();
        Some((codes, (0..groups).map(scale).collect()))
    }

    fn line(&self, index: usize) -> [f32; LANES] {
        match &self.data {
            Data::F32(lines) => lines[index].0,
            Data::Bf16(lines) => widen_line(&lines[index]).0,
            Data::Compact(_) => unreachable!("compact panels are expanded first"),
            Data::Narrow(narrow) => narrow.line(index).0,
            Data::NarrowBf16(narrow) => widen_line(&narrow.line(index)).0,
            Data::Quantised(data) => data.line(index / self.inp, index % self.inp),
        }
    }
}

fn widen_line(line: &HalfLine) -> Line {
    Line(line.0.map(|bits| f32::from_bits(u32::from(bits) << 16)))
}
