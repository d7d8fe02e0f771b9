//! What must never be written into a prompt: signs of keys, passwords and card numbers.

/// What a text looks like that is never kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Secret {
    /// A key of an interface, or another long random word.
    ApiKey,
    /// A password.
    Password,
    /// A payment card.
    Card,
    /// A private key.
    PrivateKey,
}

/// How keys of well-known services begin.
const KEY_BEGINS: [&str; 18] = [
    "sk-",
    "sk_",
    "pk_",
    "rk_",
    "ghp_",
    "gho_",
    "ghs_",
    "github_pat_",
    "glpat-",
    "xoxb-",
    "xoxp-",
    "AKIA",
    "ASIA",
    "AIza",
    "hf_",
    "eyJ",
    "hone_",
    "hk_",
];
/// Shortest word that such a beginning makes a key.
const KEY_CHARS_MIN: usize = 16;
/// Shortest word of letters and digits that is a key without one.
const RANDOM_CHARS_MIN: usize = 24;

/// Words for a password.
const PASSWORDS: [&str; 25] = [
    "password",
    "passwort",
    "passphrase",
    "passcode",
    "kennwort",
    "mot de passe",
    "contraseña",
    "senha",
    "palavra-passe",
    "la mia password",
    "wachtwoord",
    "hasło",
    "пароль",
    "şifre",
    "parolam",
    "密码",
    "密碼",
    "口令",
    "パスワード",
    "비밀번호",
    "كلمة المرور",
    "كلمة السر",
    "पासवर्ड",
    "pin code",
    "pin is",
];

impl Secret {
    /// What a text looks like, where that is a secret.
    pub fn find(text: &str) -> Option<Self> {
        if text.contains("-----BEGIN") || text.to_uppercase().contains("PRIVATE KEY") {
            return Some(Self::PrivateKey);
        }
        if has_card(text) {
            return Some(Self::Card);
        }
        if text.split(is_between).any(is_key) {
            return Some(Self::ApiKey);
        }
        let lower = text.to_lowercase();
        PASSWORDS
            .iter()
            .any(|word| lower.contains(word))
            .then_some(Self::Password)
    }

    /// What a text holds that can be nothing but a secret: a key with the beginning of a known service, a payment card, or a
    /// block with a private key. [`Secret::find`] also tells what only may be one.
    pub fn find_sure(text: &str) -> Option<Self> {
        if text.contains("-----BEGIN") && text.contains("PRIVATE KEY") {
            return Some(Self::PrivateKey);
        }
        if has_card(text) {
            return Some(Self::Card);
        }
        let is_begun = |word: &str| KEY_BEGINS.iter().any(|begin| word.starts_with(begin));
        let mut words = text.split(is_between);
        let has_key = words.any(|word| is_begun(word) && is_key(word));
        has_key.then_some(Self::ApiKey)
    }

    /// The counted name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ApiKey => "secret_key",
            Self::Password => "secret_password",
            Self::Card => "secret_card",
            Self::PrivateKey => "secret_private_key",
        }
    }

    pub(crate) fn what(self) -> &'static str {
        match self {
            Self::ApiKey => "an API key",
            Self::Password => "a password",
            Self::Card => "a card number",
            Self::PrivateKey => "a private key",
        }
    }
}

/// Whether a character stands between words that may be keys.
fn is_between(c: char) -> bool {
    c.is_whitespace() || "\"'`,;()=:".contains(c)
}

fn is_key(word: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-_+/.".contains(c);
    let begins = KEY_BEGINS.iter().any(|begin| word.starts_with(begin));
    let has = |of: fn(&char) -> bool| word.chars().any(|c| of(&c));
    let is_mixed = has(char::is_ascii_digit) && has(char::is_ascii_alphabetic);
    let least = if begins {
        KEY_CHARS_MIN
    } else {
        RANDOM_CHARS_MIN
    };
    // An address has dots and slashes, and no key does without a known beginning.
    let is_address = !begins && (word.contains('.') || word.contains('/'));
    is_mixed && !is_address && word.len() >= least && word.chars().all(is_part)
}

/// Whether some 13 to 19 digits in a row, with single spaces or hyphens between them, pass the check of
/// payment cards (Luhn).
fn has_card(text: &str) -> bool {
    let mut digits: Vec<u32> = Vec::new();
    let mut is_apart = false;
    for c in text.chars().chain(['.']) {
        match c.to_digit(10) {
            Some(digit) => {
                digits.push(digit);
                is_apart = false;
            }
            None if matches!(c, ' ' | '-') && !is_apart => is_apart = true,
            None => {
                if is_card(&digits) {
                    return true;
                }
                digits.clear();
                is_apart = false;
            }
        }
    }
    false
}

fn is_card(digits: &[u32]) -> bool {
    if !(13..=19).contains(&digits.len()) || digits.iter().all(|d| d == &digits[0]) {
        return false;
    }
    let sum: u32 = digits
        .iter()
        .rev()
        .enumerate()
        .map(|(at, digit)| match at % 2 {
            0 => *digit,
            _ => digit * 2 / 10 + digit * 2 % 10,
        })
        .sum();
    sum.is_multiple_of(10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_seen_and_plain_words_are_not() {
        use Secret::{ApiKey, Card, Password, PrivateKey};
        for (text, expected) in [
            (
                "remember that my key is sk-abc123def456ghi789",
                Some(ApiKey),
            ),
            (
                "token=ghp_16C7e42F292c6912E7710c838347Ae178B4a",
                Some(ApiKey),
            ),
            ("use 9f86d081884c7d659a2feaa0c55ad015", Some(ApiKey)),
            ("my card is 4111 1111 1111 1111", Some(Card)),
            ("5500-0000-0000-0004.", Some(Card)),
            ("my card is 4111 1111 1111 1112", None),
            ("merk dir, mein Passwort ist Blume7", Some(Password)),
            ("我的密码是 hunter2", Some(Password)),
            ("-----BEGIN RSA PRIVATE KEY-----", Some(PrivateKey)),
            ("call me at +49 30 1234567", None),
            ("I was born on 1990-04-12 in Springfield", None),
            (
                "see https://example.com/articles/2024/05/a-long-way-home",
                None,
            ),
            ("I speak Donaudampfschifffahrtsgesellschaft German", None),
            ("remember that I am vegetarian", None),
        ] {
            assert_eq!(Secret::find(text), expected, "{text}");
        }
    }
}
