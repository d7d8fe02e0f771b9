//! Rows of activations, and what a linear layer does with its result.

/// How a linear layer leaves its result.
#[derive(Clone, Copy)]
pub enum Store<'a> {
    /// `y = x W^T (+ bias [out])`.
    Set(Option<&'a [f32]>),
    /// `y += x W^T`, the sums starting from `y`.
    Continue,
    /// `y = fma(scale, x W^T, y)`.
    AddScaled(f32),
}

/// Rows of a matrix inside a buffer: `rows` rows at distance `stride`.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    pub data: &'a [f32],
    pub stride: usize,
    pub rows: usize,
}

/// As [`Rows`], to write.
pub struct RowsMut<'a> {
    pub data: &'a mut [f32],
    pub stride: usize,
}
