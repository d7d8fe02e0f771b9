//! Draws on a device: what ../sample.rs does with a row of logits, without the row travelling.

use std::sync::Arc;

use super::args::{At, Draw, Drawn, Draws};
use super::driver::{Buffer, Driver, Growing, launch};
use hone_kernels::cpu::padded;
use hone_kernels::ops::log_softmax::Shape;
use hone_nn::sample::{PlainDraw, Sampled};
use hone_nn::{DeviceError, SeqInput};

/// Threads of a block that draws from the whole vocabulary, and of one that cuts it.
const DRAW_THREADS: u32 = 512;
const CUT_THREADS: u32 = 512;
/// The largest vocabulary that is drawn from.
const VOCAB_MAX: usize = 1 << 20;
/// Kept tokens that a block holds (src/cuda/cut.cuh).
pub(super) const CUT_ROOM: usize = 4_096;

/// Buffers of draws.
#[derive(Default)]
pub(super) struct Drawing {
    draws: Growing,
    drawn: Growing,
    kept: Growing,
}

impl Drawing {
    /// Makes room for so many draws.
    pub(super) fn reserve(
        &mut self,
        driver: &Arc<dyn Driver>,
        draws: usize,
    ) -> Result<(), DeviceError> {
        self.draws.take(driver, draws * size_of::<Draw>())?;
        self.drawn.take(driver, draws * size_of::<Drawn>())?;
        let sets = draws * CUT_ROOM * size_of::<u32>();
        self.kept.take(driver, sets)?;
        Ok(())
    }

    /// Draws where nothing else of a row is wanted: one answer per row of logits. It is none where
    /// the row is wanted, and where the processor has to draw: the row is broken, or more tokens are
    /// kept than a block has room for.
    pub(super) fn draw(
        &mut self,
        driver: &Arc<dyn Driver>,
        logits: At,
        rows: usize,
        vocab: usize,
        batch: &[SeqInput],
    ) -> Result<Vec<Option<Sampled>>, DeviceError> {
        let mut sampled = vec![None; rows];
        let (uncut, cut): (Vec<Draw>, Vec<Draw>) = wanted(vocab, batch);
        let draws = [uncut.as_slice(), &cut].concat();
        if draws.is_empty() {
            return Ok(sampled);
        }
        let from = self.draws.take(driver, size_of_val(draws.as_slice()))?;
        from.write(&draws)?;
        let mut drawn = vec![Drawn::default(); draws.len()];
        let to = self.drawn.take(driver, size_of_val(drawn.as_slice()))?;
        let sets = cut.len() * CUT_ROOM * size_of::<u32>();
        let sets = self.kept.take(driver, sets)?;
        let args = Draws {
            logits,
            draws: from.at(),
            drawn: to.at(),
            kept: sets.at(),
            stride: padded(vocab) as u32,
            vocab: vocab as u32,
        };
        if !uncut.is_empty() {
            let grid = [uncut.len() as u32, 1, 1];
            launch(&**driver, "draw", (grid, DRAW_THREADS), &args)?;
        }
        if !cut.is_empty() {
            let grid = [cut.len() as u32, 1, 1];
            let args = Draws {
                draws: args.draws + size_of_val(uncut.as_slice()) as u64,
                drawn: args.drawn + (uncut.len() * size_of::<Drawn>()) as u64,
                ..args
            };
            launch(&**driver, "draw_cut", (grid, CUT_THREADS), &args)?;
        }
        to.read(0, &mut drawn)?;
        let kept = kept(sets, &drawn[uncut.len()..])?;
        let kept = std::iter::repeat_n(None, uncut.len()).chain(kept);
        for ((draw, drawn), kept) in draws.iter().zip(drawn).zip(kept) {
            sampled[draw.row as usize] = said(draw, drawn, kept);
        }
        Ok(sampled)
    }
}

/// The set that each draw kept. They lie side by side, so only as much as the longest is read.
fn kept(sets: &Buffer, drawn: &[Drawn]) -> Result<Vec<Option<Vec<u32>>>, DeviceError> {
    let counts = drawn.iter().map(|drawn| match drawn.refused {
        0 => drawn.kept as usize,
        _ => 0,
    });
    let longest = counts.clone().max().unwrap_or(0);
    let mut ids = vec![0u32; longest * drawn.len()];
    if longest > 0 {
        sets.read(0, &mut ids)?;
    }
    let set = |(at, count): (usize, usize)| {
        let own = ids.iter().skip(at).step_by(drawn.len());
        (count > 0).then(|| own.take(count).copied().collect())
    };
    Ok(counts.enumerate().map(set).collect())
}

/// The draws that a batch wants: from the whole vocabulary, and from what is left of it.
fn wanted(vocab: usize, batch: &[SeqInput]) -> (Vec<Draw>, Vec<Draw>) {
    let (mut uncut, mut cut) = (Vec::new(), Vec::new());
    let all = batch
        .iter()
        .flat_map(|seq| seq.logits.draws(seq.tokens.len()));
    for (row, how) in all.enumerate() {
        let Some(how) = how.filter(|_| vocab <= VOCAB_MAX) else {
            continue;
        };
        let to = match how.is_greedy() || how.is_uncut(vocab) {
            true => &mut uncut,
            false => &mut cut,
        };
        to.push(asked(&how, row as u32));
    }
    (uncut, cut)
}

fn asked(how: &PlainDraw, row: u32) -> Draw {
    Draw {
        u: how.uniform(),
        row,
        greedy: u32::from(how.is_greedy()),
        temperature: how.temperature,
        inverse: 1.0 / how.temperature,
        top_p: how.top_p,
        top_k: how.top_k,
        floor: how.floor(),
        unused: 0,
    }
}

/// A draw as the sampler tells it; none where the processor has to draw.
fn said(draw: &Draw, drawn: Drawn, kept: Option<Vec<u32>>) -> Option<Sampled> {
    if drawn.refused != 0 {
        return None;
    }
    let raw = Shape::known(1.0, drawn.most, drawn.sum).logprob(drawn.logit);
    let behavior = if draw.greedy != 0 || (draw.temperature == 1.0 && kept.is_none()) {
        raw
    } else {
        let most = drawn.most * draw.inverse;
        Shape::known(draw.inverse, most, drawn.sum_inverse).logprob(drawn.logit)
    };
    Some(Sampled {
        token: drawn.token,
        raw_logprob: raw,
        behavior_logprob: behavior,
        kept,
        top: Vec::new(),
        nonfinite: false,
    })
}

#[cfg(test)]
#[path = "draw_tests.rs"]
mod tests;
