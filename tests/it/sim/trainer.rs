//! A trainer whose candidates are small files, and a blob store that fails on command.

use std::sync::Mutex;

use hone_blobs::FsBlobs;
use hone_domain::{BlobError, BlobKey, Blobs, BlobsSize, Digest, Scope, TransitionId};
use hone_train::{
    CandidateFiles, EvaluationJob, Evaluator, Measured, Parity, ProbeSummary, TrainError, TrainJob,
    Trained, Trainer, WishAnswers, WishTurns,
};

use super::rng::{Rng, mix};

/// The arithmetic of every turn.
pub(super) const FINGERPRINT: &str = "cpu-f32";
/// The base model of every turn.
pub(super) const BASE: Digest = Digest([1; 32]);
/// The adapter's file.
pub(super) const ADAPTER_FILE: &str = "adapter.bin";

/// How the next step ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mood {
    /// With a candidate that passes the gate.
    Good,
    /// With one that does not.
    TooFar,
    /// It fails and may be tried again.
    Fails,
    /// Its numbers are not finite.
    NotFinite,
    /// It is stopped.
    Stops,
}

/// The trainer.
pub(super) struct FakeTrainer(Mutex<Mood>);

impl FakeTrainer {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Mood::Good))
    }

    pub(super) fn set(&self, mood: Mood) {
        *self.0.lock().unwrap() = mood;
    }
}

/// A hash of 256 bits; only its collisions matter here.
pub(super) fn digest_of(bytes: &[u8]) -> Digest {
    let mut digest = [0; 32];
    for (lane, out) in (1u64..).zip(digest.chunks_mut(8)) {
        let hash = bytes
            .iter()
            .fold(mix(lane), |hash, byte| mix(hash ^ u64::from(*byte)));
        out.copy_from_slice(&hash.to_be_bytes());
    }
    Digest(digest)
}

impl Trainer for FakeTrainer {
    fn train(
        &self,
        job: &TrainJob,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<Trained, TrainError> {
        let mood = *self.0.lock().unwrap();
        if pause() || mood == Mood::Stops {
            return Err(TrainError::Stopped);
        }
        match mood {
            Mood::Fails => return Err(TrainError::Failed("says the simulator".into())),
            Mood::NotFinite => return Err(TrainError::NotFinite("says the simulator".into())),
            Mood::Good | Mood::TooFar | Mood::Stops => {}
        }
        Ok(Trained {
            digest: digest_of(
                adapter_of(&job.scope, job.parent_digest(), &job.transitions()).as_bytes(),
            ),
            numbers: [("loss".to_owned(), 0.5)].into(),
            parity: Parity::default(),
            wishes: WishTurns::default(),
            answers: WishAnswers::default(),
        })
    }

    fn files(&self, job: &EvaluationJob) -> Result<CandidateFiles, TrainError> {
        let adapter = adapter_of(&job.scope, job.parent_digest(), &job.transitions());
        assert_eq!(digest_of(adapter.as_bytes()), job.candidate);
        Ok(CandidateFiles {
            checkpoint: format!("learner of {adapter}").into_bytes(),
            adapter: vec![(ADAPTER_FILE.to_owned(), adapter.into_bytes())],
        })
    }

    fn fingerprint(&self) -> String {
        FINGERPRINT.to_owned()
    }

    fn base(&self) -> Digest {
        BASE
    }
}

fn adapter_of(scope: &Scope, parent: Option<Digest>, transitions: &[TransitionId]) -> String {
    format!("{scope} {parent:?} {transitions:?}")
}

impl Evaluator for FakeTrainer {
    fn evaluate(
        &self,
        _job: &EvaluationJob,
        _pause: &mut dyn FnMut() -> bool,
    ) -> Result<Measured, TrainError> {
        let mood = *self.0.lock().unwrap();
        let probes = ProbeSummary {
            probes: 4,
            empty_share: 0.0,
            ended_share: 1.0,
            looping_share: 0.0,
            tokens_mean: 9.0,
        };
        Ok(Measured {
            finite: true,
            changed: true,
            kl_to_reference: if mood == Mood::Good { 0.001 } else { 1e6 },
            kl_to_parent: 0.001,
            candidate: probes,
            parent: probes,
            base: probes,
            ..Measured::default()
        })
    }
}

/// The blob store that the loops see.
pub(super) struct SimBlobs {
    pub(super) inner: FsBlobs,
    faults: Mutex<(Rng, usize)>,
}

impl SimBlobs {
    pub(super) fn new(inner: FsBlobs, seed: u64) -> Self {
        Self {
            inner,
            faults: Mutex::new((Rng::new(seed), 0)),
        }
    }

    /// From now on this share of calls fails, some of them after they were done.
    pub(super) fn trouble(&self, percent: usize) {
        self.faults.lock().unwrap().1 = percent;
    }

    /// Whether the call fails, and then whether it is done before.
    fn fault(&self) -> Option<bool> {
        let (rng, percent) = &mut *self.faults.lock().unwrap();
        rng.chance(*percent).then(|| rng.chance(50))
    }
}

fn failure(key: &BlobKey) -> BlobError {
    BlobError::Io {
        key: key.as_str().to_owned(),
        message: "the disk is full, says the simulator".to_owned(),
    }
}

impl Blobs for SimBlobs {
    fn put(&self, key: &BlobKey, files: &[(String, Vec<u8>)]) -> Result<(), BlobError> {
        match self.fault() {
            None => self.inner.put(key, files),
            Some(done) => {
                if done {
                    self.inner.put(key, files)?;
                }
                Err(failure(key))
            }
        }
    }

    fn get(&self, key: &BlobKey, file: &str) -> Result<Vec<u8>, BlobError> {
        match self.fault() {
            None => self.inner.get(key, file),
            Some(_) => Err(failure(key)),
        }
    }

    fn list(&self, kind: &str) -> Result<Vec<(BlobKey, u64)>, BlobError> {
        self.inner.list(kind)
    }

    fn remove(&self, key: &BlobKey) -> Result<(), BlobError> {
        self.inner.remove(key)
    }

    fn set_aside(&self, key: &BlobKey) -> Result<(), BlobError> {
        self.inner.set_aside(key)
    }

    fn has(&self, key: &BlobKey) -> Result<bool, BlobError> {
        self.inner.has(key)
    }

    fn files(&self, key: &BlobKey) -> Result<Vec<String>, BlobError> {
        self.inner.files(key)
    }

    fn sizes(&self) -> Result<Vec<BlobsSize>, BlobError> {
        self.inner.sizes()
    }
}
