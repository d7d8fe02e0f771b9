//! Draws whose logits are needed here: under penalties, grammars and bans, or where the most likely
//! tokens are told.

use hone_domain::StopReason;
use hone_kernels::Executor;
use hone_nn::sample::{DrawFrom, sample_all};

use crate::sequence::{Sequence, Setup};
use crate::stop::Went;

/// Draws the next token of each of these by its place among the running, from its logits. They are drawn
/// side by side: looking through a large vocabulary takes a while.
pub(crate) fn draw_all(
    running: &mut [Box<Sequence>],
    rows: &[(usize, &[f32])],
    setup: &Setup,
    exec: &Executor,
) -> Vec<(usize, Went)> {
    let mut went = Vec::with_capacity(rows.len());
    let mut ready: Vec<(usize, &[f32])> = Vec::with_capacity(rows.len());
    for (index, row) in rows {
        match running[*index].take_mask() {
            Ok(()) => ready.push((*index, *row)),
            // Somebody has read its beginning: it ends as where a limit cuts it.
            Err(error) if running[*index].completion_tokens() > 0 => {
                tracing::warn!(%error, "a completion ends where its grammar could be followed no further");
                went.push((*index, Ok(Some(StopReason::Length))));
            }
            Err(error) => went.push((*index, Err(error))),
        }
    }
    let mut draws: Vec<DrawFrom> = Vec::with_capacity(ready.len());
    for (index, row) in &ready {
        draws.push(running[*index].draw_from(row));
    }
    let drawn = sample_all(&draws, exec);
    drop(draws);
    for ((index, row), drawn) in ready.into_iter().zip(drawn) {
        went.push((index, running[index].accept_from(row, drawn, setup)));
    }
    went
}
