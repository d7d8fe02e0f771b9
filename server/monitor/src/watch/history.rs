//! What was measured lately, in memory: fine samples of the last hour and coarse ones of a day.
//! Bounded in samples and in names; the oldest samples go first, names beyond the limit are left
//! out and counted.

use std::collections::{BTreeMap, HashMap, VecDeque};

/// Bounds.
#[derive(Clone, Copy, Debug)]
pub struct HistoryLimits {
    /// Fine samples kept.
    pub fine_max: usize,
    /// Fine samples that make a coarse one.
    pub coarse_of: usize,
    /// Coarse samples kept.
    pub coarse_max: usize,
    /// Names kept.
    pub names_max: usize,
}

/// One moment's numbers by name.
pub type Values = BTreeMap<String, f64>;

/// A point of a series; none where nothing was measured.
pub type Point = (i64, Option<f64>);

/// Numbers by the place of their name; NaN where nothing was measured.
#[derive(Clone, Debug)]
struct Row {
    at_ms: i64,
    numbers: Vec<f64>,
}

impl Row {
    fn get(&self, name: usize) -> Option<f64> {
        self.numbers.get(name).copied().filter(|n| n.is_finite())
    }
}

/// The samples.
#[derive(Debug)]
pub struct History {
    limits: HistoryLimits,
    names: Vec<String>,
    places: HashMap<String, usize>,
    fine: VecDeque<Row>,
    coarse: VecDeque<Row>,
    /// Fine samples of the coarse one that is being made.
    gathered: usize,
    names_left_out: u64,
}

impl History {
    /// An empty one.
    pub fn new(limits: HistoryLimits) -> Self {
        Self {
            limits,
            names: Vec::new(),
            places: HashMap::new(),
            fine: VecDeque::new(),
            coarse: VecDeque::new(),
            gathered: 0,
            names_left_out: 0,
        }
    }

    /// Every name that was ever measured.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Numbers that were left out because there were too many names.
    pub fn names_left_out(&self) -> u64 {
        self.names_left_out
    }

    /// Adds a sample. Returns its time, which is moved on where the clock stood still or went
    /// back: a sample is named by its time, and names grow.
    pub fn push(&mut self, at_ms: i64, values: &Values) -> i64 {
        let newest = self.fine.back().map_or(i64::MIN, |row| row.at_ms);
        let at_ms = at_ms.max(newest.saturating_add(1));
        let mut numbers = vec![f64::NAN; self.names.len()];
        for (name, value) in values {
            let Some(place) = self.place(name) else {
                self.names_left_out += 1;
                continue;
            };
            numbers.resize(self.names.len(), f64::NAN);
            numbers[place] = *value;
        }
        let row = Row { at_ms, numbers };
        self.gather(&row);
        if self.fine.len() >= self.limits.fine_max {
            self.fine.pop_front();
        }
        self.fine.push_back(row);
        at_ms
    }

    fn place(&mut self, name: &str) -> Option<usize> {
        if let Some(place) = self.places.get(name) {
            return Some(*place);
        }
        if self.names.len() >= self.limits.names_max {
            return None;
        }
        self.names.push(name.to_owned());
        self.places.insert(name.to_owned(), self.names.len() - 1);
        Some(self.names.len() - 1)
    }

    /// Every so many fine samples become a coarse one: means, and the last of what only grows.
    fn gather(&mut self, newest: &Row) {
        self.gathered += 1;
        if self.gathered < self.limits.coarse_of {
            return;
        }
        let others = self.gathered - 1;
        self.gathered = 0;
        let skipped = self.fine.len().saturating_sub(others);
        let rows: Vec<&Row> = self.fine.iter().skip(skipped).chain([newest]).collect();
        let numbers = (0..self.names.len()).map(|name| {
            let known: Vec<f64> = rows.iter().filter_map(|row| row.get(name)).collect();
            match known.last() {
                None => f64::NAN,
                Some(last) if self.names[name].ends_with("_total") => *last,
                Some(_) => known.iter().sum::<f64>() / known.len() as f64,
            }
        });
        let row = Row {
            at_ms: newest.at_ms,
            numbers: numbers.collect(),
        };
        if self.coarse.len() >= self.limits.coarse_max {
            self.coarse.pop_front();
        }
        self.coarse.push_back(row);
    }

    /// Points of a name from `since_ms` on, and whether they are coarse: the fine samples, or the
    /// coarse ones where the fine ones do not go back that far.
    pub fn series(&self, name: &str, since_ms: i64) -> (Vec<Point>, bool) {
        let coarse = self.is_coarse(since_ms);
        let rows = if coarse { &self.coarse } else { &self.fine };
        let Some(place) = self.places.get(name) else {
            return (Vec::new(), coarse);
        };
        let rows = rows.iter().filter(|row| row.at_ms >= since_ms);
        (
            rows.map(|row| (row.at_ms, row.get(*place))).collect(),
            coarse,
        )
    }

    /// Whether only coarse samples reach back to this time.
    pub fn is_coarse(&self, since_ms: i64) -> bool {
        let fine_is_whole = self.fine.len() < self.limits.fine_max;
        let reaches = self.fine.front().is_none_or(|row| row.at_ms <= since_ms);
        !(fine_is_whole || reaches)
    }

    /// The oldest fine sample after a time.
    pub fn after(&self, at_ms: i64) -> Option<(i64, Values)> {
        let first = self.fine.partition_point(|row| row.at_ms <= at_ms);
        let row = self.fine.get(first)?;
        let values = self.names.iter().enumerate();
        let values = values.filter_map(|(at, name)| Some((name.clone(), row.get(at)?)));
        Some((row.at_ms, values.collect()))
    }

    /// The time of the oldest fine sample.
    pub fn oldest_ms(&self) -> i64 {
        self.fine.front().map_or(i64::MIN, |row| row.at_ms)
    }

    /// The time of the newest sample.
    pub fn newest_ms(&self) -> Option<i64> {
        self.fine.back().map(|row| row.at_ms)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn history() -> History {
        History::new(HistoryLimits {
            fine_max: 4,
            coarse_of: 2,
            coarse_max: 3,
            names_max: 3,
        })
    }

    fn values(rows: &[(&str, f64)]) -> Values {
        rows.iter()
            .map(|(name, value)| ((*name).to_owned(), *value))
            .collect()
    }

    #[test]
    fn fine_samples_fall_out_and_coarse_ones_stay() {
        let mut history = history();
        for at in 0..10 {
            let rows = [("rate", at as f64), ("n_total", 10.0 * at as f64)];
            assert_eq!(history.push(at * 10, &values(&rows)), at * 10);
        }
        let fine: Vec<Point> = (6..10).map(|at| (at * 10, Some(at as f64))).collect();
        assert_eq!(history.series("rate", 60), (fine.clone(), false));
        assert_eq!(history.series("rate", 75), (fine[2..].to_vec(), false));
        let means = vec![(50, Some(4.5)), (70, Some(6.5)), (90, Some(8.5))];
        assert_eq!(history.series("rate", 0), (means, true));
        let last = vec![(50, Some(50.0)), (70, Some(70.0)), (90, Some(90.0))];
        assert_eq!(history.series("n_total", 0), (last, true));
        assert_eq!(history.series("unknown", 60), (vec![], false));
    }

    #[test]
    fn what_was_not_measured_is_a_gap() {
        let mut history = history();
        history.push(1, &values(&[("a", 1.0)]));
        history.push(2, &values(&[("b", 2.0)]));
        history.push(3, &values(&[("a", f64::NAN)]));
        let a = history.series("a", i64::MIN);
        assert_eq!(a, (vec![(1, Some(1.0)), (2, None), (3, None)], false));
        let b = history.series("b", i64::MIN).0;
        assert_eq!(b, [(1, None), (2, Some(2.0)), (3, None)]);
    }

    #[test]
    fn names_are_bounded_and_counted() {
        let mut history = history();
        history.push(
            1,
            &values(&[("a", 1.0), ("b", 1.0), ("c", 1.0), ("d", 1.0)]),
        );
        assert_eq!((history.names().len(), history.names_left_out()), (3, 1));
        history.push(2, &values(&[("a", 2.0)]));
        assert_eq!(history.names_left_out(), 1);
    }

    #[test]
    fn a_follower_gets_every_sample_once_whatever_the_clock_does() {
        let mut history = history();
        assert_eq!((history.newest_ms(), history.after(0)), (None, None));
        let times: Vec<i64> = [5, 5, 3]
            .iter()
            .map(|at| history.push(*at, &values(&[])))
            .collect();
        assert_eq!(times, [5, 6, 7]);
        let (mut at, mut seen) = (i64::MIN, Vec::new());
        while let Some((next, _)) = history.after(at) {
            seen.push(next);
            at = next;
        }
        assert_eq!(seen, times);
        assert_eq!(history.newest_ms(), Some(7));
    }
}
