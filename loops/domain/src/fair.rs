//! Fairness between the sources of a shared scope: one loud person must not steer what all are
//! served.

use std::collections::BTreeMap;

/// Chooses at most `limit` of the offered samples, newest first, so that no source has more than
/// `share` of what is chosen; samples without a source belong to a scope of one person and are not
/// counted. Where too few sources are there to keep to the share, nothing is chosen. Returns
/// indices, ascending.
pub fn take_fairly(sources: &[Option<&[u8]>], limit: usize, share: f64) -> Vec<usize> {
    let mut offered: BTreeMap<&[u8], usize> = BTreeMap::new();
    for source in sources.iter().flatten() {
        *offered.entry(source).or_default() += 1;
    }
    if offered.is_empty() || share >= 1.0 {
        return (0..sources.len().min(limit)).collect();
    }
    // The largest cap that the chosen batch itself justifies.
    let total = |cap: usize| {
        offered
            .values()
            .map(|n| (*n).min(cap))
            .sum::<usize>()
            .min(limit)
    };
    let cap = (1..=limit)
        .rev()
        .find(|cap| *cap as f64 <= share * total(*cap) as f64);
    let Some(cap) = cap else {
        return Vec::new();
    };
    let mut taken: BTreeMap<&[u8], usize> = BTreeMap::new();
    let mut chosen = Vec::new();
    for (at, source) in sources.iter().enumerate() {
        if chosen.len() == limit {
            break;
        }
        if let Some(source) = source {
            let of_source = taken.entry(source).or_default();
            if *of_source == cap {
                continue;
            }
            *of_source += 1;
        }
        chosen.push(at);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loud_source_gets_its_share_and_no_more() {
        let offer = |counts: &[usize]| -> Vec<Option<&'static [u8]>> {
            const NAMES: [&[u8]; 5] = [b"a", b"b", b"c", b"d", b"e"];
            // The loud one is the newest everywhere.
            counts
                .iter()
                .zip(NAMES)
                .flat_map(|(n, name)| vec![Some(name); *n])
                .collect()
        };
        // Offered per source, limit, share, chosen per source.
        let rows: [(&[usize], usize, f64, &[usize]); 7] = [
            (&[100], 16, 0.25, &[0]),
            (&[100, 1], 16, 0.25, &[0, 0]),
            (&[100, 1, 1], 16, 0.5, &[2, 1, 1]),
            (&[100, 4, 4, 4], 16, 0.25, &[4, 4, 4, 4]),
            (&[100, 100, 100, 100], 16, 0.25, &[4, 4, 4, 4]),
            (&[100, 2, 2, 2, 2], 16, 0.25, &[2, 2, 2, 2, 2]),
            (&[100, 3], 16, 1.0, &[16, 0]),
        ];
        for (counts, limit, share, expected) in rows {
            let sources = offer(counts);
            let chosen = take_fairly(&sources, limit, share);
            let mut got = vec![0; counts.len()];
            let mut names: Vec<_> = sources.iter().flatten().collect();
            names.dedup();
            for at in &chosen {
                let source = sources[*at].as_ref();
                let place = names.iter().position(|n| Some(**n) == source.copied());
                got[place.expect("it was offered")] += 1;
            }
            assert_eq!(got, expected, "{counts:?} {limit} {share}");
            assert!(chosen.windows(2).all(|w| w[0] < w[1]) && chosen.len() <= limit);
        }
    }

    #[test]
    fn a_scope_of_one_person_is_not_capped() {
        assert_eq!(take_fairly(&[None; 9], 4, 0.25), [0, 1, 2, 3]);
    }
}
