//! Cases of what stays visible while and after something is erased.

use hone_domain::{BranchOf, Fate, Message, Origin, Reason, Role, Turn};

use super::personal::{begin, remove_all, wish};
use super::world::{ALL, World};
use crate::{FeedbackOutcome, ForgetWhat, Personal};

async fn title(world: &World) -> Option<String> {
    let page = world
        .ledger
        .session_page((&world.scope(), None), None, ALL)
        .await;
    page.expect("read").rows.remove(0).title
}

pub(super) async fn a_title_goes_with_any_turn(world: &World, people: &dyn Personal) {
    let mut greeting = world.turn();
    greeting.messages.truncate(1);
    let mut asked = world.turn();
    asked.session = greeting.session;
    asked.messages[1] = Message::text(Role::User, "Ann's letter");
    for turn in [&greeting, &asked] {
        world.record(turn).await;
    }
    assert_eq!(title(world).await.as_deref(), Some("Ann's letter"));
    let wish = wish(world, ForgetWhat::Turns(vec![asked.id]));
    people.begin_forget(&wish).await.expect("it begins");
    remove_all(people, wish.id).await;
    assert_eq!(title(world).await, None);
    // What comes late and continues it brings no title; what goes on without it does.
    let mut late = world.turn();
    (late.session, late.parent) = (greeting.session, Some(asked.id));
    late.messages = asked.messages.clone();
    world.record(&late).await;
    assert_eq!(title(world).await, None);
    let mut other = world.turn();
    other.session = greeting.session;
    world.record(&other).await;
    assert_eq!(title(world).await.as_deref(), Some("Hello?"));
}

/// Whether a turn has lost its words.
async fn is_wordless(world: &World, turn: &Turn) -> bool {
    let view = world.ledger.turn(turn.id).await.expect("read");
    view.is_none_or(|view| view.turn.prompt_tokens.is_empty())
}

pub(super) async fn branches_go_with_the_answer_that_they_go_on_from(
    world: &World,
    people: &dyn Personal,
) {
    let branch_of = |turn: &Turn| {
        let mut branch = world.turn();
        branch.origin = Origin::Rollout;
        branch.prompt_tokens.push(7);
        branch.admission.branch = Some(BranchOf {
            turn: turn.id,
            position: 1,
            prefix_tokens: 1,
        });
        branch
    };
    let (asked, other) = (world.turn(), world.turn());
    let (branch, apart) = (branch_of(&asked), branch_of(&other));
    let twice = branch_of(&branch);
    for turn in [&asked, &other, &branch, &apart, &twice] {
        world.record(turn).await;
    }
    let view = world.ledger.turn(branch.id).await.expect("read");
    assert_eq!(view.expect("known").turn, branch);
    let wish = wish(world, ForgetWhat::Turns(vec![asked.id]));
    let plan = people.plan_forget(&wish).await.expect("planned");
    assert_eq!(plan.turns, 3);
    begin(people, &wish).await;
    remove_all(people, wish.id).await;
    // What is still under way goes as well.
    let late = branch_of(&asked);
    world.record(&late).await;
    for (turn, gone) in [
        (&asked, true),
        (&branch, true),
        (&twice, true),
        (&late, true),
        (&other, false),
        (&apart, false),
    ] {
        assert_eq!(is_wordless(world, turn).await, gone, "{turn:?}");
    }
}

pub(super) async fn what_is_being_removed_is_not_judged_again(
    world: &World,
    people: &dyn Personal,
) {
    let turn = world.turn();
    world.answered(&turn).await;
    world.judge_all(None).await;
    let reason = Reason::Abstained;
    assert_eq!(world.fate(&turn).await, Fate::Settled { reason });
    let wish = wish(world, ForgetWhat::Turns(vec![turn.id]));
    people.begin_forget(&wish).await.expect("it begins");
    let reason = Reason::Withdrawn;
    assert_eq!(world.fate(&turn).await, Fate::Settled { reason });
    let said = world.feedback(&turn, 1.0);
    let told = world.ledger.record_feedback(&said).await.expect("heard");
    assert_eq!(told, FeedbackOutcome::NotYours);
    let view = world.ledger.turn(turn.id).await.expect("read");
    assert!(view.expect("still there").feedback.is_empty());
    assert_eq!(world.fate(&turn).await, Fate::Settled { reason });
    remove_all(people, wish.id).await;
}

pub(super) async fn what_is_under_way_comes_without_its_words(
    world: &World,
    people: &dyn Personal,
) {
    let mut gone = world.turn();
    gone.messages[1] = Message::text(Role::User, "Ann's letter");
    let mut stays = world.turn();
    stays.session = gone.session;
    for turn in [&gone, &stays] {
        world.record(turn).await;
    }
    let wish = wish(world, ForgetWhat::Turns(vec![gone.id]));
    begin(people, &wish).await;
    remove_all(people, wish.id).await;
    let continuing = |parent: &Turn| {
        let mut turn = world.turn();
        (turn.session, turn.parent) = (gone.session, Some(parent.id));
        turn
    };
    // Another choice of its request, one that continues that, and another choice of this one's.
    let mut choice = world.turn();
    (choice.session, choice.request, choice.choice_index) = (gone.session, gone.request, 1);
    let child = continuing(&choice);
    let mut sibling = continuing(&stays);
    sibling.request = child.request;
    // The same within one batch; the turn itself, whose recording is repeated; what has no part in it.
    let first = continuing(&gone);
    let second = continuing(&first);
    let apart = continuing(&stays);
    // Another prompt of the same request, in a session of its own.
    let mut elsewhere = world.turn();
    (elsewhere.request, elsewhere.choice_index) = (gone.request, 2);
    let batches: [&[&Turn]; 7] = [
        &[&choice],
        &[&child],
        &[&sibling],
        &[&first, &second],
        &[&gone],
        &[&apart],
        &[&elsewhere],
    ];
    for batch in batches {
        let turns: Vec<Turn> = batch.iter().map(|turn| (*turn).clone()).collect();
        let done = world.ledger.record_turns(&turns).await;
        let forgotten = done.expect("recorded");
        for turn in turns {
            let view = world.ledger.turn(turn.id).await.expect("read");
            let kept = view.expect("known");
            let is_wordless = kept.turn.messages.is_empty() && kept.turn.completion_text.is_empty();
            let stays = [apart.id, elsewhere.id].contains(&turn.id);
            assert_eq!(is_wordless, !stays, "{turn:?}");
            assert_eq!(forgotten.contains(&turn.id), is_wordless);
            let reason = Reason::Withdrawn;
            assert_eq!(kept.fate == Fate::Settled { reason }, is_wordless);
        }
    }
    let said = world.feedback(&choice, 1.0);
    let told = world.ledger.record_feedback(&said).await.expect("heard");
    assert_eq!(told, FeedbackOutcome::NotYours);
}

/// A turn waited in the spool of an earlier process while its whole scope was forgotten.
pub(super) async fn what_waited_in_a_spool_comes_without_its_words(
    world: &World,
    people: &dyn Personal,
) {
    let (waited, ours) = (world.turn(), world.turn());
    let before = world.ledger.forget_mark();
    let wish = wish(world, ForgetWhat::All);
    begin(people, &wish).await;
    remove_all(people, wish.id).await;
    // To a process that began after the wish, it is older than every turn of its own.
    for (turn, mark, is_forgotten) in [(&waited, before, true), (&ours, i64::MAX, false)] {
        for _again in 0..2 {
            let turns = std::slice::from_ref(turn);
            let done = world.ledger.record_spooled(turns, mark).await;
            assert_eq!(done.expect("recorded").contains(&turn.id), is_forgotten);
        }
        let kept = world.ledger.turn(turn.id).await.expect("read");
        let kept = kept.expect("known").turn;
        assert_eq!(kept.completion_text.is_empty(), is_forgotten);
    }
}
