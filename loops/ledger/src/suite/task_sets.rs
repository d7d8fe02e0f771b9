//! Cases of task sets and of the contents of their files.

use std::collections::BTreeMap;

use hone_domain::{Digest, TASKS_MAX, TaskManifest, TaskSetId, TaskState};

use super::jobs::{Case, TEST, failed, of, settled};
use super::world::{ALL, NOW, OWNER, assert_conflict};
use crate::{JOB_ATTEMPTS_MAX, Jobs, Ledger, NewTasks, Personal};

pub(super) async fn sets_are_kept_and_removed<L: Ledger + Personal + Jobs + 'static>(
    case: &Case<L>,
) {
    let set = case.set(
        "unit\0tests",
        vec![case.task("b", true), case.task("a", false)],
    );
    case.add(&set).await;
    let again = case.set("unit\0tests", Vec::new());
    let scope = case.world.scope();
    assert_conflict(&case.ledger.add_task_set(&again, &scope, NOW).await);
    let sets = case.ledger.task_sets(OWNER).await.expect("read");
    assert_eq!(sets.len(), 1);
    assert_eq!((&sets[0].name[..], sets[0].held_out), ("unit\0tests", 1));
    assert_eq!(sets[0].states, BTreeMap::from([(TaskState::New, 2)]));
    let (_, tasks) = case
        .ledger
        .task_set(OWNER, set.id)
        .await
        .expect("read")
        .expect("there");
    let names: Vec<&str> = tasks.iter().map(|task| task.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(tasks[0].spec, set.tasks.tasks[1].spec);
    let (row, files) = case
        .ledger
        .task(set.tasks.tasks[0].id)
        .await
        .expect("read")
        .expect("there");
    assert!(row.held_out);
    let test = BTreeMap::from([("test.sh".to_owned(), TEST.to_vec())]);
    assert_eq!((files.tests, files.environment.len()), (test, 0));
    // Nobody else sees it.
    assert_eq!(case.ledger.task_sets("other").await.expect("read"), []);
    assert!(
        case.ledger
            .task_set("other", set.id)
            .await
            .expect("read")
            .is_none()
    );
    assert!(
        !case
            .ledger
            .remove_task_set("other", set.id)
            .await
            .expect("asked")
    );
    // Each task has one check, and what runs keeps its set.
    let jobs = case.claim(ALL, NOW).await;
    assert_eq!(jobs.len(), 2);
    assert_conflict(&case.ledger.remove_task_set(OWNER, set.id).await);
    for job in &jobs {
        case.end(job, &settled(None), NOW).await.expect("ended");
    }
    assert!(
        case.ledger
            .remove_task_set(OWNER, set.id)
            .await
            .expect("removed")
    );
    assert_eq!(case.ledger.task_sets(OWNER).await.expect("read"), []);
    assert_eq!(case.counts().await, BTreeMap::new());
}

/// A check that fails for want of a jail quarantines its task; whoever has it puts it back, and it is checked again.
pub(super) async fn a_quarantined_task_is_released_and_checked_again<
    L: Ledger + Personal + Jobs + 'static,
>(
    case: &Case<L>,
) {
    let set = case.set("set", vec![case.task("a", false)]);
    case.add(&set).await;
    let task = set.tasks.tasks[0].id;
    let scope = case.world.scope();
    let release = async |owner: &str, set| {
        let ledger = &case.ledger;
        ledger.release_task(owner, set, task, &scope, NOW).await
    };
    assert_conflict(&release(OWNER, set.id).await);
    let state = async || {
        let row = case.ledger.task(task).await.expect("read");
        let (row, _) = row.expect("there");
        (row.state, row.note)
    };
    for round in 0..2 {
        for _ in 0..JOB_ATTEMPTS_MAX {
            for job in case.claim(ALL, NOW).await {
                case.end(&job, &failed(0), NOW).await.expect("ended");
            }
        }
        let (now, note) = state().await;
        assert_eq!(now, TaskState::Quarantined, "{round}");
        assert!(note.is_some_and(|note| note.contains("jail")));
        // Nobody else puts it back.
        assert!(!release("other", set.id).await.expect("asked"));
        let elsewhere = TaskSetId(case.world.batch().0);
        assert!(!release(OWNER, elsewhere).await.expect("asked"));
        assert!(release(OWNER, set.id).await.expect("released"));
        assert_eq!(state().await, (TaskState::New, None));
    }
    let jobs = case.claim(ALL, NOW).await;
    assert_eq!(jobs.len(), 1, "one check at a time");
    case.end(&jobs[0], &settled(None), NOW)
        .await
        .expect("ended");
}

pub(super) async fn sets_grow_and_share_contents<L: Ledger + Personal + Jobs + 'static>(
    case: &Case<L>,
) {
    let set = case.set("set", Vec::new());
    case.add(&set).await;
    let scope = case.world.scope();
    let more = async |owner: &str, set: TaskSetId, new: &NewTasks| {
        case.ledger.add_tasks(owner, set, new, &scope, NOW).await
    };
    // A content of an earlier part is there for the tasks of a later one.
    let large = vec![7; 3 << 20];
    let contents = NewTasks {
        tasks: Vec::new(),
        contents: BTreeMap::from([
            (Digest::of(&large), large.clone()),
            (Digest::of(b""), Vec::new()),
        ]),
    };
    assert!(more(OWNER, set.id, &contents).await.expect("added"));
    let mut task = case.task("a", false);
    task.files.environment = BTreeMap::from([
        ("copy".to_owned(), Digest::of(&large)),
        ("empty".to_owned(), Digest::of(b"")),
        ("large".to_owned(), Digest::of(&large)),
    ]);
    let one = of(vec![task.clone()]);
    assert!(more(OWNER, set.id, &one).await.expect("added"));
    let digests = [TEST, &large[..], b"", b"nobody has it"].map(Digest::of);
    let stored = async |owner: &str, set: TaskSetId| {
        let stored = case.ledger.stored_contents(owner, set, &digests).await;
        stored.expect("read")
    };
    let here = BTreeMap::from([
        (Digest::of(TEST), TEST.len() as u64),
        (Digest::of(&large), large.len() as u64),
        (Digest::of(b""), 0),
    ]);
    assert_eq!(stored(OWNER, set.id).await, here);
    assert_eq!(stored("other", set.id).await, BTreeMap::new());
    let (row, files) = case
        .ledger
        .task(task.id)
        .await
        .expect("read")
        .expect("there");
    assert_eq!(row.name, "a");
    assert_eq!(files.environment["copy"], large);
    assert_eq!(files.environment["large"], large);
    assert_eq!(files.environment["empty"], b"");
    assert_eq!(files.tests["test.sh"], TEST);
    // Another set has nothing of it.
    let other = case.set("other", Vec::new());
    case.add(&other).await;
    assert_eq!(
        stored(OWNER, other.id).await,
        BTreeMap::from([(Digest::of(TEST), TEST.len() as u64)])
    );
    // Contents go with their set.
    assert!(
        case.ledger
            .remove_task_set(OWNER, other.id)
            .await
            .expect("removed")
    );
    assert_eq!(stored(OWNER, other.id).await, BTreeMap::new());
    assert_eq!(stored(OWNER, set.id).await, here);
}

pub(super) async fn a_set_takes_so_much_and_no_more<L: Ledger + Personal + Jobs + 'static>(
    case: &Case<L>,
) {
    let task = case.task("a", false);
    let set = case.set("set", vec![task.clone()]);
    case.add(&set).await;
    let scope = case.world.scope();
    let more = async |owner: &str, set: TaskSetId, new: &NewTasks| {
        case.ledger.add_tasks(owner, set, new, &scope, NOW).await
    };
    // A name is there once, and nobody adds to another's set.
    let one = of(vec![case.task("b", false)]);
    let again = of(vec![case.task("b", false), case.task("a", false)]);
    assert_conflict(&more(OWNER, set.id, &again).await);
    assert!(!more("other", set.id, &one).await.expect("asked"));
    let (row, tasks) = case
        .ledger
        .task_set(OWNER, set.id)
        .await
        .expect("read")
        .expect("there");
    assert_eq!(row.states, BTreeMap::from([(TaskState::New, 1)]));
    assert_eq!(tasks.len(), 1);
    // What a set cannot have leaves it as it was.
    let many = (0..TASKS_MAX).map(|n| case.task(&format!("t{n}"), false));
    assert_conflict(&more(OWNER, set.id, &of(many.collect())).await);
    assert_eq!(case.claim(ALL, NOW).await.len(), 1);
    // A task whose content is missing is read as damage.
    let mut lost = case.task("lost", false);
    lost.files = TaskManifest {
        tests: BTreeMap::from([("test.sh".to_owned(), Digest::of(b"gone"))]),
        ..TaskManifest::default()
    };
    let bare = NewTasks {
        tasks: vec![lost.clone()],
        contents: BTreeMap::new(),
    };
    assert!(more(OWNER, set.id, &bare).await.expect("added"));
    assert!(case.ledger.task(lost.id).await.is_err());
}
