//! What a learner refuses, before anything is computed.

use hone_checkpoint::config::ModelConfig;

use super::{LearnerConfig, LearnerError, Objective, StepError, TokenLoss, TrainRow, Trainable};

/// A setting, its value, whether it may be that, and what it must be.
type Rule = (&'static str, f32, bool, &'static str);

const AT_LEAST_0: &str = "finite and at least 0";
const ABOVE_0: &str = "finite and above 0";

/// Refuses settings that cannot train.
pub(crate) fn check(cfg: &LearnerConfig) -> Result<(), LearnerError> {
    if cfg.trainable == Trainable::Full && cfg.kl_coef != 0.0 {
        return Err(LearnerError::NoReference);
    }
    let rules = optimizer_rules(cfg).into_iter().chain(loss_rules(cfg));
    for (name, value, holds, rule) in rules.chain(objective_rules(&cfg.objective)) {
        if !holds || !value.is_finite() {
            return Err(LearnerError::BadSetting {
                name,
                value: f64::from(value),
                rule,
            });
        }
    }
    Ok(())
}

/// Refuses to train what is not trained of such a model.
pub(crate) fn check_model(cfg: &LearnerConfig, model: &ModelConfig) -> Result<(), LearnerError> {
    match cfg.trainable.adapter() {
        None if model.experts.is_some() => Err(LearnerError::Experts),
        None => Ok(()),
        Some(adapter) => Ok(adapter.check(model)?),
    }
}

fn not_negative(name: &'static str, value: f32) -> Rule {
    (name, value, value >= 0.0, AT_LEAST_0)
}

fn positive(name: &'static str, value: f32) -> Rule {
    (name, value, value > 0.0, ABOVE_0)
}

fn optimizer_rules(cfg: &LearnerConfig) -> Vec<Rule> {
    let unit = |name, v: f32| (name, v, (0.0..1.0).contains(&v), "in 0 .. 1");
    vec![
        not_negative("lr", cfg.lr),
        unit("beta1", cfg.beta1),
        unit("beta2", cfg.beta2),
        positive("eps", cfg.eps),
        not_negative("weight_decay", cfg.weight_decay),
        positive("clip_norm", cfg.clip_norm),
        not_negative("ess_base", cfg.ess_base),
    ]
}

fn loss_rules(cfg: &LearnerConfig) -> Vec<Rule> {
    vec![
        not_negative("kl_coef", cfg.kl_coef),
        not_negative("entropy_coef", cfg.entropy_coef),
        not_negative("supervised_coef", cfg.supervised_coef),
        not_negative("distill.coef", cfg.distill.coef),
        positive("distill.clip", cfg.distill.clip),
    ]
}

fn objective_rules(objective: &Objective) -> Vec<Rule> {
    let range = |low: f32, high| {
        let holds = (0.0..=1.0).contains(&low);
        [
            ("clip_low", low, holds, "in 0 ..= 1"),
            not_negative("clip_high", high),
        ]
    };
    match *objective {
        Objective::CrossEntropy => Vec::new(),
        Objective::Ppo {
            clip_low,
            clip_high,
        } => range(clip_low, clip_high).to_vec(),
        Objective::DecoupledPpo {
            clip_low,
            clip_high,
            correction_cap,
        }
        | Objective::Gspo {
            clip_low,
            clip_high,
            correction_cap,
        } => [
            &range(clip_low, clip_high)[..],
            &[positive("correction_cap", correction_cap)],
        ]
        .concat(),
        Objective::Cispo { ratio_cap } => vec![positive("ratio_cap", ratio_cap)],
        Objective::TokenTis { correction_cap } => {
            vec![positive("correction_cap", correction_cap)]
        }
        Objective::DppoTv { threshold, anchor } => vec![
            positive("threshold", threshold),
            not_negative("anchor", anchor),
        ],
    }
}

/// Refuses rows that point outside themselves or hold impossible numbers.
pub(crate) fn check_rows(rows: &[TrainRow], model: &ModelConfig) -> Result<(), StepError> {
    let vocab = model.vocab;
    if rows.iter().all(|r| r.loss.is_empty()) {
        return Err(StepError::NothingToLearn);
    }
    for (row, r) in rows.iter().enumerate() {
        let bad = |why: String| Err(StepError::BadRow { row, why });
        if let Some(id) = r.tokens.iter().find(|&&id| id as usize >= vocab) {
            return bad(format!("token {id} is not in the vocabulary of {vocab}"));
        }
        for loss in &r.loss {
            let position = loss.position;
            if position == 0 || position >= r.tokens.len() {
                let n = r.tokens.len();
                return bad(format!("loss position {position} is not in 1..{n}"));
            }
            if !(loss.temperature > 0.0 && loss.temperature.is_finite()) {
                let t = loss.temperature;
                return bad(format!(
                    "temperature {t} at position {position} is not above 0"
                ));
            }
            if !(loss.advantage.is_finite() && loss.behavior_logprob.is_finite()) {
                return bad(format!(
                    "advantage or behavior log-prob at {position} is not finite"
                ));
            }
            check_teacher(loss, vocab).or_else(bad)?;
            check_soft(loss, vocab).or_else(bad)?;
            check_experts(loss, model).or_else(bad)?;
            let Some(kept) = &loss.kept else { continue };
            if !kept.contains(&r.tokens[position]) {
                return bad(format!(
                    "the kept ids at position {position} lack its token"
                ));
            }
            if kept.iter().any(|&id| id as usize >= vocab) {
                return bad(format!(
                    "a kept id at position {position} is not in the vocabulary"
                ));
            }
        }
    }
    Ok(())
}

/// Refuses recorded experts that are not of this model.
fn check_experts(loss: &TokenLoss, model: &ModelConfig) -> Result<(), String> {
    let Some(ids) = &loss.experts else {
        return Ok(());
    };
    let position = loss.position;
    let Some(experts) = &model.experts else {
        return Err(format!(
            "experts are recorded at position {position}, but the model has none"
        ));
    };
    let (found, wanted) = (ids.len(), experts.recorded());
    if found != wanted {
        return Err(format!(
            "{found} experts are recorded at position {position}; this model uses {wanted}"
        ));
    }
    let sound = |ids: &[u16]| {
        let ascend = ids.windows(2).all(|pair| pair[0] < pair[1]);
        ascend && ids.iter().all(|id| usize::from(*id) < experts.count)
    };
    if !ids.chunks(experts.chosen).all(sound) {
        return Err(format!(
            "the experts recorded at position {position} are not of this model"
        ));
    }
    Ok(())
}

/// Refuses a teacher whose arrays do not fit each other or the vocabulary.
fn check_teacher(loss: &TokenLoss, vocab: usize) -> Result<(), String> {
    let Some(top) = &loss.teacher else {
        return Ok(());
    };
    let position = loss.position;
    let n = top.ids.len();
    if n == 0 || top.proximal.len() != n || top.teacher.len() != n {
        return Err(format!("the teacher's arrays at {position} do not align"));
    }
    if top.ids.iter().any(|&id| id as usize >= vocab) {
        return Err(format!(
            "an id of the teacher at {position} is not in the vocabulary"
        ));
    }
    let numbers = top.proximal.iter().chain(&top.teacher);
    if numbers.into_iter().any(|x| !x.is_finite()) {
        return Err(format!(
            "a log-prob of the teacher at {position} is not finite"
        ));
    }
    Ok(())
}

/// Refuses soft targets that are no probabilities of tokens.
fn check_soft(loss: &TokenLoss, vocab: usize) -> Result<(), String> {
    let Some(soft) = &loss.soft else {
        return Ok(());
    };
    let position = loss.position;
    if soft.ids.len() != soft.probs.len() {
        return Err(format!("the soft targets at {position} do not align"));
    }
    if soft.ids.iter().any(|&id| id as usize >= vocab) {
        return Err(format!(
            "a soft target at {position} is not in the vocabulary"
        ));
    }
    if !soft.probs.iter().all(|q| (0.0..=1.0).contains(q)) {
        return Err(format!("a soft target at {position} is no probability"));
    }
    Ok(())
}
