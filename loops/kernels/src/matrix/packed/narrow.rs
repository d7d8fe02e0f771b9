//! Matrices of few outputs, as the first of an adapter are, without the room of a panel for sixteen.

use crate::cpu::{HalfLine, LANES, Line};

/// Most outputs of such a matrix.
const OUT_MAX: usize = LANES / 2;

/// One panel `[in][lanes]`. Whoever reads sixteen values of an input reads those of inputs behind it too,
/// whose sums are nobody's; there is room for that behind the last.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Narrow<L> {
    pub(super) lanes: usize,
    pub(super) lines: Vec<L>,
}

/// A line of values.
pub(super) trait Values: Copy {
    type Value: Copy;
    const ZERO: Self;
    fn values(&self) -> &[Self::Value; LANES];
    fn values_mut(&mut self) -> &mut [Self::Value; LANES];
}

impl Values for Line {
    type Value = f32;
    const ZERO: Self = Self([0.0; LANES]);
    fn values(&self) -> &[f32; LANES] {
        &self.0
    }
    fn values_mut(&mut self) -> &mut [f32; LANES] {
        &mut self.0
    }
}

impl Values for HalfLine {
    type Value = u16;
    const ZERO: Self = Self([0; LANES]);
    fn values(&self) -> &[u16; LANES] {
        &self.0
    }
    fn values_mut(&mut self) -> &mut [u16; LANES] {
        &mut self.0
    }
}

impl<L: Values> Narrow<L> {
    /// The same matrix as a panel of `lines`, where it has few outputs.
    pub(super) fn of(out: usize, lines: &[L]) -> Option<Self> {
        if !(1..=OUT_MAX).contains(&out) || lines.is_empty() {
            return None;
        }
        let lanes = out.next_power_of_two();
        let values = (lines.len() - 1) * lanes + LANES;
        let mut narrow = vec![L::ZERO; values.div_ceil(LANES)];
        for (k, line) in lines.iter().enumerate() {
            let at = k * lanes;
            let to = &mut narrow[at / LANES].values_mut()[at % LANES..][..lanes];
            to.copy_from_slice(&line.values()[..lanes]);
        }
        Some(Self {
            lanes,
            lines: narrow,
        })
    }

    /// Every input as a line of a panel.
    pub(super) fn lines(&self, inp: usize) -> impl Iterator<Item = L> + '_ {
        (0..inp).map(|k| self.line(k))
    }

    /// Input `k` as a line of a panel.
    pub(super) fn line(&self, k: usize) -> L {
        let (mut line, at) = (L::ZERO, k * self.lanes);
        let from = &self.lines[at / LANES].values()[at % LANES..][..self.lanes];
        line.values_mut()[..self.lanes].copy_from_slice(from);
        line
    }
}

#[cfg(test)]
mod tests {
    use crate::cpu::padded;
    use crate::format::block_quant::WeightFormat;
    use crate::format::tensor_data::TensorData;
    use crate::matrix::{PackedMatrix, Rows, RowsMut, Store};
    use crate::support::{Levels, draw, product};
    use crate::thread_pool::Executor;

    #[test]
    fn matrices_of_few_outputs_give_the_same_bits_in_less_room() {
        let (levels, exec) = (Levels::ours(), Executor::new(2));
        for out in [1, 2, 3, 5, 8, 9, 16, 20] {
            for inp in [1, 2, 17, 96] {
                let values = draw(out as u64, out * inp);
                let wide = PackedMatrix::from_parts(inp, vec![TensorData::F32(values.clone())]);
                for format in [WeightFormat::F32, WeightFormat::Bf16] {
                    let wide = wide.clone().into_format(format);
                    let narrow = wide.clone().narrowed();
                    assert_eq!(narrow.format(), wide.format());
                    assert_eq!(narrow.to_rows(0..out), wide.to_rows(0..out));
                    assert_eq!(narrow.widened(), wide.widened());
                    assert_eq!(narrow.rounded(), wide.rounded());
                    let mut looked_up = vec![0.0; inp];
                    narrow.lookup(out - 1, &mut looked_up);
                    assert_eq!(looked_up, wide.to_rows(out - 1..out));
                    if out <= 8 && inp == 96 {
                        assert!(narrow.bytes() < wide.bytes() * 5 / 8, "{out}");
                    }
                    for rows in [1, 4, 13, 50] {
                        let x = draw(7, rows * inp);
                        for level in levels.each() {
                            assert!(levels.force(level));
                            for store in [Store::Set(None), Store::AddScaled(0.5)] {
                                assert_eq!(
                                    product(&narrow, &x, rows, store, &exec),
                                    product(&wide, &x, rows, store, &exec),
                                    "{out} x {inp}, {rows} rows, {format:?}, {level:?}"
                                );
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn products_side_by_side_are_those_of_each() {
        let (exec, inp) = (Executor::new(2), 40);
        for (out, format) in [
            (3, WeightFormat::F32),
            (8, WeightFormat::Bf16),
            (20, WeightFormat::F32),
        ] {
            let matrix = |seed| {
                let values = vec![TensorData::F32(draw(seed, out * inp))];
                PackedMatrix::from_parts(inp, values)
                    .into_format(format)
                    .narrowed()
            };
            let all = [1, 2, 3].map(matrix);
            for (count, rows) in [(1, 1), (2, 5), (3, 4), (3, 60)] {
                let x = draw(9, rows * inp);
                let stride = count * padded(out);
                let mut y = vec![f32::NAN; rows * stride];
                let firsts = [0, 1, 2].map(|at| all.get(at).filter(|_| at < count));
                let from = Rows {
                    data: &x,
                    stride: inp,
                    rows,
                };
                let to = RowsMut {
                    data: &mut y,
                    stride,
                };
                PackedMatrix::linear_side_by_side(firsts, from, to, Store::Set(None), &exec);
                for (at, w) in all[..count].iter().enumerate() {
                    let wanted = product(w, &x, rows, Store::Set(None), &exec);
                    for row in 0..rows {
                        let first = row * stride + at * padded(out);
                        assert_eq!(y[first..first + out], wanted[row * out..(row + 1) * out]);
                    }
                }
            }
        }
    }
}
