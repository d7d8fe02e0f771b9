//! The head and the loss, for the tokens to learn from only: ../../train/loss.rs.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::passes::DevicePasses;
use crate::args::{Linear, LossRow, LossRows, Norm, NormBack};
use crate::driver::{Buffer, Driver, Growing, Plain, launch};
use crate::launcher::NORM_THREADS;
use crate::linear::launch_linear;
use hone_kernels::cpu::padded;
use hone_kernels::ops::log_softmax::Shape;
use hone_nn::backend::{
    Asking, LossPosition, LossStep, MicroBatch, Pacer, RowGrad, Run, TokenPull,
};
use hone_nn::{DeviceError, StepError, TokenLoss};

/// Logits that exist at the same time: enough tokens that the head's gradient fills a device.
const CHUNK_LOGITS: usize = 1 << 26;
/// Ids that a chunk asks for and keeps, at most; a token that has more is alone.
const CHUNK_IDS: usize = 1 << 21;
/// Threads of a block that works on a row of logits.
const LOSS_THREADS: u32 = 256;

/// What is asked of one row.
pub(super) struct Question<'a> {
    /// `1 / temperature` of it, and the ids that were kept.
    pub(super) loss: &'a TokenLoss,
    /// Ids whose logits are wanted.
    pub(super) ids: Vec<u32>,
}

/// What a row answers: what turns it into probabilities, and the logits.
pub(super) struct Answer {
    pub(super) shape: Shape,
    pub(super) logits: Vec<f32>,
}

impl DevicePasses {
    /// Shows the logits of the micro-batch's loss positions, one after the other.
    pub(super) fn visit_sites(
        &mut self,
        run: &Run,
        micro: &MicroBatch,
        see: &mut dyn FnMut(&LossPosition, &[f32]),
        pacer: &mut Pacer,
    ) -> Result<(), StepError> {
        self.forward(run, micro, pacer)?;
        let vocab = self.device.model.config.vocab;
        let mut row = vec![0.0f32; padded(vocab)];
        for positions in self.chunks(&micro.positions, &|_| 0) {
            self.logits(positions)?;
            for (i, position) in positions.iter().enumerate() {
                let logits = self.bufs.chunk.logits.take(&self.driver, 0)?;
                logits.read(i * size_of_val(row.as_slice()), &mut row)?;
                see(position, &row[..vocab]);
            }
            self.tick(pacer)?;
        }
        Ok(())
    }

    /// Shows what is asked of every loss position's logits.
    pub(super) fn ask_sites(
        &mut self,
        run: &Run,
        micro: &MicroBatch,
        asking: &mut Asking,
        pacer: &mut Pacer,
    ) -> Result<(), StepError> {
        self.forward(run, micro, pacer)?;
        let Asking { rows, ids, see } = asking;
        let question = |position: &LossPosition| Question {
            loss: &rows[position.row].loss[position.item],
            ids: ids(position),
        };
        for positions in self.chunks(&micro.positions, &|position| question(position).weight()) {
            self.logits(positions)?;
            let questions: Vec<Question> = positions.iter().map(question).collect();
            let (_, answers) = self.answers(&questions)?;
            for (position, answer) in positions.iter().zip(answers) {
                see(position, &answer.shape, &answer.logits);
            }
            self.tick(pacer)?;
        }
        Ok(())
    }

    /// Loss of the micro-batch, and the gradient of the residual stream to `dx`.
    pub(super) fn loss(
        &mut self,
        micro: &MicroBatch,
        step: &mut LossStep,
        pacer: &mut Pacer,
    ) -> Result<(), StepError> {
        let d = self.dims();
        self.clear_dx()?;
        for positions in self.chunks(&micro.positions, &|position| {
            Question::of(step, position).weight()
        }) {
            self.logits(positions)?;
            let questions: Vec<Question> = positions
                .iter()
                .map(|position| Question::of(step, position))
                .collect();
            let (mut rows, answers) = self.answers(&questions)?;
            let pull = |(position, answer): (&LossPosition, &Answer)| {
                step.pull(position, &answer.shape, &answer.logits)
            };
            let pulls: Vec<TokenPull> = positions.iter().zip(&answers).map(pull).collect();
            let told = self.row_grads(&mut rows, &questions, &answers, &pulls)?;
            for (pull, entropy) in pulls.iter().zip(told.chunks(2)) {
                step.tell(pull, entropy[0]);
            }
            let chunk = &mut self.bufs.chunk;
            let width = padded(self.device.model.config.vocab);
            let dlogits = (chunk.logits.take(&self.driver, 0)?.at(), width);
            let bytes = positions.len() * d.ld_hidden * size_of::<f32>();
            let dnormed = chunk.dnormed.take(&self.driver, bytes)?.at();
            let picks = chunk.picks.take(&self.driver, 0)?.at();
            self.head_back(dlogits, (dnormed, d.ld_hidden), positions.len())?;
            let norm = NormBack {
                x: self.input(self.device.layers.len()),
                dy: dnormed,
                weight: self.device.norm,
                dx: self.at.dx,
                pick: picks,
                n: d.hidden as u32,
                stride: d.ld_hidden as u32,
                eps: self.device.model.config.rms_eps,
                unused: 0,
            };
            let grid = [positions.len() as u32, 1, 1];
            launch(&*self.driver, "norm_back", (grid, NORM_THREADS), &norm)?;
            self.tick(pacer)?;
        }
        Ok(())
    }

    /// Sets the gradient of the residual stream to 0.
    fn clear_dx(&mut self) -> Result<(), DeviceError> {
        let bytes = self.plan.rows * self.dims().ld_hidden * size_of::<f32>();
        let pass = self.bufs.pass.take(&self.driver, 0)?;
        pass.clear_at((self.at.dx - pass.at()) as usize, bytes)
    }

    /// The logits of these loss positions, `[loss positions][padded vocab]`.
    fn logits(&mut self, positions: &[LossPosition]) -> Result<(), DeviceError> {
        let (d, device) = (self.dims(), &self.device);
        let (driver, chunk) = (&self.driver, &mut self.bufs.chunk);
        let (n, width) = (positions.len(), padded(device.model.config.vocab));
        let picks: Vec<u32> = positions
            .iter()
            .map(|position| position.at as u32)
            .collect();
        let to = holding(&mut chunk.picks, driver, &picks)?;
        let floats = |growing: &mut Growing, count: usize| {
            let buffer = growing.take(driver, count * size_of::<f32>());
            buffer.map(Buffer::at)
        };
        let normed = floats(&mut chunk.normed, n * d.ld_hidden)?;
        let logits = floats(&mut chunk.logits, n * width)?;
        let norm = Norm {
            x: self.input(device.layers.len()),
            add: 0,
            sum: 0,
            weight: device.norm,
            y: normed,
            pick: to,
            n: d.hidden as u32,
            stride: d.ld_hidden as u32,
            eps: device.model.config.rms_eps,
            unused: 0,
        };
        launch(
            &**driver,
            "norm_rows",
            ([n as u32, 1, 1], NORM_THREADS),
            &norm,
        )?;
        let (from, to) = ((normed, d.ld_hidden), (logits, width));
        launch_linear(&**driver, Linear::plain(device.head, from, to, n))
    }

    /// The answers of the rows whose logits exist, and the rows as the kernels know them.
    fn answers(
        &mut self,
        questions: &[Question],
    ) -> Result<(Vec<LossRow>, Vec<Answer>), DeviceError> {
        let mut ids: Vec<u32> = questions.iter().flat_map(|q| &q.ids).copied().collect();
        let asked = ids.len();
        let mut first = 0;
        let rows: Vec<LossRow> = questions
            .iter()
            .map(|question| {
                let kept = question.loss.kept.as_deref().unwrap_or(&[]);
                let row = LossRow {
                    inverse: 1.0 / question.loss.temperature,
                    kept: ids.len() as u32,
                    count: kept.len() as u32,
                    twice: u32::from(has_twice(kept)),
                    asked: first,
                    asks: question.ids.len() as u32,
                    ..LossRow::default()
                };
                first += row.asks;
                ids.extend(kept);
                row
            })
            .collect();
        let (driver, chunk) = (&self.driver, &mut self.bufs.chunk);
        holding(&mut chunk.ids, driver, &ids)?;
        chunk.picked.take(driver, size_of_val(ids.as_slice()))?;
        let said = self.launch_rows("loss_shape", &rows)?;
        let mut logits = vec![0.0f32; asked];
        self.bufs
            .chunk
            .picked
            .take(&self.driver, 0)?
            .read(0, &mut logits)?;
        let mut logits = logits.as_slice();
        let answer = |(question, said): (&Question, &[f32])| {
            let (own, rest) = logits.split_at(question.ids.len());
            logits = rest;
            Answer {
                shape: Shape::known(1.0 / question.loss.temperature, said[0], said[1]),
                logits: own.to_vec(),
            }
        };
        let answers = questions.iter().zip(said.chunks(2)).map(answer).collect();
        Ok((rows, answers))
    }

    /// Puts the gradients of the logits in their places; two numbers a row, the first its entropy.
    fn row_grads(
        &mut self,
        rows: &mut [LossRow],
        questions: &[Question],
        answers: &[Answer],
        pulls: &[TokenPull],
    ) -> Result<Vec<f32>, DeviceError> {
        let (mut places, mut amounts) = (Vec::new(), Vec::new());
        for (i, row) in rows.iter_mut().enumerate() {
            let grad = RowGrad {
                shape: answers[i].shape,
                slopes: &pulls[i].slopes,
                entropy: pulls[i].bonus,
            };
            let slopes = grad.places(questions[i].loss.kept.as_deref());
            let shape = &grad.shape;
            *row = LossRow {
                most: shape.most,
                share: 1.0 / shape.sum,
                log_sum: shape.log_sum(),
                slope: slopes.iter().map(|(_, slope)| slope).sum(),
                bonus: grad.entropy,
                slopes: places.len() as u32,
                pulls: slopes.len() as u32,
                ..*row
            };
            for (place, slope) in slopes {
                places.push(place);
                amounts.push(slope * shape.inverse);
            }
        }
        let (driver, chunk) = (&self.driver, &mut self.bufs.chunk);
        holding(&mut chunk.places, driver, &places)?;
        holding(&mut chunk.amounts, driver, &amounts)?;
        self.launch_rows("loss_back", rows)
    }

    /// Runs a kernel on the rows whose logits exist, and reads the two numbers that it says of each.
    fn launch_rows(
        &mut self,
        kernel: &'static str,
        rows: &[LossRow],
    ) -> Result<Vec<f32>, DeviceError> {
        let vocab = self.device.model.config.vocab;
        let (driver, chunk) = (&self.driver, &mut self.bufs.chunk);
        let mut told = vec![0.0f32; 2 * rows.len()];
        let said = chunk.said.take(driver, size_of_val(told.as_slice()))?;
        let args = LossRows {
            logits: chunk.logits.take(driver, 0)?.at(),
            rows: holding(&mut chunk.rows, driver, rows)?,
            ids: chunk.ids.take(driver, 0)?.at(),
            said: said.at(),
            picked: chunk.picked.take(driver, 0)?.at(),
            places: chunk.places.take(driver, 0)?.at(),
            amounts: chunk.amounts.take(driver, 0)?.at(),
            stride: padded(vocab) as u32,
            vocab: vocab as u32,
        };
        let grid = [rows.len() as u32, 1, 1];
        launch(&**driver, kernel, (grid, LOSS_THREADS), &args)?;
        said.read(0, &mut told)?;
        Ok(told)
    }

    /// Sites whose logits exist together: within what a chunk holds, and no row of the residual
    /// stream twice.
    fn chunks<'s>(
        &self,
        positions: &'s [LossPosition],
        weight: &dyn Fn(&LossPosition) -> usize,
    ) -> Vec<&'s [LossPosition]> {
        let most = (CHUNK_LOGITS / padded(self.device.model.config.vocab)).max(1);
        let (mut all, mut first) = (Vec::new(), 0);
        let (mut ids, mut seen) = (0, BTreeSet::new());
        for (i, position) in positions.iter().enumerate() {
            let weight = weight(position);
            let full = i - first == most || ids + weight > CHUNK_IDS;
            if i > first && (full || seen.contains(&position.at)) {
                all.push(&positions[first..i]);
                (first, ids) = (i, 0);
                seen.clear();
            }
            ids += weight;
            seen.insert(position.at);
        }
        if first < positions.len() {
            all.push(&positions[first..]);
        }
        all
    }
}

impl<'a> Question<'a> {
    fn of(step: &LossStep<'a>, position: &LossPosition) -> Self {
        Self {
            loss: step.item(position),
            ids: step.asks(position),
        }
    }

    /// Ids that go to the device for it.
    fn weight(&self) -> usize {
        self.ids.len() + self.loss.kept.as_ref().map_or(0, |kept| kept.len())
    }
}

/// Memory that holds `values`, in the order of launches.
fn holding<T: Plain>(
    growing: &mut Growing,
    driver: &Arc<dyn Driver>,
    values: &[T],
) -> Result<u64, DeviceError> {
    let buffer = growing.take(driver, size_of_val(values))?;
    buffer.write(values)?;
    Ok(buffer.at())
}

/// Whether an id is there twice.
fn has_twice(ids: &[u32]) -> bool {
    if ids.is_sorted_by(|a, b| a < b) {
        return false;
    }
    let mut sorted = ids.to_vec();
    sorted.sort_unstable();
    sorted.windows(2).any(|pair| pair[0] == pair[1])
}
