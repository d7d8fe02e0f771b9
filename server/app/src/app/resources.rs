//! What every loop shares, opened once.

use std::path::Path;
use std::sync::{Arc, Mutex};

use hone_blobs::FsBlobs;
use hone_collect::{Carry, SharedIndex, Spool};
use hone_domain::{BlobError, BlobKey, Blobs, Consents, Loop, Policies, SessionIndex};
use hone_ledger::{
    Answers, Changes, Jobs, LateTurns, Ledger, LedgerError, Memories, People, Personal, Skills,
    Storage, Versions,
};
use hone_ledger_sql::StoredLedger;
use hone_memory::SharedMemories;
use hone_runtime::{Clock, Ids, Latest, ShutdownTrigger, StatusRegistry, SystemClock, SystemIds};

use crate::config::Config;
use hone_accounts::Directory;
use hone_accounts::rate_limit::RateLimiter;
use hone_inference::learning::{Corrections, Lessons, Rules};
use hone_monitor::telemetry::{Telemetry, Traced};
use hone_monitor::troubles::Troubles;
use hone_net::outbound::Outbound;
use hone_rollouts::Jails;

/// What every loop shares.
#[derive(Clone)]
pub(super) struct Resources {
    pub(super) config: Arc<Config>,
    pub(super) ledger: Arc<dyn Ledger>,
    pub(super) outbound: Arc<Outbound>,
    pub(super) telemetry: Option<Arc<Telemetry>>,
    pub(super) late: Arc<LateTurns>,
    pub(super) people: Arc<Directory>,
    pub(super) audit: Arc<dyn People>,
    /// The same ledger, as people see it.
    pub(super) personal: Arc<dyn Personal>,
    /// The same ledger, as memory sees it.
    pub(super) memories: Arc<dyn Memories>,
    pub(super) skills: Arc<dyn Skills>,
    /// The same ledger, as rollouts see it.
    pub(super) jobs: Arc<dyn Jobs>,
    /// The jails that agents work in.
    pub(super) jails: Arc<Jails>,
    /// What answers are shown of it.
    pub(super) remembered: Arc<SharedMemories>,
    /// The same ledger, as what it takes of the disk.
    pub(super) storage: Arc<dyn Storage>,
    /// The same ledger, as retries see it.
    pub(super) answers: Arc<dyn Answers>,
    pub(super) rules: Arc<Rules>,
    pub(super) rate_limiter: Arc<RateLimiter>,
    pub(super) versions: Arc<dyn Versions>,
    pub(super) blobs: Arc<dyn Blobs>,
    /// The same ledger, as what other processes change.
    pub(super) changes: Arc<dyn Changes>,
    /// The newest change that is in what was read at the start.
    pub(super) changes_seen: u64,
    /// The newest turn at the start.
    pub(super) turns_seen: i64,
    pub(super) policies: Latest<Policies>,
    /// The training job under way.
    pub(super) under_way: Latest<Option<hone_train::UnderWay>>,
    pub(super) index: SharedIndex,
    /// Where turns wait while the ledger does not answer.
    pub(super) spool: Arc<Spool>,
    /// What collect keeps over its restarts.
    pub(super) carry: Carry,
    pub(super) registry: StatusRegistry,
    /// What is known to be wrong.
    pub(super) troubles: Troubles,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) ids: Arc<dyn Ids>,
    /// Stops judge and train, then collect.
    pub(super) stops: [ShutdownTrigger; 2],
}

impl Resources {
    /// The ledger for judge and train, whose work is traced where a collector is configured.
    pub(super) fn traced(&self) -> Arc<dyn Ledger> {
        match &self.telemetry {
            None => self.ledger.clone(),
            Some(telemetry) => Arc::new(Traced::new(
                self.ledger.clone(),
                telemetry.clone(),
                self.clock.clone(),
            )),
        }
    }
}

/// Settles the turns whose clients were told that they are not collected, before anything can learn from them. Some may
/// lie in the spool: these are told to it, and stay noted until a start finds it empty.
/// Where the disk is full, collect does it later: that keeps nobody from being answered.
async fn settle_late(
    late: &LateTurns,
    spool: &Spool,
    ledger: &dyn Ledger,
    collects: bool,
    carry: &Carry,
) -> Result<(), String> {
    let settled = match spool.is_empty() {
        true => late.settle(ledger).await.map(drop),
        false => {
            spool.mark_late(late.all().map_err(|error| error.to_string())?);
            late.settle_and_keep(ledger).await.map(drop)
        }
    };
    match settled {
        Ok(()) => Ok(()),
        Err(LedgerError::Failed(error)) if collects => {
            tracing::warn!(
                error,
                "answers that were told not to be kept are settled later, before anything follows them"
            );
            let turns = late.all().map_err(|error| error.to_string())?;
            carry.inherit(turns);
            Ok(())
        }
        Err(error) => Err(error.to_string()),
    }
}

/// Copies adapters of the data folder to an object store that does not have them yet, and says whether it has any of those
/// that the ledger keeps.
fn adopt(to: &dyn Blobs, folder: &Path, kept: &[BlobKey]) -> Result<bool, BlobError> {
    if folder.is_dir() {
        let from = FsBlobs::open(folder, u64::MAX)?;
        for key in kept {
            let names = from.files(key)?;
            if names.is_empty() || to.has(key).unwrap_or(true) {
                continue;
            }
            let files = names.into_iter().map(|name| {
                let bytes = from.get(key, &name)?;
                Ok((name, bytes))
            });
            to.put(key, &files.collect::<Result<Vec<_>, BlobError>>()?)?;
            tracing::info!(
                blob = key.as_str(),
                "an adapter was copied to the object store"
            );
        }
    }
    // A store that is away may have them.
    Ok(kept.iter().any(|key| to.has(key).unwrap_or(true)))
}

fn open_spool(folder: &Path, bytes_max: u64) -> Result<Spool, String> {
    Spool::open(folder, bytes_max).map_err(|error| {
        format!(
            "the spool {} cannot be read ({error}); make it readable and writable for this user",
            folder.display()
        )
    })
}

/// Opens what has the adapters. Refuses a place that has none of those that the ledger keeps: the ledger lies elsewhere, and
/// they would all be taken for damaged.
async fn open_blobs(
    config: &Config,
    ledger: &dyn StoredLedger,
    folder: &Path,
) -> Result<Arc<dyn Blobs>, String> {
    let kept = ledger.kept_blobs().await.map_err(|e| e.to_string())?;
    let kept: Vec<BlobKey> = kept.into_iter().map(|(key, _)| key).collect();
    let (count, own) = (kept.len(), folder.join("blobs"));
    let (store, place, had_own) = (config.store.clone(), folder.to_owned(), own.exists());
    let open = move || {
        let blobs = store.blobs(&place)?;
        let has_any = match store.objects.is_empty() {
            true => had_own,
            false => adopt(&*blobs, &own, &kept)?,
        };
        Ok::<_, BlobError>((blobs, has_any))
    };
    let opened = tokio::task::spawn_blocking(open).await;
    let opened = opened.map_err(|e| e.to_string())?;
    let (blobs, has_any) = opened.map_err(|e| e.to_string())?;
    if count == 0 || has_any {
        return Ok(blobs);
    }
    let objects = &config.store.objects;
    Err(match objects.is_empty() {
        true => format!(
            "the ledger keeps {count} adapters and the data folder {} has none of them; start with the folder that has them \
             (store.data_dir, --data), or copy its blobs here",
            folder.display()
        ),
        false => format!(
            "the ledger keeps {count} adapters and store.objects {objects} has none of them; set store.objects to the store that has them"
        ),
    })
}

/// What is published, as the ledger has it.
pub(super) async fn published(
    ledger: &dyn Ledger,
    versions: &dyn Versions,
) -> Result<Policies, LedgerError> {
    let heads = Policies::from_heads(ledger.heads().await?);
    let trials = versions.trials().await?;
    Ok(trials
        .into_iter()
        .fold(heads, |heads, trial| heads.on_trial(trial)))
}

/// Opens what stands beside the ledger; the error names the file and the remedy.
pub(super) async fn open(
    config: &Arc<Config>,
    ledger: Arc<dyn StoredLedger>,
) -> Result<Resources, String> {
    let folder = config.store.folder()?;
    let blobs = open_blobs(config, &*ledger, &folder).await?;
    let changes_seen = ledger.newest_change().await.map_err(|e| e.to_string())?;
    let turns_seen = ledger.newest_turn().await.map_err(|e| e.to_string())?;
    let late = LateTurns::open(&folder)
        .map_err(|error| format!("{} cannot be written: {error}", folder.display()))?;
    let spool = open_spool(&config.store.spool(&folder), config.store.spool_bytes_max)?;
    let (carry, collects) = (Carry::default(), config.runs(Loop::Collect));
    settle_late(&late, &spool, &*ledger, collects, &carry).await?;
    let policies = published(&*ledger, &*ledger).await;
    let policies = policies.map_err(|e| e.to_string())?;
    let decided = ledger.consents().await.map_err(|e| e.to_string())?;
    let lessons = lessons_of(&config.train);
    let consents = Consents::from_stored(decided);
    let rules = Rules::new(config.learning.clone(), lessons, consents);
    let remembered = SharedMemories::load(ledger.clone(), ledger.clone()).await;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let store: Arc<dyn People> = ledger.clone();
    let outbound = Arc::new(Outbound::new(&config.outbound)?);
    let name = config.model.served_name();
    let telemetry = Telemetry::start(&config.telemetry, &outbound, name)?;
    let times = (store.clone(), clock.clone());
    let people = Directory::open(times, config.people.clone(), Some(outbound.clone())).await;
    let bounds = config.http.index(config.binding.retry_ms);
    let index = SessionIndex::new(bounds).with_habits(config.binding.habits()?);
    Ok(Resources {
        telemetry,
        outbound,
        people: Arc::new(people.map_err(|e| e.to_string())?),
        audit: store,
        rate_limiter: Arc::new(RateLimiter::new(config.limits, clock.clone())),
        index: Arc::new(Mutex::new(index)),
        spool: Arc::new(spool),
        carry,
        config: config.clone(),
        ledger: ledger.clone(),
        late: Arc::new(late),
        versions: ledger.clone(),
        answers: ledger.clone(),
        storage: ledger.clone(),
        memories: ledger.clone(),
        skills: ledger.clone(),
        jobs: ledger.clone(),
        jails: Arc::new(Jails::new(config.tools.clone())),
        remembered: Arc::new(remembered.map_err(|e| e.to_string())?),
        personal: ledger.clone(),
        changes: ledger,
        rules: Arc::new(rules),
        blobs,
        changes_seen,
        turns_seen,
        policies: Latest::new(policies),
        under_way: Latest::new(None),
        registry: StatusRegistry::new(),
        troubles: Troubles::default(),
        clock,
        ids: Arc::new(SystemIds),
        stops: [ShutdownTrigger::new(), ShutdownTrigger::new()],
    })
}

/// What training makes of what people say about an answer.
fn lessons_of(train: &hone_train::Config) -> Lessons {
    let uses = train.method.uses(true, true);
    let corrections = match (uses.correction, uses.hint) {
        (true, _) => Corrections::Imitated,
        (false, true) => Corrections::Hint,
        (false, false) => Corrections::Score,
    };
    Lessons {
        corrections,
        replays: uses.correction && train.replay_turns > 0,
        credit: train.credit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::defaults::defaults;

    #[test]
    fn what_a_better_answer_teaches_follows_the_method() {
        use hone_train::Method;
        let mut train: hone_train::Config = defaults("train");
        let late =
            |lessons: Lessons| [false, true].map(|is| lessons.too_late(is).contains("later"));
        for (method, corrections, later) in [
            (Method::BinaryReward, Corrections::Score, false),
            (Method::RltfSd, Corrections::Score, false),
            (Method::Distillation, Corrections::Hint, false),
            (Method::Supervised, Corrections::Imitated, true),
            (Method::Combined, Corrections::Imitated, true),
        ] {
            train.method = method;
            train.replay_turns = 4;
            let lessons = lessons_of(&train);
            assert_eq!(lessons.corrections, corrections, "{method:?}");
            assert_eq!(late(lessons), [false, later], "{method:?}");
            train.replay_turns = 0;
            assert_eq!(late(lessons_of(&train)), [false, false], "{method:?}");
        }
    }
}
