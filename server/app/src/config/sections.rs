//! The sections that belong to the server itself. Defaults stand in `configs/default.toml`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hone_blobs::{FsBlobs, ObjectBlobs};
use hone_domain::{BlobError, Blobs, Loop, Millis};
use hone_kernels::{ComputeType, WeightFormat};
use hone_ledger::{EndedBefore, Retention};
use hone_ledger_sql::{LedgerPlace, PostgresConfig, Role, SqliteConfig};
use hone_nn::{KvFormat, Model};
use serde::{Deserialize, Serialize};

use crate::device::Choice;

/// What answers asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// The built-in engine with a model.
    Builtin,
    /// Instant fixed completions without a model, for load tests.
    Null,
}

/// How the matrices of the model are kept in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Weights {
    /// As they are stored.
    Stored,
    /// Thirty-two bits.
    F32,
    /// Sixteen bits.
    Bf16,
    /// Eight bits, a scale per 32 weights.
    Q8,
    /// Four bits, a scale per 32 weights.
    Q4,
}

impl From<Weights> for WeightFormat {
    fn from(weights: Weights) -> Self {
        match weights {
            Weights::Stored => Self::Stored,
            Weights::F32 => Self::F32,
            Weights::Bf16 => Self::Bf16,
            Weights::Q8 => Self::Q8,
            Weights::Q4 => Self::Q4,
        }
    }
}

/// How products with the model's matrices are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Products {
    /// As the processor is quickest with the model's weights.
    Auto,
    /// Inputs as they are.
    F32,
    /// Inputs rounded to bf16.
    Bf16,
    /// Inputs rounded to bf16, in tiles.
    Amx,
    /// Inputs rounded to eight bits.
    Int8,
}

impl Products {
    /// What it comes to on this machine, where a device serves or not, with weights for which one is
    /// quickest.
    pub fn arithmetic(self, quickest: ComputeType, on_device: bool) -> Result<ComputeType, String> {
        let asked = match self {
            Self::Auto if on_device => return Ok(ComputeType::F32),
            Self::Auto => return Ok(quickest),
            Self::F32 => return Ok(ComputeType::F32),
            Self::Bf16 => ComputeType::Bf16,
            Self::Amx => ComputeType::Amx,
            Self::Int8 => ComputeType::Int8,
        };
        let why = match asked {
            _ if on_device => "a CUDA device computes in f32; set it to \"auto\"",
            _ if asked.supported() => return Ok(asked),
            ComputeType::Amx => {
                "this processor has no tiles of bf16 (AMX, with AVX-512), the system does not let them be \
                 used (Linux from 5.16 on does), or they add up otherwise; set it to \"auto\" or \"f32\""
            }
            ComputeType::F32 | ComputeType::Int8 => unreachable!("any processor has them"),
            ComputeType::Bf16 => {
                "this processor has no products of bf16 (AVX512-BF16); set it to \"auto\" or \"f32\""
            }
        };
        Err(format!(
            "model.arithmetic is \"{}\", but {why}",
            self.name()
        ))
    }

    fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Amx => "amx",
            Self::Int8 => "int8",
        }
    }
}

/// How keys and values of past tokens are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyValues {
    /// As f16 where the model's matrices are kept in sixteen bits or less, else as f32.
    Auto,
    /// As they are computed.
    F32,
    /// Rounded to f16, in half the memory.
    F16,
}

impl KeyValues {
    /// What it comes to for a model, where a device serves or not.
    pub fn format(self, model: &Model, on_device: bool) -> Result<KvFormat, String> {
        match self {
            Self::F32 => Ok(KvFormat::F32),
            Self::Auto if on_device || model.weights.attends_in_f32() => Ok(KvFormat::F32),
            Self::F16 if on_device => Err(
                "model.kv is \"f16\", but a CUDA device keeps keys and values as f32; set it to \"auto\""
                    .to_owned(),
            ),
            Self::Auto | Self::F16 => Ok(KvFormat::F16),
        }
    }
}

/// Where data lives.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct StoreConfig {
    /// Folder of the ledger and the adapters; empty takes the user's data folder.
    pub data_dir: String,
    /// Address of a PostgreSQL database that has the ledger; empty keeps it in a file of the folder.
    pub url: String,
    /// Object store that has the adapters, `s3://BUCKET/PREFIX` or `file:///FOLDER`; empty keeps them in the folder.
    pub objects: String,
    /// Most bytes of the local copies of what an object store has.
    pub objects_cache_bytes_max: u64,
    /// Connections that only read.
    pub readers: u32,
    /// How long to wait for another process that holds the database's lock, in milliseconds.
    pub busy_timeout_ms: u64,
    /// Whether a process waits while another one judges, trains or keeps memories with the same database, and takes over when
    /// that one ends; else it is refused.
    pub stand_by: bool,
    /// Most bytes of the database; 0 leaves it to the disk.
    pub database_bytes_max: u64,
    /// Most bytes of the spool, which takes turns while the database does not answer; 0 takes nothing.
    pub spool_bytes_max: u64,
    /// Most bytes of one adapter or checkpoint file.
    pub blob_file_bytes_max: u64,
    /// Time between two passes that read again what is served, in milliseconds; 0 reads at the start only.
    pub scrub_interval_ms: u64,
    /// Days that turns are kept with their words; 0 keeps them for good.
    pub keep_turns_days: u32,
    /// The same for some owners, each `OWNER=DAYS`.
    pub keep_turns_days_of: Vec<String>,
    /// Days that log-probs, sampling masks and experts of turns are kept; 0 keeps them for good.
    pub keep_logprobs_days: u32,
    /// Days that votes on verdicts are kept; 0 keeps them for good.
    pub keep_votes_days: u32,
    /// Days that reports of refused candidates are kept; 0 keeps them for good.
    pub keep_reports_days: u32,
    /// Time between two passes that remove what is older, in milliseconds.
    pub keep_interval_ms: u64,
}

/// The time so many days before now; none for 0.
fn days_before(now_ms: Millis, days: u32) -> Option<Millis> {
    (days > 0).then(|| now_ms.saturating_sub(Millis::from(days) * 86_400_000))
}

impl StoreConfig {
    /// The folder, with the default resolved.
    pub fn folder(&self) -> Result<PathBuf, String> {
        if !self.data_dir.is_empty() {
            return Ok(PathBuf::from(&self.data_dir));
        }
        let set = |name: &str| {
            std::env::var_os(name)
                .filter(|v| !v.is_empty())
                .map(PathBuf::from)
        };
        set("XDG_DATA_HOME")
            .or_else(|| set("HOME").map(|home| home.join(".local/share")))
            .map(|folder| folder.join("hone"))
            .ok_or_else(|| {
                "there is no home folder to keep data in; set store.data_dir or --data".to_owned()
            })
    }

    /// The folder of the spool in `folder`.
    pub fn spool(&self, folder: &Path) -> PathBuf {
        folder.join("spool")
    }

    /// Opens what has the adapters: the object store of `store.objects`, else a folder of `folder`.
    pub fn blobs(&self, folder: &Path) -> Result<Arc<dyn Blobs>, BlobError> {
        let most = self.blob_file_bytes_max;
        if self.objects.is_empty() {
            return Ok(Arc::new(FsBlobs::open(&folder.join("blobs"), most)?));
        }
        let (cache, bytes) = (folder.join("objects"), self.objects_cache_bytes_max);
        let objects = ObjectBlobs::open(&self.objects, &cache, bytes, most)?;
        Ok(Arc::new(objects))
    }

    /// How the ledger in `folder` is opened.
    pub fn sqlite(&self, folder: &Path) -> SqliteConfig {
        SqliteConfig {
            readers: self.readers,
            busy_timeout_ms: self.busy_timeout_ms,
            bytes_max: Some(self.database_bytes_max).filter(|n| *n > 0),
            ..SqliteConfig::in_folder(folder)
        }
    }

    /// Where the ledger is: in the database of `store.url`, else in `folder`. `loops` are those of this process.
    pub fn place(&self, folder: &Path, loops: &[Loop]) -> LedgerPlace {
        if self.url.is_empty() {
            return LedgerPlace::Sqlite(self.sqlite(folder));
        }
        let alone = [
            (Loop::Judge, Role::Judge),
            (Loop::Train, Role::Train),
            (Loop::Memory, Role::Memory),
        ];
        let alone = alone.into_iter().filter(|(name, _)| loops.contains(name));
        LedgerPlace::Postgres(PostgresConfig {
            readers: self.readers,
            patience_ms: self.busy_timeout_ms,
            roles: alone.map(|(_, role)| role).collect(),
            folder: Some(folder.to_owned()),
            ..PostgresConfig::at(&self.url)
        })
    }

    pub(super) fn validate(&self) -> Result<(), String> {
        if self.readers == 0 || self.blob_file_bytes_max == 0 {
            return Err(
                "store.readers and store.blob_file_bytes_max must be at least 1".to_owned(),
            );
        }
        if !self.objects.is_empty() && self.url.is_empty() {
            return Err(
                "store.objects is for several processes on one database; set store.url as well"
                    .to_owned(),
            );
        }
        if self.keep_interval_ms == 0 {
            return Err("store.keep_interval_ms must be at least 1".to_owned());
        }
        self.kept_of().map(drop)
    }

    /// Owners with the days that their turns are kept.
    fn kept_of(&self) -> Result<Vec<(String, u32)>, String> {
        let one = |text: &String| {
            let parts = text.rsplit_once('=');
            let parts = parts.and_then(|(owner, days)| Some((owner, days.parse::<u32>().ok()?)));
            match parts {
                Some((owner, days)) if !owner.is_empty() => Ok((owner.to_owned(), days)),
                _ => Err(format!(
                    "store.keep_turns_days_of has {text:?}; write OWNER=DAYS, such as \"ann=30\""
                )),
            }
        };
        self.keep_turns_days_of.iter().map(one).collect()
    }

    /// What goes now; `held_out_kept` held-out turns of each scope stay.
    pub fn retention(&self, now_ms: Millis, held_out_kept: usize) -> Retention {
        let owners = self.kept_of().unwrap_or_default().into_iter();
        Retention {
            turns: EndedBefore {
                all_ms: days_before(now_ms, self.keep_turns_days),
                owners: owners
                    .map(|(owner, days)| (owner, days_before(now_ms, days)))
                    .collect(),
            },
            logprobs_before_ms: days_before(now_ms, self.keep_logprobs_days),
            votes_before_ms: days_before(now_ms, self.keep_votes_days),
            reports_before_ms: days_before(now_ms, self.keep_reports_days),
            held_out_kept,
        }
    }
}

/// What is served.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// What answers asks.
    pub engine: Engine,
    /// A Hugging Face folder, or a hub id; empty takes the built-in starter model.
    pub path: String,
    /// How its matrices are kept; serving and training see the same numbers.
    pub weights: Weights,
    /// How products with them are computed.
    pub arithmetic: Products,
    /// How keys and values of past tokens are kept.
    pub kv: KeyValues,
    /// Name in `/v1/models`; empty takes the folder's or file's name, or `hone-starter`.
    pub name: String,
    /// Further names that requests may use.
    pub aliases: Vec<String>,
    /// Compute threads of serving and training; 0 takes one per core.
    pub threads: usize,
    /// What computes the steps of serving.
    pub device: Choice,
    /// Questions that every trained candidate has to answer before it is published.
    pub probe_prompts: Vec<String>,
    /// Everyday prompts on which hints are rehearsed beside the user's own, so that learning a
    /// manner costs no knowledge.
    pub rehearsal_prompts: Vec<String>,
}

impl ModelConfig {
    /// Whether the model in the program is served.
    pub fn is_built_in(&self) -> bool {
        self.engine == Engine::Builtin && self.path.is_empty()
    }

    /// The name in `/v1/models`.
    pub fn served_name(&self) -> String {
        if !self.name.is_empty() {
            return self.name.clone();
        }
        let folder = std::path::Path::new(&self.path).file_name();
        match (self.engine, folder) {
            (Engine::Null, _) => "hone-null".to_owned(),
            (Engine::Builtin, Some(folder)) => {
                let name = folder.to_string_lossy();
                let name = name.strip_suffix(".gguf").unwrap_or(&name);
                // `NAME@...` names policies; here it is the revision of a hub id.
                name.split('@').next().unwrap_or_default().to_owned()
            }
            (Engine::Builtin, None) => "hone-starter".to_owned(),
        }
    }

    /// Number of compute threads.
    pub fn thread_count(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            n => n,
        }
    }

    pub(super) fn validate(&self) -> Result<(), String> {
        if self.threads > 1_024 {
            return Err("model.threads must be at most 1024".to_owned());
        }
        Ok(())
    }
}

/// Logs.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LogConfig {
    /// What is logged, such as `info` or `warn,hone=debug`.
    pub level: String,
    /// How.
    pub format: LogFormat,
}

/// The form of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}
