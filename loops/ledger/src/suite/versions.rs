//! Cases of [`Versions`]: what people and the watch decide about published versions.

use std::sync::Arc;

use hone_domain::{BlobKey, Digest, Fate, OnTrial, Policy, PolicyVersion, Reason, Scope, Turn};
use serde_json::json;

use super::watch;
use super::world::{ALL, NOW, World, assert_conflict, digest_of, ids};
use crate::{
    AuditEntry, ForgetWhat, Import, Ledger, Personal, PolicyRecord, PolicyStatus, Publish, Refusal,
    Restore, RestoreWhy, SampleClaim, Standing, Trial, TryOut, Versions, Window,
};

/// A world and the same ledger as [`Versions`] and [`Personal`].
pub(super) struct Case {
    pub(super) world: World,
    pub(super) versions: Arc<dyn Versions>,
    pub(super) people: Arc<dyn Personal>,
}

macro_rules! cases {
    ($make:expr; $($case:path,)*) => {$(
        let ledger = $make().await;
        let case = Case {
            world: World::new(ledger.clone()),
            versions: ledger.clone(),
            people: ledger,
        };
        Box::pin($case(&case)).await;
        case.world.assert_lawful(stringify!($case)).await;
        case.world.ledger.close().await;
    )*};
}

/// Runs every case; `make` returns an empty ledger each time.
pub async fn run<L: Ledger + Versions + Personal + 'static>(make: impl AsyncFn() -> Arc<L>) {
    cases! { make;
        the_base_is_restored_like_any_version,
        what_was_made_elsewhere_continues_the_base,
        the_same_adapter_is_not_imported_twice,
        copies_of_an_adapter_go_with_it,
        lineage_goes_both_ways,
        a_pin_holds_and_is_released,
        a_trip_marks_what_it_left_and_holds_until_resumed,
        a_trial_holds_and_ends,
        a_publish_may_begin_a_trial_whose_arms_are_counted,
        what_is_retired_comes_back_only_by_hand,
        versions_are_read_page_by_page,
        refusals_and_scopes_are_listed,
        held_out_turns_come_with_their_scores,
        watch::it_reads_on_where_it_stopped,
        watch::it_counts_a_turn_once_either_way,
        watch::it_sees_what_comes_after_an_erasure,
        a_damaged_version_is_served_no_more,
        only_files_that_nobody_needs_are_pruned,
        what_is_tried_keeps_its_files,
        an_order_knows_whether_it_learned_from_what_is_erased,
    }
}

const FIRST: Window = Window {
    limit: ALL,
    before: None,
};

impl Case {
    fn restore(&self, to: u64, why: RestoreWhy) -> Restore {
        Restore {
            scope: self.world.scope(),
            to: PolicyVersion(to),
            from: None,
            why,
            note: Some("nul \0 kept".into()),
            now_ms: NOW + 40,
        }
    }

    fn try_out(&self, version: u64) -> TryOut {
        TryOut {
            scope: self.world.scope(),
            version: PolicyVersion(version),
            share: 0.25,
            note: None,
            now_ms: NOW + 40,
        }
    }

    fn import(&self, digest: u8) -> Import {
        Import {
            scope: self.world.scope(),
            digest: Digest([digest; 32]),
            blob: BlobKey::new(format!("adapters/elsewhere/{digest}")).expect("a key"),
            report: json!({"rank": 2}),
            note: Some("made elsewhere".into()),
            now_ms: NOW + 40,
        }
    }

    async fn published(&self, count: u64) {
        for parent in 0..count {
            self.world.publish_next(parent).await;
        }
    }

    pub(super) async fn standing(&self) -> Standing {
        let standing = self.versions.standing(&self.world.scope()).await;
        standing.expect("read")
    }

    async fn is_ready(&self) -> bool {
        let ready = self.world.ledger.ready(NOW + 1_000_000).await;
        !ready.expect("read").is_empty()
    }
}

async fn the_base_is_restored_like_any_version(case: &Case) {
    let world = &case.world;
    case.published(2).await;
    let policy = case
        .versions
        .restore(&case.restore(0, RestoreWhy::Asked))
        .await;
    let policy = policy.expect("restored");
    assert_eq!(policy, Policy::base(world.scope(), PolicyVersion(3)));
    let heads = world.ledger.heads().await.expect("read");
    assert_eq!(heads, std::slice::from_ref(&policy));
    let record = world
        .ledger
        .versions(Some(&world.scope()), 1)
        .await
        .expect("read")
        .remove(0);
    assert_eq!(
        (record.parent, record.status),
        (PolicyVersion(0), PolicyStatus::Rollback)
    );
    assert_eq!(record.note.as_deref(), Some("nul \0 kept"));
    assert_eq!((record.policy, record.is_tripped), (policy, false));
    let next = world.publish_next(3).await;
    assert_eq!(
        next.version,
        PolicyVersion(4),
        "the chain goes on from the base"
    );
    // What must be the newest is not any more.
    let late = Restore {
        from: Some(PolicyVersion(3)),
        ..case.restore(1, RestoreWhy::Asked)
    };
    assert_conflict(&case.versions.restore(&late).await);
    let nobody = Restore {
        scope: Scope::of("nobody", None),
        ..late
    };
    assert_conflict(&case.versions.restore(&nobody).await);
}

async fn what_was_made_elsewhere_continues_the_base(case: &Case) {
    let world = &case.world;
    case.published(2).await;
    let older = world.ready_turns(1, 2).await;
    let policy = case.versions.import(&case.import(9)).await.expect("new");
    assert_eq!((policy.version.0, policy.digest), (3, Digest([9; 32])));
    let scope = world.scope();
    let view = case.versions.version(&scope, policy.version, ALL).await;
    let view = view.expect("read").expect("known");
    let record = &view.record;
    assert_eq!(record.status, PolicyStatus::Imported);
    assert_eq!(record.note.as_deref(), Some("made elsewhere"));
    assert_eq!((record.samples, view.lineage), (0, vec![PolicyVersion(0)]));
    // What versions before it sampled is not near it; what it samples trains on from it.
    assert_eq!(world.claim_samples(&world.sample_claim()).await.len(), 0);
    let stale = Fate::Settled {
        reason: Reason::Stale,
    };
    assert_eq!(world.fate(&older[0]).await, stale);
    let next = world.publish_next(3).await;
    let restored = case.restore(3, RestoreWhy::Asked);
    let restored = case.versions.restore(&restored).await.expect("restored");
    assert_eq!((next.version.0, restored.version.0), (4, 5));
    assert_eq!(restored.digest, policy.digest);
}

async fn the_same_adapter_is_not_imported_twice(case: &Case) {
    let scope = case.world.scope();
    let said = async |digest| {
        let refused = case.versions.import(&case.import(digest)).await;
        refused.expect_err("refused").to_string()
    };
    case.versions.import(&case.import(8)).await.expect("new");
    assert!(said(8).await.contains("version 1 is the same adapter"));
    case.versions.import(&case.import(9)).await.expect("new");
    let retired = case.versions.retire(&scope, PolicyVersion(1), NOW).await;
    assert_eq!(retired.expect("retired"), None);
    assert!(said(8).await.contains("it is retired"));
    let pinned = case.versions.pin(&scope, PolicyVersion(2), NOW).await;
    pinned.expect("pinned");
    assert!(said(7).await.contains("pinned"));
    case.versions.unpin(&scope).await.expect("released");
    // Nobody's versions bring back what was erased.
    let elsewhere = Import {
        scope: Scope::of("somebody", None),
        ..case.import(7)
    };
    case.versions.import(&elsewhere).await.expect("new");
    let taught = case.world.ready_turns(1, 2).await;
    let learned = case.world.learn_from_ready(2).await;
    let what = ForgetWhat::Turns(vec![taught[0].id]);
    let wish = super::personal::wish(&case.world, what);
    case.people.begin_forget(&wish).await.expect("it begins");
    super::personal::remove_all(&*case.people, wish.id).await;
    let again = Import {
        digest: learned.digest,
        ..elsewhere
    };
    assert_conflict(&case.versions.import(&again).await);
}

async fn copies_of_an_adapter_go_with_it(case: &Case) {
    let world = &case.world;
    case.published(1).await;
    let taught = world.ready_turns(1, 1).await;
    let learned = world.learn_from_ready(1).await;
    let import = async |owner: &str, digest: Digest| {
        let blob = format!("adapters/{owner}/{}", digest.0[0]);
        let order = Import {
            scope: Scope::of(owner, None),
            digest,
            blob: BlobKey::new(blob).expect("a key"),
            ..case.import(0)
        };
        case.versions.import(&order).await.expect("new")
    };
    // Of somebody who is served it, and of somebody who tries another adapter against it.
    import("ben", Digest([8; 32])).await;
    import("ben", learned.digest).await;
    import("eve", learned.digest).await;
    let tried = import("eve", Digest([9; 32])).await;
    let order = TryOut {
        scope: tried.scope.clone(),
        ..case.try_out(tried.version.0)
    };
    case.versions.try_out(&order).await.expect("on trial");
    // Of the same scope, after the files were removed for space; and what learned from that.
    let back = case.restore(1, RestoreWhy::Asked);
    case.versions.restore(&back).await.expect("restored");
    world.publish_next(3).await;
    let prunable = case.versions.prunable(1, ALL).await.expect("read");
    let files = prunable.iter().find(|files| files.digest == learned.digest);
    let pruned = case.versions.prune(files.expect("old"), 1, NOW).await;
    pruned.expect("pruned");
    import("owner", learned.digest).await;
    world.publish_next(5).await;

    let wish = super::personal::wish(world, ForgetWhat::Turns(vec![taught[0].id]));
    let begun = super::personal::begin(&*case.people, &wish).await;
    let report = &begun.report;
    assert_eq!(report.versions_tainted, [2, 5, 6].map(PolicyVersion));
    assert_eq!(report.rolls_back_to, Some(PolicyVersion(0)));
    let [ben, eve] = ["ben", "eve"].map(|owner| Scope::of(owner, None));
    let tainted = |scope: &Scope, version| (scope.clone(), vec![PolicyVersion(version)]);
    let own = (world.scope(), report.versions_tainted.clone());
    assert_eq!(begun.scopes, [own, tainted(&ben, 2), tainted(&eve, 1)]);
    assert_eq!(begun.trials_ended, std::slice::from_ref(&eve));
    let base = |scope, version| Policy::base(scope, PolicyVersion(version));
    let restored = [base(world.scope(), 7), base(ben.clone(), 3)];
    assert_eq!(begun.restored, restored);
    let heads = world.ledger.heads().await.expect("read");
    assert_eq!(heads, [restored.as_slice(), &[tried]].concat());
    for scope in [ben, eve] {
        let records = world.ledger.versions(Some(&scope), ALL).await;
        let is_tainted = |record: &&PolicyRecord| record.is_tainted;
        let records = records.expect("read");
        let tainted: Vec<Digest> = records
            .iter()
            .filter(is_tainted)
            .map(|record| record.policy.digest)
            .collect();
        assert_eq!(tainted, [learned.digest]);
    }
    let mut files = super::personal::remove_all(&*case.people, wish.id).await;
    files.sort_unstable_by(|one, other| one.as_str().cmp(other.as_str()));
    let names: Vec<&str> = files.iter().map(BlobKey::as_str).collect();
    let all = ["2", "6", "ben/2", "eve/2", "owner/2"].map(|name| format!("adapters/{name}"));
    assert_eq!(names, all);
}

async fn lineage_goes_both_ways(case: &Case) {
    let world = &case.world;
    case.published(1).await;
    let turns = world.ready_turns(3, 1).await;
    let samples = world.claim_samples(&world.sample_claim()).await;
    world
        .ledger
        .publish(&world.publishing(1, &samples))
        .await
        .expect("published");
    case.versions
        .restore(&case.restore(1, RestoreWhy::Asked))
        .await
        .expect("restored");
    let view = |n| async move {
        let view = case
            .versions
            .version(&world.scope(), PolicyVersion(n), 2)
            .await;
        view.expect("read")
    };
    let second = view(2).await.expect("published");
    assert_eq!(second.lineage, [1, 0].map(PolicyVersion));
    assert_eq!(second.children, []);
    let learned_from: Vec<_> = second.samples.iter().map(|s| s.turn).collect();
    assert_eq!(
        learned_from,
        ids(&turns)[..2],
        "as many as asked for, oldest first"
    );
    assert!(second.samples.iter().all(|s| s.score == Some(1.0)));
    for turn in &turns {
        let version = PolicyVersion(2);
        assert_eq!(world.fate(turn).await, Fate::Trained { version });
    }
    let first = view(1).await.expect("published");
    assert_eq!(first.children, [2, 3].map(PolicyVersion));
    assert_eq!(
        view(3).await.expect("published").lineage,
        [1, 0].map(PolicyVersion)
    );
    assert!(view(0).await.is_none() && view(9).await.is_none());
}

async fn a_pin_holds_and_is_released(case: &Case) {
    let (world, scope) = (&case.world, case.world.scope());
    case.published(2).await;
    world.ready_turns(2, 2).await;
    let held = world.claim_samples(&world.sample_claim()).await;
    let pinned = case
        .versions
        .pin(&scope, PolicyVersion(1), NOW)
        .await
        .expect("pinned");
    assert_eq!(
        (pinned.version, pinned.digest),
        (PolicyVersion(3), digest_of(1))
    );
    assert!(case.standing().await.pinned && case.standing().await.holds());
    assert_conflict(&world.ledger.publish(&world.publishing(3, &held)).await);
    for sample in &held {
        world
            .ledger
            .release(sample.claim, NOW)
            .await
            .expect("released");
    }
    assert!(!case.is_ready().await, "ready turns wait");
    let again = case
        .versions
        .pin(&scope, PolicyVersion(3), NOW)
        .await
        .expect("pinned");
    assert_eq!(again, pinned, "what is served is pinned as it is");
    assert_conflict(&case.versions.pin(&scope, PolicyVersion(9), NOW).await);
    let all = case.versions.standings(ALL).await.expect("read");
    assert_eq!(all, [(scope.clone(), case.standing().await)]);
    assert!(case.versions.unpin(&scope).await.expect("released"));
    assert!(
        !case
            .versions
            .unpin(&scope)
            .await
            .expect("nothing to release")
    );
    assert!(case.is_ready().await);
    let other = Scope::of("new", None);
    let base = case
        .versions
        .pin(&other, PolicyVersion(0), NOW)
        .await
        .expect("pinned");
    assert!(
        base.is_base(),
        "a scope may be kept on the base before it learned anything"
    );
}

async fn a_trip_marks_what_it_left_and_holds_until_resumed(case: &Case) {
    let (world, scope) = (&case.world, case.world.scope());
    case.published(2).await;
    let order = Restore {
        from: Some(PolicyVersion(2)),
        ..case.restore(1, RestoreWhy::Tripped)
    };
    let policy = case.versions.restore(&order).await.expect("restored");
    assert_eq!(policy.digest, digest_of(1));
    assert_conflict(&case.versions.restore(&order).await);
    let tripped = case.standing().await.tripped.expect("it tripped");
    assert_eq!(
        (tripped.version, tripped.at_ms),
        (PolicyVersion(2), NOW + 40)
    );
    assert_eq!(tripped.note, "nul \0 kept");
    let records = world
        .ledger
        .versions(Some(&scope), ALL)
        .await
        .expect("read");
    let marks: Vec<bool> = records.iter().map(|r| r.is_tripped).collect();
    assert_eq!(marks, [false, true, false]);
    world.ready_turns(1, 3).await;
    assert!(!case.is_ready().await);
    assert!(case.versions.resume(&scope).await.expect("resumed"));
    assert!(case.is_ready().await);
    assert!(
        !case
            .versions
            .resume(&scope)
            .await
            .expect("nothing to resume")
    );
    assert_eq!(world.publish_next(3).await.version, PolicyVersion(4));
}

async fn a_trial_holds_and_ends(case: &Case) {
    let (scope, versions) = (case.world.scope(), &case.versions);
    let nobody = TryOut {
        scope: Scope::of("nobody", None),
        ..case.try_out(1)
    };
    assert_conflict(&versions.try_out(&nobody).await);
    case.published(2).await;
    assert_conflict(&versions.try_out(&case.try_out(7)).await);
    // The newest is compared with the one before it.
    let begun = versions.try_out(&case.try_out(2)).await.expect("begun");
    let numbers = |t: &OnTrial| (t.policy.version.0, t.proven.version.0, t.share);
    assert_eq!(numbers(&begun), (2, 1, 0.25));
    assert_eq!(begun.proven.digest, digest_of(1));
    assert_eq!(versions.trials().await.expect("read"), [begun]);
    let trial = Trial {
        version: PolicyVersion(2),
        proven: PolicyVersion(1),
        share: 0.25,
        since_ms: NOW + 40,
    };
    assert_eq!(case.standing().await.trial, Some(trial));
    assert_conflict(&versions.try_out(&case.try_out(2)).await);
    assert!(
        !versions
            .end_trial(&scope, PolicyVersion(1))
            .await
            .expect("another")
    );
    assert!(
        versions
            .end_trial(&scope, PolicyVersion(2))
            .await
            .expect("ended")
    );
    assert_eq!(case.standing().await, Standing::default());
    // An older one is published again, and compared with what was the newest.
    let again = versions.try_out(&case.try_out(1)).await.expect("begun");
    assert_eq!(numbers(&again), (3, 2, 0.25));
    assert_eq!(again.policy.digest, digest_of(1));
    let order = case.restore(2, RestoreWhy::TrialFailed);
    versions.restore(&order).await.expect("restored");
    assert_eq!(case.standing().await, Standing::default());
    assert!(versions.trials().await.expect("read").is_empty());
    assert!(
        !versions
            .end_trial(&scope, PolicyVersion(3))
            .await
            .expect("nothing to end")
    );
    // What serves already is nothing to try, and who pins means all sessions.
    assert_conflict(&versions.try_out(&case.try_out(2)).await);
    versions.try_out(&case.try_out(1)).await.expect("begun");
    versions
        .pin(&scope, PolicyVersion(5), NOW)
        .await
        .expect("pinned");
    assert_eq!(case.standing().await.trial, None);
    assert_conflict(&versions.try_out(&case.try_out(2)).await);
}

async fn a_publish_may_begin_a_trial_whose_arms_are_counted(case: &Case) {
    let (world, versions) = (&case.world, &case.versions);
    case.published(1).await;
    let turns = world.ready_turns(2, 1).await;
    assert_eq!(turns.len(), 2);
    let claimed = world.claim_samples(&world.sample_claim()).await;
    let order = Publish {
        trial_share: Some(0.5),
        ..world.publishing(1, &claimed)
    };
    let policy = world.ledger.publish(&order).await.expect("published");
    let [begun] = &versions.trials().await.expect("read")[..] else {
        panic!("one trial");
    };
    assert_eq!(
        (&begun.policy, begun.proven.version),
        (&policy, PolicyVersion(1))
    );
    let trial = case.standing().await.trial.expect("begun");
    // Of three turns since, two answered by what is on trial; one of them a complaint.
    for (version, score) in [(2, -1.0), (2, 1.0), (1, 1.0)] {
        let mut turn = world.turn_of(PolicyVersion(version));
        turn.started_ms = trial.since_ms + 5;
        turn.finished_ms = trial.since_ms + 6;
        world.answered(&turn).await;
        world.judge_all(Some(score)).await;
    }
    let arms = versions.arms(&world.scope(), &trial).await.expect("read");
    let seen = arms.map(|arm| (arm.version.0, arm.turns, arm.scored_turns, arm.complaints));
    assert_eq!(seen, [(2, 2, 2, 1), (1, 1, 1, 0)]);
    assert_eq!(arms[0].mean_score, Some(0.0));
    assert!(!case.is_ready().await, "nothing is learned meanwhile");
    let ended = versions.end_trial(&world.scope(), PolicyVersion(2)).await;
    assert!(ended.expect("ended") && case.is_ready().await);
}

async fn what_is_retired_comes_back_only_by_hand(case: &Case) {
    let (scope, versions) = (case.world.scope(), &case.versions);
    let retire = |version| versions.retire(&scope, PolicyVersion(version), NOW + 50);
    case.published(3).await;
    for version in [0, 3, 9] {
        assert_conflict(&retire(version).await);
    }
    assert_eq!(retire(1).await.expect("retired"), None);
    assert_conflict(&versions.restore(&case.restore(1, RestoreWhy::Asked)).await);
    assert_conflict(&versions.try_out(&case.try_out(1)).await);
    let view = versions
        .version(&scope, PolicyVersion(1), 0)
        .await
        .expect("read");
    assert!(view.expect("its record stays").record.is_retired);
    // What is on trial falls back to its measure, which cannot go meanwhile.
    versions.try_out(&case.try_out(3)).await.expect("begun");
    assert_conflict(&retire(2).await);
    let served = retire(3).await.expect("retired").expect("published");
    assert_eq!(
        (served.version, served.digest),
        (PolicyVersion(4), digest_of(2))
    );
    assert_eq!(case.standing().await, Standing::default());
    assert!(
        versions
            .unretire(&scope, PolicyVersion(1))
            .await
            .expect("back")
    );
    assert!(
        !versions
            .unretire(&scope, PolicyVersion(1))
            .await
            .expect("once")
    );
    let order = case.restore(1, RestoreWhy::Asked);
    assert_eq!(
        versions.restore(&order).await.expect("restored").version,
        PolicyVersion(5)
    );
}

async fn versions_are_read_page_by_page(case: &Case) {
    case.published(5).await;
    let scope = case.world.scope();
    let (mut before, mut pages): (_, Vec<Vec<u64>>) = (None, Vec::new());
    for _ in 0..4 {
        let page = Window { limit: 2, before };
        let rows = case.versions.version_page(&scope, page).await;
        let rows = rows.expect("read");
        before = rows
            .last()
            .map(|row| row.policy.version.0 as i64)
            .or(before);
        pages.push(rows.iter().map(|row| row.policy.version.0).collect());
    }
    let told: [Vec<u64>; 4] = [vec![5, 4], vec![3, 2], vec![1], vec![]];
    assert_eq!(pages, told);
    let nowhere = Scope::of("nobody", None);
    let none = case.versions.version_page(&nowhere, FIRST).await;
    assert!(none.expect("read").is_empty());
}

async fn refusals_and_scopes_are_listed(case: &Case) {
    let (world, scope) = (&case.world, case.world.scope());
    world.ready_turns(2, 0).await;
    for number in 1..=3 {
        let refusal = Refusal {
            scope: scope.clone(),
            parent: PolicyVersion(0),
            digest: Some(digest_of(number)),
            batch: world.batch(),
            claims: Vec::new(),
            reason: Reason::GateRejected,
            report: serde_json::json!({"gate": {"reasons": ["too long"]}}),
            now_ms: NOW + number as i64,
        };
        world.ledger.refuse(&refusal).await.expect("recorded");
    }
    let page = Window {
        limit: 2,
        before: None,
    };
    let newest = case
        .versions
        .refusals(Some(&scope), page)
        .await
        .expect("read");
    let digests: Vec<_> = newest.iter().filter_map(|r| r.digest).collect();
    assert_eq!(digests, [digest_of(3), digest_of(2)]);
    assert_eq!(newest[0].report["gate"]["reasons"][0], "too long");
    let page = Window {
        before: Some(newest[1].number),
        ..page
    };
    let older = case.versions.refusals(None, page).await.expect("read");
    assert_eq!(older.len(), 1);
    let nobody = Scope::of("nobody", None);
    assert!(
        case.versions
            .refusals(Some(&nobody), page)
            .await
            .expect("read")
            .is_empty()
    );

    let rows = case.versions.scopes(FIRST).await.expect("read");
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0].turns, rows[0].versions), (2, 0));
    assert_eq!((&rows[0].scope, rows[0].mean_score), (&scope, Some(1.0)));
    assert_eq!(rows[0].last_turn_ms, Some(NOW + 5));
    case.versions
        .pin(&nobody, PolicyVersion(0), NOW)
        .await
        .expect("pinned");
    let rows = case.versions.scopes(FIRST).await.expect("read");
    assert_eq!(
        rows.iter().map(|r| r.standing.pinned).collect::<Vec<_>>(),
        [true, false]
    );
}

async fn held_out_turns_come_with_their_scores(case: &Case) {
    let (world, scope) = (&case.world, case.world.scope());
    let turns = world.ready_turns(3, 0).await;
    let held = world.claim_samples(&world.sample_claim()).await;
    let claims = [held[0].claim, held[2].claim];
    let settled = world.ledger.settle_claims(&claims, Reason::HeldOut).await;
    assert_eq!(settled.expect("settled"), 2);
    let base = Digest([1; 32]);
    let found = async |base, limit| {
        let found = case.versions.held_out(&scope, base, limit).await;
        let found = found.expect("read").into_iter();
        found.map(|h| (h.turn.id, h.score)).collect::<Vec<_>>()
    };
    let both = [(turns[2].id, 1.0), (turns[0].id, 1.0)];
    assert_eq!(found(base, ALL).await, both);
    assert_eq!(found(base, 1).await, both[..1]);
    // Tokens of another base model are other words, however new they are.
    let mut other = world.turn();
    other.base = Digest([9; 32]);
    world.answered(&other).await;
    world.judge_all(Some(0.5)).await;
    let claim = SampleClaim {
        base: other.base,
        ..world.sample_claim()
    };
    let held = world.claim_samples(&claim).await;
    let settled = world
        .ledger
        .settle_claims(&[held[0].claim], Reason::HeldOut)
        .await;
    assert_eq!(settled.expect("settled"), 1);
    assert_eq!(found(base, 2).await, both);
    assert_eq!(found(other.base, ALL).await, [(other.id, 0.5)]);
    let reason = Reason::HeldOut;
    assert_eq!(world.fate(&turns[0]).await, Fate::Settled { reason });
}

async fn what_is_tried_keeps_its_files(case: &Case) {
    let numbers = |found: &[crate::Prunable]| -> Vec<u64> {
        let all = found.iter().flat_map(|p| &p.versions);
        all.map(|v| v.0).collect()
    };
    case.published(4).await;
    let before = case.versions.prunable(0, ALL).await.expect("read");
    assert_eq!(numbers(&before), [1, 2]);
    // An old one on trial, and what it is compared with.
    let order = case.try_out(1);
    case.versions.try_out(&order).await.expect("begun");
    let kept = case.versions.prunable(0, ALL).await.expect("read");
    assert_eq!(numbers(&kept), [2]);
    assert_conflict(&case.versions.prune(&before[0], 0, NOW).await);
}

async fn a_damaged_version_is_served_no_more(case: &Case) {
    let scope = case.world.scope();
    case.published(3).await;
    let version = async |n: u64| {
        let view = case.versions.version(&scope, PolicyVersion(n), 0).await;
        view.expect("read").expect("published").record
    };
    let entry = AuditEntry {
        at_ms: NOW,
        actor: "hone".to_owned(),
        act: "version.damaged".to_owned(),
        object: scope.as_str().to_owned(),
        detail: serde_json::Value::Null,
    };
    let note = async |n: u64| {
        let blob = version(n).await.policy.blob;
        let noted = case.versions.note_damage(&blob, &entry).await;
        noted.expect("noted")
    };
    assert!(note(2).await.is_empty(), "nobody is served it");
    assert_conflict(
        &case
            .versions
            .restore(&case.restore(2, RestoreWhy::Asked))
            .await,
    );
    assert_eq!(note(3).await, std::slice::from_ref(&scope));
    assert_eq!(
        note(3).await,
        std::slice::from_ref(&scope),
        "until another one is served"
    );
    case.versions
        .restore(&case.restore(1, RestoreWhy::Asked))
        .await
        .expect("the one before it is served");
    assert!(note(3).await.is_empty());
    let damaged = case.versions.damaged(ALL).await.expect("read");
    let numbers: Vec<u64> = damaged.iter().map(|policy| policy.version.0).collect();
    assert_eq!(numbers, [3, 2]);
    let record = version(3).await;
    assert!(record.is_damaged && record.is_pruned);
    assert!(!version(1).await.is_damaged);
}

async fn only_files_that_nobody_needs_are_pruned(case: &Case) {
    let scope = case.world.scope();
    case.published(6).await;
    let numbers = |found: &[crate::Prunable]| -> Vec<u64> {
        let all = found.iter().flat_map(|p| &p.versions);
        all.map(|v| v.0).collect()
    };
    // The newest two, and what the older of them continues.
    let found = case.versions.prunable(2, ALL).await.expect("read");
    assert_eq!(numbers(&found), [1, 2, 3]);
    assert_eq!((&found[0].scope, found[0].digest), (&scope, digest_of(1)));
    assert_eq!(case.versions.prunable(2, 1).await.expect("read").len(), 1);
    // A rollback needs again what would have gone, under a number of its own.
    case.versions
        .restore(&case.restore(2, RestoreWhy::Asked))
        .await
        .expect("restored");
    assert_conflict(&case.versions.prune(&found[1], 2, NOW).await);
    case.versions
        .prune(&found[0], 2, NOW)
        .await
        .expect("pruned");
    assert_conflict(
        &case
            .versions
            .restore(&case.restore(1, RestoreWhy::Asked))
            .await,
    );
    let view = case
        .versions
        .version(&scope, PolicyVersion(1), 0)
        .await
        .expect("read");
    assert!(view.expect("its record stays").record.is_pruned);
    let found = case.versions.prunable(2, ALL).await.expect("read");
    assert_eq!(numbers(&found), [3, 4]);
    let named = case.versions.named_blobs().await.expect("read");
    assert_eq!(named.len(), 5, "the blobs of 2 to 6");
    // The base has no files.
    case.versions
        .restore(&case.restore(0, RestoreWhy::Asked))
        .await
        .expect("restored");
    let found = case.versions.prunable(0, ALL).await.expect("read");
    assert_eq!(numbers(&found), [2, 7, 3, 4, 5, 6]);
    assert!(found.iter().all(|p| p.digest != Digest::NONE));
}

async fn an_order_knows_whether_it_learned_from_what_is_erased(case: &Case) {
    let world = &case.world;
    let first = world.ready_turns(2, 0).await;
    let samples = world.claim_samples(&world.sample_claim()).await;
    let published = world.ledger.publish(&world.publishing(0, &samples)).await;
    published.expect("published");
    world.ready_turns(2, 1).await;
    let untouched = world.claim_samples(&world.sample_claim()).await;
    let untouched = world.publishing(1, &untouched);
    let second = world.ready_turns(2, 1).await;
    let samples = world.claim_samples(&world.sample_claim()).await;
    let order = world.publishing(1, &samples);
    let learned = async |order: &Publish| {
        let learned = case.versions.learned_from_erased(order).await;
        learned.expect("read")
    };
    assert!(!learned(&order).await && !learned(&untouched).await);
    let forget = async |turn: &Turn| {
        let wish = super::personal::wish(world, ForgetWhat::Turns(vec![turn.id]));
        case.people.begin_forget(&wish).await.expect("it begins");
        super::personal::remove_all(&*case.people, wish.id).await;
    };
    // One of its turns.
    forget(&second[1]).await;
    assert!(learned(&order).await && !learned(&untouched).await);
    // One of the version that it continues.
    forget(&first[0]).await;
    assert!(learned(&order).await && learned(&untouched).await);
}
