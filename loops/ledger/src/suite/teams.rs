//! Agents and teams, as every [`People`] keeps them.

use hone_domain::RateLimits;

use super::people::{change, done, user};
use super::world::NOW;
use crate::{Changed, Keeper, Member, People, PeopleChange, Team, TeamChange, User, UserChange};

fn member(name: &str, is_lead: bool) -> Member {
    Member {
        name: name.into(),
        is_lead,
        joined_ms: NOW,
    }
}

fn team(name: &str, members: Vec<Member>) -> Team {
    Team {
        name: name.into(),
        disabled: false,
        limits: RateLimits::default(),
        created_ms: NOW,
        members,
    }
}

fn agent(name: &str, keeper: Keeper) -> User {
    User {
        password: None,
        keeper: Some(keeper),
        ..user(name)
    }
}

pub(super) async fn an_agent_has_a_keeper_and_never_a_password(people: &dyn People) {
    let owner = |name: &str| Keeper::Owner(name.into());
    let of_nobody = agent("lost", Keeper::Team("none".into()));
    let added = change(people, PeopleChange::AddUser(of_nobody)).await;
    assert_eq!(added, Changed::Missing);
    done(people, PeopleChange::AddTeam(team("desk", Vec::new()))).await;
    done(people, PeopleChange::AddUser(user("ann"))).await;
    let rows = [
        agent("builder", owner("ann")),
        agent("helper", Keeper::Team("desk".into())),
        // Who is known by a token has no account.
        agent("other", owner("oidc:7")),
    ];
    for row in rows {
        done(people, PeopleChange::AddUser(row.clone())).await;
        assert_eq!(people.user(&row.name).await.expect("read"), Some(row));
    }
    let mut signs_in = agent("eve", owner("ann"));
    signs_in.password = Some("phc".into());
    let entry = super::people::entry("user.add");
    let signs_in = PeopleChange::AddUser(signs_in);
    let refused = people.change(&signs_in, &entry).await;
    assert!(refused.is_err(), "an agent with a password");
    let password = UserChange {
        password: Some("phc".into()),
        ..UserChange::default()
    };
    for name in ["builder", "helper"] {
        let wanted = PeopleChange::ChangeUser(name.into(), password.clone());
        assert_eq!(change(people, wanted).await, Changed::Missing, "{name}");
    }
    let close = UserChange {
        disabled: Some(true),
        ..UserChange::default()
    };
    done(people, PeopleChange::ChangeUser("builder".into(), close)).await;
    let closed = people.user("builder").await.expect("read").expect("kept");
    assert!(closed.disabled && closed.keeper == Some(owner("ann")));
}

pub(super) async fn everybody_is_in_one_team_at_most(people: &dyn People) {
    let put = |team: &str, who: Member| PeopleChange::PutMember(team.to_owned(), who);
    let desk = team("desk", vec![member("ann", true), member("bob", false)]);
    done(people, PeopleChange::AddTeam(desk.clone())).await;
    done(people, PeopleChange::AddTeam(team("lab", Vec::new()))).await;
    let lists = people.teams().await.expect("read");
    assert_eq!(lists, [desk, team("lab", Vec::new())]);

    let again = PeopleChange::AddTeam(team("lab", Vec::new()));
    assert_eq!(change(people, again).await, Changed::Taken);
    let with_ann = PeopleChange::AddTeam(team("new", vec![member("ann", false)]));
    assert_eq!(change(people, with_ann).await, Changed::Taken);
    let taken = change(people, put("lab", member("bob", false))).await;
    assert_eq!(taken, Changed::Taken);
    let nowhere = change(people, put("none", member("eve", false))).await;
    assert_eq!(nowhere, Changed::Missing);

    done(people, put("desk", member("bob", true))).await;
    let drop = |team: &str, who: &str| PeopleChange::DropMember(team.into(), who.into());
    let elsewhere = change(people, drop("lab", "ann")).await;
    assert_eq!(elsewhere, Changed::Missing);
    done(people, drop("desk", "ann")).await;
    done(people, put("lab", member("ann", false))).await;
    let members: Vec<Vec<Member>> = people
        .teams()
        .await
        .expect("read")
        .into_iter()
        .map(|team| team.members)
        .collect();
    let wanted = [vec![member("bob", true)], vec![member("ann", false)]];
    assert_eq!(members, wanted, "and no team called new");
}

pub(super) async fn a_change_of_a_team_is_told(people: &dyn People) {
    let limits = RateLimits {
        requests_per_minute: Some(3),
        ..RateLimits::default()
    };
    let close = TeamChange {
        disabled: Some(true),
        limits: Some(limits),
    };
    let rows = [
        PeopleChange::AddTeam(team("desk", Vec::new())),
        PeopleChange::PutMember("desk".into(), member("ann", false)),
        PeopleChange::PutMember("desk".into(), member("ann", true)),
        PeopleChange::ChangeTeam("desk".into(), close),
        PeopleChange::DropMember("desk".into(), "ann".into()),
    ];
    for row in rows {
        let before = people.revision().await.expect("read");
        let shown = format!("{row:?}");
        done(people, row).await;
        assert!(people.revision().await.expect("read") > before, "{shown}");
    }
    let desk = people.teams().await.expect("read").remove(0);
    assert_eq!((desk.disabled, desk.limits), (true, limits));
    let nobody = PeopleChange::ChangeTeam("none".into(), TeamChange::default());
    assert_eq!(change(people, nobody).await, Changed::Missing);
}
