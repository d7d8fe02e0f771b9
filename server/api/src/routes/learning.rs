//! Consent, forgetting, and whether learning helps.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use hone_domain::{ForgetId, Scope, Turn, TurnId, lift};
use hone_ledger::{ForgetReport, ForgetWhat, ForgetWish, LedgerError, PolicyStatus, Window};
use serde_json::json;

use super::Reply;
use super::auth::strict;
use crate::Http;
use crate::lists::query;
use crate::request_context::RequestContext;
use hone_api_types::learning::{
    ConsentReply, ConsentRequest, ForgetReply, ForgetRequest, ImprovementReply, LearnedReply,
    ScopeQuery, UserQuery, WishReply,
};
use hone_api_types::session::named_user;
use hone_api_types::under_way::{LearningReply, UnderWayReply};
use hone_replies::error::{ApiError, ErrorBody};

/// Versions that "what was learned" names.
const VERSIONS_MAX: usize = 100;

/// The caller's own scope.
fn own_scope(http: &Http, context: &RequestContext, user: Option<&str>) -> Result<Scope, ApiError> {
    Ok(http.rules.scope(&context.caller.owner, named_user(user)?).0)
}

/// The same for what is done to all of it: where several people share one policy, naming one of them
/// must not do it to all.
pub(crate) fn whole_scope(
    http: &Http,
    context: &RequestContext,
    user: Option<&str>,
) -> Result<Scope, ApiError> {
    match http.rules.scope(&context.caller.owner, named_user(user)?) {
        (_, Some(source)) if !source.is_empty() => Err(ApiError::Forbidden {
            code: "shared_policy",
            message: "several people share this policy, so this would be done to all of them: leave `user` \
                      out to mean all, or forget sessions or turns of one by their ids"
                .to_owned(),
        }),
        (scope, _) => Ok(scope),
    }
}

/// What may be learned from the caller.
#[utoipa::path(
    get,
    path = "/v1/consent",
    params(UserQuery),
    responses(
        (status = 200, body = ConsentReply),
    )
)]
pub async fn get_consent(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    wanted: Result<Query<UserQuery>, QueryRejection>,
) -> Reply<ConsentReply> {
    let scope = own_scope(&http, &context, query(wanted)?.user.as_deref())?;
    let owner = &context.caller.owner;
    let consent = http.rules.consent(owner, &scope);
    Ok(Json(ConsentReply::new(
        consent,
        (&*http.rules, owner.as_str()),
        0,
    )))
}

/// Decides what may be learned from the caller. Holds from the reply on, for turns that are on
/// their way too.
#[utoipa::path(
    put,
    path = "/v1/consent",
    request_body = ConsentRequest,
    responses(
        (status = 200, description = "It is on disk", body = ConsentReply),
    )
)]
pub async fn put_consent(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    request: Request,
) -> Reply<ConsentReply> {
    let body: ConsentRequest = strict(&http, request).await?;
    let scope = whole_scope(&http, &context, body.user.as_deref())?;
    let _deciding = http.rules.deciding().await;
    let (before, _) = http.rules.consent(&context.caller.owner, &scope);
    let consent = body.consent(before);
    let detail =
        json!({"learning": consent.learning, "despite_store_false": consent.despite_store_false});
    let recorded = http
        .audit
        .record(&context.caller, "consent.decide", scope.as_str(), detail);
    recorded.await?;
    let now_ms = http.clock.now_ms();
    let withdrawn = http.personal.set_consent(&scope, consent, now_ms).await?;
    http.rules.decided(&scope, consent);
    http.remembered.refresh(&scope).await;
    let whose = (&*http.rules, context.caller.owner.as_str());
    Ok(Json(ConsentReply::new((consent, true), whose, withdrawn)))
}

fn forget_error(error: LedgerError) -> ApiError {
    match error {
        LedgerError::Conflict(what) => ApiError::NotFound(what),
        other => other.into(),
    }
}

/// Takes a wish. What waits in the spool would not be found by it, and come later.
async fn begin(http: &Http, wish: &ForgetWish) -> Result<hone_ledger::ForgetReport, ApiError> {
    if !http.eraser.caught_up().await {
        return Err(ApiError::Unavailable {
            code: "spooled",
            message: "the database did not answer for a while, and answers of that time are not in it yet; try again \
                      in a minute"
                .to_owned(),
        });
    }
    http.eraser.begin(wish).await.map_err(forget_error)
}

/// Forgets a session, turns or everything of the caller. A dry run says what that means.
#[utoipa::path(
    post,
    path = "/v1/forget",
    request_body = ForgetRequest,
    responses(
        (status = 200, description = "Nothing of it is learned from or served any more; `state` says whether the last byte is gone", body = ForgetReply),
        (status = 404, description = "No such session or turn of yours", body = ErrorBody),
    )
)]
pub async fn forget(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    request: Request,
) -> Reply<ForgetReply> {
    let body: ForgetRequest = strict(&http, request).await?;
    let id = ForgetId(http.ids.next());
    let what = body.what()?;
    let scope = match &what {
        ForgetWhat::All => whole_scope(&http, &context, body.user.as_deref())?,
        ForgetWhat::Session(_) | ForgetWhat::Turns(_) => {
            own_scope(&http, &context, body.user.as_deref())?
        }
    };
    let kind = match &what {
        ForgetWhat::All => "all",
        ForgetWhat::Session(_) => "session",
        ForgetWhat::Turns(_) => "turns",
    };
    let detail = json!({"scope": scope.as_str(), "what": kind});
    let object = format!("fgt_{id}");
    let wish = ForgetWish {
        id,
        scope,
        owner: context.caller.owner.clone(),
        what,
        now_ms: http.clock.now_ms(),
        entry: http
            .audit
            .entry(&context.caller, ("forget", &object), detail),
    };
    if body.dry_run.unwrap_or(false) {
        let plan = http.personal.plan_forget(&wish).await;
        return Ok(Json(ForgetReply::new(&plan.map_err(forget_error)?, true)));
    }
    let begun = begin(&http, &wish).await?;
    http.paired.forget(&wish.scope);
    http.replays.forget_owner(&wish.owner);
    let at_most = Duration::from_millis(http.rules.config().forget_wait_ms);
    let report = http.eraser.wait(wish.id, at_most).await?;
    Ok(Json(ForgetReply::new(&report.unwrap_or(begun), false)))
}

/// Forgets one turn of the caller.
pub(super) async fn erase_turn(
    http: &Http,
    turn: &Turn,
    context: &RequestContext,
) -> Result<(), ApiError> {
    let id = ForgetId(http.ids.next());
    let detail = json!({"scope": turn.scope.as_str(), "what": "turns"});
    let object = format!("fgt_{id}");
    let wish = ForgetWish {
        id,
        scope: turn.scope.clone(),
        owner: context.caller.owner.clone(),
        what: ForgetWhat::Turns(vec![turn.id]),
        now_ms: http.clock.now_ms(),
        entry: http
            .audit
            .entry(&context.caller, ("forget", &object), detail),
    };
    begin(http, &wish).await?;
    http.paired.forget(&wish.scope);
    http.replays.forget_owner(&wish.owner);
    let at_most = Duration::from_millis(http.rules.config().forget_wait_ms);
    let waited = http.eraser.wait(wish.id, at_most).await;
    waited.map(|_| ()).map_err(ApiError::from)
}

/// How far a wish to be forgotten has come.
#[utoipa::path(
    get,
    path = "/v1/forget/{id}",
    params(("id" = String, Path, description = "The wish")),
    responses(
        (status = 200, body = ForgetReply),
        (status = 404, description = "No such wish of yours", body = ErrorBody),
    )
)]
pub async fn get_forget(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(id): Path<String>,
) -> Reply<ForgetReply> {
    let unknown = || ApiError::unknown("wish", &id);
    let wish = ForgetId::parse(&id).ok_or_else(unknown)?;
    let report: Option<ForgetReport> = http.personal.forget(wish).await?;
    let is_own = |report: &ForgetReport| report.scope.owner() == Some(&*context.caller.owner);
    let report = report.filter(is_own);
    Ok(Json(ForgetReply::new(&report.ok_or_else(unknown)?, false)))
}

async fn measured(http: &Http, scope: &Scope, share: f64) -> Reply<ImprovementReply> {
    let most = http.rules.config().report_turns_max;
    let turns = http.personal.scored_turns(scope, most).await?;
    let measuring = tokio::task::spawn_blocking(move || lift::measure(&turns));
    let lift = measuring
        .await
        .map_err(|error| ApiError::Internal(error.to_string()))?;
    Ok(Json(ImprovementReply::new(
        &lift,
        http.paired.of(scope).as_ref(),
        share,
    )))
}

/// Whether learning helps the caller.
#[utoipa::path(
    get,
    path = "/v1/improvement",
    params(UserQuery),
    responses(
        (status = 200, body = ImprovementReply),
    )
)]
pub async fn improvement(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    wanted: Result<Query<UserQuery>, QueryRejection>,
) -> Reply<ImprovementReply> {
    let scope = own_scope(&http, &context, query(wanted)?.user.as_deref())?;
    let share = http.rules.holdback_share(&context.caller.owner);
    measured(&http, &scope, share).await
}

/// Whether learning helps a scope.
#[utoipa::path(
    get,
    path = "/admin/v1/improvement",
    params(ScopeQuery),
    responses(
        (status = 200, body = ImprovementReply),
    )
)]
pub async fn admin_improvement(
    State(http): State<Arc<Http>>,
    wanted: Result<Query<ScopeQuery>, QueryRejection>,
) -> Reply<ImprovementReply> {
    let scope = Scope::from_stored(query(wanted)?.scope);
    let share = http.rules.holdback_share(scope.owner().unwrap_or_default());
    measured(&http, &scope, share).await
}

/// What was learned from the caller, in plain words.
#[utoipa::path(
    get,
    path = "/v1/learned",
    params(UserQuery),
    responses(
        (status = 200, body = LearnedReply),
    )
)]
pub async fn learned(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    wanted: Result<Query<UserQuery>, QueryRejection>,
) -> Reply<LearnedReply> {
    let wanted = query(wanted)?;
    let user = named_user(wanted.user.as_deref())?;
    let (scope, source) = http.rules.scope(&context.caller.owner, user);
    let learned = http.personal.learned(&scope, VERSIONS_MAX).await?;
    let wishes = wishes(&http, (&scope, source.as_deref())).await?;
    Ok(Json(LearnedReply::new(learned, wishes)))
}

/// The caller's own words that the newest version was trained to follow, and those that a newer wish replaced. A
/// version that was published again follows what it followed. Words that were erased are not there.
async fn wishes(
    http: &Http,
    (scope, source): (&Scope, Option<&str>),
) -> Result<Vec<WishReply>, ApiError> {
    let mut page = Window {
        limit: 1,
        before: None,
    };
    let report = loop {
        let newest = http.versions.version_page(scope, page).await?.pop();
        match newest {
            Some(again) if again.status == PolicyStatus::Rollback => {
                page.before = i64::try_from(again.parent.0 + 1).ok();
            }
            newest => break newest.map(|record| record.report).unwrap_or_default(),
        }
    };
    let mut wishes = Vec::new();
    for (kind, is_followed) in [("followed", true), ("replaced", false)] {
        let ids = report["wishes"][kind].as_array().into_iter().flatten();
        for id in ids.filter_map(|id| TurnId::parse(id.as_str()?)) {
            let turn = http.ledger.turn_if_readable(id).await?;
            // Several people may share a policy; whose words they are is nobody else's business.
            let is_own =
                |turn: &Turn| turn.scope == *scope && turn.admission.source.as_deref() == source;
            let own = turn.filter(|view| is_own(&view.turn));
            let hint = own.and_then(|view| view.verdict?.hint);
            wishes.extend(hint.map(|words| WishReply {
                turn_id: format!("turn_{id}"),
                words,
                followed: is_followed,
            }));
        }
    }
    Ok(wishes)
}

/// Whether something is learned for the caller at the moment, and how far that is. Cheap enough to be
/// asked every second or two.
#[utoipa::path(
    get,
    path = "/v1/learning",
    params(UserQuery),
    responses(
        (status = 200, body = LearningReply),
    )
)]
pub async fn learning(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    wanted: Result<Query<UserQuery>, QueryRejection>,
) -> Reply<LearningReply> {
    let scope = own_scope(&http, &context, query(wanted)?.user.as_deref())?;
    let job = (http.under_way)().filter(|job| job.scope == scope);
    Ok(Json(LearningReply {
        object: "learning",
        under_way: job.as_ref().map(UnderWayReply::new),
    }))
}
