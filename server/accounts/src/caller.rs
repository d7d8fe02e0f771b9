//! Who is calling, once that is known.

use hone_domain::{MemoryMode, RateLimits, UserRole};
use serde::Serialize;
use utoipa::ToSchema;

/// How a caller is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AuthMethod {
    /// By being at this machine.
    Loopback,
    /// By an API key or a token of the identity provider.
    Key,
    /// By the cookie of a sign-in.
    Session,
}

/// The limits that a caller has of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EffectiveLimits {
    /// The key's public part and its exceptions.
    pub key: Option<(String, RateLimits)>,
    /// The owner's exceptions.
    pub owner: RateLimits,
    /// The keeper of an agent, whose limits hold too, and their exceptions.
    pub keeper: Option<(String, RateLimits)>,
    /// The owner's team and its exceptions.
    pub team: Option<(String, RateLimits)>,
}

/// Who is calling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Owner of the key, name of the user, or `local`.
    pub owner: String,
    /// What they may do.
    pub role: UserRole,
    /// How they are known.
    pub via: AuthMethod,
    /// Their own limits.
    pub allowance: EffectiveLimits,
    /// Whether their key says that `store: false` of its calls means nothing.
    pub despite_store_false: bool,
    /// Whether their key says that log-probs are the model's own, or not, where a request does not say.
    pub raw_logprobs: Option<bool>,
    /// What their key says that requests do with memories where they do not say.
    pub memory: Option<MemoryMode>,
    /// Who acts, where a keeper does for their agent; the owner is the agent then.
    pub acted_by: Option<String>,
}

impl Caller {
    /// The keeper, where this is an agent of somebody.
    pub fn keeper(&self) -> Option<&String> {
        self.allowance.keeper.as_ref().map(|(name, _)| name)
    }

    /// Whose fair part of what all share their requests take: however many agents somebody keeps, one.
    pub fn counts_as(&self) -> &str {
        self.keeper().unwrap_or(&self.owner)
    }

    /// Whoever calls what is open to everybody; owns nothing.
    pub fn stranger() -> Self {
        Self {
            owner: String::new(),
            role: UserRole::User,
            via: AuthMethod::Loopback,
            allowance: EffectiveLimits::default(),
            despite_store_false: false,
            raw_logprobs: None,
            memory: None,
            acted_by: None,
        }
    }
}
