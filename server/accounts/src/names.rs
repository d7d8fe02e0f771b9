//! What can name a user, and what can be a password.

/// Fewest and most characters of a password.
pub const PASSWORD_CHARS: (usize, usize) = (10, 1_000);

/// What is wrong with a password, if anything.
pub fn password_fault(password: &str) -> Option<String> {
    let (least, most) = PASSWORD_CHARS;
    let chars = password.chars().count();
    (!(least..=most).contains(&chars))
        .then(|| format!("a password has {least} to {most} characters, not {chars}"))
}

/// Whether a text can name a user: 1 to 64 of a-z, 0-9, `.`, `_`, `-`, `@`, beginning with a
/// letter or digit.
pub fn is_name(text: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let fits = |b: u8| is_plain(b) || b"._-@".contains(&b);
    (1..=64).contains(&text.len())
        && text.bytes().all(fits)
        && text.bytes().next().is_some_and(is_plain)
        && text != hone_domain::LOCAL_OWNER
}

/// A name as somebody typed it, for the log: bounded, and plain signs only.
pub(crate) fn shown(name: &str) -> String {
    if is_name(name) {
        name.to_owned()
    } else {
        "(not a name)".to_owned()
    }
}
