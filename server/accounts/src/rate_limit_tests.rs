//! Limits: what waits for how long, and what is remembered.

#![allow(clippy::unwrap_used)]

use hone_runtime::ManualClock;
use uuid::Uuid;

use super::*;
use crate::EffectiveLimits;
use crate::config::LimitSet;

const NONE: LimitSet = LimitSet {
    requests_per_minute: 0,
    tokens_per_minute: 0,
    tokens_per_day: 0,
    streams_max: 0,
};

fn limiter(key: LimitSet, owner: LimitSet) -> (Arc<RateLimiter>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::at(1_000));
    let config = LimitsConfig {
        key,
        owner,
        team: NONE,
        counted_max: 8,
    };
    (Arc::new(RateLimiter::new(config, clock.clone())), clock)
}

fn caller(owner: &str, key: Option<&str>, limits: RateLimits) -> Caller {
    Caller {
        owner: owner.to_owned(),
        allowance: EffectiveLimits {
            key: key.map(|key| (key.to_owned(), limits)),
            owner: RateLimits::default(),
            ..EffectiveLimits::default()
        },
        ..Caller::stranger()
    }
}

fn id(n: u128) -> RequestId {
    RequestId(Uuid::from_u128(n))
}

/// Milliseconds to wait, or none if it was let in.
fn wait(rate_limiter: &Arc<RateLimiter>, caller: &Caller) -> Option<u64> {
    match rate_limiter.admit(caller, id(1)) {
        Ok(_) => None,
        Err(Error::Limited { retry_after_ms, .. }) => Some(retry_after_ms),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn what_is_reached_is_told_in_whole_seconds() {
    for (most, expected) in [
        (1, ": 1 request a minute; try again in 60 s"),
        (7, ": 7 requests a minute; try again in 9 s"),
    ] {
        let owner = LimitSet {
            requests_per_minute: most,
            ..NONE
        };
        let (rate_limiter, _) = limiter(NONE, owner);
        let ann = caller("ann", None, RateLimits::default());
        for _ in 0..most {
            assert_eq!(wait(&rate_limiter, &ann), None);
        }
        let told = rate_limiter.admit(&ann, id(1)).map(drop).unwrap_err();
        assert!(told.to_string().ends_with(expected), "{told}");
    }
}

#[test]
fn requests_come_back_evenly() {
    let owner = LimitSet {
        requests_per_minute: 3,
        ..NONE
    };
    let (rate_limiter, clock) = limiter(NONE, owner);
    let ann = caller("ann", None, RateLimits::default());
    for left in [2, 1, 0] {
        assert_eq!(wait(&rate_limiter, &ann), None);
        assert_eq!(rate_limiter.status(&ann).requests.unwrap().remaining, left);
    }
    assert_eq!(wait(&rate_limiter, &ann), Some(20_000));
    assert_eq!(
        wait(&rate_limiter, &caller("bob", None, RateLimits::default())),
        None
    );
    clock.advance(19_000);
    assert_eq!(wait(&rate_limiter, &ann), Some(1_000));
    clock.advance(1_000);
    assert_eq!(wait(&rate_limiter, &ann), None);
    assert_eq!(wait(&rate_limiter, &ann), Some(20_000));
    assert_eq!(rate_limiter.status(&ann).requests.unwrap().reset_ms, 60_000);
    assert_eq!(rate_limiter.status(&ann).tokens, None);
}

#[test]
fn tokens_are_charged_afterwards_and_debt_delays() {
    let owner = LimitSet {
        tokens_per_minute: 600,
        tokens_per_day: 2_000,
        ..NONE
    };
    let (rate_limiter, clock) = limiter(NONE, owner);
    let ann = caller("ann", None, RateLimits::default());
    let permit = rate_limiter.admit(&ann, id(7)).unwrap().unwrap();
    let usage = rate_limiter.usage_recorder(id(7)).unwrap();
    drop(permit);
    assert!(
        rate_limiter.usage_recorder(id(7)).is_none(),
        "the request is over"
    );
    usage.record(1_200);
    // 601 tokens too many for one more, at ten a second.
    assert_eq!(wait(&rate_limiter, &ann), Some(60_100));
    assert_eq!(rate_limiter.status(&ann).tokens.unwrap().remaining, 0);
    clock.advance(60_100);
    assert_eq!(wait(&rate_limiter, &ann), None);
    usage.record(900);
    clock.advance(120_000);
    let wait_ms = wait(&rate_limiter, &ann).unwrap();
    assert!(
        (4_000_000..4_400_000).contains(&wait_ms),
        "the day: {wait_ms}"
    );
}

#[test]
fn streams_end_with_their_ticket() {
    let owner = LimitSet {
        streams_max: 2,
        ..NONE
    };
    let (rate_limiter, _) = limiter(NONE, owner);
    let ann = caller("ann", None, RateLimits::default());
    let first = rate_limiter.admit(&ann, id(1)).unwrap();
    let second = rate_limiter.admit(&ann, id(2)).unwrap();
    assert_eq!(wait(&rate_limiter, &ann), Some(1_000));
    drop(first);
    assert_eq!(wait(&rate_limiter, &ann), None);
    drop(second);
}

#[test]
fn a_key_has_its_own_limits_within_its_owners() {
    let set = |n| LimitSet {
        requests_per_minute: n,
        ..NONE
    };
    let (rate_limiter, _) = limiter(set(2), set(4));
    let exception = |n| RateLimits {
        requests_per_minute: n,
        ..RateLimits::default()
    };
    let (plain, strict, free) = (
        caller("ann", Some("plain"), exception(None)),
        caller("ann", Some("strict"), exception(Some(1))),
        caller("ann", Some("free"), exception(Some(0))),
    );
    assert_eq!(wait(&rate_limiter, &strict), None);
    assert_eq!(wait(&rate_limiter, &strict), Some(60_000));
    assert_eq!(wait(&rate_limiter, &plain), None);
    assert_eq!(wait(&rate_limiter, &plain), None);
    assert_eq!(wait(&rate_limiter, &plain), Some(30_000));
    assert_eq!(wait(&rate_limiter, &free), None);
    assert_eq!(wait(&rate_limiter, &free), Some(15_000), "the owner's four");
    assert_eq!(rate_limiter.status(&strict).requests.unwrap().limit, 1);
}

#[test]
fn what_is_counted_is_bounded() {
    let (rate_limiter, clock) = limiter(
        NONE,
        LimitSet {
            requests_per_minute: 1,
            ..NONE
        },
    );
    for n in 0..100 {
        clock.advance(1);
        wait(
            &rate_limiter,
            &caller(&format!("owner-{n}"), None, RateLimits::default()),
        );
        assert!(locked(&rate_limiter.inner).rows.len() <= 8);
    }
    let last = caller("owner-99", None, RateLimits::default());
    assert!(
        wait(&rate_limiter, &last).is_some(),
        "the newest are remembered"
    );
    let unlimited = RateLimiter::new(
        LimitsConfig {
            key: NONE,
            owner: NONE,
            team: NONE,
            counted_max: 1,
        },
        clock,
    );
    assert!(Arc::new(unlimited).admit(&last, id(1)).unwrap().is_none());
}

#[test]
fn times_read_as_in_openais_headers() {
    let rows = [
        (0, "0ms"),
        (120, "120ms"),
        (1_000, "1s"),
        (6_200, "7s"),
        (360_000, "6m0s"),
    ];
    for (ms, text) in rows {
        assert_eq!(reset_text(ms), text);
    }
    assert_eq!(reset_text(86_400_000), "24h0m0s");
}
