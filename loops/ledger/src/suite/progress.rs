//! Cases of consumers that follow.

use std::sync::Arc;

use hone_domain::{MemoryMode, MemoryUse, Message, Role, TurnId, TurnKind};

use super::personal::{begin, remove_all, wish};
use super::world::{ALL, NOW, World, assert_conflict};
use crate::{
    FOLLOWER_NAME_MAX, FOLLOWERS_MAX, Follower, ForgetWhat, Ledger, MEMORY_CONSUMER, Memories,
    Personal, Progress, Read, Unread,
};

/// The views of one ledger.
pub(super) struct Case {
    pub(super) world: World,
    progress: Arc<dyn Progress>,
    people: Arc<dyn Personal>,
    memories: Arc<dyn Memories>,
}

/// What is unread: the turn, whether it is new, and the revision of its verdict.
type Rows = Vec<(TurnId, bool, Option<u64>)>;

impl Case {
    pub(super) fn new<L: Ledger + Personal + Memories + Progress + 'static>(
        ledger: Arc<L>,
    ) -> Self {
        Self {
            world: World::new(ledger.clone()),
            progress: ledger.clone(),
            people: ledger.clone(),
            memories: ledger,
        }
    }

    async fn enrol(&self, name: &str) {
        let done = self.progress.enrol(name, "all", NOW).await;
        done.expect("enrolled");
    }

    async fn unread(&self, name: &str) -> Vec<Unread> {
        let unread = self.progress.unread_of(name, 0, ALL).await;
        unread.expect("read")
    }

    async fn rows(&self, name: &str) -> Rows {
        let unread = self.unread(name).await.into_iter();
        unread.map(|u| (u.turn, u.is_new, u.revision)).collect()
    }

    async fn acknowledge(&self, name: &str, unread: &[Unread]) {
        let read: Vec<Read> = unread.iter().map(Read::from).collect();
        let done = self.progress.acknowledge(name, &read, NOW + 7).await;
        done.expect("noted");
    }

    /// Acknowledges all that is unread.
    async fn read_all(&self, name: &str) {
        self.acknowledge(name, &self.unread(name).await).await;
        assert_eq!(self.rows(name).await, []);
    }

    async fn judge_again(&self, turn: &hone_domain::Turn) {
        let feedback = self.world.feedback(turn, -1.0);
        let stored = self.world.ledger.record_feedback(&feedback).await;
        stored.expect("stored");
        self.world.judge_all(Some(-1.0)).await;
    }

    async fn follower(&self, name: &str) -> Option<Follower> {
        let followers = self.progress.followers().await.expect("read");
        followers.into_iter().find(|one| one.name == name)
    }
}

pub(super) async fn what_is_new_is_read_once(case: &Case) {
    let world = &case.world;
    case.enrol("one").await;
    let [first, second] = [world.turn(), world.turn()];
    let mut side = world.turn();
    side.kind = TurnKind::Side;
    let batch = [first.clone(), side, second.clone()];
    for _ in 0..2 {
        let done = world.ledger.record_turns(&batch).await;
        done.expect("recorded");
    }
    let new = [(first.id, true, None), (second.id, true, None)];
    assert_eq!(case.rows("one").await, new);
    // What is not acknowledged is given again; what is behind a number is given alone.
    let unread = case.unread("one").await;
    let behind = case.progress.unread_of("one", unread[0].number, 1).await;
    assert_eq!(behind.expect("read"), unread[1..]);
    case.acknowledge("one", &unread[..1]).await;
    assert_eq!(case.rows("one").await, new[1..]);
    case.acknowledge("one", &unread).await;
    world.record(&first).await;
    assert_eq!(case.rows("one").await, []);
    let one = case.follower("one").await.expect("enrolled");
    assert_eq!(
        (one.read_count, one.read_ms, one.unread),
        (2, Some(NOW + 7), 0)
    );
    assert_eq!((one.spec.as_str(), one.created_ms), ("all", NOW));
}

pub(super) async fn what_was_there_before_is_noted_in_pieces(case: &Case) {
    let world = &case.world;
    let before = world.ready_turns(5, 0).await;
    case.enrol("one").await;
    assert_eq!(case.rows("one").await, []);
    assert!(case.progress.fill("one", 2).await.expect("filled"));
    // A turn that comes meanwhile, and a verdict on one that is not noted yet.
    let late = world.turn();
    world.record(&late).await;
    case.judge_again(&before[0]).await;
    // Enrolled again, as after a restart, it goes on.
    case.enrol("one").await;
    let mut pieces = 1;
    while case.progress.fill("one", 2).await.expect("filled") {
        pieces += 1;
    }
    assert_eq!(pieces, 2);
    let mut all: Rows = before.iter().map(|turn| (turn.id, true, Some(1))).collect();
    all[0].2 = Some(2);
    all.push((late.id, true, None));
    assert_eq!(case.rows("one").await, all);
    case.read_all("one").await;
    assert!(!case.progress.fill("one", 2).await.expect("filled"));
    assert_eq!(case.rows("one").await, []);
    assert!(!case.progress.fill("nobody", 2).await.expect("asked"));
}

/// A revised verdict reaches everybody that follows, whatever became of the turn, and each of them once.
pub(super) async fn a_revised_verdict_is_read_again(case: &Case) {
    let world = &case.world;
    for name in ["one", "other"] {
        case.enrol(name).await;
    }
    let mut turn = world.turn();
    turn.admission.memory = MemoryUse {
        mode: MemoryMode::Full,
        shown: Vec::new(),
        skills: Vec::new(),
    };
    world.answered(&turn).await;
    case.read_all("one").await;
    world.judge_all(None).await;
    assert_eq!(case.rows("one").await, [(turn.id, false, Some(1))]);
    assert_eq!(case.rows("other").await, [(turn.id, true, Some(1))]);
    // Nothing is said of how to answer, so memory has the turn alone to read.
    assert_eq!(case.rows(MEMORY_CONSUMER).await, [(turn.id, true, None)]);
    let old = case.unread("one").await;
    case.judge_again(&turn).await;
    case.acknowledge("one", &old).await;
    assert_eq!(case.rows("one").await, [(turn.id, false, Some(2))]);
    case.read_all("one").await;
    // Who read the turn, and only its first verdict, has the second one to read.
    let first = Read {
        turn: turn.id,
        is_new: true,
        revision: Some(1),
    };
    let done = case.progress.acknowledge("other", &[first], NOW).await;
    done.expect("noted");
    assert_eq!(case.rows("other").await, [(turn.id, false, Some(2))]);
    assert_eq!(case.follower("one").await.expect("enrolled").read_count, 2);
}

pub(super) async fn a_turn_names_what_continues_it(case: &Case) {
    let world = &case.world;
    case.enrol("one").await;
    let first = world.turn();
    let mut next = world.turn();
    next.session = first.session;
    next.parent = Some(first.id);
    let mut side = next.clone();
    side.id = world.turn().id;
    side.kind = TurnKind::Side;
    for turn in [&first, &next, &side] {
        world.record(turn).await;
    }
    let unread = case.unread("one").await;
    let named: Vec<_> = unread.iter().map(|u| u.continued_by.clone()).collect();
    assert_eq!(named, [vec![next.id], Vec::new()]);
}

pub(super) async fn an_erasure_leaves_nothing_to_read(case: &Case) {
    let world = &case.world;
    for name in ["one", "other"] {
        case.enrol(name).await;
    }
    let turns = world.ready_turns(3, 0).await;
    let stays = case.unread("one").await[0].clone();
    let gone = case.unread("one").await[1..].to_vec();
    let wish = wish(world, ForgetWhat::Turns(vec![turns[1].id, turns[2].id]));
    begin(&*case.people, &wish).await;
    // From now on, and not only once the turns are removed.
    for name in ["one", "other"] {
        assert_eq!(case.rows(name).await.len(), 1, "{name}");
    }
    // Who is enrolled meanwhile does not get them either.
    case.enrol("late").await;
    assert!(!case.progress.fill("late", ALL).await.expect("filled"));
    assert_eq!(case.rows("late").await, [(turns[0].id, true, Some(1))]);
    case.acknowledge("one", &gone).await;
    remove_all(&*case.people, wish.id).await;
    // A database may give the numbers of what was removed again.
    let new = world.turn();
    world.record(&new).await;
    case.acknowledge("one", &gone).await;
    let left = [(turns[0].id, true, Some(1)), (new.id, true, None)];
    assert_eq!(case.rows("one").await, left);
    case.acknowledge("one", &[stays]).await;
    assert_eq!(case.rows("one").await, left[1..]);
}

/// A turn whose reply was erased stays without a verdict.
pub(super) async fn a_withdrawn_verdict_is_not_read(case: &Case) {
    let world = &case.world;
    for name in ["one", "other"] {
        case.enrol(name).await;
    }
    let first = world.turn();
    let mut reply = world.turn();
    reply.session = first.session;
    reply.parent = Some(first.id);
    reply.messages.push(Message::text(Role::User, "And then?"));
    world.record(&first).await;
    world.record(&reply).await;
    let mut transition = world.transition(&first);
    transition.next_turn = Some(reply.id);
    let done = world.ledger.record_transitions(&[transition]).await;
    done.expect("recorded");
    case.read_all("one").await;
    world.judge_all(Some(1.0)).await;
    assert_eq!(case.rows("one").await, [(first.id, false, Some(1))]);
    let wish = wish(world, ForgetWhat::Turns(vec![reply.id]));
    begin(&*case.people, &wish).await;
    assert_eq!(case.rows("one").await, []);
    assert_eq!(case.rows("other").await, [(first.id, true, None)]);
    remove_all(&*case.people, wish.id).await;
}

pub(super) async fn consumers_are_enrolled_and_removed(case: &Case) {
    let world = &case.world;
    let long = "n".repeat(FOLLOWER_NAME_MAX + 1);
    for name in ["", MEMORY_CONSUMER, &long] {
        assert_conflict(&case.progress.enrol(name, "all", NOW).await);
    }
    for number in 0..FOLLOWERS_MAX {
        case.enrol(&format!("consumer {number}")).await;
    }
    case.enrol("consumer 0").await;
    let other = case.progress.enrol("consumer 0", "some", NOW).await;
    assert_conflict(&other);
    assert_conflict(&case.progress.enrol("one more", "all", NOW).await);
    let mut turn = world.turn();
    turn.admission.memory.mode = MemoryMode::Read;
    world.record(&turn).await;
    world.ready_turns(2, 0).await;
    let remove = async |name| case.progress.remove_follower(name, 2).await.expect("asked");
    assert!(remove("consumer 0").await, "two of three");
    assert_eq!(
        case.follower("consumer 0").await.expect("there").unread,
        1,
        "until nothing is left of it"
    );
    assert!(!remove("consumer 0").await);
    assert_eq!(case.follower("consumer 0").await, None);
    assert_eq!(case.rows("consumer 0").await, []);
    assert!(!remove("nobody").await && !remove(MEMORY_CONSUMER).await);
    assert_eq!(case.rows("consumer 1").await.len(), 3);
    assert_eq!(case.memories.unread(ALL).await.expect("read").len(), 1);
    assert_eq!(case.progress.followers().await.expect("read").len(), 63);
    // The name is free, and begins anew.
    case.enrol("consumer 0").await;
    assert!(!case.progress.fill("consumer 0", ALL).await.expect("filled"));
    assert_eq!(case.rows("consumer 0").await.len(), 3);
}
