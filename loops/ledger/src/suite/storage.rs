//! Cases of what the ledger takes of the disk, and of what goes with age.

use std::sync::Arc;

use hone_domain::{
    Fate, Message, Millis, NextState, PolicyVersion, Reason, Role, Signal, Turn, Vote,
};
use hone_domain::{MemoryId, MemoryKind, MemoryMode, MemoryOrigin, MemoryUse, Outcome};

use super::personal::{begin, remove_all, wish};
use super::world::{ALL, NOW, World};
use crate::{
    EndedBefore, Extent, Extraction, FeedbackOutcome, ForgetWhat, Ledger, Memories, NewMemory,
    Personal, Progress, PrunePlace, Pruned, Read, Refusal, Retention, Storage, Tally, TurnView,
};

/// After everything that the cases record.
const LATER: Millis = NOW + 1_000_000;

/// The views of one ledger.
pub(super) struct Case {
    pub(super) world: World,
    storage: Arc<dyn Storage>,
    people: Arc<dyn Personal>,
    memories: Arc<dyn Memories>,
    progress: Arc<dyn Progress>,
}

impl Case {
    pub(super) fn new<L>(ledger: Arc<L>) -> Self
    where
        L: Ledger + Personal + Memories + Progress + Storage + 'static,
    {
        Self {
            world: World::new(ledger.clone()),
            storage: ledger.clone(),
            people: ledger.clone(),
            memories: ledger.clone(),
            progress: ledger,
        }
    }

    async fn view(&self, turn: &Turn) -> Option<TurnView> {
        self.world.ledger.turn(turn.id).await.expect("read")
    }

    /// How much of each turn is stored; none where nothing is.
    async fn extents(&self, turns: &[&Turn]) -> Vec<Option<Extent>> {
        let mut extents = Vec::new();
        for turn in turns {
            extents.push(self.view(turn).await.map(|view| view.extent));
        }
        extents
    }

    async fn plan(&self, retention: &Retention) -> Pruned {
        let plan = self.storage.plan_pruning(retention).await;
        plan.expect("planned")
    }

    /// Removes what goes, at most so many pieces; whether all of it is gone.
    async fn pieces(&self, retention: &Retention, most: usize, all: &mut Pruned) -> bool {
        let mut place = PrunePlace::default();
        for _ in 0..most {
            let piece = self.storage.prune_piece(retention, place, 2).await;
            let piece = piece.expect("a piece");
            all.add(&piece.pruned);
            match piece.next {
                Some(next) => place = next,
                None => return true,
            }
        }
        false
    }

    /// Removes what goes: what a dry run said, however often it is interrupted, and nothing when it is done again.
    async fn prune(&self, retention: &Retention) -> Pruned {
        let plan = self.plan(retention).await;
        let mut done = Pruned::default();
        for pieces in 1.. {
            assert!(pieces < 1_000, "it does not end");
            // As if the process had died here: nothing remembers how far it was.
            let is_over = self.pieces(retention, pieces, &mut done).await;
            self.world.assert_lawful("a piece").await;
            if is_over {
                break;
            }
        }
        assert_eq!(done, plan);
        let mut again = Pruned::default();
        assert!(self.pieces(retention, 1_000, &mut again).await);
        let nothing = Pruned::default();
        assert_eq!((again, self.plan(retention).await), (nothing, nothing));
        done
    }
}

/// All that ended before a time.
fn everything(before_ms: Millis) -> Retention {
    Retention {
        turns: EndedBefore {
            all_ms: Some(before_ms),
            owners: Vec::new(),
        },
        logprobs_before_ms: Some(before_ms),
        votes_before_ms: Some(before_ms),
        reports_before_ms: Some(before_ms),
        held_out_kept: 0,
    }
}

/// Only log-probs.
fn logprobs(before_ms: Millis) -> Retention {
    Retention {
        logprobs_before_ms: Some(before_ms),
        ..Retention::default()
    }
}

/// A turn that ended, and says something of its own.
async fn settled(world: &World, words: &str) -> Turn {
    let mut turn = world.turn();
    turn.messages[1] = Message::text(Role::User, words);
    turn.completion_text = format!("So you say {words}.");
    world.answered(&turn).await;
    world.judge_all(None).await;
    turn
}

pub(super) async fn every_table_is_measured(case: &Case) {
    for _ in 0..3 {
        case.world.answered(&case.world.turn()).await;
    }
    let size = case.storage.size().await.expect("measured");
    let bytes: u64 = size
        .tables
        .iter()
        .map(|table| table.bytes + table.index_bytes)
        .sum();
    assert!(bytes > 0 && bytes <= size.bytes, "{size:?}");
    for (name, rows) in [
        ("turns", 3),
        ("transitions", 3),
        ("leases", 0),
        ("scope_counts", 2),
    ] {
        let table = size.tables.iter().find(|table| table.name == name);
        let table = table.expect("every table is there");
        assert!(!size.is_counted || table.rows == rows, "{table:?}");
    }
    let takes = |at: usize| size.tables[at].bytes + size.tables[at].index_bytes;
    assert!((1..size.tables.len()).all(|at| takes(at - 1) >= takes(at)));
}

pub(super) async fn nothing_goes_unless_it_is_asked_for(case: &Case) {
    let turn = settled(&case.world, "plums").await;
    for retention in [Retention::default(), everything(NOW - 1)] {
        assert_eq!(case.prune(&retention).await, Pruned::default());
    }
    assert!(Retention::default().is_off() && !everything(NOW).is_off());
    let view = case.view(&turn).await.expect("known");
    assert_eq!((view.turn, view.extent), (turn, Extent::Whole));
}

pub(super) async fn an_old_conversation_goes_with_all_that_nobody_shares(case: &Case) {
    let world = &case.world;
    let old = settled(world, "plums").await;
    let mut young = world.turn();
    young.finished_ms = LATER;
    world.record(&young).await;
    world
        .ledger
        .settle_turns(&[(young.id, Reason::Abstained)])
        .await
        .expect("settled");
    let said = world.feedback(&old, 0.5);
    world.ledger.record_feedback(&said).await.expect("stored");
    world.judge_all(Some(0.5)).await;
    let claimed = world.claim_samples(&world.sample_claim()).await;
    let claims: Vec<_> = claimed.iter().map(|sample| sample.claim).collect();
    let settled = world.ledger.settle_claims(&claims, Reason::TooLong).await;
    assert_eq!(settled.expect("settled"), 1);
    let pruned = case.prune(&everything(LATER)).await;
    assert_eq!(pruned.turns.rows, 1);
    assert_eq!((pruned.words.rows, pruned.logprobs.rows), (1, 1));
    // The system message is the young one's too.
    assert_eq!(pruned.messages.rows, 1, "{pruned:?}");
    assert!(pruned.votes.rows > 0 && pruned.bytes() > 0, "{pruned:?}");
    assert_eq!(
        case.extents(&[&old, &young]).await,
        [None, Some(Extent::Whole)]
    );
    let counts = world.ledger.counts().await.expect("counted");
    assert_eq!(
        (counts.turns, counts.settled),
        (1, vec![(Reason::Abstained, 1)])
    );
    let outcome = world
        .ledger
        .record_feedback(&world.feedback(&old, 1.0))
        .await;
    assert_eq!(outcome.expect("stored"), FeedbackOutcome::TurnUnknown);
}

pub(super) async fn what_waits_or_is_compared_on_stays_whole(case: &Case) {
    let world = &case.world;
    let held = world.ready_turns(3, 0).await;
    let samples = world.claim_samples(&world.sample_claim()).await;
    let claims: Vec<_> = samples.iter().map(|sample| sample.claim).collect();
    let done = world.ledger.settle_claims(&claims, Reason::HeldOut).await;
    assert_eq!(done.expect("held out"), 3);
    // In a batch under way, waiting for one, for the judge, and for what comes next.
    let in_batch = world.ready_turns(1, 0).await.remove(0);
    let batch = world.claim_samples(&world.sample_claim()).await;
    assert_eq!(batch.len(), 1);
    let ready = world.ready_turns(1, 0).await.remove(0);
    let to_judge = world.turn();
    world.answered(&to_judge).await;
    let open = world.turn();
    world.record(&open).await;
    // Memory has not read it.
    let mut unread = world.turn();
    unread.admission.memory = MemoryUse {
        mode: MemoryMode::Full,
        shown: Vec::new(),
        skills: Vec::new(),
    };
    world.record(&unread).await;
    world
        .ledger
        .settle_turns(&[(unread.id, Reason::Abstained)])
        .await
        .expect("settled");
    let retention = Retention {
        held_out_kept: 2,
        ..everything(LATER)
    };
    let pruned = case.prune(&retention).await;
    assert_eq!(pruned.turns.rows, 1, "{pruned:?}");
    let whole = [
        &held[1], &held[2], &in_batch, &ready, &to_judge, &open, &unread,
    ];
    assert_eq!(case.extents(&whole).await, [Some(Extent::Whole); 7]);
    assert_eq!(case.extents(&[&held[0]]).await, [None]);
    // The batch comes to its end as if nothing had been.
    let publishing = world.publishing(0, &batch);
    world.ledger.publish(&publishing).await.expect("published");
}

pub(super) async fn what_a_version_learned_from_keeps_its_row(case: &Case) {
    let world = &case.world;
    let hinted = world.publish_hinted(0).await;
    let claim = world.sample_claim();
    assert_eq!(world.replayed().await, [hinted]);
    let session = case.world.ledger.turn(hinted).await.expect("read");
    let session = session.expect("known").turn;
    let given = super::rewards::named_reward(world, &session).await;
    let pruned = case.prune(&everything(LATER)).await;
    assert_eq!((pruned.turns.rows, pruned.words.rows), (0, 1), "{pruned:?}");
    let view = world
        .ledger
        .turn(hinted)
        .await
        .expect("read")
        .expect("known");
    let trained = Fate::Trained {
        version: PolicyVersion(1),
    };
    assert_eq!((view.fate, view.extent), (trained, Extent::Row));
    assert!(view.turn.messages.is_empty() && view.turn.completion_text.is_empty());
    assert!(view.turn.completion.is_empty() && view.turn.prompt_tokens.is_empty());
    let verdict = view.verdict.expect("a verdict");
    assert_eq!(
        (verdict.score, verdict.hint, verdict.votes.len()),
        (Some(-1.0), None, 0)
    );
    assert_eq!(
        view.transition.expect("one").next_state,
        NextState::default()
    );
    // So do its rewards, without the names of their parts.
    let rewards = super::rewards::stored(world, &session).await;
    assert_eq!(rewards.len(), 1);
    assert_eq!(rewards[0].score, given.score);
    assert!(!given.parts.is_empty() && rewards[0].parts.is_empty());
    // It teaches no more, and what is said about it late changes nothing.
    assert_eq!(world.replayed().await, []);
    let outcome = world
        .ledger
        .record_feedback(&world.feedback(&view.turn, 1.0))
        .await;
    assert_eq!(outcome.expect("stored"), FeedbackOutcome::AlreadyLearned);
    assert!(world.claim_samples(&claim).await.is_empty());
    let scores = world.ledger.scores_by_version(&world.scope()).await;
    assert_eq!(scores.expect("read"), [(PolicyVersion(0), -1.0, 1)]);
    // An erasure still finds the version.
    let wish = wish(world, ForgetWhat::Session(view.turn.session));
    let begun = begin(&*case.people, &wish).await;
    assert_eq!(begun.report.versions_tainted, [PolicyVersion(1)]);
    assert_eq!(begun.report.rolls_back_to, Some(PolicyVersion(0)));
    remove_all(&*case.people, wish.id).await;
    assert!(world.ledger.turn(hinted).await.expect("read").is_none());
}

pub(super) async fn an_erasure_takes_what_repeats_a_turn_without_words(case: &Case) {
    let world = &case.world;
    let first = settled(world, "plums").await;
    let mut second = world.turn();
    (second.session, second.parent) = (first.session, Some(first.id));
    second.messages = first.messages.clone();
    second.messages.push(Message::text(Role::User, "and pears"));
    world.answered(&second).await;
    world.judge_all(Some(1.0)).await;
    world.learn_from_ready(0).await;
    // It repeats the first one, though nobody noted that it continues it.
    let mut third = second.clone();
    third.id = world.turn().id;
    (third.request, third.parent) = (world.turn().request, None);
    third.finished_ms = LATER;
    world.record(&third).await;
    let pruned = case.prune(&everything(LATER)).await;
    assert_eq!((pruned.turns.rows, pruned.words.rows), (0, 2), "{pruned:?}");
    let turns = [&first, &second, &third];
    let row = Some(Extent::Row);
    assert_eq!(case.extents(&turns).await, [row, row, Some(Extent::Whole)]);
    // Its words are in the prompt of the third one, which stays as it was.
    let view = case.view(&third).await.expect("known");
    assert_eq!(view.turn.messages, third.messages);
    let wish = wish(world, ForgetWhat::Turns(vec![first.id]));
    let begun = begin(&*case.people, &wish).await;
    assert_eq!(begun.report.turns, 3);
    assert_eq!(begun.report.versions_tainted, [PolicyVersion(1)]);
    remove_all(&*case.people, wish.id).await;
    assert_eq!(case.extents(&turns).await, [None, None, None]);
}

pub(super) async fn without_logprobs_the_words_stay(case: &Case) {
    let world = &case.world;
    let hinted = world.publish_hinted(0).await;
    let plain = settled(world, "plums").await;
    let before = world
        .ledger
        .turn(hinted)
        .await
        .expect("read")
        .expect("known");
    let pruned = case.prune(&logprobs(LATER)).await;
    assert_eq!((pruned.logprobs.rows, pruned.words), (2, Tally::default()));
    let after = world
        .ledger
        .turn(hinted)
        .await
        .expect("read")
        .expect("known");
    assert_eq!((after.extent, after.fate), (Extent::Words, before.fate));
    assert_eq!(after.turn.messages, before.turn.messages);
    assert_eq!(after.turn.prompt_tokens, before.turn.prompt_tokens);
    assert_eq!(after.turn.spans, before.turn.spans);
    let (is, was) = (&after.turn.completion, &before.turn.completion);
    assert_eq!(is.tokens(), was.tokens());
    assert!(is.behavior_logprobs().iter().all(|logprob| *logprob == 0.0));
    assert!(is.kept().iter().all(Option::is_none) && is.experts().is_empty());
    assert_eq!(
        after.verdict.expect("a verdict").hint.as_deref(),
        Some("be brief")
    );
    // Nothing trains on it again: not by its words, and not because of late feedback.
    assert_eq!(world.replayed().await, []);
    let outcome = world
        .ledger
        .record_feedback(&world.feedback(&plain, 1.0))
        .await;
    assert_eq!(outcome.expect("stored"), FeedbackOutcome::Stored);
    let reason = Reason::Abstained;
    assert_eq!(world.fate(&plain).await, Fate::Settled { reason });
    // The words go later.
    let pruned = case.prune(&everything(LATER)).await;
    assert_eq!((pruned.logprobs, pruned.words.rows), (Tally::default(), 2));
}

pub(super) async fn an_owner_has_a_time_of_their_own(case: &Case) {
    let world = &case.world;
    let mut turns = Vec::new();
    for owner in ["ann", "bob", "eve"] {
        let mut turn = world.turn();
        turn.owner = owner.to_owned();
        world.record(&turn).await;
        turns.push(turn);
    }
    let all = turns.iter().map(|turn| (turn.id, Reason::Abstained));
    world
        .ledger
        .settle_turns(&all.collect::<Vec<_>>())
        .await
        .expect("settled");
    let mut retention = Retention::default();
    retention.turns.owners = vec![("ann".to_owned(), Some(LATER))];
    assert_eq!(case.prune(&retention).await.turns.rows, 1);
    retention.turns.all_ms = Some(LATER);
    retention.turns.owners.push(("eve".to_owned(), None));
    assert_eq!(case.prune(&retention).await.turns.rows, 1);
    let extents = case.extents(&turns.iter().collect::<Vec<_>>()).await;
    assert_eq!(extents, [None, None, Some(Extent::Whole)]);
}

pub(super) async fn what_memories_and_checks_tell_of_keeps_its_row(case: &Case) {
    let world = &case.world;
    let remembered = settled(world, "Call me Sam.").await;
    let memory = NewMemory {
        id: MemoryId(world.batch().0),
        kind: MemoryKind::Fact,
        text: "Sam".to_owned(),
        topic: None,
        replaces: None,
        turn: Some(remembered.id),
        origin: MemoryOrigin::Said,
    };
    let added = case.memories.add_memory(&world.scope(), &memory, NOW).await;
    added.expect("added");
    let checked = world.turn();
    world.answered(&checked).await;
    for claimed in world.claim(ALL, NOW).await {
        let mut verdict = world.verdict(claimed.claim, None);
        verdict.votes.push(Vote {
            signal: Signal::Rules,
            outcome: Outcome::Good,
            reason: "ran".into(),
            model: Some("audit:calls".into()),
            latency_ms: 0,
            usage: None,
            prompt: None,
        });
        world
            .ledger
            .record_verdict(claimed.claim, &verdict)
            .await
            .expect("recorded");
    }
    let counted = world.ledger.audits().await.expect("counted");
    assert_eq!(counted.len(), 1);
    let pruned = case.prune(&everything(LATER)).await;
    assert_eq!((pruned.turns.rows, pruned.words.rows), (0, 2), "{pruned:?}");
    assert_eq!(world.ledger.audits().await.expect("counted"), counted);
    let row = Some(Extent::Row);
    assert_eq!(case.extents(&[&remembered, &checked]).await, [row, row]);
    let wish = wish(world, ForgetWhat::Turns(vec![remembered.id]));
    begin(&*case.people, &wish).await;
    remove_all(&*case.people, wish.id).await;
    let window = crate::Window {
        limit: ALL,
        before: None,
    };
    let left = case.memories.memories(&world.scope(), window).await;
    assert!(left.expect("read").is_empty());
}

pub(super) async fn votes_and_reports_go_alone(case: &Case) {
    let world = &case.world;
    let turns = world.ready_turns(2, 0).await;
    let claim = world.sample_claim();
    let samples = world.claim_samples(&claim).await;
    let refusal = Refusal {
        scope: world.scope(),
        parent: PolicyVersion(0),
        digest: None,
        batch: claim.batch,
        claims: samples.iter().map(|sample| sample.claim).collect(),
        reason: Reason::GateRejected,
        report: serde_json::json!({"loss": 1.5}),
        now_ms: NOW,
    };
    world.ledger.refuse(&refusal).await.expect("refused");
    let waiting = world.ready_turns(1, 0).await;
    let only_votes = Retention {
        votes_before_ms: Some(LATER),
        ..Retention::default()
    };
    let pruned = case.prune(&only_votes).await;
    assert_eq!((pruned.votes.rows, pruned.words), (2, Tally::default()));
    for (turn, votes) in turns.iter().map(|turn| (turn, 0)).chain([(&waiting[0], 1)]) {
        let verdict = case.view(turn).await.expect("known").verdict;
        assert_eq!(
            verdict.map(|v| (v.score, v.votes.len())),
            Some((Some(1.0), votes))
        );
    }
    let only_reports = Retention {
        reports_before_ms: Some(LATER),
        ..Retention::default()
    };
    assert_eq!(case.prune(&only_reports).await.reports.rows, 1);
    assert_eq!(world.ledger.counts().await.expect("counted").refused, 1);
    let entries = world.ledger.turn_entries(turns[0].id).await.expect("read");
    assert_eq!(entries.len(), 1);
    assert_eq!(entries[0].report, serde_json::json!({}));
}

/// A long conversation, of which some turns lost their words before: pieces are smaller than it.
pub(super) async fn a_long_conversation_goes_in_pieces(case: &Case) {
    let world = &case.world;
    let mut turns: Vec<Turn> = Vec::new();
    for at in 0..9 {
        let mut turn = world.turn();
        if let Some(before) = turns.last() {
            (turn.session, turn.parent) = (before.session, Some(before.id));
            turn.messages = before.messages.clone();
            turn.messages
                .push(Message::text(Role::User, format!("number {at}")));
        }
        turn.prompt_tokens = (0..2_000 + at).collect();
        turn.finished_ms = NOW + i64::from(at) * 1_000;
        world.record(&turn).await;
        world
            .ledger
            .settle_turns(&[(turn.id, Reason::Abstained)])
            .await
            .expect("settled");
        turns.push(turn);
    }
    let half = case.prune(&everything(NOW + 4_500)).await;
    assert_eq!((half.turns.rows, half.words.rows), (0, 5), "{half:?}");
    let rest = case.prune(&everything(LATER)).await;
    assert_eq!((rest.turns.rows, rest.words.rows), (9, 4), "{rest:?}");
    assert!(
        rest.messages.rows >= 9 && rest.token_blocks.rows > 0,
        "{rest:?}"
    );
    let size = case.storage.size().await.expect("measured");
    let left = size.tables.iter().filter(|table| {
        [
            "turns",
            "turn_payloads",
            "messages",
            "histories",
            "token_blocks",
            "sessions",
        ]
        .contains(&table.name.as_str())
    });
    let left: u64 = left.map(|table| table.rows).sum();
    assert!(!size.is_counted || left == 0, "{size:?}");
}

/// What memory has not read stays; who follows otherwise does not hold up what goes with age.
pub(super) async fn memory_is_waited_for_and_nobody_else(case: &Case) {
    let world = &case.world;
    let enrolled = case.progress.enrol("one", "all", NOW).await;
    enrolled.expect("enrolled");
    let mut heard = world.turn();
    heard.admission.memory.mode = MemoryMode::Full;
    world.answered(&heard).await;
    let other = settled(world, "Hello.").await;
    case.prune(&everything(LATER)).await;
    let extents = case.extents(&[&heard, &other]).await;
    assert_eq!(extents, [Some(Extent::Whole), None]);
    let unread = case.progress.unread_of("one", 0, ALL).await.expect("read");
    assert_eq!(
        unread.iter().map(|u| u.turn).collect::<Vec<_>>(),
        [heard.id]
    );
    let read = Extraction {
        read: Read::from(&unread[0]),
        memories: Vec::new(),
        correction: None,
        skill: None,
    };
    let kept = case.memories.store_extraction(&read, NOW).await;
    kept.expect("kept");
    case.prune(&everything(LATER)).await;
    assert_eq!(case.extents(&[&heard]).await, [None]);
    let unread = case.progress.unread_of("one", 0, ALL).await.expect("read");
    assert_eq!(unread, []);
}
