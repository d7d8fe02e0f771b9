//! What people say about turns and sessions, on its way through the loop's state.

use super::*;
use crate::Rewarding;

impl State {
    pub(super) fn feedback(
        &mut self,
        feedback: Box<Feedback>,
        reply: oneshot::Sender<Result<FeedbackOutcome, String>>,
    ) -> Vec<Effect> {
        self.counts.feedback += 1;
        if self.queue.len() >= self.config.held_max {
            let why = "the recorder cannot keep up; send it again".to_owned();
            return vec![Effect::Decline(reply, why)];
        }
        let open = self.open.get(feedback.turn);
        let place = open.map(|open| open.meta.place.clone());
        self.queue.push(Item::Said(Said {
            feedback,
            reply,
            place,
            transition: TransitionId(self.ids.next()),
        }));
        Vec::new()
    }

    /// Feedback on an open turn is in the ledger.
    pub(super) fn hear(&mut self, now_ms: Millis, turn: TurnId, settles: bool) {
        if let Some(open) = self.open.get_mut(turn) {
            open.meta.has_feedback = true;
        }
        if settles {
            self.close(now_ms, turn, Reason::NoNextState);
        }
    }

    pub(super) fn reward(&mut self, given: Rewarding) -> Vec<Effect> {
        self.counts.feedback += 1;
        if self.queue.len() >= self.config.held_max {
            let why = "the recorder cannot keep up; send it again".to_owned();
            return vec![Effect::DeclineReward(given.reply, why)];
        }
        self.queue.push(Item::Reward(given));
        Vec::new()
    }

    pub(super) fn heard(&mut self, now_ms: Millis, heard: Heard) {
        match heard {
            Heard::Settled(turn) => self.open.close(turn),
            Heard::Kept(turn) => self.hear(now_ms, turn, false),
            // It may have come between the feedback's write and this report.
            Heard::Early {
                turn,
                settles,
                owner,
            } if self.open.get(turn).is_some() => {
                if self
                    .open
                    .get(turn)
                    .is_some_and(|open| open.meta.owner == owner)
                {
                    self.hear(now_ms, turn, settles);
                }
            }
            Heard::Early {
                turn,
                owner,
                settles,
            } => {
                while self.early_feedback_order.len() >= self.config.early_max {
                    let oldest = self.early_feedback_order.pop_front();
                    oldest.and_then(|turn| self.early_feedback.remove(&turn));
                }
                self.early_feedback_order.push_back(turn);
                let said = self.early_feedback.entry(turn).or_insert(EarlyFeedback {
                    owner,
                    settles: false,
                });
                said.settles |= settles;
            }
        }
    }
}
