//! Who may do what, as far as it needs no request: roles and their order.

use serde::{Deserialize, Serialize};

/// The owner of everything that loopback sends without a key.
pub const LOCAL_OWNER: &str = "local";

/// What a person, or a key of theirs, may do. Admins may do everything; developers what users
/// may, and make keys; auditors what users may, and read what admins read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UserRole {
    /// Uses the model and sees what is their own.
    User,
    /// Writes programs: makes keys.
    Developer,
    /// Reads everything, changes nothing but their own.
    Auditor,
    /// May do everything.
    Admin,
}

impl UserRole {
    /// Every role.
    pub const ALL: [Self; 4] = [Self::User, Self::Developer, Self::Auditor, Self::Admin];

    /// Whether whoever has this role may do all that `other` may.
    pub fn covers(self, other: Self) -> bool {
        self == Self::Admin || self == other || other == Self::User
    }

    /// The most that both roles may do.
    #[must_use]
    pub fn meet(self, other: Self) -> Self {
        if self.covers(other) {
            other
        } else if other.covers(self) {
            self
        } else {
            Self::User
        }
    }

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Developer => "developer",
            Self::Auditor => "auditor",
            Self::Admin => "admin",
        }
    }

    /// The role of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == name)
    }
}

/// Exceptions from the configured limits of one user or key. None leaves what is configured, 0 is
/// no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateLimits {
    /// Most requests in a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u64>,
    /// Most tokens in a minute, prompts and completions together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_minute: Option<u64>,
    /// Most tokens in a day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_day: Option<u64>,
    /// Most completions at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams_max: Option<u64>,
}

impl RateLimits {
    /// These, and `other` where these say nothing.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            requests_per_minute: self.requests_per_minute.or(other.requests_per_minute),
            tokens_per_minute: self.tokens_per_minute.or(other.tokens_per_minute),
            tokens_per_day: self.tokens_per_day.or(other.tokens_per_day),
            streams_max: self.streams_max.or(other.streams_max),
        }
    }

    /// These, but none looser than what whoever asks has: `own` exceptions, else `configured`.
    /// Where these say nothing, `own` holds.
    #[must_use]
    pub fn within(self, own: Self, configured: Self) -> Self {
        let stricter = |wanted: Option<u64>, own: Option<u64>, configured: Option<u64>| match (
            wanted,
            own.or(configured),
        ) {
            (Some(0) | None, _) => own,
            (wanted, None | Some(0)) => wanted,
            (Some(wanted), Some(most)) => Some(wanted.min(most)),
        };
        Self {
            requests_per_minute: stricter(
                self.requests_per_minute,
                own.requests_per_minute,
                configured.requests_per_minute,
            ),
            tokens_per_minute: stricter(
                self.tokens_per_minute,
                own.tokens_per_minute,
                configured.tokens_per_minute,
            ),
            tokens_per_day: stricter(
                self.tokens_per_day,
                own.tokens_per_day,
                configured.tokens_per_day,
            ),
            streams_max: stricter(self.streams_max, own.streams_max, configured.streams_max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_ordered_and_their_meet_is_the_most_that_both_cover() {
        for a in UserRole::ALL {
            assert!(a.covers(a) && UserRole::Admin.covers(a) && a.covers(UserRole::User));
            assert_eq!(UserRole::from_name(a.as_str()), Some(a));
            for b in UserRole::ALL {
                let meet = a.meet(b);
                assert_eq!(meet, b.meet(a));
                assert!(a.covers(meet) && b.covers(meet), "{a:?} {b:?}");
                let lower = UserRole::ALL
                    .into_iter()
                    .filter(|c| a.covers(*c) && b.covers(*c));
                assert!(lower.into_iter().all(|c| meet.covers(c)), "{a:?} {b:?}");
            }
        }
        assert!(!UserRole::Developer.covers(UserRole::Auditor));
        assert!(!UserRole::Auditor.covers(UserRole::Developer));
        assert_eq!(UserRole::from_name("root"), None);
    }

    #[test]
    fn nobody_hands_on_looser_limits_than_their_own() {
        let per_minute = |n: Option<u64>| RateLimits {
            requests_per_minute: n,
            ..RateLimits::default()
        };
        // wanted, own, configured: result
        let rows = [
            (None, None, Some(60), None),
            (None, Some(9), Some(60), Some(9)),
            (Some(0), Some(9), Some(60), Some(9)),
            (Some(0), None, Some(60), None),
            (Some(99), None, Some(60), Some(60)),
            (Some(99), Some(9), Some(60), Some(9)),
            (Some(5), Some(9), Some(60), Some(5)),
            (Some(99), Some(0), Some(60), Some(99)),
            (Some(99), None, Some(0), Some(99)),
        ];
        for (wanted, own, configured, result) in rows {
            let got = per_minute(wanted).within(per_minute(own), per_minute(configured));
            assert_eq!(got, per_minute(result), "{wanted:?} {own:?} {configured:?}");
        }
    }
}
