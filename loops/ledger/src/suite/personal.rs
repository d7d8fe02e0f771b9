//! Cases of consent, control group and erasure.

use std::collections::BTreeMap;

use hone_domain::{
    BlobKey, Check, Consent, Fate, ForgetId, Learning, Message, NextState, PolicyVersion, Reason,
    Role, Scope, SessionId, Turn, TurnId, Verifier,
};
use uuid::Uuid;

use super::world::{NOW, World, assert_conflict, digest_of, ids, sample_turns};
use crate::{
    AuditEntry, FeedbackOutcome, ForgetBegun, ForgetReport, ForgetStep, ForgetWhat, ForgetWish,
    Personal, SampleClaim, Window,
};

fn withdrawn(reason: Reason) -> Fate {
    Fate::Settled { reason }
}

pub(super) fn wish(world: &World, what: ForgetWhat) -> ForgetWish {
    let id = ForgetId(world.batch().0);
    ForgetWish {
        id,
        scope: world.scope(),
        owner: "owner".into(),
        what,
        now_ms: NOW + 50,
        entry: AuditEntry {
            at_ms: NOW + 50,
            actor: "owner".into(),
            act: "forget".into(),
            object: format!("fgt_{id}"),
            detail: serde_json::json!({}),
        },
    }
}

/// Removes until nothing is left; the names of files that went.
pub(super) async fn remove_all(people: &dyn Personal, id: ForgetId) -> Vec<BlobKey> {
    let mut files = Vec::new();
    for _ in 0..1_000 {
        match people.forget_piece(id, 2).await.expect("a piece") {
            ForgetStep::More | ForgetStep::LogBusy => {}
            ForgetStep::RemoveBlobs(blobs) => {
                people.blobs_removed(&blobs).await.expect("noted");
                files.extend(blobs.into_iter().map(|b| b.blob));
            }
            ForgetStep::Done => return files,
        }
    }
    panic!("the erasure does not end");
}

/// Begins a wish; it does what a plan of it said.
pub(super) async fn begin(people: &dyn Personal, wish: &ForgetWish) -> ForgetBegun {
    let plan = people.plan_forget(wish).await.expect("planned");
    let begun = people.begin_forget(wish).await.expect("it begins");
    let turns_left = 0;
    let does = ForgetReport {
        turns_left,
        ..begun.report.clone()
    };
    assert_eq!(plan, does);
    begun
}

async fn forget(world: &World, people: &dyn Personal, what: ForgetWhat) -> ForgetReport {
    let wish = wish(world, what);
    let begun = begin(people, &wish).await;
    remove_all(people, wish.id).await;
    let report = people.forget(wish.id).await.expect("read").expect("known");
    assert!(report.is_done && report.turns_left == 0);
    assert_eq!(begun.report.turns, report.turns);
    report
}

async fn is_known(world: &World, turn: &Turn) -> bool {
    let view = world.ledger.turn(turn.id).await.expect("read");
    view.is_some()
}

/// `n` turns of one session; each continues the one before and repeats what was said.
async fn conversation(world: &World, n: usize) -> Vec<Turn> {
    let mut turns: Vec<Turn> = Vec::new();
    for i in 0..n {
        let mut turn = world.turn();
        turn.completion_text = format!("answer {i} of {}", turn.id);
        if let Some(before) = turns.last() {
            turn.session = before.session;
            turn.parent = Some(before.id);
            turn.messages = before.messages.clone();
            turn.messages.push(before.completion_message());
        }
        let said = format!("message {i} of {}", turn.id);
        turn.messages.push(Message::text(Role::User, said));
        world.record(&turn).await;
        if let Some(before) = turns.last() {
            let mut transition = world.transition(before);
            transition.next_turn = Some(turn.id);
            let new = world.ledger.record_transitions(&[transition]).await;
            assert_eq!(new.expect("recorded").len(), 1);
        }
        turns.push(turn);
    }
    turns
}

pub(super) async fn a_decision_is_kept_and_replaced(world: &World, people: &dyn Personal) {
    assert_eq!(people.consents().await.expect("read"), []);
    let careful = Consent {
        learning: Learning::Serve,
        despite_store_false: true,
        holdback: Some(false),
    };
    for consent in [Consent::to(Learning::Off), careful] {
        let set = people.set_consent(&world.scope(), consent, NOW).await;
        assert_eq!(set.expect("stored"), 0);
        let all = people.consents().await.expect("read");
        assert_eq!(all, [(world.scope(), consent)]);
    }
    world.record(&world.turn()).await;
    let other = Scope::of("owner", Some("other"));
    let set = people
        .set_consent(&other, Consent::to(Learning::Full), NOW + 1)
        .await;
    set.expect("stored");
    let page = |limit, before| people.consent_rows(Window { limit, before });
    let first = page(1, None).await.expect("read").remove(0);
    assert_eq!(
        (&first.scope, first.decided_ms, first.turns),
        (&other, NOW + 1, 0)
    );
    let rest = page(9, Some(first.number)).await.expect("read");
    let seen: Vec<_> = rest
        .iter()
        .map(|row| (&row.scope, row.consent, row.turns))
        .collect();
    assert_eq!(seen, [(&world.scope(), careful, 1)]);
}

pub(super) async fn wishes_are_listed(world: &World, people: &dyn Personal) {
    let turn = world.turn();
    world.record(&turn).await;
    let done = forget(world, people, ForgetWhat::Turns(vec![turn.id])).await;
    world.record(&world.turn()).await;
    let open = wish(world, ForgetWhat::All);
    people.begin_forget(&open).await.expect("it begins");
    let page = |limit, before| people.forgets(Window { limit, before });
    let newest = page(1, None).await.expect("read").remove(0);
    let report = &newest.report;
    assert_eq!((report.id, report.at_ms), (open.id, NOW + 50));
    assert!(!report.is_done && report.turns_left == 1);
    let older = page(9, Some(newest.number)).await.expect("read");
    assert_eq!(
        older.iter().map(|row| &row.report).collect::<Vec<_>>(),
        [&done]
    );
    remove_all(people, open.id).await;
}

pub(super) async fn without_consent_nothing_is_learned(world: &World, people: &dyn Personal) {
    let open = world.turn();
    world.record(&open).await;
    let waiting = world.turn();
    world.answered(&waiting).await;
    let ready = world.ready_turns(2, 0).await;
    let mut other = world.turn();
    other.scope = Scope::of("owner", Some("other"));
    world.record(&other).await;
    let off = Consent::to(Learning::Serve);
    let settled = people.set_consent(&world.scope(), off, NOW).await;
    // What was judged together with the ready turns is ready as well.
    assert_eq!(settled.expect("stored"), 4);
    for turn in [&open, &waiting, &ready[0], &ready[1]] {
        assert_eq!(world.fate(turn).await, withdrawn(Reason::Withdrawn));
    }
    assert_ne!(world.fate(&other).await, withdrawn(Reason::Withdrawn));
    let late = world.turn();
    world.record(&late).await;
    assert_eq!(world.fate(&late).await, withdrawn(Reason::LearningOff));
    assert!(world.claim_samples(&world.sample_claim()).await.is_empty());
    let full = Consent::to(Learning::Full);
    let set = people.set_consent(&world.scope(), full, NOW).await;
    assert_eq!(set.expect("stored"), 0);
    world.ready_turns(1, 0).await;
    assert_eq!(world.claim_samples(&world.sample_claim()).await.len(), 1);
}

pub(super) async fn a_publish_needs_consent(world: &World, people: &dyn Personal) {
    world.ready_turns(2, 0).await;
    let samples = world.claim_samples(&world.sample_claim()).await;
    let off = Consent::to(Learning::Off);
    let set = people.set_consent(&world.scope(), off, NOW).await;
    set.expect("stored");
    let done = world.ledger.publish(&world.publishing(0, &samples)).await;
    assert_conflict(&done);
    assert!(world.ledger.heads().await.expect("read").is_empty());
}

pub(super) async fn a_held_back_turn_is_judged_and_never_trained(
    world: &World,
    people: &dyn Personal,
) {
    let mut turn = world.turn();
    turn.admission.holdback = true;
    world.answered(&turn).await;
    world.judge_all(Some(1.0)).await;
    assert_eq!(world.fate(&turn).await, withdrawn(Reason::Holdback));
    let view = world.ledger.turn(turn.id).await.expect("read");
    let view = view.expect("known");
    assert!(view.turn.admission.holdback);
    assert_eq!(view.verdict.and_then(|v| v.score), Some(1.0));
    let feedback = world.feedback(&turn, -1.0);
    let stored = world.ledger.record_feedback(&feedback).await;
    assert_eq!(stored.expect("stored"), FeedbackOutcome::Stored);
    world.judge_all(Some(-1.0)).await;
    assert_eq!(world.fate(&turn).await, withdrawn(Reason::Holdback));
    assert!(world.claim_samples(&world.sample_claim()).await.is_empty());
    assert!(people.forgets_under_way().await.expect("read").is_empty());
}

pub(super) async fn a_session_goes_with_everything_in_it(world: &World, people: &dyn Personal) {
    let mine = conversation(world, 3).await;
    let other = conversation(world, 2).await;
    world.judge_all(Some(1.0)).await;
    let said = world
        .ledger
        .record_feedback(&world.feedback(&mine[1], 1.0))
        .await;
    said.expect("stored");
    let report = forget(world, people, ForgetWhat::Session(mine[0].session)).await;
    assert_eq!(
        (report.turns, report.transitions, report.samples),
        (3, 2, 0)
    );
    assert_eq!(
        (report.versions_tainted.len(), report.rolls_back_to),
        (0, None)
    );
    for turn in &mine {
        assert!(!is_known(world, turn).await);
    }
    for turn in &other {
        assert!(is_known(world, turn).await);
    }
    assert_eq!(world.ledger.counts().await.expect("read").turns, 2);
    assert_eq!(world.claim_samples(&world.sample_claim()).await.len(), 1);
}

pub(super) async fn a_turn_goes_with_what_repeats_it(world: &World, people: &dyn Personal) {
    let turns = conversation(world, 4).await;
    // A summary under the same session, by its history and not by its parent.
    let mut side = world.turn();
    side.session = turns[0].session;
    side.messages = turns[2].messages.clone();
    side.messages
        .push(Message::text(Role::User, "a title, please"));
    world.record(&side).await;
    // Another choice of the same request.
    let mut sibling = world.turn();
    sibling.session = turns[0].session;
    sibling.request = turns[2].request;
    sibling.messages = turns[2].messages.clone();
    world.record(&sibling).await;
    world.judge_all(Some(1.0)).await;
    let report = forget(world, people, ForgetWhat::Turns(vec![turns[2].id])).await;
    // Turns 2 and 3, title and sibling go; turn 1 loses the answer that turn 2 held.
    assert_eq!((report.turns, report.transitions), (4, 2));
    assert!(is_known(world, &turns[0]).await);
    assert_eq!(world.fate(&turns[1]).await, withdrawn(Reason::Withdrawn));
    let view = world.ledger.turn(turns[1].id).await.expect("read");
    let view = view.expect("known");
    assert!(view.transition.is_none() && view.verdict.is_none());
    for turn in [&turns[2], &turns[3], &side, &sibling] {
        assert!(!is_known(world, turn).await);
    }
}

pub(super) async fn an_answer_whose_turn_came_later_goes_with_it(
    world: &World,
    people: &dyn Personal,
) {
    let words = world.transition(&world.turn()).next_state;
    let never = TurnId(Uuid::from_u128(9));
    // The answer's turn, its words → whether they go with the turn that repeated the request.
    for (next_turn, next_state, goes) in [
        (None, words.clone(), true),
        (Some(never), words, true),
        (None, NextState::feedback(), false),
        (None, NextState::default(), false),
    ] {
        let before = world.turn();
        world.record(&before).await;
        let mut transition = world.transition(&before);
        (transition.next_turn, transition.next_state) = (next_turn, next_state);
        let new = world.ledger.record_transitions(&[transition]).await;
        assert_eq!(new.expect("recorded").len(), 1);
        let mut retry = world.turn();
        (retry.session, retry.parent) = (before.session, Some(before.id));
        retry.messages.push(before.completion_message());
        retry.messages.push(Message::text(Role::User, "Thanks."));
        world.record(&retry).await;
        let report = forget(world, people, ForgetWhat::Turns(vec![retry.id])).await;
        assert_eq!((report.turns, report.transitions), (1, u64::from(goes)));
        let view = world.ledger.turn(before.id).await.expect("read");
        assert_eq!(view.expect("it stays").transition.is_none(), goes);
    }
}

pub(super) async fn a_plan_changes_nothing(world: &World, people: &dyn Personal) {
    world.publish_next(0).await;
    let turns = conversation(world, 3).await;
    let before = world.ledger.counts().await.expect("read");
    for what in [
        ForgetWhat::All,
        ForgetWhat::Session(turns[0].session),
        ForgetWhat::Turns(vec![turns[1].id]),
    ] {
        let wish = wish(world, what);
        let plan = people.plan_forget(&wish).await.expect("planned");
        assert_eq!(people.forget(wish.id).await.expect("read"), None);
        let again = people.plan_forget(&wish).await.expect("planned");
        assert_eq!(plan, again);
    }
    let after = world.ledger.counts().await.expect("read");
    assert_eq!(after.turns, before.turns);
    assert_eq!(world.ledger.heads().await.expect("read").len(), 1);
}

pub(super) async fn what_is_shared_stays_for_the_others(world: &World, people: &dyn Personal) {
    let long: Vec<u32> = (0..1_300).collect();
    let mut turns = Vec::new();
    for i in 0..3 {
        let mut turn = world.turn();
        turn.prompt_tokens = long.clone();
        turn.messages
            .push(Message::text(Role::User, format!("own words {}", i / 2)));
        world.record(&turn).await;
        turns.push(turn);
    }
    forget(world, people, ForgetWhat::Session(turns[0].session)).await;
    forget(world, people, ForgetWhat::Session(turns[2].session)).await;
    let view = world.ledger.turn(turns[1].id).await.expect("read");
    let view = view.expect("known");
    assert_eq!(view.turn, turns[1]);
    let again = world.turn();
    world.record(&again).await;
    assert!(is_known(world, &again).await);
}

/// Versions 1 to 3 of two turns each; the turns of each version.
async fn three_versions(world: &World) -> Vec<Vec<Turn>> {
    let mut all = Vec::new();
    for parent in 0..3 {
        let turns = world.ready_turns(2, parent).await;
        let samples = world.claim_samples(&world.sample_claim()).await;
        assert_eq!(sample_turns(&samples), ids(&turns));
        let done = world
            .ledger
            .publish(&world.publishing(parent, &samples))
            .await;
        done.expect("published");
        all.push(turns);
    }
    all
}

pub(super) async fn versions_that_learned_from_it_are_tainted(
    world: &World,
    people: &dyn Personal,
) {
    let turns = three_versions(world).await;
    let wish = wish(world, ForgetWhat::Turns(vec![turns[1][0].id]));
    let begun = people.begin_forget(&wish).await.expect("it begins");
    let report = &begun.report;
    assert_eq!(
        report.versions_tainted,
        [PolicyVersion(2), PolicyVersion(3)]
    );
    assert_eq!(report.rolls_back_to, Some(PolicyVersion(1)));
    assert_eq!(report.samples, 1);
    let restored = begun.restored[0].clone();
    assert_eq!(
        (restored.version, restored.digest),
        (PolicyVersion(4), digest_of(1))
    );
    assert_eq!(world.ledger.heads().await.expect("read"), [restored]);
    let tainted: Vec<u64> = world
        .ledger
        .versions(Some(&world.scope()), 9)
        .await
        .expect("read")
        .iter()
        .filter(|v| v.is_tainted)
        .map(|v| v.policy.version.0)
        .collect();
    assert_eq!(tainted, [3, 2]);
    let again = people.begin_forget(&wish).await.expect("repeated");
    assert_eq!((&again.report, again.restored), (report, Vec::new()));
    let files = remove_all(people, wish.id).await;
    let names: Vec<&str> = files.iter().map(BlobKey::as_str).collect();
    assert_eq!(names, ["adapters/2", "adapters/3"]);
    for to in [2, 3] {
        let done = world
            .ledger
            .rollback(&world.scope(), PolicyVersion(to), NOW)
            .await;
        assert_conflict(&done);
    }
}

pub(super) async fn samples_of_clean_versions_train_again(world: &World, people: &dyn Personal) {
    let turns = three_versions(world).await;
    let report = forget(world, people, ForgetWhat::Turns(vec![turns[1][0].id])).await;
    // Version 1 sampled the other turn of version 2. Version 2 sampled those of version 3.
    assert_eq!(report.samples_freed, 1);
    let samples = world.claim_samples(&world.sample_claim()).await;
    assert_eq!(sample_turns(&samples), [turns[1][1].id]);
    assert_eq!(samples[0].staleness, 0);
    let done = world.ledger.publish(&world.publishing(4, &samples)).await;
    assert_eq!(done.expect("published").version, PolicyVersion(5));
    let version = PolicyVersion(3);
    assert_eq!(world.fate(&turns[2][0]).await, Fate::Trained { version });
}

pub(super) async fn what_is_tainted_teaches_no_more(world: &World, people: &dyn Personal) {
    let mut turns = Vec::new();
    for parent in 0..3 {
        turns.push(world.publish_hinted(parent).await);
    }
    forget(world, people, ForgetWhat::Turns(vec![turns[1]])).await;
    assert_eq!(world.replayed().await, [turns[0]]);
}

pub(super) async fn everything_of_a_scope_goes(world: &World, people: &dyn Personal) {
    three_versions(world).await;
    conversation(world, 3).await;
    let mut other = world.turn();
    other.scope = Scope::of("owner", Some("other"));
    world.record(&other).await;
    let mut never = world.turn();
    never.scope = other.scope.clone();
    let orphan = world.feedback(&never, 1.0);
    let early = world.ledger.record_feedback(&orphan).await;
    assert_eq!(early.expect("stored"), FeedbackOutcome::TurnUnknown);
    let report = forget(world, people, ForgetWhat::All).await;
    assert_eq!((report.turns, report.samples), (9, 6));
    assert_eq!(report.rolls_back_to, Some(PolicyVersion(0)));
    let heads = world.ledger.heads().await.expect("read");
    assert!(heads[0].is_base() && heads[0].version == PolicyVersion(4));
    assert_eq!(world.ledger.counts().await.expect("read").turns, 1);
    assert!(is_known(world, &other).await);
    world.record(&never).await;
    let view = world.ledger.turn(never.id).await.expect("read");
    assert_eq!(view.expect("it came").feedback, []);
    let mut anew = world.turn_of(PolicyVersion(4));
    anew.started_ms = NOW + 100;
    world.answered(&anew).await;
    world.judge_all(Some(1.0)).await;
    let samples = world.claim_samples(&world.sample_claim()).await;
    let next = world.ledger.publish(&world.publishing(4, &samples)).await;
    assert_eq!(next.expect("published").version, PolicyVersion(5));
    let clean = forget(world, people, ForgetWhat::All).await;
    assert_eq!(clean.versions_tainted, [PolicyVersion(5)]);
}

pub(super) async fn files_that_stay_keep_no_other_scope_waiting(
    world: &World,
    people: &dyn Personal,
) {
    world.publish_next(0).await;
    let stuck = wish(world, ForgetWhat::All);
    people.begin_forget(&stuck).await.expect("it begins");
    let mut step = ForgetStep::More;
    while matches!(step, ForgetStep::More) {
        step = people.forget_piece(stuck.id, 9).await.expect("a piece");
    }
    assert!(matches!(step, ForgetStep::RemoveBlobs(_)), "{step:?}");
    let mut turn = world.turn();
    turn.scope = Scope::of("owner", Some("other"));
    world.record(&turn).await;
    let mut other = wish(world, ForgetWhat::All);
    other.scope = turn.scope;
    people.begin_forget(&other).await.expect("it begins");
    assert_eq!(remove_all(people, other.id).await, []);
    assert_eq!(remove_all(people, stuck.id).await.len(), 1);
}

pub(super) async fn no_wish_is_done_while_a_turn_of_it_stands_under_another(
    world: &World,
    people: &dyn Personal,
) {
    let is_done = async |id| {
        let report = people.forget(id).await.expect("read");
        report.expect("known").is_done
    };
    // A later wish takes a turn over from the earlier one, or leaves it there. What is done first.
    for (takes_over, order) in [(true, [0, 1]), (true, [1, 0]), (false, [1, 0])] {
        let turns = conversation(world, 3).await;
        let later = match takes_over {
            true => ForgetWhat::Turns(vec![turns[0].id]),
            false => ForgetWhat::All,
        };
        let session = ForgetWhat::Session(turns[0].session);
        let both = [wish(world, session), wish(world, later)];
        for wish in &both {
            begin(people, wish).await;
        }
        let [first, last] = order.map(|n: usize| both[n].id);
        remove_all(people, first).await;
        for turn in &turns {
            assert!(!is_known(world, turn).await);
        }
        assert!(is_done(first).await && !is_done(last).await);
        remove_all(people, last).await;
        assert!(is_done(last).await);
    }
}

pub(super) async fn what_comes_late_brings_nothing_back(world: &World, people: &dyn Personal) {
    let turns = conversation(world, 2).await;
    forget(world, people, ForgetWhat::Session(turns[0].session)).await;
    // An answer that was under way, feedback on what is gone, and a turn recorded twice.
    let mut late = world.turn();
    late.session = turns[0].session;
    let note = ("ticket".to_owned(), "Ann's letter".to_owned());
    late.admission.metadata = BTreeMap::from([note]);
    let verifier = Verifier::Certificate {
        files: Vec::new(),
        tests: Vec::new(),
    };
    let name = "theirs".to_owned();
    late.admission.checks = vec![Check { name, verifier }];
    world.record(&late).await;
    world.record(&turns[1]).await;
    for turn in [&late, &turns[1]] {
        assert_eq!(world.fate(turn).await, withdrawn(Reason::Withdrawn));
        let view = world.ledger.turn(turn.id).await.expect("read");
        let turn = view.expect("known").turn;
        assert!(turn.messages.is_empty() && turn.prompt_tokens.is_empty());
        assert!(turn.completion.is_empty() && turn.completion_text.is_empty());
        assert!(turn.admission.metadata.is_empty() && turn.admission.checks.is_empty());
    }
    let said = world
        .ledger
        .record_feedback(&world.feedback(&turns[0], 1.0))
        .await;
    assert_eq!(said.expect("heard"), FeedbackOutcome::NotYours);
    let more = conversation(world, 2).await;
    forget(world, people, ForgetWhat::Turns(vec![more[1].id])).await;
    let mut child = world.turn();
    (child.session, child.parent) = (more[0].session, Some(more[1].id));
    world.record(&child).await;
    assert_eq!(world.fate(&child).await, withdrawn(Reason::Withdrawn));
    forget(world, people, ForgetWhat::All).await;
    let mut before = world.turn();
    before.started_ms = NOW + 50;
    world.record(&before).await;
    assert_eq!(world.fate(&before).await, withdrawn(Reason::Withdrawn));
    let mut after = world.turn();
    after.started_ms = NOW + 51;
    world.record(&after).await;
    assert_ne!(world.fate(&after).await, withdrawn(Reason::Withdrawn));
}

pub(super) async fn an_erasure_goes_on_where_it_stopped(world: &World, people: &dyn Personal) {
    conversation(world, 5).await;
    let wish = wish(world, ForgetWhat::All);
    people.begin_forget(&wish).await.expect("it begins");
    let left = |report: Option<ForgetReport>| report.map(|r| (r.turns_left, r.is_done));
    assert_eq!(
        left(people.forget(wish.id).await.expect("read")),
        Some((5, false))
    );
    assert_eq!(people.forgets_under_way().await.expect("read"), [wish.id]);
    let step = people.forget_piece(wish.id, 2).await.expect("a piece");
    assert_eq!(step, ForgetStep::More);
    assert_eq!(
        left(people.forget(wish.id).await.expect("read")),
        Some((3, false))
    );
    world.assert_lawful("half an erasure").await;
    remove_all(people, wish.id).await;
    assert!(people.forgets_under_way().await.expect("read").is_empty());
    assert_eq!(
        people.forget_piece(wish.id, 2).await.expect("again"),
        ForgetStep::Done
    );
}

pub(super) async fn only_ones_own_can_be_forgotten(world: &World, people: &dyn Personal) {
    let mut other = world.turn();
    other.scope = Scope::of("owner", Some("other"));
    world.record(&other).await;
    let nobody = Uuid::from_u128(7);
    for what in [
        ForgetWhat::Turns(vec![other.id]),
        ForgetWhat::Session(other.session),
        ForgetWhat::Turns(vec![TurnId(nobody)]),
        ForgetWhat::Session(SessionId(nobody)),
    ] {
        let wish = wish(world, what);
        assert_conflict(&people.plan_forget(&wish).await.map(|_| ()));
        assert_conflict(&people.begin_forget(&wish).await.map(|_| ()));
        assert_eq!(people.forget(wish.id).await.expect("read"), None);
    }
    assert!(is_known(world, &other).await);
}

pub(super) async fn a_loud_source_takes_its_share(world: &World, _people: &dyn Personal) {
    let say = async |source: &str, n: usize| {
        for _ in 0..n {
            let mut turn = world.turn();
            turn.admission.source = Some(source.into());
            world.answered(&turn).await;
        }
        world.judge_all(Some(1.0)).await;
    };
    let claim = SampleClaim {
        source_share_max: 0.5,
        limit: 8,
        ..world.sample_claim()
    };
    say("loud", 20).await;
    assert!(
        world.claim_samples(&claim).await.is_empty(),
        "it waits for others"
    );
    say("quiet", 2).await;
    say("shy", 1).await;
    let samples = world.claim_samples(&claim).await;
    let of = |name: &str| {
        let source = |s: &&crate::SampleMaterial| s.turn.admission.source.as_deref() == Some(name);
        samples.iter().filter(source).count()
    };
    assert_eq!((of("loud"), of("quiet"), of("shy")), (3, 2, 1));
}

pub(super) async fn staleness_is_counted_along_the_lineage(world: &World, _people: &dyn Personal) {
    for parent in 0..4 {
        world.publish_next(parent).await;
    }
    let turns = [world.ready_turns(1, 1).await, world.ready_turns(1, 0).await].concat();
    let back = world
        .ledger
        .rollback(&world.scope(), PolicyVersion(1), NOW)
        .await;
    back.expect("rolled back");
    let samples = world.claim_samples(&world.sample_claim()).await;
    let staleness: Vec<u64> = samples.iter().map(|s| s.staleness).collect();
    assert_eq!(
        (sample_turns(&samples), staleness),
        (ids(&turns), vec![0, 1])
    );
}

pub(super) async fn scored_turns_tell_arms_and_complaints(world: &World, people: &dyn Personal) {
    world.ready_turns(1, 0).await;
    let none = people.scored_turns(&world.scope(), 99).await.expect("read");
    assert!(none.is_empty(), "nothing was learned yet");
    world.publish_next(0).await;
    let mut learned = world.turn_of(PolicyVersion(1));
    let mut held = world.turn();
    for turn in [&mut learned, &mut held] {
        turn.started_ms = NOW + 100;
    }
    held.admission.holdback = true;
    let mut said = world.feedback(&held, -1.0);
    said.correction = Some("be brief".into());
    world.answered(&learned).await;
    world.answered(&held).await;
    world.ledger.record_feedback(&said).await.expect("stored");
    world.judge_all(Some(-0.5)).await;
    let turns = people.scored_turns(&world.scope(), 99).await.expect("read");
    let seen: Vec<_> = turns
        .iter()
        .map(|t| (t.version.0, t.holdback, t.score, t.complaint.as_deref()))
        .collect();
    assert_eq!(
        seen,
        [(1, false, -0.5, None), (0, true, -1.0, Some("be brief"))],
        "what the person says counts more than the verdict"
    );
    assert_eq!(turns[0].session, learned.session);
    assert_eq!(
        people
            .scored_turns(&world.scope(), 1)
            .await
            .expect("read")
            .len(),
        1
    );
    // What is said after training counts as much as what is said of a held-back turn, and settles
    // nothing anew.
    world.learn_from_ready(1).await;
    let version = PolicyVersion(2);
    assert_eq!(world.fate(&learned).await, Fate::Trained { version });
    for (score, words, seen) in [
        (Some(0.75), None, (0.75, None)),
        (Some(-1.0), Some("too long"), (-1.0, Some("too long"))),
        (None, Some("shorter"), (-1.0, Some("shorter"))),
    ] {
        for turn in [&learned, &held] {
            let mut said = world.feedback(turn, 0.0);
            said.score = score;
            said.correction = words.map(Into::into);
            world.ledger.record_feedback(&said).await.expect("stored");
        }
        let turns = people.scored_turns(&world.scope(), 99).await.expect("read");
        for turn in &turns {
            assert_eq!((turn.score, turn.complaint.as_deref()), seen, "{turn:?}");
        }
    }
    assert_eq!(world.fate(&learned).await, Fate::Trained { version });
    // What the base model answers under the number of a rollback shows nothing of learning.
    let scope = world.scope();
    let later = NOW + 150;
    let back = world.ledger.rollback(&scope, PolicyVersion(0), later);
    let base = back.await.expect("rolled back").version;
    let mut unlearned = world.turn_of(base);
    unlearned.started_ms = NOW + 200;
    world.answered(&unlearned).await;
    world.judge_all(Some(1.0)).await;
    let turns = people.scored_turns(&world.scope(), 99).await.expect("read");
    assert_eq!(turns.len(), 2);
}

pub(super) async fn what_was_learned_is_told(world: &World, people: &dyn Personal) {
    let none = people.learned(&world.scope(), 9).await.expect("read");
    assert_eq!(none, crate::Learned::default());
    world.publish_next(0).await;
    let turn = world.turn_of(PolicyVersion(1));
    world.answered(&turn).await;
    world.judge_all(Some(-1.0)).await;
    world.record(&world.turn()).await;
    let learned = people.learned(&world.scope(), 9).await.expect("read");
    assert_eq!((learned.turns, learned.judged, learned.trained), (3, 2, 1));
    let mut waiting = learned.waiting.clone();
    waiting.sort();
    let expected = [("awaiting_next_state", 1), ("awaiting_training", 1)];
    assert_eq!(waiting, expected.map(|(name, n)| (name.to_owned(), n)));
    let [version] = &learned.versions[..] else {
        panic!("one version: {learned:?}");
    };
    assert_eq!((version.version, version.samples), (PolicyVersion(1), 1));
    assert_eq!(
        (
            version.learned_score,
            version.score_before,
            version.score_after
        ),
        (Some(1.0), Some(1.0), Some(-1.0))
    );
    let scope = world.scope();
    let back = world.ledger.rollback(&scope, PolicyVersion(0), NOW);
    back.await.expect("rolled back");
    let learned = people.learned(&world.scope(), 9).await.expect("read");
    assert_eq!((learned.versions.len(), learned.versions_taught), (2, 1));
    assert_eq!(learned.newest_taught, Some(PolicyVersion(1)));
}
