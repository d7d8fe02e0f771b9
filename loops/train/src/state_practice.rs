//! Practice: a version that follows a person's words is followed by jobs that learn the same words by other
//! questions, while nobody's turns wait.
//!
//! One complaint brings answers to a dozen questions, from which the model learns the wish for questions like
//! these. Practice costs the person nothing and ends as soon as the candidate does what the words ask about as well
//! as the model that reads them, or the gate refuses one.

use super::*;

/// Share of what the told model's answers gain by the words, from which on there is nothing left to practise.
const FOLLOWS_SHARE: f32 = 0.9;

impl Train {
    /// The next practice job, where one is due.
    pub(super) fn practise(&mut self, now: Millis) -> Option<Effect> {
        if self.draining {
            return None;
        }
        let scope = self.scopes.to_practise(now)?;
        self.scopes.begin(&scope);
        self.scopes.entry(&scope).practice_left -= 1;
        self.job = Some(Job::practising(scope.clone(), now));
        Some(Effect::Practise(scope))
    }

    /// After a publish: turns with words may be practised, up to the configured number of times.
    pub(super) fn practises_after(&mut self, job: &Job) {
        let scope = self.scopes.entry(&job.scope);
        if job.follows {
            scope.practice_left = 0;
        } else if job.hinted > 0 {
            scope.practice_left = self.config.practice_rounds;
        }
    }

    /// A practice job that did not become a version is the last one.
    pub(super) fn gives_up_practice(&mut self, job: &Job) {
        if job.is_practice {
            self.scopes.entry(&job.scope).practice_left = 0;
        }
    }
}

/// Whether the candidate does what was asked about as well as the model that is told.
pub(super) fn follows(candidate: &Candidate) -> bool {
    let wish = candidate.measured.wish;
    wish.is_some_and(|wish| wish.candidate >= FOLLOWS_SHARE * wish.told)
}
