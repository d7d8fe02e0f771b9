//! Whose policy a request is about, and what may be learned from it.

use hone_domain::{
    Admitted, Collect, Consent, Consents, Holdback, Scope, SessionCredit, Wanted, admit, collect,
};
use hone_runtime::Latest;
use serde::Serialize;
use utoipa::ToSchema;

use crate::LearningConfig;
use hone_domain::LOCAL_OWNER;

/// What training makes of the text of a better answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Corrections {
    /// It is imitated.
    Imitated,
    /// It is a hint: the model that reads it teaches the one that does not.
    Hint,
    /// It is kept, and counts as a score of -1.
    Score,
}

/// What training makes of what people say about an answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lessons {
    /// Of a better answer.
    pub corrections: Corrections,
    /// Whether turns teach again by a correction after a version has learned from them.
    pub replays: bool,
    /// How the reward of a session reaches its turns.
    pub credit: SessionCredit,
}

impl Lessons {
    /// What becomes of feedback on a turn that a version has learned from.
    pub fn too_late(self, is_corrected: bool) -> &'static str {
        if is_corrected && self.replays {
            return "a version has learned from this answer already; a later one may learn the better \
                    answer, and the rest is only kept";
        }
        "a version has learned from this answer already, so this is kept and teaches no more"
    }
}

/// The rules, with every decision that was made.
#[derive(Debug)]
pub struct Rules {
    config: LearningConfig,
    lessons: Lessons,
    consents: Latest<Consents>,
    deciding: tokio::sync::Mutex<()>,
}

impl Rules {
    /// Rules by `config` and the decisions that the ledger holds.
    pub fn new(config: LearningConfig, lessons: Lessons, decided: Consents) -> Self {
        Self {
            config,
            lessons,
            consents: Latest::new(decided),
            deciding: tokio::sync::Mutex::new(()),
        }
    }

    /// The configuration.
    pub fn config(&self) -> &LearningConfig {
        &self.config
    }

    /// What training makes of what people say.
    pub fn lessons(&self) -> Lessons {
        self.lessons
    }

    /// Whose policy a request of `owner` is about, and who said it where several share it.
    pub fn scope(&self, owner: &str, user: Option<&str>) -> (Scope, Option<String>) {
        if self
            .config
            .shared_owners
            .iter()
            .any(|shared| shared == owner)
        {
            // Without a name everybody is one and the same source.
            let source = user.unwrap_or_default().to_owned();
            return (Scope::of(owner, None), Some(source));
        }
        (Scope::of(owner, user), None)
    }

    /// What `scope` allows, and whether its people decided so themselves.
    pub fn consent(&self, owner: &str, scope: &Scope) -> (Consent, bool) {
        match self.consents.get().of(scope) {
            Some(decided) => (decided, true),
            None => (self.config.default_consent(owner == LOCAL_OWNER), false),
        }
    }

    /// What the owner's own scope allows.
    pub fn own_consent(&self, owner: &str) -> Consent {
        let (scope, _) = self.scope(owner, None);
        self.consent(owner, &scope).0
    }

    /// The place of who decides, one at a time: so the ledger and [`Self::decided`] hear of decisions in
    /// the same order, and each is made on top of the one before.
    pub async fn deciding(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.deciding.lock().await
    }

    /// Takes a decision that the ledger holds.
    pub fn decided(&self, scope: &Scope, consent: Consent) {
        self.consents
            .update(|consents| consents.with(scope.clone(), consent));
    }

    /// Share of the owner's sessions that are held back where nobody opted out.
    pub fn holdback_share(&self, owner: &str) -> f64 {
        self.config.holdback(owner == LOCAL_OWNER).share
    }

    /// What may be kept of a request, which its session does not change.
    pub fn collect(&self, owner: &str, scope: &Scope, wanted: &Wanted) -> Collect {
        collect(self.consent(owner, scope).0, wanted)
    }

    /// Who answers a request and what may be kept of it.
    pub fn admit(&self, owner: &str, scope: &Scope, wanted: Wanted) -> Admitted {
        let (consent, _) = self.consent(owner, scope);
        admit(consent, self.config.holdback(owner == LOCAL_OWNER), wanted)
    }

    /// The same without a draw of the control group, which is about what people say.
    pub fn admit_all(&self, owner: &str, scope: &Scope, wanted: Wanted) -> Admitted {
        let (consent, _) = self.consent(owner, scope);
        admit(
            consent,
            Holdback {
                share: 0.0,
                seed: 0,
            },
            wanted,
        )
    }
}

#[cfg(test)]
mod tests {
    use hone_domain::{Learning, ReturnRule};

    use super::*;
    use crate::defaults::defaults;

    #[test]
    fn an_agent_that_a_team_shares_has_one_policy_and_tells_who_speaks() {
        let config = LearningConfig {
            shared_owners: vec!["helpdesk".to_owned()],
            ..defaults("learning")
        };
        let lessons = Lessons {
            corrections: Corrections::Imitated,
            replays: true,
            credit: SessionCredit {
                rule: ReturnRule::Terminal,
                discount: 1.0,
            },
        };
        let rules = Rules::new(config, lessons, Consents::default());
        let of = Scope::of("helpdesk", None);
        for (user, source) in [(Some("ann"), "ann"), (Some("bob"), "bob"), (None, "")] {
            let shared = (of.clone(), Some(source.to_owned()));
            assert_eq!(rules.scope("helpdesk", user), shared);
        }
        let own = (Scope::of("builder", Some("ann")), None);
        assert_eq!(rules.scope("builder", Some("ann")), own);
        // Its keeper decides for all of them.
        rules.decided(&of, Consent::to(Learning::Full));
        assert_eq!(rules.own_consent("helpdesk").learning, Learning::Full);
        assert_eq!(rules.own_consent("builder").learning, Learning::Serve);
    }
}
