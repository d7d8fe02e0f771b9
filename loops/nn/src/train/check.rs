//! What a learner refuses, before anything is computed.

use super::{LearnerConfig, LearnerError, Objective, StepError, TokenLoss, TrainRow, Trainable};

/// Refuses settings that cannot train.
pub(crate) fn check(cfg: &LearnerConfig) -> Result<(), LearnerError> {
    if cfg.trainable == Trainable::Full && cfg.kl_coef != 0.0 {
        return Err(LearnerError::NoReference);
    }
    let at_least_0 = "finite and at least 0";
    let (low, high, cap) = match cfg.objective {
        Objective::CrossEntropy => (0.0, 0.0, 1.0),
        Objective::Ppo {
            clip_low,
            clip_high,
        } => (clip_low, clip_high, 1.0),
        Objective::DecoupledPpo {
            clip_low,
            clip_high,
            correction_cap,
        }
        | Objective::Gspo {
            clip_low,
            clip_high,
            correction_cap,
        } => (clip_low, clip_high, correction_cap),
        Objective::Cispo { ratio_cap: cap }
        | Objective::TokenTis {
            correction_cap: cap,
        } => (0.0, 0.0, cap),
        Objective::DppoTv { threshold, anchor } => (0.0, anchor, threshold),
    };
    let unit = |v: f32| (0.0..1.0).contains(&v);
    let rules: [(&'static str, f32, bool, &'static str); 15] = [
        ("lr", cfg.lr, cfg.lr >= 0.0, at_least_0),
        ("beta1", cfg.beta1, unit(cfg.beta1), "in 0 .. 1"),
        ("beta2", cfg.beta2, unit(cfg.beta2), "in 0 .. 1"),
        ("eps", cfg.eps, cfg.eps > 0.0, "finite and above 0"),
        (
            "weight_decay",
            cfg.weight_decay,
            cfg.weight_decay >= 0.0,
            at_least_0,
        ),
        (
            "clip_norm",
            cfg.clip_norm,
            cfg.clip_norm > 0.0,
            "finite and above 0",
        ),
        ("kl_coef", cfg.kl_coef, cfg.kl_coef >= 0.0, at_least_0),
        (
            "entropy_coef",
            cfg.entropy_coef,
            cfg.entropy_coef >= 0.0,
            at_least_0,
        ),
        ("clip_low", low, (0.0..=1.0).contains(&low), "in 0 ..= 1"),
        ("clip_high", high, high >= 0.0, at_least_0),
        ("correction_cap", cap, cap > 0.0, "finite and above 0"),
        (
            "supervised_coef",
            cfg.supervised_coef,
            cfg.supervised_coef >= 0.0,
            at_least_0,
        ),
        (
            "distill.coef",
            cfg.distill.coef,
            cfg.distill.coef >= 0.0,
            at_least_0,
        ),
        (
            "distill.clip",
            cfg.distill.clip,
            cfg.distill.clip > 0.0,
            "finite and above 0",
        ),
        ("ess_base", cfg.ess_base, cfg.ess_base >= 0.0, at_least_0),
    ];
    for (name, value, holds, rule) in rules {
        if !holds || !value.is_finite() {
            return Err(LearnerError::BadSetting {
                name,
                value: f64::from(value),
                rule,
            });
        }
    }
    if let Trainable::Lora(lora) = &cfg.trainable {
        let empty = lora.rank == 0 || lora.targets.is_empty();
        if empty || !lora.alpha.is_finite() {
            let value = lora.rank as f64;
            let rule = "at least 1, with a target and a finite alpha";
            return Err(LearnerError::BadSetting {
                name: "rank",
                value,
                rule,
            });
        }
    }
    Ok(())
}

/// Refuses rows that point outside themselves or hold impossible numbers.
pub(crate) fn check_rows(rows: &[TrainRow], vocab: usize) -> Result<(), StepError> {
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
