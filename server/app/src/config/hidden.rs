//! Secrets as they are shown: not at all.

/// What is shown instead.
pub(super) const HIDDEN: &str = "(set)";

/// `scheme://user:password@host` without the password.
pub(super) fn without_password(text: &str) -> String {
    let hidden = || {
        let (scheme, rest) = text.split_once("://")?;
        let (before, host) = rest.split_once('@')?;
        let (user, _) = before.split_once(':').filter(|_| !before.contains('/'))?;
        Some(format!("{scheme}://{user}:{HIDDEN}@{host}"))
    };
    hidden().unwrap_or_else(|| text.to_owned())
}
