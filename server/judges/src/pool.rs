//! Several servers with one model: the one with the fewest votes under way is asked, one that fails
//! or hangs is passed over, and one that failed often is left alone for a while.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{FuturesUnordered, StreamExt};
use hone_domain::{Message, Millis};
use hone_judge::{Breaker, CompleteOptions, Completed, Completer, CompleterError, ModelConfig};
use tokio::time::{Instant, sleep, sleep_until};

use hone_net::outbound::Outbound;

use super::HttpCompleter;

/// Longest wait for a server that is asked whether it is well.
const HEALTH_DEADLINE: Duration = Duration::from_secs(5);

/// Several servers with one model.
pub struct Pool {
    servers: Vec<Server>,
    tries_max: u32,
    retry: Duration,
    began: Instant,
    /// Takes turns among servers that are equally busy.
    turn: AtomicUsize,
}

struct Server {
    completer: HttpCompleter,
    votes: AtomicUsize,
    is_well: AtomicBool,
    breaker: Mutex<Breaker>,
}

/// A vote under way; dropping it frees its place.
struct Place<'a>(&'a AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pool {
    /// A pool of the configured servers. Their health is looked at for as long as it lives.
    ///
    /// # Errors
    /// A sentence that names the setting.
    pub fn start(outbound: &Arc<Outbound>, config: &ModelConfig) -> Result<Arc<Self>, String> {
        let server = |server| {
            Ok::<_, String>(Server {
                completer: HttpCompleter::new(outbound.clone(), server, config)?,
                votes: AtomicUsize::new(0),
                is_well: AtomicBool::new(true),
                breaker: Mutex::new(Breaker::new(
                    config.breaker_failures,
                    config.breaker_open_ms,
                )),
            })
        };
        let servers: Vec<Server> = config.servers().map(server).collect::<Result<_, _>>()?;
        let pool = Arc::new(Self {
            servers,
            tries_max: config.tries_max,
            retry: Duration::from_millis(config.retry_ms),
            began: Instant::now(),
            turn: AtomicUsize::new(0),
        });
        if config.health_interval_ms > 0 && pool.servers.len() > 1 {
            let every = Duration::from_millis(config.health_interval_ms);
            let weak = Arc::downgrade(&pool);
            tokio::spawn(async move {
                while let Some(pool) = weak.upgrade() {
                    pool.look(every.min(HEALTH_DEADLINE)).await;
                    drop(pool);
                    sleep(every).await;
                }
            });
        }
        Ok(pool)
    }

    /// Asks every server whether it is well. One that is well again is asked for votes at once.
    async fn look(&self, deadline: Duration) {
        let looks = self.servers.iter().map(|server| async move {
            let is_well = server.completer.is_well(deadline).await;
            let was_well = server.is_well.swap(is_well, Ordering::Relaxed);
            if is_well && !was_well {
                self.note(server, true);
            }
        });
        futures::future::join_all(looks).await;
    }

    fn now_ms(&self) -> Millis {
        Millis::try_from(self.began.elapsed().as_millis()).unwrap_or(Millis::MAX)
    }

    fn note(&self, server: &Server, answered: bool) {
        let breaker = server.breaker.lock();
        let mut breaker = breaker.unwrap_or_else(PoisonError::into_inner);
        breaker.note(self.now_ms(), answered);
    }

    fn admits(&self, server: &Server) -> bool {
        // Where there is no other, the judge's own breaker does the same.
        let breaker = server.breaker.lock();
        let mut breaker = breaker.unwrap_or_else(PoisonError::into_inner);
        self.servers.len() == 1 || breaker.admits(self.now_ms())
    }

    /// The least busy server that was not tried yet. One that is not well is asked when no other is
    /// left.
    fn choose(&self, tried: &[usize]) -> Option<usize> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let count = self.servers.len();
        let mut left: Vec<usize> = (0..count).filter(|at| !tried.contains(at)).collect();
        left.sort_by_key(|at| {
            let server = &self.servers[*at];
            let is_ill = !server.is_well.load(Ordering::Relaxed);
            let votes = server.votes.load(Ordering::Relaxed);
            (is_ill, votes, (at + turn) % count)
        });
        left.into_iter().find(|at| self.admits(&self.servers[*at]))
    }

    async fn ask(
        &self,
        at: usize,
        messages: &[Message],
        options: CompleteOptions,
    ) -> (usize, Result<Completed, CompleterError>) {
        let server = &self.servers[at];
        server.votes.fetch_add(1, Ordering::Relaxed);
        let _place = Place(&server.votes);
        let answer = server.completer.complete(messages, options).await;
        self.note(server, answer.is_ok());
        (at, answer)
    }
}

/// Whether the same server may answer when it is asked again.
fn may_pass(error: &CompleterError) -> bool {
    match error {
        CompleterError::Unreachable(_) | CompleterError::Busy(_) => true,
        CompleterError::Refused { status, .. } => *status == 429 || *status >= 500,
        CompleterError::Failed(_) | CompleterError::Unreadable(_) => false,
    }
}

#[async_trait]
impl Completer for Pool {
    /// The first answer of any server. Each gets an even share of the deadline by itself; then the
    /// next is asked beside it. When all have failed it begins anew after a pause.
    async fn complete(
        &self,
        messages: &[Message],
        options: CompleteOptions,
    ) -> Result<Completed, CompleterError> {
        let ends = Instant::now() + options.deadline;
        let mut under_way = FuturesUnordered::new();
        let (mut tried, mut tries, mut pause) = (Vec::new(), 0, self.retry);
        let mut asked = Vec::new();
        let mut failure = None;
        loop {
            let next = (tries < self.tries_max).then(|| self.choose(&tried));
            if let Some(at) = next.flatten() {
                let options = CompleteOptions {
                    deadline: ends.saturating_duration_since(Instant::now()),
                    ..options.clone()
                };
                under_way.push(self.ask(at, messages, options));
                tries += 1;
                asked.push(at);
                tried.push(at);
            } else if under_way.is_empty() {
                let rest = ends.saturating_duration_since(Instant::now());
                let again = failure.as_ref().is_some_and(may_pass) && pause < rest;
                if tries >= self.tries_max || !again {
                    let nobody = || "every server is left alone after repeated failures".to_owned();
                    return Err(failure.unwrap_or_else(|| CompleterError::Busy(nobody())));
                }
                sleep(pause).await;
                pause *= 2;
                tried.clear();
                continue;
            }
            let left = self.servers.len().saturating_sub(tried.len());
            let rest = ends.saturating_duration_since(Instant::now());
            let patience = Instant::now() + rest / (left as u32 + 1);
            tokio::select! {
                answer = under_way.next() => match answer {
                    Some((_, Ok(completed))) => return Ok(completed),
                    Some((at, Err(error))) => {
                        asked.retain(|one| *one != at);
                        failure = Some(error);
                    }
                    None => {}
                },
                () = sleep_until(patience), if left > 0 && tries < self.tries_max => {
                    asked.drain(..).for_each(|at| self.note(&self.servers[at], false));
                }
            }
        }
    }
}
