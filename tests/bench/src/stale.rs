//! Learning from what an older version sampled: how stale turns are under load, against the
//! formulas, and what staleness costs each objective on a problem small enough to solve exactly.

use hone_nn::{Objective, SequenceView, TokenView};
use hone_starter::rng::Rng;
use serde_json::{Value, json};

use super::Bench;
use super::learn::Size;
use super::report::{Report, milli, ratio};

/// Versions between sampling and training.
const LAGS: [usize; 6] = [0, 1, 2, 4, 8, 16];
/// Arrivals over what the trainer can take.
const LOADS: [f64; 4] = [0.5, 0.8, 1.5, 3.0];

/// `hone-bench async`.
pub(super) fn stale(_bench: &Bench, size: &Size) -> Result<Report, String> {
    let title = format!(
        "async: expected reward after {STEPS} steps at lags 0 to 16, {} seeds",
        size.seeds()
    );
    let head = ["objective", "0", "1", "2", "4", "8", "16", "lag 4 / 0"];
    let mut report = Report::new(title, &head);
    let mut objects = serde_json::Map::new();
    for (name, objective) in objectives() {
        let rewards: Vec<f64> = LAGS
            .iter()
            .map(|lag| {
                let seeds = 1..=size.seeds();
                seeds
                    .map(|seed| Toy::train(objective, *lag, seed))
                    .sum::<f64>()
                    / size.seeds() as f64
            })
            .collect();
        let kept = ratio(rewards[3], rewards[0]).unwrap_or_default();
        let cell = |i: usize| format!("{:.2}", rewards[i]);
        report.row([
            name.to_owned(),
            cell(0),
            cell(1),
            cell(2),
            cell(3),
            cell(4),
            cell(5),
            format!("{kept:.2}"),
        ]);
        objects.insert(name.to_owned(), rewards.into_iter().map(milli).collect());
    }
    let mut loads = Vec::new();
    for load in LOADS {
        let (seen, told) = (Load::of(load).simulate(11), Load::of(load).formula());
        report.note(format!(
            "load {load:.1}: staleness {:.2} (formula {:.2}), kept {:.0} % (formula {:.0} %), length of kept / all {:.3}",
            seen.staleness,
            told.staleness,
            seen.kept * 100.0,
            told.kept * 100.0,
            seen.length_ratio,
        ));
        loads.push(seen.json(load, &told));
    }
    report.set("objectives", Value::Object(objects));
    report.set("loads", loads);
    Ok(report)
}

fn objectives() -> [(&'static str, Objective); 6] {
    let (clip_low, clip_high) = (0.2, 0.28);
    [
        (
            "decoupled_ppo",
            Objective::DecoupledPpo {
                clip_low,
                clip_high,
                correction_cap: 5.0,
            },
        ),
        (
            "ppo",
            Objective::Ppo {
                clip_low,
                clip_high,
            },
        ),
        ("cispo", Objective::Cispo { ratio_cap: 5.0 }),
        (
            "dppo_tv",
            Objective::DppoTv {
                threshold: 0.2,
                anchor: 1e-3,
            },
        ),
        (
            "token_tis",
            Objective::TokenTis {
                correction_cap: 2.0,
            },
        ),
        ("no_correction", Objective::CrossEntropy),
    ]
}

// === the toy ===

const CONTEXTS: usize = 12;
const POSITIONS: usize = 6;
const SYMBOLS: usize = 8;
const GROUP: usize = 8;
const MINIBATCHES: usize = 4;
const STEPS: usize = 120;
/// Learning rate, times the contexts, since a context sees its share of a batch only.
const RATE: f64 = 12.0;

/// A softmax per context and position; the reward is the share of a target's beginning that was
/// said.
#[derive(Clone)]
struct Toy {
    logits: Vec<[f64; SYMBOLS]>,
    targets: Vec<usize>,
}

/// A sampled symbol.
struct Said {
    place: usize,
    symbol: usize,
    advantage: f64,
    behavior: f64,
}

impl Toy {
    fn new(rng: &mut Rng) -> Self {
        let places = CONTEXTS * POSITIONS;
        Self {
            logits: vec![[0.0; SYMBOLS]; places],
            targets: (0..places).map(|_| rng.below(SYMBOLS)).collect(),
        }
    }

    /// Exact expected reward after training on turns that are `lag` versions old.
    fn train(objective: Objective, lag: usize, seed: u64) -> f64 {
        let mut rng = Rng::new(seed);
        let mut toy = Self::new(&mut rng);
        let mut versions = vec![toy.logits.clone()];
        for _ in 0..STEPS {
            let sampler = &versions[versions.len() - 1 - lag.min(versions.len() - 1)];
            let batch = toy.sample(sampler, &mut rng);
            let proximal = toy.logits.clone();
            for part in 0..MINIBATCHES {
                let range =
                    batch.len() * part / MINIBATCHES..batch.len() * (part + 1) / MINIBATCHES;
                toy.update(objective, &batch[range], &proximal);
            }
            versions.push(toy.logits.clone());
        }
        toy.reward()
    }

    /// A group per context, interleaved, so that every minibatch has of every context.
    fn sample(&self, sampler: &[[f64; SYMBOLS]], rng: &mut Rng) -> Vec<Said> {
        let mut batch = Vec::new();
        let mut groups: Vec<Vec<(f64, Vec<Said>)>> = Vec::new();
        for context in 0..CONTEXTS {
            let answers: Vec<_> = (0..GROUP)
                .map(|_| self.answer(sampler, context, rng))
                .collect();
            groups.push(answers);
        }
        let means: Vec<f64> = groups
            .iter()
            .map(|g| g.iter().map(|(reward, _)| reward).sum::<f64>() / GROUP as f64)
            .collect();
        for member in 0..GROUP {
            for (group, mean) in groups.iter_mut().zip(&means) {
                let (reward, said) = std::mem::take(&mut group[member]);
                batch.extend(said.into_iter().map(|s| Said {
                    advantage: reward - mean,
                    ..s
                }));
            }
        }
        batch
    }

    fn answer(
        &self,
        sampler: &[[f64; SYMBOLS]],
        context: usize,
        rng: &mut Rng,
    ) -> (f64, Vec<Said>) {
        let (mut said, mut matched, mut on) = (Vec::new(), 0, true);
        for position in 0..POSITIONS {
            let place = context * POSITIONS + position;
            let probabilities = softmax(&sampler[place]);
            let symbol = rng.weighted(&probabilities);
            on &= symbol == self.targets[place];
            matched += usize::from(on);
            said.push(Said {
                place,
                symbol,
                advantage: 0.0,
                behavior: probabilities[symbol].ln(),
            });
        }
        (matched as f64 / POSITIONS as f64, said)
    }

    fn update(&mut self, objective: Objective, part: &[Said], proximal: &[[f64; SYMBOLS]]) {
        let mut gradient = vec![[0.0; SYMBOLS]; self.logits.len()];
        for said in part {
            let now = softmax(&self.logits[said.place]);
            let term = objective.term(&TokenView {
                advantage: said.advantage as f32,
                behavior: said.behavior as f32,
                proximal: softmax(&proximal[said.place])[said.symbol].ln() as f32,
                current: now[said.symbol].ln() as f32,
                sequence: SequenceView::default(),
            });
            let slope = f64::from(term.slope) / part.len() as f64;
            for (symbol, g) in gradient[said.place].iter_mut().enumerate() {
                *g += slope * (f64::from(u8::from(symbol == said.symbol)) - now[symbol]);
            }
        }
        let pairs = self
            .logits
            .iter_mut()
            .flatten()
            .zip(gradient.iter().flatten());
        pairs.for_each(|(logit, g)| *logit -= RATE * POSITIONS as f64 * g);
    }

    fn reward(&self) -> f64 {
        let of_context = |context: usize| {
            let mut alive = 1.0;
            let places = context * POSITIONS..(context + 1) * POSITIONS;
            let matched = places.map(|place| {
                alive *= softmax(&self.logits[place])[self.targets[place]];
                alive
            });
            matched.sum::<f64>() / POSITIONS as f64
        };
        (0..CONTEXTS).map(of_context).sum::<f64>() / CONTEXTS as f64
    }
}

fn softmax(logits: &[f64; SYMBOLS]) -> [f64; SYMBOLS] {
    let most = logits.iter().copied().fold(f64::MIN, f64::max);
    let masses = logits.map(|z| (z - most).exp());
    let sum: f64 = masses.iter().sum();
    masses.map(|m| m / sum)
}

// === load ===

/// Turns of one batch.
const BATCH: usize = 16;
/// From a turn's start to its verdict, in steps of the trainer: mean, and spread of its logarithm.
const DELAY: f64 = 2.0;
const SPREAD: f64 = 0.6;
const TRAINED: usize = 4_000;

/// A load on the trainer, whose step takes one unit of time and whose ready queue holds one batch,
/// dropping the oldest.
struct Load {
    load: f64,
}

/// What a load comes to.
struct Seen {
    staleness: f64,
    kept: f64,
    length_ratio: f64,
}

impl Seen {
    fn json(&self, load: f64, told: &Self) -> Value {
        json!({
            "load": load,
            "staleness": milli(self.staleness),
            "staleness_formula": milli(told.staleness),
            "kept": milli(self.kept),
            "kept_formula": milli(told.kept),
            "length_ratio": milli(self.length_ratio),
        })
    }
}

impl Load {
    fn of(load: f64) -> Self {
        Self { load }
    }

    /// Applied Compute's steady state with a queue of q = 1 batch: in flight `C M / (B max(1, ρ))`,
    /// where by Little's law `C = ρ B d` for a mean delay d; in the queue ρ below capacity, else
    /// `(2 q + ρ - 1) / (2 ρ)`. Below capacity all is kept, above it the share `1 / ρ`.
    fn formula(&self) -> Seen {
        let load = self.load;
        let waiting = if load < 1.0 {
            load
        } else {
            (load + 1.0) / (2.0 * load)
        };
        Seen {
            staleness: DELAY * load.min(1.0) + waiting,
            kept: 1.0 / load.max(1.0),
            length_ratio: 1.0,
        }
    }

    /// Turns arrive by themselves (Poisson), take their time, and are ready; a step takes a whole
    /// batch. Long turns take longer, so a rule that drops by age would show in the length.
    fn simulate(&self, seed: u64) -> Seen {
        let mut rng = Rng::new(seed);
        let rate = self.load * BATCH as f64;
        let units = TRAINED as f64 * BATCH as f64 / (rate.min(BATCH as f64));
        let mut turns: Vec<(f64, f64)> = Vec::new();
        let mut at = 0.0;
        while at < units {
            at += -(1.0 - rng.unit()).ln() / rate;
            let delay = DELAY * (SPREAD * normal(&mut rng) - SPREAD * SPREAD / 2.0).exp();
            turns.push((at + delay, at));
        }
        turns.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut queue: std::collections::VecDeque<(f64, f64)> = std::collections::VecDeque::new();
        // End times of steps, which are the times of publishes.
        let mut published: Vec<f64> = Vec::new();
        let (mut staleness, mut length, mut trained) = (0.0, 0.0, 0_usize);
        for turn in &turns {
            queue.push_back(*turn);
            if queue.len() > BATCH {
                queue.pop_front();
            }
            let free = published.last().copied().unwrap_or(0.0);
            if queue.len() < BATCH || turn.0 < free {
                continue;
            }
            for (ready, started) in queue.drain(..) {
                let at_start = published.partition_point(|end| *end <= started);
                staleness += (published.len() - at_start) as f64;
                length += ready - started;
                trained += 1;
            }
            published.push(turn.0 + 1.0);
        }
        let all: f64 = turns.iter().map(|(ready, started)| ready - started).sum();
        let n = trained.max(1) as f64;
        Seen {
            staleness: staleness / n,
            kept: n / turns.len() as f64,
            length_ratio: (length / n) / (all / turns.len() as f64),
        }
    }
}

/// Box and Muller.
pub(super) fn normal(rng: &mut Rng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.unit()).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.unit()).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staleness_under_load_is_as_the_formulas_say_and_length_is_kept() {
        for load in [0.5, 1.5, 3.0] {
            let (seen, told) = (Load::of(load).simulate(3), Load::of(load).formula());
            let off = |a: f64, b: f64| (a / b - 1.0).abs();
            assert!(
                off(seen.staleness, told.staleness) < 0.1,
                "load {load}: {} not {}",
                seen.staleness,
                told.staleness
            );
            assert!(
                off(seen.kept, told.kept) < 0.1,
                "load {load}: {}",
                seen.kept
            );
            assert!(
                off(seen.length_ratio, 1.0) < 0.03,
                "load {load}: {}",
                seen.length_ratio
            );
        }
    }

    #[test]
    fn decoupling_keeps_what_clipping_around_a_stale_policy_loses() {
        let [decoupled, ppo] = [objectives()[0].1, objectives()[1].1];
        let mean = |objective, lag| {
            (1..=3)
                .map(|seed| Toy::train(objective, lag, seed))
                .sum::<f64>()
                / 3.0
        };
        let synchronous = mean(decoupled, 0);
        assert!(synchronous > 0.8, "{synchronous}");
        assert!(mean(decoupled, 4) >= 0.9 * synchronous);
        assert!(mean(ppo, 4) <= 0.75 * synchronous);
    }
}
