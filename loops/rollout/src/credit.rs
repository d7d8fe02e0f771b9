//! What a group of episodes teaches.

use hone_domain::{Job, JobReason, JobState, SessionId};

/// What becomes of a group whose episodes have all ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Credit {
    /// Each session gets its reward, compared with all of them.
    Rewards {
        /// A session and its reward.
        sessions: Vec<(SessionId, f32)>,
        /// The rewards of all of them.
        peers: Vec<f32>,
    },
    /// Nothing is learned from it.
    Nothing(JobReason),
}

/// Episodes with a reward count; at least two must have one, and not all the same.
pub(crate) fn credit(members: &[Job]) -> Credit {
    let usable = members.iter().filter(|job| job.state == JobState::Done);
    let rewards = usable.filter_map(|job| Some((job.session?, job.reward?)));
    let sessions: Vec<(SessionId, f32)> =
        rewards.filter(|(_, reward)| reward.is_finite()).collect();
    let peers: Vec<f32> = sessions.iter().map(|(_, reward)| *reward).collect();
    let [first, others @ ..] = &peers[..] else {
        return Credit::Nothing(JobReason::Group);
    };
    if others.is_empty() {
        Credit::Nothing(JobReason::Group)
    } else if others.iter().all(|other| other == first) {
        Credit::Nothing(JobReason::NoSignal)
    } else {
        Credit::Rewards { sessions, peers }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::state::tests::job;

    fn member(number: u32, state: JobState, reward: Option<f32>) -> Job {
        Job {
            member: number,
            state,
            reward,
            session: Some(SessionId(Uuid::from_u128(u128::from(number)))),
            ..job(number)
        }
    }

    #[test]
    fn only_what_differs_teaches() {
        use JobState::{Done, Failed, Skipped};
        let session = |n: u128| SessionId(Uuid::from_u128(n));
        let won = member(0, Done, Some(1.0));
        let lost = member(1, Done, Some(0.0));
        let broken = member(2, Failed, None);
        let lost_again = member(3, Done, Some(0.0));
        let taught = Credit::Rewards {
            sessions: vec![(session(0), 1.0), (session(1), 0.0)],
            peers: vec![1.0, 0.0],
        };
        assert_eq!(credit(&[won.clone(), lost.clone(), broken.clone()]), taught);
        let same = credit(&[lost.clone(), lost_again, broken.clone()]);
        assert_eq!(same, Credit::Nothing(JobReason::NoSignal));
        // One alone is compared with nobody.
        let skipped = member(4, Skipped, Some(1.0));
        let alone = credit(&[won, broken, skipped]);
        assert_eq!(alone, Credit::Nothing(JobReason::Group));
        assert_eq!(credit(&[]), Credit::Nothing(JobReason::Group));
    }
}
