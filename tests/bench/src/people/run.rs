//! One person at a server of its own, and what is measured before and after.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::asker::Asker;
use super::session::{Person, Plan, Sessions};
use super::{ANSWER_TOKENS, Materials, TEMPERATURE};
use crate::demo::client::Client;
use crate::wire::Wire;

/// Questions of the other person.
const OTHER_QUESTIONS: usize = 5;

/// What became of one person.
pub(super) struct Run {
    pub(super) plan: Plan,
    pub(super) sessions: Sessions,
    /// Published versions, oldest first.
    pub(super) published: Vec<Value>,
    /// Refused candidates with the gate's reasons, oldest first.
    pub(super) refused: Vec<Value>,
    /// Where training ran.
    pub(super) after: Option<After>,
    /// Whether another person's answers stayed the same, bit for bit.
    pub(super) other_unchanged: bool,
    pub(super) seconds: f64,
}

/// What the person's policy answers at the end.
pub(super) struct After {
    /// To the held-out questions.
    pub(super) answers: Vec<String>,
    pub(super) facts: Vec<bool>,
    pub(super) instructions: Vec<bool>,
}

/// Holds the sessions at the server at `url`, and measures.
pub(super) async fn run(
    url: &str,
    plan: Plan,
    materials: &Materials,
    pause_max: Duration,
) -> Result<Run, String> {
    let began = Instant::now();
    let wire = Wire::new(url)?;
    pause_training(url, !plan.arm.trains()).await?;
    let other = Asker {
        url,
        user: "other",
        temperature: TEMPERATURE,
        max_tokens: ANSWER_TOKENS,
        memory: None,
    };
    let others = &materials.bank.questions()[..OTHER_QUESTIONS];
    let before = other.ask_all(others).await?;
    let person = Person::new(url, plan, &materials.bank).await?;
    let sessions = person.talk(&wire, pause_max).await?;
    // What is measured is one version.
    pause_training(url, true).await?;
    let user = plan.user();
    let asker = Asker {
        user: &user,
        ..other
    };
    let after = match plan.arm.trains() {
        true => Some(After {
            answers: asker.ask_all(&materials.held_out(plan.preference)).await?,
            facts: materials.facts_known(asker).await?,
            instructions: materials.instructions_followed(asker).await?,
        }),
        false => None,
    };
    let versions = wire
        .get(&format!("/v1/versions?user={user}&limit=1000"))
        .await?;
    let refusals = wire
        .get(&format!("/admin/v1/refusals?user={user}&limit=1000"))
        .await?;
    Ok(Run {
        plan,
        sessions,
        published: listed(&versions, &["version", "samples", "note", "report", "gate"]),
        refused: listed(&refusals, &["reason", "reasons", "samples", "report"]),
        after,
        other_unchanged: other.ask_all(others).await? == before,
        seconds: began.elapsed().as_secs_f64(),
    })
}

/// Pauses or resumes training.
pub(super) async fn pause_training(url: &str, paused: bool) -> Result<(), String> {
    let client = Client::new(url).map_err(|error| format!("{error:#}"))?;
    let done = client.pause_training(paused).await;
    done.map_err(|error| format!("training could not be paused or resumed: {error:#}"))
}

/// Entries of a list, oldest first, with these fields. Of versions, those that were trained.
fn listed(list: &Value, fields: &[&str]) -> Vec<Value> {
    let entries = list["data"].as_array().into_iter().flatten();
    let trained = entries.filter(|entry| {
        let status = entry["status"].as_str();
        status.is_none_or(|status| status == "published")
    });
    let fields = trained.map(|entry| {
        let pairs = fields
            .iter()
            .map(|field| ((*field).to_owned(), entry[*field].clone()));
        Value::Object(pairs.collect())
    });
    let mut fields: Vec<Value> = fields.collect();
    fields.reverse();
    fields
}

/// The gate's reasons of all refused candidates.
pub(super) fn reasons(refused: &[Value]) -> Vec<String> {
    let reasons = refused.iter().map(|one| {
        let words = one["reasons"].as_array().into_iter().flatten();
        let words: Vec<&str> = words.filter_map(Value::as_str).collect();
        match words.is_empty() {
            true => one["reason"].as_str().unwrap_or_default().to_owned(),
            false => words.join("; "),
        }
    });
    reasons.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lists_are_turned_around_and_reasons_are_words() {
        let list = json!({ "data": [
            { "version": 2, "status": "published", "x": 1 },
            { "version": 2, "status": "rollback" },
            { "version": 1, "status": "published" },
        ]});
        let wanted = [json!({ "version": 1 }), json!({ "version": 2 })];
        assert_eq!(listed(&list, &["version"]), wanted);
        let refused = [
            json!({ "reason": "gate_rejected", "reasons": ["too long", "too far"] }),
            json!({ "reason": "step_failed", "reasons": [] }),
        ];
        assert_eq!(reasons(&refused), ["too long; too far", "step_failed"]);
    }
}
