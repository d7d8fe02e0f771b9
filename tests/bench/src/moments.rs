//! When gaps between tokens were, and what else happened then.

use hone_starter::rng::Rng;

/// A stretch of time, in milliseconds from a common beginning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Span {
    pub(super) from_ms: f64,
    pub(super) to_ms: f64,
}

impl Span {
    /// How long it is.
    pub(super) fn ms(self) -> f64 {
        self.to_ms - self.from_ms
    }
}

/// Stretches in order that do not touch each other.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Spans(Vec<Span>);

impl Spans {
    /// Those that touch become one.
    pub(super) fn of(mut spans: Vec<Span>) -> Self {
        spans.sort_by(|a, b| a.from_ms.total_cmp(&b.from_ms));
        let mut apart: Vec<Span> = Vec::with_capacity(spans.len());
        for span in spans {
            match apart.last_mut().filter(|last| last.to_ms >= span.from_ms) {
                Some(last) => last.to_ms = last.to_ms.max(span.to_ms),
                None => apart.push(span),
            }
        }
        Self(apart)
    }

    /// Whether any of them has a moment in common with `span`.
    pub(super) fn touch(&self, span: Span) -> bool {
        let at = self.0.partition_point(|s| s.to_ms < span.from_ms);
        self.0.get(at).is_some_and(|s| s.from_ms <= span.to_ms)
    }

    /// Whether one of them holds all of `span`.
    pub(super) fn hold(&self, span: Span) -> bool {
        let at = self.0.partition_point(|s| s.to_ms < span.to_ms);
        self.0.get(at).is_some_and(|s| s.from_ms <= span.from_ms)
    }

    /// All of them together.
    pub(super) fn ms(&self) -> f64 {
        self.0.iter().map(|span| span.ms()).sum()
    }

    /// Stretches as long as `like`, each at a random moment of these.
    pub(super) fn at_random(&self, like: &[Span], rng: &mut Rng) -> Vec<Span> {
        let moments = like.iter().filter_map(|span| {
            let mut into_ms = rng.unit() * self.ms();
            let of = self.0.iter().find(|of| {
                let is_here = into_ms <= of.ms();
                into_ms -= if is_here { 0.0 } else { of.ms() };
                is_here
            })?;
            let from_ms = of.from_ms + into_ms;
            Some(Span {
                from_ms,
                to_ms: from_ms + span.ms(),
            })
        });
        moments.collect()
    }
}

/// The gaps that lie in `within` and touch `touching`, in milliseconds.
pub(super) fn touching(gaps: &[Span], within: &Spans, touching: &Spans) -> Vec<f64> {
    let chosen = gaps
        .iter()
        .filter(|gap| within.hold(**gap) && touching.touch(**gap));
    chosen.map(|gap| gap.ms()).collect()
}

/// The gaps that lie in `within`, in milliseconds.
pub(super) fn inside(gaps: &[Span], within: &Spans) -> Vec<f64> {
    let chosen = gaps.iter().filter(|gap| within.hold(**gap));
    chosen.map(|gap| gap.ms()).collect()
}

/// Of a million gaps, how many are longer than `limit_ms`; 0 where there is none.
pub(super) fn per_million_above(gaps_ms: &[f64], limit_ms: f64) -> f64 {
    let above = gaps_ms.iter().filter(|gap| **gap > limit_ms).count();
    above as f64 * 1e6 / gaps_ms.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(from_ms: f64, to_ms: f64) -> Span {
        Span { from_ms, to_ms }
    }

    #[test]
    fn stretches_know_what_they_touch_and_hold() {
        let spans = Spans::of(vec![span(5.0, 6.0), span(1.0, 2.0), span(1.5, 3.0)]);
        assert_eq!(spans, Spans(vec![span(1.0, 3.0), span(5.0, 6.0)]));
        assert_eq!(spans.ms(), 3.0);
        let rows = [
            (span(0.0, 0.5), false, false),
            (span(0.0, 1.0), true, false),
            (span(1.2, 2.8), true, true),
            (span(2.5, 5.5), true, false),
            (span(3.1, 4.9), false, false),
            (span(5.0, 6.0), true, true),
            (span(6.1, 7.0), false, false),
        ];
        for (of, touched, held) in rows {
            assert_eq!((spans.touch(of), spans.hold(of)), (touched, held), "{of:?}");
        }
    }

    #[test]
    fn random_moments_lie_where_they_may() {
        let spans = Spans::of(vec![span(0.0, 10.0), span(50.0, 60.0)]);
        let like = vec![span(20.0, 20.5); 200];
        let moments = spans.at_random(&like, &mut Rng::at(1, 1));
        assert_eq!(moments.len(), 200);
        assert!(moments.iter().all(|moment| spans.touch(*moment)));
        assert!(moments.iter().all(|m| (m.ms() - 0.5).abs() < 1e-9));
        let late = moments.iter().filter(|m| m.from_ms >= 50.0).count();
        assert!((60..140).contains(&late), "{late}");
    }

    #[test]
    fn gaps_are_counted_where_they_lie() {
        let gaps = [span(0.0, 1.0), span(1.0, 4.0), span(9.0, 11.0)];
        let (early, late) = (
            Spans::of(vec![span(0.0, 5.0)]),
            Spans::of(vec![span(2.0, 3.0)]),
        );
        assert_eq!(inside(&gaps, &early), [1.0, 3.0]);
        assert_eq!(touching(&gaps, &early, &late), [3.0]);
        assert_eq!(per_million_above(&[1.0, 3.0, 2.0, 9.0], 2.0), 500_000.0);
        assert_eq!(per_million_above(&[], 2.0), 0.0);
    }
}
