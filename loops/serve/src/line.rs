//! How many requests each owner has in the waiting line, so that nobody fills it alone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Waiting requests by owner; owners without any are not in it.
#[derive(Clone, Default)]
pub(crate) struct Line(Arc<Mutex<HashMap<String, usize>>>);

/// A place among an owner's, until it is dropped.
pub(crate) struct InLine(Line, String);

impl Line {
    /// A place, or none where the owner has `most` already.
    pub(crate) fn enter(&self, owner: &str, most: usize) -> Option<InLine> {
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counted.entry(owner.to_owned()).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(InLine(self.clone(), owner.to_owned()))
    }
}

impl Drop for InLine {
    fn drop(&mut self) {
        let mut counted = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counted.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                counted.remove(&self.1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_come_back_and_nothing_is_left_behind() {
        let line = Line::default();
        let first = line.enter("many", 2);
        let second = line.enter("many", 2);
        assert!(first.is_some() && second.is_some());
        assert!(line.enter("many", 2).is_none());
        assert!(line.enter("other", 2).is_some());
        drop(first);
        assert!(line.enter("many", 2).is_some());
        drop(second);
        assert!(
            line.0
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .is_empty()
        );
    }
}
