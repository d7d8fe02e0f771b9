use hone_domain::TurnId;
use http_body_util::BodyExt;
use tokio::sync::mpsc;

use super::*;

/// Tells only that it is over.
struct Mute;

impl StreamEncoder for Mute {
    fn begin(&mut self, _begun: Begun, _out: &mut Events) {}

    fn piece(&mut self, _at: usize, _piece: Piece, _out: &mut Events) {}

    fn close(&mut self, out: &mut Events) {
        out.push_back(Bytes::from_static(sse::DONE));
    }

    fn fail(&mut self, _error: ApiError, out: &mut Events) {
        out.push_back(Bytes::from_static(sse::DONE));
    }
}

/// A call that is told only when it is whole takes many tokens, none of which is told.
#[tokio::test(start_paused = true)]
async fn tokens_that_say_nothing_put_off_no_comment() {
    let (sender, pieces) = mpsc::channel(8);
    let mut merged = Merged::new(vec![Choice {
        index: 0,
        turn: TurnId(uuid::Uuid::nil()),
        pieces,
    }]);
    let begun = Piece::Started {
        version: PolicyVersion::BASE,
        cached_tokens: 0,
    };
    sender.try_send(begun).expect("there is room");
    merged.begin().await.expect("it begins");
    tokio::spawn(async move {
        for token in 0..5 {
            tokio::time::sleep(Duration::from_secs(10)).await;
            let said = TokenDelta {
                text: String::new(),
                token,
                logprob: 0.0,
                behavior_logprob: 0.0,
                top: Vec::new(),
            };
            let piece = Piece::Token(said, false, Vec::new());
            sender.try_send(piece).expect("there is room");
        }
    });
    let body = stream(Mute, merged).into_body().collect().await;
    let text = body.expect("a body").to_bytes();
    let comments = sse::COMMENT.repeat(3);
    assert_eq!(text, [&comments, sse::DONE].concat());
}
