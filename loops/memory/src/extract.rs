//! What is kept of a turn and of the verdict on it: a pure function.

use hone_domain::{
    Correction, MemoryId, MemoryKind, MemoryMode, MemoryOrigin, MemoryRefusal, Millis, Signal,
    kept_text, says_how, stated, wish_key,
};
use hone_ledger::{Extraction, NewMemory, Read, UnreadTurn, UnreadVerdict};

/// What a turn teaches, and why some of its words are not kept; `id` makes ids.
pub(crate) fn extract(
    unread: &UnreadTurn,
    now_ms: Millis,
    mut id: impl FnMut() -> MemoryId,
) -> (Extraction, Vec<MemoryRefusal>) {
    let writes = unread.mode == MemoryMode::Full;
    let (mut memories, mut refused) = (Vec::new(), Vec::new());
    let mut keep = |kind, words: &str, topic: Option<String>, origin| match kept_text(words) {
        Ok(text) => memories.push(NewMemory {
            id: id(),
            kind,
            text,
            topic,
            replaces: None,
            turn: Some(unread.turn),
            origin,
        }),
        Err(why) => refused.push(why),
    };
    if writes {
        for said in stated(unread.said.as_deref().unwrap_or_default()) {
            let topic = said.topic.map(str::to_owned);
            keep(said.kind, &said.text, topic, MemoryOrigin::Said);
        }
        if let Some(verdict) = unread
            .judged
            .as_ref()
            .filter(|verdict| is_preference(verdict))
        {
            let topic = verdict.wish.as_ref().map(|wish| format!("wish:{wish}"));
            let kind = MemoryKind::Preference;
            keep(kind, &verdict.hint, topic, MemoryOrigin::Judged);
        }
    }
    let said = unread.judged.as_ref().filter(|said| is_preference(said));
    let correction = said.filter(|_| writes).and_then(|said| {
        let words = kept_text(&said.hint).ok()?;
        Some(Correction {
            wish: wish_key(said.wish.as_deref(), &words),
            words,
            turn: unread.turn,
            session: unread.session,
            created_ms: now_ms,
        })
    });
    let extraction = Extraction {
        read: Read {
            turn: unread.turn,
            is_new: unread.said.is_some(),
            revision: unread.judged.as_ref().map(|verdict| verdict.revision),
        },
        memories,
        correction,
        // What was corrected before is known where it is stored.
        skill: None,
    };
    (extraction, refused)
}

/// Whether a verdict's hint is the person's own words on how to answer. A model's hint is the model's words, and
/// a correction is an answer.
fn is_preference(verdict: &UnreadVerdict) -> bool {
    match verdict.by {
        // A reading has a hint where the reply says how to answer.
        Some(Signal::Reading) => true,
        Some(Signal::Rules) => verdict.wish.is_some(),
        Some(Signal::Feedback) => {
            verdict.is_comment && (verdict.wish.is_some() || says_how(&verdict.hint))
        }
        Some(Signal::Verifier | Signal::Model) | None => false,
    }
}

#[cfg(test)]
mod tests {
    use hone_domain::{Message, Role, Scope, Secret, SessionId, TurnId};
    use uuid::Uuid;

    use super::*;

    fn unread(mode: MemoryMode, text: &str, judged: Option<UnreadVerdict>) -> UnreadTurn {
        UnreadTurn {
            turn: TurnId(Uuid::from_u128(1)),
            session: SessionId(Uuid::from_u128(4)),
            scope: Scope::of("ann", None),
            mode,
            said: Some(vec![Message::text(Role::User, text)]),
            judged,
        }
    }

    fn kept(unread: &UnreadTurn) -> (Vec<NewMemory>, Vec<MemoryRefusal>) {
        let mut next = 0;
        let (extraction, refused) = extract(unread, 7, || {
            next += 1;
            MemoryId(Uuid::from_u128(next))
        });
        let revision = unread.judged.as_ref().map(|verdict| verdict.revision);
        assert_eq!(
            (extraction.read.is_new, extraction.read.revision),
            (true, revision)
        );
        let has = |one: &NewMemory| one.origin == MemoryOrigin::Judged;
        let judged = extraction.memories.iter().find(|one| has(one));
        let correction = judged.map(|one| (one.text.as_str(), unread.session, 7));
        let found = extraction.correction.as_ref();
        let found = found.map(|one| (one.words.as_str(), one.session, one.created_ms));
        assert_eq!(found, correction);
        (extraction.memories, refused)
    }

    #[test]
    fn what_is_said_outright_is_kept_where_the_turn_may_write() {
        let (memories, refused) = kept(&unread(
            MemoryMode::Full,
            "Hi, call me Sam. Remember that I am vegetarian! How are you?",
            None,
        ));
        let texts: Vec<_> = memories.iter().map(|m| m.text.as_str()).collect();
        assert_eq!(
            texts,
            ["Hi, call me Sam.", "Remember that I am vegetarian!"]
        );
        assert_eq!(memories[0].topic.as_deref(), Some("name"));
        assert!(refused.is_empty());
        let (memories, _) = kept(&unread(MemoryMode::Read, "Call me Sam.", None));
        assert!(memories.is_empty());
    }

    #[test]
    fn secrets_are_refused_with_a_reason() {
        let text = "Remember that my card is 4111 1111 1111 1111.";
        let (memories, refused) = kept(&unread(MemoryMode::Full, text, None));
        assert!(memories.is_empty());
        assert_eq!(refused, [MemoryRefusal::Secret(Secret::Card)]);
    }

    #[test]
    fn only_a_persons_own_words_on_how_to_answer_are_preferences() {
        use Signal::{Feedback, Model, Reading, Rules, Verifier};
        for (by, hint, wish, is_comment, expected) in [
            (Feedback, "not so long", None, true, true),
            (Feedback, "it is Tuesday", None, true, false),
            (Feedback, "Please come on Tuesday.", None, false, false),
            (Reading, "in French, I said", None, false, true),
            (Rules, "too long", Some("keep it short"), false, true),
            (Rules, "no", None, false, false),
            (Model, "Be brief.", Some("keep it short"), false, false),
            (Verifier, "exit code 1", None, false, false),
        ] {
            let verdict = UnreadVerdict {
                revision: 1,
                by: Some(by),
                hint: hint.to_owned(),
                wish: wish.map(str::to_owned),
                is_comment,
            };
            let (memories, _) = kept(&unread(MemoryMode::Full, "Hello", Some(verdict)));
            assert_eq!(memories.len(), usize::from(expected), "{by:?} {hint}");
            if let (Some(memory), Some(wish)) = (memories.first(), wish) {
                assert_eq!(memory.topic, Some(format!("wish:{wish}")));
            }
        }
    }
}
