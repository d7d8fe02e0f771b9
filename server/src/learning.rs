//! Whose policy a request is about, and what may be learned from it.

use hone_domain::{Admitted, Consent, Consents, Scope, Wanted, admit};
use hone_runtime::Latest;

use crate::config::LearningConfig;
use crate::http::guard::LOCAL_OWNER;

/// The rules, with every decision that was made.
#[derive(Debug)]
pub struct Rules {
    config: LearningConfig,
    consents: Latest<Consents>,
}

impl Rules {
    /// Rules by `config` and the decisions that the ledger holds.
    pub fn new(config: LearningConfig, decided: Consents) -> Self {
        Self {
            config,
            consents: Latest::new(decided),
        }
    }

    /// The configuration.
    pub fn config(&self) -> &LearningConfig {
        &self.config
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

    /// Takes a decision that the ledger holds.
    pub fn decided(&self, scope: &Scope, consent: Consent) {
        self.consents
            .update(|consents| consents.with(scope.clone(), consent));
    }

    /// Share of the owner's sessions that are held back where nobody opted out.
    pub fn holdback_share(&self, owner: &str) -> f64 {
        self.config.holdback(owner == LOCAL_OWNER).share
    }

    /// Who answers a request and what may be kept of it.
    pub fn admit(&self, owner: &str, scope: &Scope, wanted: Wanted) -> Admitted {
        let (consent, _) = self.consent(owner, scope);
        admit(consent, self.config.holdback(owner == LOCAL_OWNER), wanted)
    }
}

#[cfg(test)]
mod tests {
    use hone_domain::Learning;

    use super::*;
    use crate::http::testing::learning_config;

    #[test]
    fn an_agent_that_a_team_shares_has_one_policy_and_tells_who_speaks() {
        let config = LearningConfig {
            shared_owners: vec!["helpdesk".to_owned()],
            ..learning_config()
        };
        let rules = Rules::new(config, Consents::default());
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
