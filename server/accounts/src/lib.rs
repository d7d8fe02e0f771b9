//! People and programs that call: verifies keys and sign-ins, remembers whom it verified, limits guessing and
//! requests. What lasts is in the store.
//!
//! Never: HTTP, what is asked of the model.

pub mod audit;
mod away;
mod caller;
pub mod changes;
mod config;
mod crypto;
mod directory;
mod error;
pub mod expiry;
pub mod groups;
mod known;
pub mod links;
mod lock;
mod login_throttle;
mod names;
pub mod oidc;
pub mod rate_limit;
pub mod secrets;
mod sign_in;

#[cfg(test)]
#[path = "../../../tests/support/defaults.rs"]
mod defaults;

pub use caller::{AuthMethod, Caller, EffectiveLimits};
pub use config::{LimitSet, LimitsConfig, OidcConfig, PeopleConfig};
pub use directory::{Directory, Signed};
pub use error::Error;
pub use names::{PASSWORD_CHARS, is_name, password_fault};
