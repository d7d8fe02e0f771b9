//! `POST /v1/branches`: an answer is tried again from an exact place in it.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use futures::future::try_join_all;
use hone_api_types::branches::{
    BranchFrom, BranchOfReply, BranchOriginal, BranchPrefix, BranchReply, BranchRequest,
    BranchVersion, BranchWish, BranchesReply,
};
use hone_api_types::sampling::SamplingBounds;
use hone_domain::{
    Collect, Digest, Origin, Policy, PolicyChoice, PolicyVersion, Receipt, Sampling, Scope,
    ServeError, Turn,
};
use hone_inference::{Branched, Branching, InferenceService, OpenError};
use hone_ledger::TurnView;
use serde_json::json;

use super::Reply;
use super::auth::strict;
use super::talk::serving;
use super::versions::Target;
use crate::Http;
use crate::recorded::newest_main_turn;
use crate::request_context::RequestContext;
use hone_replies::error::{ApiError, ErrorBody};

/// Tries an answer again from a place in it: continuations of exactly the tokens up to there. Each is a turn of its own.
#[utoipa::path(
    post,
    path = "/v1/branches",
    request_body = BranchRequest,
    responses(
        (status = 200, body = BranchesReply),
        (status = 404, description = "No such turn of yours", body = ErrorBody),
        (status = 409, description = "`served_version_gone`, `another_model`, `erased`, `not_kept`, `not_allowed_to_keep`", body = ErrorBody),
    )
)]
pub async fn branch(
    State(http): State<Arc<Http>>,
    target: Target,
    context: RequestContext,
    request: Request,
) -> Reply<BranchesReply> {
    let body: BranchRequest = strict(&http, request).await?;
    let wish = body.resolve()?;
    let inference = serving(&http)?;
    let view = wanted(&http, target, &context, wish.from).await?;
    check(inference, &view, wish.position)?;
    let policy = policy_of(&http, &view.turn, wish.version).await?;
    if target == Target::Any && view.turn.owner != context.caller.owner {
        // Whoever tries it again reads what somebody asked and what they were told.
        let detail = json!({"owner": view.turn.owner, "position": wish.position, "n": wish.n});
        let (caller, turn) = (&context.caller, view.turn.id.prefixed());
        http.audit
            .record(caller, "turn.branch", &turn, detail)
            .await?;
    }
    let branching = branching(&http, inference, &context, (&view.turn, &wish, &policy))?;
    let branched = branched(inference, &view, &wish, branching);
    Ok(Json(branched.await?))
}

/// The turn that is tried again.
async fn wanted(
    http: &Http,
    target: Target,
    context: &RequestContext,
    from: BranchFrom,
) -> Result<TurnView, ApiError> {
    let owner = &context.caller.owner;
    let ledger = &*http.ledger;
    let (unknown, view) = match from {
        BranchFrom::Turn(turn) => (
            format!("no turn {}", turn.prefixed()),
            ledger.turn(turn).await?,
        ),
        BranchFrom::Session(session) => (
            format!("no session {} with a turn", session.prefixed()),
            newest_main_turn(ledger, session).await?,
        ),
        BranchFrom::Episode(episode) => {
            let unknown = format!("no episode {} with a turn", episode.prefixed());
            let job = http.jobs.job(owner, episode).await?;
            match job.and_then(|job| job.session) {
                Some(session) => (unknown, newest_main_turn(ledger, session).await?),
                None => (unknown, None),
            }
        }
    };
    let (view, whose) = match target {
        Target::Own => (view.filter(|view| view.turn.owner == *owner), " of yours"),
        Target::Any => (view, ""),
    };
    view.ok_or_else(|| ApiError::NotFound(format!("{unknown}{whose} is known")))
}

fn conflict(code: &'static str, message: impl Into<String>) -> ApiError {
    ApiError::Conflict {
        code,
        message: message.into(),
    }
}

/// Whether the turn can be gone on from at that place.
fn check(inference: &InferenceService, view: &TurnView, position: u32) -> Result<(), ApiError> {
    let turn = &view.turn;
    if view.is_withdrawn() {
        let why = "this answer was erased, or its person withdrew it, so nothing goes on from it";
        return Err(conflict("erased", why));
    }
    if !view.has_words() {
        let why = "the words of this answer are not kept any more (retention), so nothing can go on from it";
        return Err(conflict("not_kept", why));
    }
    if let Collect::No(reason) = inference.collects_branches(turn) {
        let why = format!(
            "continuations are kept as turns of whoever was answered, and they may not be kept: {}",
            reason.explain()
        );
        return Err(conflict("not_allowed_to_keep", why));
    }
    if inference.backend.capabilities().base != turn.base {
        let why = "another base model gave this answer, and its tokens mean other words here";
        return Err(conflict("another_model", why));
    }
    let most = turn.completion.len() - inference.end_of(turn);
    if position as usize > most {
        let why = format!(
            "position {position} is beyond the end of the answer, which has {most} tokens before it ends"
        );
        return Err(ApiError::invalid("position", why));
    }
    Ok(())
}

/// The version that goes on.
async fn policy_of(
    http: &Http,
    turn: &Turn,
    version: BranchVersion,
) -> Result<PolicyChoice, ApiError> {
    if version == BranchVersion::Latest {
        let heads = http.policies.get();
        let newest = heads.newest(&turn.scope);
        return Ok(newest.map_or(PolicyChoice::Base, PolicyChoice::of));
    }
    if turn.origin == Origin::Outside {
        return Err(gone(
            "this answer came from outside, and no version here gave it",
        ));
    }
    let served = turn.version();
    if turn.spans.iter().any(|span| span.version != served) {
        return Err(gone("several versions gave this answer"));
    }
    match as_served(http, &turn.scope, served).await? {
        Ok(None) => Ok(PolicyChoice::Base),
        Ok(Some(policy)) if turn.digest.unwrap_or(Digest::NONE) == policy.digest => {
            Ok(PolicyChoice::of(&policy))
        }
        Ok(Some(_)) => Err(gone(&not_there(served, UNKNOWN))),
        Err(why) => Err(gone(&not_there(served, why))),
    }
}

const UNKNOWN: &str = "is not known any more";

fn not_there(version: PolicyVersion, why: &str) -> String {
    format!("version {version}, which gave this answer, {why}")
}

/// A version that can be asked as it was served, none for the base model; else what became of it.
pub(super) async fn as_served(
    http: &Http,
    scope: &Scope,
    version: PolicyVersion,
) -> Result<Result<Option<Policy>, &'static str>, ApiError> {
    if version == PolicyVersion::BASE {
        return Ok(Ok(None));
    }
    let known = http.versions.version(scope, version, 0).await?;
    Ok(match known.map(|view| view.record) {
        Some(record) if record.is_tainted => Err("learned from something that was erased since"),
        Some(record) if record.is_retired => Err("is retired"),
        Some(record) if record.is_pruned => Err("was removed for space"),
        Some(record) => Ok(Some(record.policy)),
        None => Err(UNKNOWN),
    })
}

fn gone(why: &str) -> ApiError {
    let message = format!(
        "{why}, so nothing goes on as it was served; ask with \"version\": \"latest\" to go on with what is \
         served now"
    );
    conflict("served_version_gone", message)
}

fn branching(
    http: &Http,
    inference: &InferenceService,
    context: &RequestContext,
    (turn, wish, policy): (&Turn, &BranchWish, &PolicyChoice),
) -> Result<Branching, ApiError> {
    let most = http.config.choices_max;
    if wish.n as usize > most {
        let why = format!("n is at most {most} (http.choices_max)");
        return Err(ApiError::invalid("n", why));
    }
    let mut defaults = turn.sampling.clone();
    if defaults.is_greedy() && wish.n > 1 {
        // All continuations would be the same.
        defaults.temperature = 1.0;
    }
    let bounds = SamplingBounds {
        defaults,
        vocab: inference.backend.capabilities().vocab,
    };
    let (high, low) = http.ids.next().as_u64_pair();
    let asked = wish
        .sampling
        .sampling(&bounds, high.rotate_left(32) ^ low)?;
    Ok(Branching {
        id: context.id,
        keeper: context.caller.keeper().cloned(),
        parent: context.parent,
        policy: policy.clone(),
        position: wish.position,
        n: wish.n,
        sampling: Sampling {
            temperature: asked.temperature,
            seed: asked.seed,
            top_logprobs: 0,
            min_tokens: 1,
            ..turn.sampling.clone()
        },
        max_tokens: wish.max_tokens,
    })
}

/// Asks for the continuations and follows all of them to their ends.
async fn branched(
    inference: &Arc<InferenceService>,
    view: &TurnView,
    wish: &BranchWish,
    how: Branching,
) -> Result<BranchesReply, ApiError> {
    let turn = &view.turn;
    let by = match &how.policy {
        PolicyChoice::Exact(policy) => policy.version,
        PolicyChoice::Base | PolicyChoice::Newest => PolicyVersion::BASE,
    };
    let failed = |error: OpenError| match error {
        // It was there a moment ago, by its record.
        OpenError::Serve(ServeError::Adapter(_)) if wish.version == BranchVersion::AsServed => {
            gone(&format!(
                "the files of version {by}, which gave this answer, cannot be loaded"
            ))
        }
        error => ApiError::of_prompt("position")(error),
    };
    let branches = inference.branch(turn, how).await.map_err(failed)?;
    let choices = branches.choices.into_iter().map(Branched::of);
    let (logprobs, branched) = tokio::try_join!(
        inference.branch_logprobs(branches.scoring, by),
        try_join_all(choices),
    )
    .map_err(|error| failed(error.into()))?;
    drop(branches.place);
    Ok(BranchesReply {
        object: "branches",
        branch_of: BranchOfReply {
            turn_id: turn.id.prefixed(),
            position: wish.position,
        },
        version: wish.version.as_str(),
        policy_version: by.0,
        session_id: branches.session.prefixed(),
        prefix: prefix(inference, view, (wish.position, logprobs)),
        original: original(inference, view, wish.position),
        data: branched.into_iter().map(reply).collect(),
    })
}

fn prefix(
    inference: &InferenceService,
    view: &TurnView,
    (position, logprobs): (u32, Vec<f32>),
) -> BranchPrefix {
    let completion = &view.turn.completion;
    let kept = position as usize;
    // What is no longer kept is not compared with.
    let recorded = view
        .has_logprobs()
        .then(|| completion.raw_logprobs()[..kept].to_vec());
    let text = inference.language.decode(&completion.tokens()[..kept]);
    BranchPrefix::of(text, logprobs, recorded)
}

fn original(inference: &InferenceService, view: &TurnView, position: u32) -> BranchOriginal {
    let completion = &view.turn.completion;
    let rest = &completion.tokens()[position as usize..];
    let said = &rest[..rest.len() - inference.end_of(&view.turn)];
    BranchOriginal {
        turn_id: view.turn.id.prefixed(),
        policy_version: view.turn.version().0,
        text: inference.language.decode(said),
        tokens: rest.len(),
        stop: completion.stop(),
        score: view.score(),
    }
}

fn reply(branched: Branched) -> BranchReply {
    let ended = branched.ended;
    let reason = match ended.receipt {
        Receipt::Collected | Receipt::Spooled => None,
        Receipt::NotCollected(reason) => Some(reason.as_str()),
    };
    BranchReply {
        turn_id: ended.turn.prefixed(),
        index: branched.index,
        text: branched.text,
        tokens: ended.completion.len(),
        stop: ended.stop,
        collected: reason.is_none(),
        reason,
    }
}
