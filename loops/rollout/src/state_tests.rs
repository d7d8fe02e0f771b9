use hone_domain::{
    AgentKind, JobReason, RolloutId, RolloutSpec, Scope, TaskId, TaskSpec, TaskState,
};
use hone_ledger::TaskRow;
use hone_runtime::Shutdown;
use uuid::Uuid;

use super::*;

struct Counted(std::sync::atomic::AtomicU64);

impl Ids for Counted {
    fn next(&self) -> Uuid {
        let n = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Uuid::from_u128(u128::from(n))
    }
}

fn state() -> State {
    let config = Config {
        concurrency: 2,
        untrained_max: 8,
        lease_ms: 9_000,
        tick_ms: 1_000,
        retry_ms: 500,
        drain_ms: 1_000,
    };
    State::new(config, Arc::new(Counted(1.into())))
}

pub(crate) fn job(number: u32) -> Job {
    Job {
        id: JobId(Uuid::from_u128(u128::from(number) + 100)),
        kind: JobKind::Episode,
        owner: "ann".to_owned(),
        scope: Scope::of("ann", None),
        rollout: Some(RolloutId(Uuid::from_u128(1))),
        group: GroupId(Uuid::from_u128(2)),
        member: number,
        task: TaskId(Uuid::from_u128(3)),
        attempt: 1,
        state: JobState::Running,
        reason: None,
        priority: 0.0,
        not_before_ms: 0,
        created_ms: 0,
        started_ms: Some(0),
        ended_ms: None,
        fence: 1,
        reward: None,
        version: None,
        session: None,
        result: None,
    }
}

fn open() -> OpenRollout {
    OpenRollout {
        id: RolloutId(Uuid::from_u128(1)),
        spec: RolloutSpec {
            agent: AgentKind::Bash,
            command: None,
            attempts: 4,
            groups: 1,
            evaluates: false,
            version: None,
            steps_max: 1,
            tokens_max: 1,
            temperature: 1.0,
        },
        groups_made: 0,
        queued_jobs: 0,
        tasks: vec![TaskRow {
            id: TaskId(Uuid::from_u128(3)),
            name: "a".to_owned(),
            held_out: false,
            spec: TaskSpec {
                instruction: String::new(),
                answer_file: None,
                agent_seconds: 1,
                verifier_seconds: 1,
            },
            has_solution: false,
            state: TaskState::Ready,
            note: None,
            tries: 0,
            rewards: 0.0,
        }],
    }
}

fn done() -> JobEnd {
    JobEnd::Settled {
        state: JobState::Done,
        reason: JobReason::Submitted,
        outcome: hone_ledger::JobOutcome::default(),
    }
}

fn reported(state: &mut State, now_ms: Millis, report: Report) -> Vec<Effect> {
    state.step(now_ms, Event::Reported(report))
}

/// Jobs that begin to run; each with its signal to stop.
fn running(state: &mut State, jobs: Vec<Job>) -> Vec<Shutdown> {
    let effects = reported(state, 0, Report::Claimed(Ok(jobs)));
    let stops = effects.into_iter().filter_map(|effect| match effect {
        Effect::Run { stop, .. } => Some(stop),
        _ => None,
    });
    stops.collect()
}

fn ran(job: &Job, ran: Ran, at_ms: Millis) -> Report {
    Report::Ran {
        job: job.id,
        ran,
        at_ms,
    }
}

fn end(effects: Vec<Effect>) -> (JobLease, JobEnd) {
    match <[Effect; 1]>::try_from(effects) {
        Ok([Effect::End { lease, end }]) => (lease, *end),
        other => panic!("no end: {other:?}"),
    }
}

#[test]
fn groups_begin_before_jobs_are_taken_and_places_are_filled() {
    let mut state = state();
    assert!(matches!(state.step(0, Event::Started)[..], [Effect::Look]));
    // While it looks it does not look again, but remembers.
    assert!(state.step(0, Event::Arrived(Notification)).is_empty());
    let begun = reported(&mut state, 0, Report::Looked(Ok(vec![open()])));
    assert!(matches!(&begun[..], [Effect::Begin(new)] if new.groups.len() == 1));
    let claims = reported(&mut state, 0, Report::Begun(Ok(true)));
    assert!(matches!(claims[..], [Effect::Claim(2)]));
    let jobs = vec![job(0), job(1)];
    assert_eq!(running(&mut state, jobs.clone()).len(), 2);
    // Full: nothing more is taken until one has ended and that is noted.
    let looked = reported(&mut state, 0, Report::Looked(Ok(Vec::new())));
    assert!(looked.is_empty(), "{looked:?}");
    let (lease, noted) = end(reported(
        &mut state,
        5,
        ran(&jobs[0], Ran::Ended(done()), 5),
    ));
    assert_eq!((lease.job, noted), (jobs[0].id, done()));
    assert!(!state.is_idle());
    let report = Report::Noted {
        lease,
        left: None,
        result: Ok(true),
    };
    assert!(matches!(
        reported(&mut state, 5, report)[..],
        [Effect::Look]
    ));
    let claims = reported(&mut state, 5, Report::Looked(Ok(Vec::new())));
    assert!(matches!(claims[..], [Effect::Claim(1)]));
}

#[test]
fn what_breaks_is_tried_again_later_each_time() {
    let mut state = state();
    for (attempt, pause) in [(1, 500), (2, 1_000), (9, 60_000)] {
        let broken = Job {
            attempt,
            ..job(attempt)
        };
        running(&mut state, vec![broken.clone()]);
        let what = Ran::Broken(JobReason::Jail, "no place".to_owned());
        let (_, end) = end(reported(&mut state, 7, ran(&broken, what, 7)));
        let JobEnd::Failed {
            reason, retry_ms, ..
        } = end
        else {
            panic!("it did not fail: {end:?}");
        };
        assert_eq!((reason, retry_ms), (JobReason::Jail, 7 + pause));
    }
}

#[test]
fn leases_are_renewed_and_what_is_lost_stops() {
    let mut state = state();
    let jobs = vec![job(0), job(1)];
    let stops = running(&mut state, jobs.clone());
    let effects = state.step(1_000, Event::Ticked);
    assert!(matches!(&effects[..], [Effect::Renew(leases), Effect::Look] if leases.len() == 2));
    reported(&mut state, 1_000, Report::Renewed(Ok(vec![jobs[1].id])));
    assert!(!stops[0].is_pulled() && stops[1].is_pulled());
    // What it came to changes nothing and gives its place free.
    let (lease, _) = end(reported(
        &mut state,
        1_000,
        ran(&jobs[1], Ran::Stopped, 1_000),
    ));
    let report = Report::Noted {
        lease,
        left: None,
        result: Ok(false),
    };
    reported(&mut state, 1_000, report);
    assert_eq!(state.running.len(), 1);
    assert_eq!(state.counts.lost, 1);
}

#[test]
fn an_end_that_cannot_be_noted_is_kept() {
    let mut state = state();
    running(&mut state, vec![job(0)]);
    let (lease, end_) = end(reported(&mut state, 0, ran(&job(0), Ran::Ended(done()), 0)));
    let report = Report::Noted {
        lease,
        left: Some(Box::new(end_)),
        result: Err("away".to_owned()),
    };
    let (again, end_) = end(reported(&mut state, 0, report));
    assert_eq!((again, end_), (lease, done()));
    assert_eq!(state.running.len(), 1);
    // Nothing new is begun until the pause is over.
    assert!(state.step(499, Event::Arrived(Notification)).is_empty());
    assert!(matches!(
        state.step(500, Event::Arrived(Notification))[..],
        [Effect::Look]
    ));
}

#[test]
fn a_stop_gives_jobs_back() {
    let mut state = state();
    let stops = running(&mut state, vec![job(0)]);
    assert!(state.step(0, Event::Draining).is_empty());
    assert!(stops[0].is_pulled());
    let (lease, given) = end(reported(&mut state, 0, ran(&job(0), Ran::Stopped, 0)));
    assert_eq!(given, JobEnd::Released);
    let report = Report::Noted {
        lease,
        left: None,
        result: Ok(true),
    };
    assert!(reported(&mut state, 0, report).is_empty());
    assert!(state.is_idle());
    // What was claimed while it began to stop is given back as well.
    let late = running(&mut state, vec![job(1)]);
    assert!(late[0].is_pulled());
}
