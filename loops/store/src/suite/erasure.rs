//! Cases of what stays visible while and after something is erased.

use hone_domain::{Fate, Message, Reason, Role};

use super::personal::{remove_all, wish};
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
