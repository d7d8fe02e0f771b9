//! Votes by real servers on this machine: one that hangs, one that refuses, one that is well.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use hone_domain::{Message, Role};
use hone_judge::{CompleteOptions, Completed, Completer, CompleterError, ModelConfig};
use serde_json::json;

use super::Pool;
use crate::defaults::defaults;
use hone_net::outbound::Outbound;

/// How a server behaves.
#[derive(Clone, Copy)]
enum Manner {
    Well,
    /// Answers after this long.
    Slow(u64),
    Hangs,
    /// Says with this status that it cannot.
    Refuses(u16),
}

/// A server and how often it was asked for a vote.
async fn serve(manner: Manner) -> (String, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = asked.clone();
    let vote = move || {
        counter.fetch_add(1, Ordering::Relaxed);
        async move {
            let (status, wait) = match manner {
                Manner::Well => (200, 0),
                Manner::Slow(ms) => (200, ms),
                Manner::Hangs => (200, 3_600_000),
                Manner::Refuses(status) => (status, 0),
            };
            tokio::time::sleep(Duration::from_millis(wait)).await;
            let choice = json!({"message": {"content": "\\boxed{1}"}});
            let body =
                json!({"choices": [choice], "usage": {"prompt_tokens": 5, "completion_tokens": 3}});
            (StatusCode::from_u16(status).unwrap(), Json(body))
        }
    };
    let health = move || async move {
        match manner {
            Manner::Hangs => tokio::time::sleep(Duration::from_secs(3_600)).await,
            Manner::Refuses(_) => return StatusCode::INTERNAL_SERVER_ERROR,
            Manner::Well | Manner::Slow(_) => {}
        }
        StatusCode::OK
    };
    let router = Router::new()
        .route("/v1/chat/completions", post(vote))
        .route("/v1/models", get(health));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    (url, asked)
}

fn pool(urls: Vec<String>, change: impl Fn(&mut ModelConfig)) -> Arc<Pool> {
    let mut config = ModelConfig {
        url: String::new(),
        urls,
        tries_max: 4,
        ..ModelConfig::for_tests()
    };
    change(&mut config);
    let outbound = Arc::new(Outbound::new(&defaults("outbound")).unwrap());
    Pool::start(&outbound, &config).unwrap()
}

async fn vote(pool: &Pool, deadline_ms: u64) -> Result<Completed, CompleterError> {
    let options = CompleteOptions {
        temperature: 0.5,
        max_tokens: 9,
        seed: 1,
        deadline: Duration::from_millis(deadline_ms),
    };
    let message = Message::text(Role::User, "was it good?");
    pool.complete(&[message], options).await
}

#[tokio::test]
async fn servers_that_hang_or_refuse_cost_no_votes() {
    let nobody = "http://127.0.0.1:9/v1".to_owned();
    let (hangs, hung) = serve(Manner::Hangs).await;
    let (refuses, refused) = serve(Manner::Refuses(503)).await;
    let (well, answered) = serve(Manner::Well).await;
    let pool = pool(vec![nobody, hangs, refuses, well], |_| {});
    for _ in 0..40 {
        let completed = vote(&pool, 2_000).await.unwrap();
        assert_eq!(completed.words, "\\boxed{1}");
        assert_eq!(completed.tokens, Some((5, 3)));
    }
    assert_eq!(answered.load(Ordering::Relaxed), 40);
    // After four failures in a row each is left alone; it opens for five seconds.
    let (hung, refused) = (
        hung.load(Ordering::Relaxed),
        refused.load(Ordering::Relaxed),
    );
    assert!((1..=8).contains(&hung), "{hung}");
    assert!((1..=8).contains(&refused), "{refused}");
}

#[tokio::test]
async fn the_least_busy_server_is_asked() {
    let (slow, few) = serve(Manner::Slow(2_000)).await;
    let (well, many) = serve(Manner::Well).await;
    let pool = pool(vec![slow, well], |_| {});
    let occupied = {
        let pool = pool.clone();
        // The first that is asked is the first that is named.
        tokio::spawn(async move { vote(&pool, 10_000).await })
    };
    while few.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    for _ in 0..20 {
        vote(&pool, 10_000).await.unwrap();
    }
    assert_eq!(few.load(Ordering::Relaxed), 1);
    assert_eq!(many.load(Ordering::Relaxed), 20);
    assert!(occupied.await.unwrap().is_ok());
}

#[tokio::test]
async fn health_finds_a_hanging_server_before_a_vote_does() {
    let (hangs, hung) = serve(Manner::Hangs).await;
    let (well, _) = serve(Manner::Well).await;
    let pool = pool(vec![hangs, well], |config| {
        config.health_interval_ms = 1_000;
    });
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let began = Instant::now();
    for _ in 0..10 {
        vote(&pool, 4_000).await.unwrap();
    }
    assert_eq!(hung.load(Ordering::Relaxed), 0);
    assert!(began.elapsed() < Duration::from_secs(2));
}

#[tokio::test]
async fn what_may_pass_is_tried_again_and_what_may_not_is_said_at_once() {
    let (busy, often) = serve(Manner::Refuses(429)).await;
    let busy = vote(&pool(vec![busy], |_| {}), 2_000).await;
    assert!(
        matches!(busy, Err(CompleterError::Refused { status: 429, .. })),
        "{busy:?}"
    );
    assert_eq!(often.load(Ordering::Relaxed), 4, "tries_max");
    let (wrong, once) = serve(Manner::Refuses(401)).await;
    let wrong = vote(&pool(vec![wrong], |_| {}), 2_000).await;
    assert!(
        matches!(wrong, Err(CompleterError::Refused { status: 401, .. })),
        "{wrong:?}"
    );
    assert_eq!(once.load(Ordering::Relaxed), 1);
}
