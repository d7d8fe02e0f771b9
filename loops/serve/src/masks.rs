//! Masks of constrained completions, made on threads of their own while the model computes: which
//! tokens a grammar allows next depends on the tokens so far and on nothing else. A mask that takes
//! longer than the step delays its own completion and few others: a few threads take turns, and grammars
//! whose last mask was slow have threads of their own. Where a grammar rules calls alone, nothing is masked between them.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use hone_domain::TokenMask;
use hone_domain::{CallFinder, Grammar, ServeError, Token};
use hone_text::grammar::{Constraint, GrammarError, Grammars};
use hone_text::tokenizer::Tokenizer;

use crate::sequence::Setup;

/// Compiled grammars that are kept, and bytes of their texts: compiled, one takes some hundred times
/// as much. The longest unused goes first; those of requests on their way to an ask stay.
const GRAMMARS_MAX: usize = 64;
const GRAMMARS_BYTES_MAX: usize = 1 << 20;
/// Stack of each thread: grammars nest.
const STACK_BYTES: usize = 8 << 20;
/// Cores that share a thread for masks of either kind, and most of those threads: the model needs the cores.
const CORES_EACH: usize = 4;
const THREADS_MAX: usize = 8;
/// A mask that takes this long is slow; most take a tenth of it, with a vocabulary of 150,000 too.
const SLOW: Duration = Duration::from_millis(2);

/// Compiled grammars, because clients send the same schema with every request.
#[derive(Default)]
pub(crate) struct GrammarBook {
    /// Made at the first grammar: a large vocabulary takes a moment.
    compiler: OnceLock<Result<Grammars, GrammarError>>,
    known: Mutex<VecDeque<Known>>,
}

struct Known {
    grammar: Grammar,
    constraint: Constraint,
    /// Who wants to find it here.
    held: HeldGrammar,
}

/// Keeps a compiled grammar while a request is on its way to the ask, which then need not compile it.
#[derive(Clone, Debug, Default)]
#[must_use = "the grammar may be forgotten once this is dropped"]
pub struct HeldGrammar(Arc<()>);

impl HeldGrammar {
    /// Whether a clone of it holds the grammar.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

impl GrammarBook {
    /// A constraint at the beginning of a completion.
    pub(crate) fn constraint(
        &self,
        grammar: &Grammar,
        setup: &Setup,
        vocab: usize,
    ) -> Result<Constraint, ServeError> {
        self.look_up(grammar, setup, vocab, |known| known.constraint.fork())
    }

    /// Keeps a grammar where [`Self::constraint`] finds it.
    pub(crate) fn hold(
        &self,
        grammar: &Grammar,
        setup: &Setup,
        vocab: usize,
    ) -> Result<HeldGrammar, ServeError> {
        self.look_up(grammar, setup, vocab, |known| known.held.clone())
    }

    /// What `take` takes of a compiled grammar, and compiles it first where it is not known.
    fn look_up<T>(
        &self,
        grammar: &Grammar,
        setup: &Setup,
        vocab: usize,
        take: impl Fn(&Known) -> T,
    ) -> Result<T, ServeError> {
        if let Some(taken) = self.find(grammar, &take) {
            return Ok(taken);
        }
        let refused = |error: GrammarError| ServeError::Grammar(error.to_string());
        let compiler = self
            .compiler
            .get_or_init(|| Grammars::new(&setup.tokenizer, vocab, &setup.end_tokens));
        let compiler = compiler.as_ref().map_err(|error| refused(error.clone()))?;
        let entry = Known {
            grammar: grammar.clone(),
            constraint: compiler.compile(&grammar.0).map_err(refused)?,
            held: HeldGrammar::default(),
        };
        let taken = take(&entry);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        forget(&mut known, grammar.0.len());
        known.push_back(entry);
        Ok(taken)
    }

    fn find<T>(&self, grammar: &Grammar, take: impl Fn(&Known) -> T) -> Option<T> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let at = known.iter().position(|k| k.grammar == *grammar)?;
        let entry = known.remove(at)?;
        let taken = take(&entry);
        known.push_back(entry);
        Some(taken)
    }
}

/// Makes room for one more grammar of so many bytes.
fn forget(known: &mut VecDeque<Known>, more: usize) {
    let mut bytes = more + known.iter().map(|k| k.grammar.0.len()).sum::<usize>();
    while known.len() >= GRAMMARS_MAX || bytes > GRAMMARS_BYTES_MAX {
        let oldest = known.iter().position(|k| !k.held.is_shared());
        let Some(gone) = oldest.and_then(|at| known.remove(at)) else {
            return;
        };
        bytes -= gone.grammar.0.len();
    }
}

/// The threads that make masks; they end with the last clone of this.
#[derive(Clone, Debug)]
pub(crate) struct Masks {
    quick: Sender<Job>,
    slow: Sender<Job>,
    #[cfg(test)]
    probe: Arc<Probe>,
}

/// What tests set and look at.
#[cfg(test)]
#[derive(Debug, Default)]
struct Probe {
    /// Added to every mask, in microseconds.
    delay_us: std::sync::atomic::AtomicU64,
    /// Masks that were asked for.
    asked: std::sync::atomic::AtomicU64,
}

struct Job {
    constraint: Constraint,
    took: Took,
    /// Whether something free follows the end of the grammar.
    goes_on: bool,
    /// The completion it is for; once that is gone, nobody wants the mask.
    completion: Weak<()>,
    back: SyncSender<Made>,
}

/// What was said since the constraint was where it is.
enum Took {
    Nothing,
    /// The token drawn under the last mask.
    Token(Token),
    /// The beginning of a call, which nothing ruled.
    Beginning(Vec<u8>),
}

/// What came of a job.
struct Made {
    /// None where nothing is ruled any more: the call is over, or began as no call does.
    mask: Result<Option<Mask>, GrammarError>,
    /// For the next call, where one began.
    next_call: Option<Constraint>,
    was_slow: bool,
}

struct Mask {
    constraint: Constraint,
    allowed: TokenMask,
}

impl Masks {
    pub(crate) fn start() -> std::io::Result<Self> {
        #[cfg(test)]
        let probe = Arc::<Probe>::default();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = (cores / CORES_EACH).clamp(1, THREADS_MAX);
        let line = |name: &str| {
            #[cfg(test)]
            let delay = probe.clone();
            let before_each = move || {
                #[cfg(test)]
                std::thread::sleep(Duration::from_micros(
                    delay.delay_us.load(std::sync::atomic::Ordering::Relaxed),
                ));
            };
            line_of(name, threads, before_each)
        };
        Ok(Self {
            quick: line("hone-masks")?,
            slow: line("hone-slow-masks")?,
            #[cfg(test)]
            probe,
        })
    }

    /// Makes every mask from now on take this long.
    #[cfg(test)]
    pub(crate) fn slow(&self, delay: Duration) {
        let us = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        let delay = &self.probe.delay_us;
        delay.store(us, std::sync::atomic::Ordering::Relaxed);
    }

    /// Masks that were asked for so far.
    #[cfg(test)]
    pub(crate) fn asked(&self) -> u64 {
        self.probe.asked.load(std::sync::atomic::Ordering::Relaxed)
    }
}

/// A queue of masks that so many threads make.
fn line_of(
    name: &str,
    threads: usize,
    before_each: impl Fn() + Clone + Send + 'static,
) -> std::io::Result<Sender<Job>> {
    let (jobs, inbox) = channel::<Job>();
    let inbox = Arc::new(Mutex::new(inbox));
    for _ in 0..threads {
        let (inbox, before_each) = (Arc::clone(&inbox), before_each.clone());
        let thread = std::thread::Builder::new().name(name.to_owned());
        let next = move || {
            let inbox = inbox.lock().unwrap_or_else(PoisonError::into_inner);
            inbox.recv().ok()
        };
        let thread = thread.stack_size(STACK_BYTES);
        thread.spawn(move || make_all(next, before_each))?;
    }
    Ok(jobs)
}

/// Makes the masks that are still wanted, until nobody can want any. One that panics costs its own
/// completion.
fn make_all(next: impl Fn() -> Option<Job>, mut before_each: impl FnMut()) {
    while let Some(job) = next() {
        if job.completion.strong_count() == 0 {
            continue;
        }
        let began = Instant::now();
        let back = job.back;
        let made = catch_unwind(AssertUnwindSafe(|| {
            before_each();
            let is_begun = matches!(job.took, Took::Beginning(_));
            let next_call = is_begun.then(|| job.constraint.fork());
            (next_call, make(job.constraint, job.took, job.goes_on))
        }));
        let (next_call, mask) = made.unwrap_or_else(|_| {
            tracing::error!("making a mask panicked; its completion fails");
            (None, Err(GrammarError::new("making a mask panicked")))
        });
        let made = Made {
            next_call,
            mask,
            was_slow: began.elapsed() >= SLOW,
        };
        // A completion that was cancelled meanwhile wants no mask.
        let _gone = back.send(made).is_err();
    }
}

fn make(
    mut constraint: Constraint,
    took: Took,
    goes_on: bool,
) -> Result<Option<Mask>, GrammarError> {
    match took {
        Took::Nothing => {}
        Took::Token(token) => constraint.take(token)?,
        Took::Beginning(bytes) => {
            if constraint.take_bytes(&bytes).is_err() {
                return Ok(None);
            }
        }
    }
    if goes_on && constraint.may_end()? {
        return Ok(None);
    }
    let allowed = constraint.mask()?;
    Ok(Some(Mask {
        constraint,
        allowed,
    }))
}

/// The grammar's side of one completion.
pub(crate) struct Masked {
    masks: Masks,
    /// Goes with it, so that what is in line for it is skipped.
    alive: Arc<()>,
    /// Whether the last mask was slow.
    is_slow: bool,
    calls: Option<Calls>,
    state: State,
}

/// Where a grammar rules calls alone.
pub(crate) struct Calls {
    tokenizer: Arc<Tokenizer>,
    finder: CallFinder,
    /// At the beginning of the next one; away while it is being copied.
    next: Option<Constraint>,
    /// Whether the first one ends the completion.
    single: bool,
}

impl Calls {
    pub(crate) fn new(
        constraint: Constraint,
        finder: CallFinder,
        single: bool,
        tokenizer: Arc<Tokenizer>,
    ) -> Self {
        Self {
            tokenizer,
            finder,
            next: Some(constraint),
            single,
        }
    }

    /// Hears what was said outside calls; what of it is the beginning of one.
    fn hear(&mut self, token: Token) -> Option<Vec<u8>> {
        // Control tokens are no text.
        if self.tokenizer.is_special(token) {
            return None;
        }
        self.finder.push(self.tokenizer.token_bytes(token))
    }
}

enum State {
    /// Nothing is ruled until a call begins.
    Free,
    /// Being made.
    Away(Receiver<Made>),
    /// The mask of the next token.
    Here(Box<Mask>),
    /// A token is drawn under the mask that was given out.
    Drawing(Box<Constraint>),
    Broken(String),
}

impl Masked {
    /// At the beginning of a completion; its first mask is on its way.
    pub(crate) fn new(constraint: Constraint, masks: Masks) -> Self {
        let mut masked = Self {
            masks,
            alive: Arc::default(),
            is_slow: false,
            calls: None,
            state: State::Broken(String::new()),
        };
        masked.send(constraint, Took::Nothing);
        masked
    }

    /// At the beginning of a completion whose calls alone are ruled.
    pub(crate) fn calls(calls: Calls, masks: Masks) -> Self {
        Self {
            masks,
            alive: Arc::default(),
            is_slow: false,
            calls: Some(calls),
            state: State::Free,
        }
    }

    fn send(&mut self, constraint: Constraint, took: Took) {
        let (back, made) = sync_channel(1);
        let job = Job {
            constraint,
            took,
            goes_on: self.calls.as_ref().is_some_and(|calls| !calls.single),
            completion: Arc::downgrade(&self.alive),
            back,
        };
        #[cfg(test)]
        let asked = &self.masks.probe.asked;
        #[cfg(test)]
        asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let line = if self.is_slow {
            &self.masks.slow
        } else {
            &self.masks.quick
        };
        self.state = match line.send(job) {
            Ok(()) => State::Away(made),
            Err(_) => State::Broken("the thread that makes masks is gone".to_owned()),
        };
    }

    /// Whether a token can be drawn now; waits at most this long for the mask.
    pub(crate) fn is_ready(&mut self, wait: Duration) -> bool {
        let State::Away(made) = &self.state else {
            return true;
        };
        self.state = match made.recv_timeout(wait) {
            Ok(made) => self.took(made),
            Err(RecvTimeoutError::Timeout) => return false,
            Err(RecvTimeoutError::Disconnected) => State::Broken("making a mask failed".to_owned()),
        };
        true
    }

    fn took(&mut self, made: Made) -> State {
        self.is_slow = made.was_slow;
        if let (Some(calls), Some(next)) = (&mut self.calls, made.next_call) {
            calls.next = Some(next);
        }
        match made.mask {
            Ok(Some(here)) => State::Here(Box::new(here)),
            Ok(None) => State::Free,
            Err(error) => State::Broken(error.to_string()),
        }
    }

    /// Whether nothing rules the next token, as far as is known.
    pub(crate) fn is_free(&self) -> bool {
        matches!(self.state, State::Free)
    }

    /// The mask of the next token, once it is ready; none where nothing rules it.
    pub(crate) fn mask(&mut self) -> Result<Option<TokenMask>, ServeError> {
        let empty = State::Broken("the mask was not ready".to_owned());
        match std::mem::replace(&mut self.state, empty) {
            State::Free => {
                self.state = State::Free;
                Ok(None)
            }
            State::Here(here) => {
                self.state = State::Drawing(Box::new(here.constraint));
                Ok(Some(here.allowed))
            }
            State::Broken(why) => Err(ServeError::Internal(format!(
                "the completion could not be held to its grammar: {why}"
            ))),
            State::Away(_) | State::Drawing(_) => Err(ServeError::Internal(
                "a mask was drawn from twice".to_owned(),
            )),
        }
    }

    /// A token was drawn and the completion goes on: its next mask is made from now on.
    pub(crate) fn drew(&mut self, token: Token) {
        let empty = State::Broken("a token came before its mask".to_owned());
        match std::mem::replace(&mut self.state, empty) {
            State::Drawing(constraint) => self.send(*constraint, Took::Token(token)),
            State::Free => {
                self.state = State::Free;
                let calls = self.calls.as_mut();
                let begun = calls.and_then(|calls| Some((calls.hear(token)?, calls.next.take()?)));
                if let Some((bytes, constraint)) = begun {
                    self.send(constraint, Took::Beginning(bytes));
                }
            }
            State::Away(_) | State::Here(_) | State::Broken(_) => {}
        }
    }
}

#[cfg(test)]
#[path = "masks_tests.rs"]
mod tests;
