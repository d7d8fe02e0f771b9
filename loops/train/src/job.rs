//! The job under way and what it will report.

use std::collections::HashMap;
use std::sync::Arc;

use hone_domain::{
    BatchId, BlobKey, Digest, Millis, PolicyVersion, Reason, Scope, TransitionId, TurnId,
};
use hone_ledger::{Claim, SampleMaterial};
use serde_json::{Value, json};

use crate::candidate::Candidate;
use crate::credit::RecentMean;
use crate::event::Memory;
use crate::gate::{self, Measured};
use crate::pack::PackedRow;

/// The advantage that its verdict gave each turn, by the turn's id: what the console shows of a
/// trained turn. Bounded by the batch.
fn advantages(materials: &[SampleMaterial], rows: &[PackedRow]) -> Value {
    let turns: HashMap<TransitionId, TurnId> = materials
        .iter()
        .map(|m| (m.claim.transition, m.turn.id))
        .collect();
    let parts = rows.iter().flat_map(|row| row.sample.parts());
    let noted = parts.filter_map(|part| {
        let turn = turns.get(&part.transition)?;
        let advantage = f64::from(*part.advantages.first()?);
        // Three digits tell what there is to see.
        Some((turn.to_string(), json!((advantage * 1e3).round() / 1e3)))
    });
    Value::Object(noted.collect())
}

/// Means and shares. The lists are left out: a report has one number or interval for each.
fn shown(measured: &Measured) -> Value {
    let mut shown = json!(measured);
    if let Some(numbers) = shown.as_object_mut() {
        numbers.retain(|_, value| !value.is_array());
    }
    shown
}

/// What a job is doing.
#[derive(Debug)]
pub(crate) enum Doing {
    Claim,
    Train,
    Save(Arc<Candidate>),
    Publish(BlobKey),
    Refuse(Reason),
    Release(Millis),
}

/// One batch on its way through the loop.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) scope: Scope,
    pub(crate) doing: Doing,
    pub(crate) batch: Option<BatchId>,
    pub(crate) parent: PolicyVersion,
    pub(crate) claims: Vec<Claim>,
    pub(crate) digest: Option<Digest>,
    pub(crate) history: RecentMean,
    pub(crate) lr_scale: f32,
    pub(crate) attempts: u32,
    /// Set while it waits for another attempt.
    pub(crate) retry_at_ms: Option<Millis>,
    pub(crate) began_ms: Millis,
    /// When its leases were taken or renewed.
    pub(crate) leased_ms: Millis,
    /// Turns of it that are learned from by their hint.
    pub(crate) hinted: u64,
    pub(crate) report: Value,
    pub(crate) gate: Value,
}

impl Job {
    pub(crate) fn claiming(scope: Scope, now: Millis) -> Self {
        Self {
            scope,
            doing: Doing::Claim,
            batch: None,
            parent: PolicyVersion::BASE,
            claims: Vec::new(),
            digest: None,
            history: RecentMean::default(),
            lr_scale: 1.0,
            attempts: 0,
            retry_at_ms: None,
            began_ms: now,
            leased_ms: now,
            hinted: 0,
            report: json!({}),
            gate: json!({}),
        }
    }

    /// Adds a word to the report.
    pub(crate) fn note(&mut self, key: &str, text: String) {
        self.report[key] = text.into();
    }

    /// What the batch is.
    pub(crate) fn describe(
        &mut self,
        materials: &[SampleMaterial],
        scores: &[f32],
        rows: &[PackedRow],
    ) {
        let count = materials.len().max(1) as f64;
        let staleness = materials.iter().map(|m| m.staleness);
        let (sum, most) = staleness.fold((0, 0), |(sum, most), s| (sum + s, most.max(s)));
        let prompt: usize = materials.iter().map(|m| m.turn.prompt_tokens.len()).sum();
        self.report["batch"] = json!({
            "turns": materials.len(),
            "rows": rows.len(),
            "row_tokens": rows.iter().map(|r| r.sample.tokens().len()).sum::<usize>(),
            "prompt_tokens": prompt,
            "loss_tokens": rows.iter().map(|r| r.sample.loss_tokens()).sum::<usize>(),
            "score_mean": f64::from(scores.iter().sum::<f32>()) / count,
            "staleness_mean": sum as f64 / count,
            "staleness_max": most,
        });
        self.report["advantages"] = advantages(materials, rows);
    }

    /// What the step measured.
    pub(crate) fn measured(&mut self, candidate: &Candidate) {
        self.report["step"] = json!(candidate.numbers);
        self.report["parity"] = json!(candidate.parity);
        self.report["wishes"] = json!(candidate.wishes);
        self.gate["measured"] = shown(&candidate.measured);
        self.gate["held_out"] = json!(gate::interval(&candidate.measured.differences));
        self.gate["facts"] = json!(gate::interval(&candidate.measured.fact_gains));
        self.gate["instructed"] = json!(gate::interval(&candidate.measured.instruction_losses));
    }

    /// The report with what the scope remembers after it.
    pub(crate) fn report_with(&self, memory: Memory, now: Millis) -> Value {
        let mut report = self.report.clone();
        report["lr_scale"] = json!(self.lr_scale);
        report["took_ms"] = json!(now - self.began_ms);
        report["memory"] = json!(memory);
        report
    }
}
