//! Dates of the Gregorian calendar.

/// Year, month (1 to 12) and day of a day counted from 1970-01-01, in the Gregorian calendar
/// (Hinnant, "chrono-compatible low-level date algorithms", `civil_from_days`).
pub fn civil(days: u64) -> (u64, usize, u64) {
    let z = days + 719_468;
    let era = z / 146_097;
    let of_era = z % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153; // months from March
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    (
        year_of_era + era * 400 + u64::from(month <= 2),
        month as usize,
        day,
    )
}
