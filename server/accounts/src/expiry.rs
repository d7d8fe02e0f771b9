//! Until when a key is good.

use hone_domain::Millis;

/// Days from now on, from the command line.
pub fn days(text: &str) -> Result<u32, String> {
    let days = text.parse::<u32>().ok().filter(|days| *days > 0);
    days.ok_or_else(|| {
        "a key is good for a whole number of days, 1 or more; leave --days out for one that does \
         not expire"
            .to_owned()
    })
}

/// Says what is wrong with an end that is over before the key is made.
pub fn check(expires_ms: Option<Millis>, now_ms: Millis) -> Result<(), String> {
    match expires_ms {
        Some(at_ms) if at_ms <= now_ms => Err(format!(
            "the key would be expired at once: expires_ms is {at_ms}, and it is {now_ms} now; name a \
             later time in milliseconds since the Unix epoch, or leave it out for a key that does \
             not expire"
        )),
        _ => Ok(()),
    }
}

/// Says that a key in place of an expired one would be expired as well; `remedy` makes another.
pub fn over(remedy: &str) -> String {
    format!(
        "this key is expired, and one in its place would be as well; make another with {remedy}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_good_for_a_day_at_least() {
        for text in ["0", "-1", "1.5", "soon", "", "99999999999"] {
            let refused = days(text).unwrap_err();
            assert!(refused.contains("leave --days out"), "{text}: {refused}");
        }
        assert_eq!((days("1"), days("90")), (Ok(1), Ok(90)));
    }

    #[test]
    fn no_key_is_expired_at_birth() {
        assert!(check(None, 5).is_ok() && check(Some(6), 5).is_ok());
        for at_ms in [5, 4, 0, -1] {
            assert!(check(Some(at_ms), 5).unwrap_err().contains("leave it out"));
        }
        assert!(over("`hone key add`").contains("`hone key add`"));
    }
}
