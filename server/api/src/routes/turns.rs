//! `GET /v1/turns/{id}`: what became of a turn and why.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use hone_domain::{
    Fate, Feedback, HintChoice, NextItem, Origin, ParsedOutput, Sampling, Signal, Stage,
    StopReason, TurnId, TurnKind, Vote,
};
use hone_ledger::{Extent, TurnView};
use serde::Serialize;
use utoipa::ToSchema;

use super::Reply;
use crate::Http;
use crate::request_context::RequestContext;
use hone_api_types::branches::BranchOfReply;
use hone_api_types::feedback::parse_turn_id;
use hone_api_types::replies::ids_of;
use hone_api_types::skills::{ShownSkillReply, shown_skills};
use hone_replies::error::{ApiError, ErrorBody};

/// What became of a turn.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct FateReply {
    /// `pending`, `trained` or `settled`.
    pub state: &'static str,
    /// Where it waits, while pending.
    pub stage: Option<&'static str>,
    /// The version it entered, if trained.
    pub version: Option<u64>,
    /// Why it will not train, if settled.
    pub reason: Option<&'static str>,
    /// All of that as one sentence.
    pub explanation: String,
}

impl FateReply {
    pub(super) fn of(fate: Fate) -> Self {
        let mut reply = Self {
            state: "pending",
            stage: None,
            version: None,
            reason: None,
            explanation: String::new(),
        };
        match fate {
            Fate::Pending { stage } => {
                reply.stage = Some(stage.as_str());
                reply.explanation = match stage {
                    Stage::AwaitingNextState => "it waits for what is answered to it",
                    Stage::AwaitingVerdict => "it waits for the judge",
                    Stage::AwaitingTraining => "it is judged and waits for a training batch",
                }
                .to_owned();
            }
            Fate::Trained { version } => {
                reply.state = "trained";
                reply.version = Some(version.0);
                reply.explanation = format!("version {version} learned from it");
            }
            Fate::Settled { reason } => {
                reply.state = "settled";
                reply.reason = Some(reason.as_str());
                reply.explanation = reason.explain().to_owned();
            }
        }
        reply
    }

    /// Of a greedy answer, which no verdict trains.
    fn greedy(mut self) -> Self {
        if self.state == "pending" {
            self.explanation
                .push_str("; as a greedy answer (temperature 0) it trains only by a correction");
        }
        self
    }
}

/// The verdict on a turn.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct VerdictReply {
    /// -1 to 1; null when every signal abstained.
    pub score: Option<f32>,
    /// The signal that decided.
    pub decided_by: Option<&'static str>,
    /// What should have been done, where the next state says so.
    pub hint: Option<String>,
    /// The manner that the hint asks for, in the words of the rules' table, where it holds it.
    pub wish: Option<String>,
    /// How the hint was chosen, where several could be kept: `candidates` (`hint`, and `agreement`,
    /// the share of the policy's likeliest tokens that stay so under it), `chosen` (index), `by`
    /// (`agreement` or `rule`) and `reason`.
    #[schema(value_type = Option<Object>)]
    pub hint_choice: Option<HintChoice>,
    /// Every vote.
    #[schema(value_type = Vec<Object>)]
    pub votes: Vec<Vote>,
    /// When, in milliseconds since the Unix epoch.
    pub judged_ms: i64,
}

/// Feedback on a turn.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct FeedbackView {
    /// -1 to 1.
    pub score: Option<f32>,
    /// Free words.
    pub comment: Option<String>,
    /// What the answer should have been.
    pub correction: Option<String>,
    /// The score is this turn's part of the reward of its whole session.
    pub of_session: bool,
    /// When, in milliseconds since the Unix epoch.
    pub received_ms: i64,
}

impl FeedbackView {
    pub(super) fn of(feedback: Feedback) -> Self {
        Self {
            score: feedback.score,
            comment: feedback.comment,
            correction: feedback.correction,
            of_session: feedback.of_session,
            received_ms: feedback.received_ms,
        }
    }
}

/// A turn and what became of it.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct TurnReply {
    /// Always `turn`.
    pub object: &'static str,
    /// The turn.
    pub id: String,
    /// Its session.
    pub session_id: String,
    /// The turn it continues.
    pub parent_id: Option<String>,
    /// The answer that it goes on from, where it is a branch.
    pub branch_of: Option<BranchOfReply>,
    /// Which of its request's choices.
    pub choice_index: u32,
    /// `main` or `side`.
    #[schema(value_type = String)]
    pub kind: TurnKind,
    /// `user`; `rollout` of an episode or a branch; or `outside` where it came by `POST /v1/trajectories`.
    #[schema(value_type = String)]
    pub origin: Origin,
    /// The version that sampled it; of a turn from outside the one that was served when it came.
    pub policy_version: u64,
    /// Content hash of that version's adapter; null for the base model.
    pub policy_digest: Option<String>,
    /// Content hash of the base model.
    pub base_digest: String,
    /// Arithmetic that sampled it.
    pub fingerprint: String,
    /// How it was sampled.
    #[schema(value_type = Object)]
    pub sampling: Sampling,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens sampled.
    pub completion_tokens: usize,
    /// The completion, as it was sampled.
    pub completion: String,
    /// What it says to the user: the completion without reasoning and tool calls.
    pub content: String,
    /// Its reasoning; empty where there was none.
    pub reasoning: String,
    /// Why sampling ended.
    #[schema(value_type = String)]
    pub stop: StopReason,
    /// When it was admitted, in milliseconds since the Unix epoch.
    pub started_ms: i64,
    /// When sampling ended, in milliseconds since the Unix epoch.
    pub finished_ms: i64,
    /// What became of it.
    pub fate: FateReply,
    /// How much of it is stored: `whole`, `words` (all but log-probs), or `row` (what became of it, without a word).
    pub stored: &'static str,
    /// What was answered to it.
    #[schema(value_type = Vec<Object>)]
    pub next_state: Vec<NextItem>,
    /// The current verdict.
    pub verdict: Option<VerdictReply>,
    /// Explicit feedback.
    pub feedback: Vec<FeedbackView>,
    /// The memories that its prompt shows.
    pub memories: Vec<String>,
    /// The skills that its prompt shows.
    pub skills: Vec<ShownSkillReply>,
    /// What the client attached, for itself.
    pub metadata: BTreeMap<String, String>,
    /// The distributed trace it belongs to, in 32 hexadecimal digits.
    pub trace_id: String,
}

impl TurnReply {
    pub(super) fn of(view: TurnView) -> Self {
        let version = view.turn.version();
        let turn = view.turn;
        let trace_id = turn.trace().simple().to_string();
        let parsed = ParsedOutput::whole(&turn.completion_text);
        let fate = match turn.sampling.is_greedy() {
            true => FateReply::of(view.fate).greedy(),
            false => FateReply::of(view.fate),
        };
        Self {
            object: "turn",
            id: turn.id.prefixed(),
            session_id: turn.session.prefixed(),
            parent_id: turn.parent.map(TurnId::prefixed),
            branch_of: turn.admission.branch.map(Into::into),
            choice_index: turn.choice_index,
            kind: turn.kind,
            origin: turn.origin,
            policy_version: version.0,
            policy_digest: turn.digest.map(hone_domain::Digest::to_hex),
            base_digest: turn.base.to_hex(),
            fingerprint: turn.fingerprint,
            sampling: turn.sampling,
            prompt_tokens: turn.prompt_tokens.len(),
            completion_tokens: turn.completion.len(),
            stop: turn.completion.stop(),
            content: parsed.content,
            reasoning: parsed.reasoning,
            completion: turn.completion_text,
            started_ms: turn.started_ms,
            finished_ms: turn.finished_ms,
            fate,
            stored: match view.extent {
                Extent::Whole => "whole",
                Extent::Words => "words",
                Extent::Row => "row",
            },
            next_state: view
                .transition
                .map(|t| t.next_state.items)
                .unwrap_or_default(),
            verdict: view.verdict.map(|verdict| VerdictReply {
                score: verdict.score,
                decided_by: verdict.decided_by.map(Signal::as_str),
                hint: verdict.hint,
                wish: verdict.wish,
                hint_choice: verdict.hint_choice,
                votes: verdict.votes,
                judged_ms: verdict.judged_ms,
            }),
            feedback: view.feedback.into_iter().map(FeedbackView::of).collect(),
            memories: ids_of(&turn.admission.memory.shown),
            skills: shown_skills(&turn.admission.memory.skills),
            metadata: turn.admission.metadata,
            trace_id,
        }
    }
}

/// What became of a turn and why.
#[utoipa::path(
    get,
    path = "/v1/turns/{id}",
    params(("id" = String, Path, description = "The turn, or the id of its reply")),
    responses(
        (status = 200, body = TurnReply),
        (status = 404, description = "No such turn of yours", body = ErrorBody),
    )
)]
pub async fn get_turn(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(id): Path<String>,
) -> Reply<TurnReply> {
    let unknown = || ApiError::unknown("turn", &id);
    let turn = parse_turn_id(&id).ok_or_else(unknown)?;
    let view = http.ledger.turn(turn).await?;
    let view = view.filter(|v| v.turn.owner == context.caller.owner);
    view.map(|v| Json(TurnReply::of(v))).ok_or_else(unknown)
}
