//! Replies read by the served base model: its hidden states, and a probe that is fitted on them at the
//! first start with a model and kept in the data folder.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use hone_domain::{NextKind, Token};
use hone_judge::reading::{Example, Probe, Reading, Seen, Unreadable, shortened};
use hone_judge::rules::{Exchange, judge_reply};
use hone_judge::{Reader, ReadingConfig, labelled};
use hone_runtime::{LoopPhase, Shutdown, StatusRegistry};
use hone_serve::{Backend, Cancel};
use serde_json::{Map, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;

use hone_inference::Language;

/// Its name in the status registry.
const NAME: &str = "reading";

/// Reads with what serves here.
#[derive(Clone)]
pub struct States {
    /// What computes.
    pub backend: Arc<dyn Backend>,
    /// Its template and tokens.
    pub language: Arc<dyn Language>,
    /// Most tokens of a reply and what it answers.
    pub tokens_max: usize,
}

impl States {
    fn rendered(&self, exchange: Exchange<'_>) -> Result<Vec<Token>, String> {
        let messages = [
            json!({"role": "user", "content": exchange.asked}),
            json!({"role": "assistant", "content": exchange.completion}),
            json!({"role": "user", "content": exchange.reply}),
        ];
        let text = self.language.render(&messages, None, &Map::new());
        let text = text.map_err(|error| error.to_string())?;
        Ok(self.language.encode(&text, false))
    }

    /// What the model and the rules make of a reply. Computes on the calling thread.
    ///
    /// # Errors
    /// Why it cannot be told.
    pub fn see(&self, exchange: Exchange<'_>, cancel: &Cancel) -> Result<Seen, String> {
        let ruling = judge_reply(exchange);
        let exchange = shortened(exchange);
        let tokens = self.rendered(exchange)?;
        if tokens.len() > self.tokens_max {
            return Err(format!(
                "{} tokens are more than judge.reading.tokens_max",
                tokens.len()
            ));
        }
        let silent = self.rendered(Exchange {
            reply: "",
            ..exchange
        })?;
        let shared = tokens.iter().zip(&silent).take_while(|(a, b)| a == b);
        let from = shared.count();
        let states = self.backend.states(&tokens, from, cancel);
        let states = states.map_err(|error| error.to_string())?;
        Ok(Seen { states, ruling })
    }

    /// Fits a probe on the labelled replies. Computes on the calling thread, for minutes where the
    /// model is large, and says of each reply which share of them is read.
    ///
    /// # Errors
    /// Why there is none.
    pub fn fit(
        &self,
        precision_min: f64,
        busy: &Busy,
        progress: &dyn Fn(f64),
        cancel: &Cancel,
    ) -> Result<Probe, String> {
        let of_people = labelled::fit_replies();
        let mut others = labelled::labelled();
        others.retain(|row| row.kind == NextKind::UserReply);
        let (mut read, all) = (0_usize, of_people.len() + others.len());
        let mut examples = Vec::new();
        let mut add = |exchange: Exchange<'_>, label, wish| {
            while busy() && !cancel.is_cancelled() {
                std::thread::sleep(WAIT);
            }
            if cancel.is_cancelled() {
                return Err("the server stops".to_owned());
            }
            // A reply that is too long for the setting is not fitted on.
            if let Ok(seen) = self.see(exchange, cancel) {
                examples.push(Example { seen, label, wish });
            }
            read += 1;
            progress(read as f64 / all as f64);
            Ok(())
        };
        for row in &of_people {
            add(row.exchange(), row.label, Some(row.wish))?;
        }
        for row in &others {
            let exchange = Exchange {
                asked: &row.asked,
                completion: &row.completion,
                reply: &row.text,
            };
            add(exchange, row.label, None)?;
        }
        Probe::fit(&examples, precision_min)
    }
}

/// Says whether something else needs the processor.
pub type Busy = Arc<dyn Fn() -> bool + Send + Sync>;

/// How often the fit looks whether it may go on.
const WAIT: Duration = Duration::from_millis(50);

/// What a reader is started with.
pub struct ReaderParts {
    /// What computes.
    pub states: States,
    /// The settings.
    pub config: ReadingConfig,
    /// Whether the model is the built-in one.
    pub is_starter: bool,
    /// The data folder.
    pub folder: PathBuf,
    /// Says whether it reads.
    pub registry: StatusRegistry,
    /// Ends the fit.
    pub shutdown: Shutdown,
    /// Whether training computes, for which the fit waits.
    pub busy: Busy,
}

/// The served base model as a reader.
pub struct BaseReader {
    states: States,
    /// Empty while it is being fitted; none where there will be none.
    probe: Arc<OnceLock<Option<Probe>>>,
    /// One reading at a time, because each takes a thread from serving.
    place: Arc<Semaphore>,
}

impl BaseReader {
    /// A reader that reads once its probe is fitted, which happens beside everything else.
    pub fn start(parts: ReaderParts) -> Arc<Self> {
        let reader = Arc::new(Self {
            states: parts.states.clone(),
            probe: Arc::default(),
            place: Arc::new(Semaphore::new(1)),
        });
        let (cancel, shutdown) = (Cancel::default(), parts.shutdown.clone());
        let stops = cancel.clone();
        tokio::spawn(async move {
            shutdown.wait().await;
            stops.cancel();
        });
        let probe = reader.probe.clone();
        let fits = move || {
            // As low as training: whoever is served goes first.
            hone_train::Priority::new(Arc::new(hone_train::Served::default)).enter();
            let _first = probe.set(begin(&parts, &cancel)).is_ok();
        };
        let thread = std::thread::Builder::new().name(NAME.to_owned());
        if let Err(error) = thread.spawn(fits) {
            let _first = reader.probe.set(None).is_ok();
            tracing::warn!(%error, "the reading cannot be fitted; the rules alone read replies");
        }
        reader
    }
}

/// Takes the probe of before, or fits one and keeps it.
fn begin(parts: &ReaderParts, cancel: &Cancel) -> Option<Probe> {
    let _switch = parts.registry.enter(NAME);
    parts
        .registry
        .update(NAME, |status| status.state = LoopPhase::Starting);
    let began = Instant::now();
    let path = place(parts);
    let progress = |share| {
        parts.registry.update(NAME, |status| {
            status.numbers.insert("fit_share", share);
        });
    };
    let precision_min = parts.config.precision_min;
    let found = match kept(&path) {
        Some(probe) => Ok(probe),
        None => parts
            .states
            .fit(precision_min, &parts.busy, &progress, cancel),
    };
    let fit_s = began.elapsed().as_secs_f64();
    match found {
        Ok(found) => {
            let crossed = found.crossed;
            tracing::info!(
                fit_s,
                found = crossed.found,
                precision = crossed.precision,
                blamed = crossed.blamed,
                wishes = crossed.wishes,
                "replies are read by the base model"
            );
            let numbers = [
                ("on", 1.0),
                ("fit_s", fit_s),
                ("fit_share", 1.0),
                ("found_share", crossed.found),
                ("precision", crossed.precision),
                ("blamed_share", crossed.blamed),
                ("wishes_share", crossed.wishes),
            ];
            keep(&path, &found);
            parts.registry.update(NAME, |status| {
                status.state = LoopPhase::Running;
                status.numbers.extend(numbers);
            });
            Some(found)
        }
        Err(why) => {
            off(&parts.registry, &why);
            None
        }
    }
}

/// Says that the rules alone read replies, and why.
pub(super) fn off(registry: &StatusRegistry, why: &str) {
    let _switch = registry.enter(NAME);
    registry.update(NAME, |status| {
        status.state = LoopPhase::Stopped;
        status.numbers.insert("on", 0.0);
    });
    tracing::info!(why, "the reading is off; the rules alone read replies");
}

/// Where the probe of this model and labelled set is kept.
fn place(parts: &ReaderParts) -> PathBuf {
    let base = parts.states.backend.capabilities().base.to_hex();
    let percent = (parts.config.precision_min * 1_000.0).round();
    let name = format!("{base}-{:016x}-{percent}.probe", labelled::fit_hash());
    parts.folder.join(NAME).join(name)
}

/// A text behind the SHA-256 of its bytes.
fn with_digest(text: &[u8]) -> Vec<u8> {
    [&Sha256::digest(text)[..], text].concat()
}

/// The text behind its digest; none where a byte of either is another one.
fn checked(bytes: &[u8]) -> Option<&[u8]> {
    let (digest, text) = bytes.split_at_checked(Sha256::output_size())?;
    (*digest == Sha256::digest(text)[..]).then_some(text)
}

/// The probe of before; none where there is none, or where its bytes are not those that were kept.
fn kept(path: &Path) -> Option<Probe> {
    let bytes = std::fs::read(path).ok()?;
    let probe = checked(&bytes).and_then(|text| serde_json::from_slice(text).ok());
    if probe.is_none() {
        tracing::warn!(path = %path.display(), "the probe of the reading is damaged; it is fitted anew");
    }
    probe
}

/// Writes the probe whole or not at all.
fn keep(path: &Path, probe: &Probe) {
    let write = || {
        let folder = path.parent().unwrap_or(path);
        std::fs::create_dir_all(folder)?;
        let part = path.with_extension("part");
        std::fs::write(&part, with_digest(&serde_json::to_vec(probe)?))?;
        std::fs::rename(&part, path)
    };
    if let Err(error) = write() {
        tracing::warn!(%error, path = %path.display(), "the probe of the reading is not kept; the next start fits it anew");
    }
}

/// Ends what is computed once nobody waits for it.
struct EndWithDrop(Cancel);

impl Drop for EndWithDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

#[async_trait]
impl Reader for BaseReader {
    async fn read(&self, exchange: Exchange<'_>) -> Result<Option<Reading>, Unreadable> {
        if self.probe.get().ok_or(Unreadable::NotYet)?.is_none() {
            return Ok(None);
        }
        let place = self.place.clone().acquire_owned().await;
        let place = place.map_err(|error| error.to_string())?;
        let wanted = EndWithDrop(Cancel::default());
        let (cancel, states, probe) = (wanted.0.clone(), self.states.clone(), self.probe.clone());
        let [asked, completion, reply] =
            [exchange.asked, exchange.completion, exchange.reply].map(str::to_owned);
        let read = tokio::task::spawn_blocking(move || {
            let _place = place;
            let exchange = Exchange {
                asked: &asked,
                completion: &completion,
                reply: &reply,
            };
            let seen = states.see(exchange, &cancel)?;
            let probe = probe.get().and_then(Option::as_ref);
            Ok::<_, String>(probe.and_then(|probe| probe.read(&seen)))
        });
        let read = read.await.map_err(|error| error.to_string())?;
        Ok(read?)
    }
}

#[cfg(test)]
mod digest_tests {
    use super::*;

    #[test]
    fn a_kept_probe_with_any_bit_changed_or_any_byte_missing_is_none() {
        let text = br#"{"found": 0.5}"#;
        let kept = with_digest(text);
        assert_eq!(checked(&kept), Some(&text[..]));
        for bit in 0..kept.len() * 8 {
            let mut damaged = kept.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(checked(&damaged), None, "bit {bit}");
        }
        for length in 0..kept.len() {
            assert_eq!(checked(&kept[..length]), None, "{length} bytes");
        }
    }
}
