//! What the gate judges, measured: divergences on the batch and answered probes.

use hone_domain::Token;
use hone_kernels::token_logprob;
use hone_nn::{Adapter, BLOCK_TOKENS, LogitsWanted, SeqInput};

use super::NnParts;
use super::answers::{Answer, Answering, answers};
use super::memo::Memo;
use crate::config::GateConfig;
use crate::evaluation_job::EvaluationJob;
use crate::gate::Measured;
use crate::probe::{ProbeCompletion, ProbeSummary};
use crate::trainer::TrainError;

/// The policies that are compared; the base model is the third.
#[derive(Clone, Copy)]
pub(super) struct Compared<'a> {
    pub(super) candidate: &'a Adapter,
    /// None where the candidate continues the base model.
    pub(super) parent: Option<&'a Adapter>,
}

pub(super) fn measure(
    parts: &NnParts,
    gate: &GateConfig,
    memo: Option<&Memo>,
    job: &EvaluationJob,
    policies: Compared<'_>,
    pause: &mut dyn FnMut() -> bool,
) -> Result<Measured, TrainError> {
    let kl = divergences(parts, job, gate.kl_tokens_max, policies, pause)?;
    let differences = differences(parts, job, policies, pause)?;
    let how = Answering {
        parts,
        memo,
        tokens_max: gate.probe_tokens_max,
        temperature: gate.probe_temperature,
    };
    let fits = |probe: &&Vec<Token>| how.fits(probe);
    let probes: Vec<Vec<Token>> = job.probes.iter().filter(fits).cloned().collect();
    let golden = job.probes.iter().take(job.golden).filter(fits).count();
    let mut answered = |adapter: Option<&Adapter>| -> Result<Vec<ProbeCompletion>, TrainError> {
        let said = answers(how, &probes, adapter, pause)?;
        Ok(said.into_iter().map(Answer::probe).collect())
    };
    let candidate = ProbeSummary::of(&answered(Some(policies.candidate))?);
    let said = answered(None)?;
    let base = ProbeSummary::of(&said);
    let parent = match policies.parent {
        Some(parent) => ProbeSummary::of(&answered(Some(parent))?),
        None => base,
    };
    let fixed: Vec<_> = probes.iter().zip(&said).take(golden).collect();
    let golden_loss = golden_loss(parts, &fixed, policies.candidate, pause)?;
    Ok(Measured {
        finite: true,
        changed: true,
        kl_to_reference: kl.to_reference,
        kl_to_parent: kl.to_parent,
        candidate,
        parent,
        base,
        golden_loss,
        differences,
        // Set by the evaluator, from what the learner computes and what the wishes came to.
        ..Measured::default()
    })
}

/// Tokens that are computed at a time: where nothing is asked, and where logits are.
const CHUNK: usize = 128;
const ASKED: usize = 32;

/// A text under some policies at once, each on a cache of its own.
struct Reading<'a> {
    policies: &'a [Option<&'a Adapter>],
    tokens: &'a [Token],
}

impl Reading<'_> {
    /// Shows the logits of every policy that predict the tokens at `positions`, which ascend.
    fn logits(
        &self,
        parts: &NnParts,
        positions: &[usize],
        pause: &mut dyn FnMut() -> bool,
        see: &mut dyn FnMut(usize, &[&[f32]]),
    ) -> Result<(), TrainError> {
        let Some(last) = positions.last() else {
            return Ok(());
        };
        let each = last.div_ceil(BLOCK_TOKENS);
        let all = self.policies.len();
        let mut runner = parts.runner(each * all, CHUNK * all, ASKED * all)?;
        let blocks: Vec<u32> = (0..(each * self.policies.len()) as u32).collect();
        let (mut done, mut asked) = (0, positions);
        while let Some(&next) = asked.first() {
            let (end, logits) = if done + 1 < next {
                ((next - 1).min(done + CHUNK), LogitsWanted::None)
            } else {
                let run = asked.iter().zip(next..).take(ASKED);
                let run = run.take_while(|(asked, next)| *asked == next).count();
                (done + run, LogitsWanted::All)
            };
            if pause() {
                return Err(TrainError::Stopped);
            }
            let policies = self.policies.iter().zip(blocks.chunks(each));
            let batch: Vec<SeqInput> = policies
                .map(|(adapter, blocks)| SeqInput {
                    tokens: &self.tokens[done..end],
                    start: done,
                    blocks,
                    adapter: *adapter,
                    logits,
                })
                .collect();
            let rows = match runner.forward(&batch) {
                Ok(rows) => rows,
                Err(error) => {
                    // From the first token again, to the positions that were not shown yet.
                    runner = parts.instead(&error, blocks.len())?;
                    done = 0;
                    continue;
                }
            };
            if logits == LogitsWanted::All {
                for row in 0..end - done {
                    let of = |policy| rows.row(policy * (end - done) + row);
                    let all: Vec<&[f32]> = (0..self.policies.len()).map(of).collect();
                    see(done + row + 1, &all);
                }
                asked = &asked[end - done..];
            }
            done = end;
        }
        Ok(())
    }
}

/// Mean log-probs per token of everything from `start` on, under every policy.
fn mean_logprobs<const N: usize>(
    parts: &NnParts,
    policies: [Option<&Adapter>; N],
    (tokens, start): (&[Token], usize),
    pause: &mut dyn FnMut() -> bool,
) -> Result<[f64; N], TrainError> {
    let positions: Vec<usize> = (start..tokens.len()).collect();
    let reading = Reading {
        policies: &policies,
        tokens,
    };
    let mut sums = [0.0; N];
    reading.logits(parts, &positions, pause, &mut |position, rows| {
        for (sum, row) in sums.iter_mut().zip(rows) {
            *sum += f64::from(token_logprob(row, tokens[position], 1.0, None));
        }
    })?;
    Ok(sums.map(|sum| sum / positions.len().max(1) as f64))
}

/// Largest gain or loss of one held-out turn, in nats per token: none of them decides alone.
const DIFFERENCE_MAX: f64 = 1.0;

/// Per held-out turn, what its completion gains under the candidate, times its score: above 0 where
/// good completions become likelier and bad ones less likely.
fn differences(
    parts: &NnParts,
    job: &EvaluationJob,
    policies: Compared<'_>,
    pause: &mut dyn FnMut() -> bool,
) -> Result<Vec<f32>, TrainError> {
    let mut differences = Vec::with_capacity(job.held_out.len());
    for judged in &job.held_out {
        let text = (judged.tokens.as_slice(), judged.start);
        let compared = [Some(policies.candidate), policies.parent];
        let [now, served] = mean_logprobs(parts, compared, text, pause)?;
        let gain = (now - served).clamp(-DIFFERENCE_MAX, DIFFERENCE_MAX);
        differences.push((gain * f64::from(judged.score)) as f32);
    }
    Ok(differences)
}

/// What the base model's own answers lose under the candidate, per token.
fn golden_loss(
    parts: &NnParts,
    fixed: &[(&Vec<Token>, &ProbeCompletion)],
    candidate: &Adapter,
    pause: &mut dyn FnMut() -> bool,
) -> Result<f32, TrainError> {
    let (mut sum, mut count) = (0.0, 0);
    for (prompt, said) in fixed.iter().filter(|(_, said)| !said.tokens.is_empty()) {
        let tokens = [prompt.as_slice(), &said.tokens].concat();
        let text = (tokens.as_slice(), prompt.len());
        let [base, now] = mean_logprobs(parts, [None, Some(candidate)], text, pause)?;
        sum += base - now;
        count += 1;
    }
    Ok((sum / f64::from(count.max(1))) as f32)
}

struct Divergences {
    to_reference: f32,
    to_parent: f32,
}

/// KL(candidate ‖ base) and KL(parent ‖ candidate): exact over the vocabulary at temperature 1,
/// averaged over the batch's completion tokens. Estimates from the sampled tokens alone would be
/// cheaper, but one token that the candidate gave up on can make them arbitrarily large.
fn divergences(
    parts: &NnParts,
    job: &EvaluationJob,
    most: usize,
    policies: Compared<'_>,
    pause: &mut dyn FnMut() -> bool,
) -> Result<Divergences, TrainError> {
    let (mut reference, mut parent, mut count) = (0.0_f64, 0.0_f64, 0_usize);
    for row in &job.rows {
        if count >= most {
            break;
        }
        let spans = row
            .sample
            .parts()
            .iter()
            .map(|p| p.start..p.start + p.advantages.len());
        let positions: Vec<usize> = spans.flatten().take(most - count).collect();
        let all = [Some(policies.candidate), None, policies.parent];
        let reading = Reading {
            // Without a parent the base model is what is served.
            policies: &all[..2 + usize::from(policies.parent.is_some())],
            tokens: row.sample.tokens(),
        };
        reading.logits(parts, &positions, pause, &mut |_, rows| {
            let (now, start) = (rows[0], rows[1]);
            let served = rows.get(2).unwrap_or(&start);
            reference += divergence(now, start);
            parent += divergence(served, now);
        })?;
        count += positions.len();
    }
    let mean = |sum: f64| (sum / count.max(1) as f64) as f32;
    Ok(Divergences {
        to_reference: mean(reference),
        to_parent: mean(parent),
    })
}

/// KL(p ‖ q) in nats of the distributions with these logits; NaN where a logit is.
fn divergence(p: &[f32], q: &[f32]) -> f64 {
    let (p_norm, q_norm) = (log_sum_exp(p), log_sum_exp(q));
    let term = |(p, q): (&f32, &f32)| {
        let log_p = f64::from(*p) - p_norm;
        log_p.exp() * (log_p - (f64::from(*q) - q_norm))
    };
    p.iter().zip(q).map(term).sum()
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|z| f64::from(z - most).exp()).sum();
    f64::from(most) + sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergence_is_that_of_the_distributions() {
        let logits = |shares: [f32; 3], shift: f32| shares.map(|share| share.ln() + shift);
        let (p, q) = ([0.5, 0.25, 0.25], [0.25, 0.25, 0.5]);
        let expected = 0.5 * 2.0_f64.ln() + 0.25 * 0.5_f64.ln();
        let got = divergence(&logits(p, 3.0), &logits(q, -80.0));
        assert!((got - expected).abs() < 1e-5, "{got}");
        assert!(divergence(&logits(p, 1.0), &logits(p, 9.0)).abs() < 1e-5);
        assert!(divergence(&[f32::NAN, 0.0], &[0.0, 0.0]).is_nan());
    }
}
