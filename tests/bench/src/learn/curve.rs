//! One user's sessions in a row.

/// First answers that must be to the user's liking in a row.
const IN_A_ROW: usize = 3;
/// Points of a plot.
const BINS: usize = 36;

/// What became of one user's sessions.
#[derive(Clone, Debug, Default)]
pub(super) struct Curve {
    pub(super) user: String,
    pub(super) seed: u64,
    /// Whether the first answer of each session was liked.
    pub(super) liked: Vec<bool>,
    /// Share of held-out questions answered correctly, whatever the style.
    pub(super) golden_before: f64,
    pub(super) golden_after: f64,
    pub(super) versions: u64,
    pub(super) refused: u64,
    pub(super) failed: u64,
}

impl Curve {
    /// Number (from 1) of the session that completed three liked first answers in a row.
    pub(super) fn adapted_at(&self) -> Option<usize> {
        let full = |three: &[bool]| three.iter().all(|liked| *liked);
        let first = self.liked.windows(IN_A_ROW).position(full)?;
        Some(first + IN_A_ROW)
    }

    /// Share of liked first answers after session `from`.
    pub(super) fn share_from(&self, from: usize) -> f64 {
        let late = self.liked.get(from..).unwrap_or_default();
        let liked = late.iter().filter(|liked| **liked).count();
        liked as f64 / late.len().max(1) as f64
    }
}

/// Share of liked first answers over the sessions, of all users.
pub(super) fn plot(curves: &[Curve]) -> String {
    let sessions = curves.iter().map(|c| c.liked.len()).max().unwrap_or(0);
    let bins = BINS.min(sessions.max(1));
    let share = |bin: usize| {
        let range = sessions * bin / bins..sessions * (bin + 1) / bins;
        let all = curves
            .iter()
            .flat_map(|c| c.liked.get(range.clone()).unwrap_or_default());
        let (liked, n) = all.fold((0, 0), |(liked, n), l| (liked + usize::from(*l), n + 1));
        f64::from(liked as u32) / f64::from(n.max(1) as u32)
    };
    let shares: Vec<f64> = (0..bins).map(share).collect();
    crate::demo::plot::spark(&shares)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_in_a_row_count_with_the_third() {
        let curve = |liked: &[u8]| Curve {
            liked: liked.iter().map(|l| *l == 1).collect(),
            ..Curve::default()
        };
        for (liked, expected) in [
            (&[1, 1, 1][..], Some(3)),
            (&[1, 1, 0, 1, 1, 1], Some(6)),
            (&[1, 1, 0, 1, 1], None),
            (&[], None),
        ] {
            assert_eq!(curve(liked).adapted_at(), expected, "{liked:?}");
        }
        assert_eq!(curve(&[0, 0, 1, 0]).share_from(2), 0.5);
        assert_eq!(curve(&[1]).share_from(2), 0.0);
        assert_eq!(plot(&[curve(&[0, 1]), curve(&[0, 1])]), "▁█");
    }
}
