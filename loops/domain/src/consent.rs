//! Consent: what a person allows to be learned from them, and what follows for one request.

use std::collections::HashMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{Collect, Holdback, MemoryMode, PolicyChoice, Reason, Scope, SessionId, TurnKind};

/// What may be learned from a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Learning {
    /// Nothing: the base model answers and nothing is collected.
    Off,
    /// What was learned before answers; nothing new is learned.
    Serve,
    /// Everything is learned from.
    Full,
}

impl Learning {
    /// The stored name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Serve => "serve",
            Self::Full => "full",
        }
    }

    /// Restores it from its stored name.
    pub fn from_stored(text: &str) -> Option<Self> {
        [Self::Off, Self::Serve, Self::Full]
            .into_iter()
            .find(|learning| learning.as_str() == text)
    }
}

impl MemoryMode {
    /// What is left of it under a person's consent, for a turn of a kind, and where a policy is shared:
    /// what one person says is not shown to another, so a shared policy has no memories.
    #[must_use]
    pub fn allowed(self, learning: Learning, kind: TurnKind, is_shared: bool) -> Self {
        let most = match learning {
            Learning::Off => Self::Off,
            Learning::Serve => Self::Read,
            Learning::Full => Self::Full,
        };
        match kind {
            TurnKind::Main if !is_shared => self.min(most),
            TurnKind::Main | TurnKind::Side => Self::Off,
        }
    }
}

/// What a person decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Consent {
    /// What may be learned.
    pub learning: Learning,
    /// Whether requests that say `store: false` are collected all the same, because the client
    /// says so on every call without its user's knowledge.
    pub despite_store_false: bool,
    /// Whether sessions may be held back as a control; none leaves it to the operator.
    pub holdback: Option<bool>,
}

impl Consent {
    /// Consent to `learning` and nothing beyond.
    pub fn to(learning: Learning) -> Self {
        Self {
            learning,
            despite_store_false: false,
            holdback: None,
        }
    }
}

/// Every decision; cheap to clone. Scopes without an entry have the operator's default.
#[derive(Clone, Debug, Default)]
pub struct Consents(Arc<HashMap<Scope, Consent>>);

impl Consents {
    /// From what the ledger holds.
    pub fn from_stored(decided: impl IntoIterator<Item = (Scope, Consent)>) -> Self {
        Self(Arc::new(decided.into_iter().collect()))
    }

    /// What `scope` decided.
    pub fn of(&self, scope: &Scope) -> Option<Consent> {
        self.0.get(scope).copied()
    }

    /// The same with one more decision.
    #[must_use]
    pub fn with(&self, scope: Scope, consent: Consent) -> Self {
        let mut map = (*self.0).clone();
        map.insert(scope, consent);
        Self(Arc::new(map))
    }
}

/// What a request wants, as far as consent decides about it.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The version it asks for.
    pub policy: PolicyChoice,
    /// `store: false` is false here.
    pub store: bool,
    /// Whether the key that asks says that its `store: false` means nothing.
    pub despite_store_false: bool,
    /// Main or side.
    pub kind: TurnKind,
    /// The session it was bound to.
    pub session: SessionId,
}

/// What a request gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// The version that answers.
    pub policy: PolicyChoice,
    /// Whether the turn is recorded.
    pub collect: Collect,
    /// Why the recorded turn will not train, where that is known already.
    pub untrainable: Option<Reason>,
    /// Whether the base model answers because the session is held back.
    pub holdback: bool,
}

/// Decides what may be kept, whatever session it is in. The person's word comes first, then the
/// client's `store`.
pub fn collect(consent: Consent, wanted: &Wanted) -> Collect {
    if consent.learning == Learning::Off {
        return Collect::No(Reason::LearningOff);
    }
    let learns = consent.learning == Learning::Full;
    let despite = consent.despite_store_false || wanted.despite_store_false;
    if wanted.store || (learns && despite) {
        Collect::Yes
    } else {
        Collect::No(Reason::StoreFalse)
    }
}

/// Decides who answers and what may be kept: after [`collect`] comes the draw of the control group. A
/// request that names a version is never held back.
pub fn admit(consent: Consent, holdback: Holdback, wanted: Wanted) -> Admitted {
    let collect = collect(consent, &wanted);
    if collect != Collect::Yes {
        let is_off = consent.learning == Learning::Off;
        return Admitted {
            policy: if is_off {
                PolicyChoice::Base
            } else {
                wanted.policy
            },
            collect,
            untrainable: None,
            holdback: false,
        };
    }
    let learns = consent.learning == Learning::Full;
    let held = consent.holdback.unwrap_or(true)
        && learns
        && wanted.policy == PolicyChoice::Newest
        && wanted.kind == TurnKind::Main
        && holdback.draws(wanted.session);
    Admitted {
        policy: if held {
            PolicyChoice::Base
        } else {
            wanted.policy
        },
        collect,
        untrainable: (!learns).then_some(Reason::LearningOff),
        holdback: held,
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn consent_and_kind_bound_the_mode() {
        use Learning::{Full as All, Off as Nothing, Serve};
        use MemoryMode::{Full, Off, Read};
        for (asked, learning, kind, is_shared, expected) in [
            (Full, All, TurnKind::Main, false, Full),
            (Read, All, TurnKind::Main, false, Read),
            (Off, All, TurnKind::Main, false, Off),
            (Full, Serve, TurnKind::Main, false, Read),
            (Full, Nothing, TurnKind::Main, false, Off),
            (Full, All, TurnKind::Side, false, Off),
            (Full, All, TurnKind::Main, true, Off),
        ] {
            let got = asked.allowed(learning, kind, is_shared);
            assert_eq!(got, expected, "{asked:?} {learning:?} {kind:?} {is_shared}");
        }
    }

    fn session(n: u128) -> SessionId {
        SessionId(Uuid::from_u128(n << 64 | n))
    }

    #[test]
    fn the_person_decides_before_the_client_and_the_draw() {
        use Learning::{Full, Off, Serve};
        // consent, despite store: false, share held back, store → what is admitted
        let rows = [
            ((Off, false, 1.0, true), "Base No(LearningOff) None"),
            ((Off, true, 0.0, false), "Base No(LearningOff) None"),
            ((Serve, false, 1.0, true), "Newest Yes Some(LearningOff)"),
            ((Serve, true, 0.0, false), "Newest No(StoreFalse) None"),
            ((Full, false, 0.0, true), "Newest Yes None"),
            ((Full, false, 1.0, true), "Base Yes None held"),
            ((Full, false, 1.0, false), "Newest No(StoreFalse) None"),
            ((Full, true, 0.0, false), "Newest Yes None"),
        ];
        for ((learning, despite_store_false, share, store), expected) in rows {
            let consent = Consent {
                despite_store_false,
                ..Consent::to(learning)
            };
            let wanted = Wanted {
                policy: PolicyChoice::Newest,
                store,
                despite_store_false: false,
                kind: TurnKind::Main,
                session: session(1),
            };
            let got = admit(consent, Holdback { share, seed: 3 }, wanted);
            let held = if got.holdback { " held" } else { "" };
            let got = format!(
                "{:?} {:?} {:?}{held}",
                got.policy, got.collect, got.untrainable
            );
            assert_eq!(got, expected, "{learning:?} {despite_store_false} {store}");
        }
    }

    #[test]
    fn a_key_overrides_store_false_only_where_all_may_be_learned() {
        for (learning, expected) in [
            (Learning::Off, Collect::No(Reason::LearningOff)),
            (Learning::Serve, Collect::No(Reason::StoreFalse)),
            (Learning::Full, Collect::Yes),
        ] {
            let wanted = Wanted {
                policy: PolicyChoice::Newest,
                store: false,
                despite_store_false: true,
                kind: TurnKind::Main,
                session: session(1),
            };
            let nobody = Holdback {
                share: 0.0,
                seed: 3,
            };
            let got = admit(Consent::to(learning), nobody, wanted);
            assert_eq!(got.collect, expected, "{learning:?}");
        }
    }

    #[test]
    fn who_names_a_version_opts_out_or_keeps_house_is_not_held_back() {
        let draw = Holdback {
            share: 1.0,
            seed: 3,
        };
        let wanted = Wanted {
            policy: PolicyChoice::Newest,
            store: true,
            despite_store_false: false,
            kind: TurnKind::Main,
            session: session(1),
        };
        let full = Consent::to(Learning::Full);
        let opted_out = Consent {
            holdback: Some(false),
            ..full
        };
        let base = Wanted {
            policy: PolicyChoice::Base,
            ..wanted.clone()
        };
        let side = Wanted {
            kind: TurnKind::Side,
            ..wanted.clone()
        };
        assert!(admit(full, draw, wanted.clone()).holdback);
        assert!(!admit(opted_out, draw, wanted).holdback);
        assert!(!admit(full, draw, base).holdback);
        assert!(!admit(full, draw, side).holdback);
    }

    #[test]
    fn the_draw_keeps_its_share_and_only_grows() {
        let at = |share| Holdback { share, seed: 11 };
        let drawn =
            |share| -> Vec<bool> { (0..20_000).map(|n| at(share).draws(session(n))).collect() };
        for share in [0.0, 0.05, 0.1, 0.5, 1.0] {
            let share_drawn = drawn(share).iter().filter(|d| **d).count() as f64 / 20_000.0;
            // Four standard deviations of a binomial share.
            assert!((share_drawn - share).abs() <= 4.0 * (share * (1.0 - share) / 2e4).sqrt());
        }
        let (few, many) = (drawn(0.1), drawn(0.2));
        assert!(few.iter().zip(&many).all(|(few, many)| !few | many));
        let other: Vec<bool> = (0..20_000)
            .map(|n| {
                Holdback {
                    share: 0.1,
                    seed: 12,
                }
                .draws(session(n))
            })
            .collect();
        assert_ne!(few, other);
    }
}
