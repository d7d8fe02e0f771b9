//! Processes that try tasks, started and ended by the work that waits, as KEDA would.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hone_tests::{client, get, post, temporary};
use serde_json::{Value, json};

use crate::postgres::{broken_laws, database, fresh};
use crate::program::{Server, program, serving};
use crate::rollouts::{guest, short};

const DATABASE: &str = "scaling";
/// How often the scaler looks; KEDA's `pollingInterval`.
const POLL: Duration = Duration::from_secs(2);
/// Most polls until everything is done.
const POLLS: usize = 120;
/// Jobs of one process, as `rollout.concurrency` says.
const PER_PROCESS: u64 = 2;

/// The arithmetic of KEDA 2 and of the autoscaler behind it for an external metric with a target per replica: as many
/// replicas as bring the mean to the target, no change within a tenth of it, at most twice as many or four more at once,
/// never fewer than any of the last looks asked for, one from none as soon as there is something, and none after some looks
/// at nothing.
struct Scaler {
    target: f64,
    max: u64,
    replicas: u64,
    asked: VecDeque<u64>,
    idle: usize,
}

impl Scaler {
    /// Looks at which fewer are not yet believed (`stabilizationWindowSeconds`), and after which none are left (`cooldownPeriod`).
    const LOOKS: usize = 3;

    fn new(target: u64, max: u64) -> Self {
        Self {
            target: target as f64,
            max,
            replicas: 0,
            asked: VecDeque::new(),
            idle: 0,
        }
    }

    /// How many there are to be when the metric is this.
    fn look(&mut self, value: u64) -> u64 {
        self.idle = if value == 0 { self.idle + 1 } else { 0 };
        if self.replicas == 0 || self.idle >= Self::LOOKS {
            // KEDA itself decides between none and one.
            self.asked.clear();
            self.replicas = u64::from(value > 0);
            return self.replicas;
        }
        let ratio = value as f64 / (self.target * self.replicas as f64);
        let wanted = match (ratio - 1.0).abs() <= 0.1 {
            true => self.replicas,
            false => (value as f64 / self.target).ceil() as u64,
        };
        self.asked.push_back(wanted);
        if self.asked.len() > Self::LOOKS {
            self.asked.pop_front();
        }
        let held = self.asked.iter().copied().max().unwrap_or(wanted);
        let quickest = (self.replicas * 2).max(self.replicas + 4);
        self.replicas = held.clamp(1, self.max).min(quickest);
        self.replicas
    }
}

/// How often the number of replicas turned from more to fewer or from fewer to more.
fn turns(replicas: &[u64]) -> usize {
    let moves = replicas.windows(2).map(|pair| pair[1].cmp(&pair[0]));
    let moves: Vec<_> = moves.filter(|way| way.is_ne()).collect();
    moves.windows(2).filter(|pair| pair[0] != pair[1]).count()
}

#[test]
fn the_scaler_counts_as_keda_does() {
    let mut scaler = Scaler::new(2, 5);
    let values = [0, 9, 9, 9, 10, 4, 1, 1, 0, 0, 0, 0];
    let seen = values.map(|value| scaler.look(value));
    assert_eq!(seen, [0, 1, 5, 5, 5, 5, 5, 2, 1, 1, 0, 0]);
    assert_eq!(turns(&seen), 1);
    assert_eq!(turns(&[0, 2, 1, 2]), 2);
}

/// The gateway, and the processes that try tasks.
struct Fleet {
    folder: PathBuf,
    url: String,
    gateway: Server,
    workers: Vec<Server>,
    begun: usize,
}

impl Fleet {
    fn process(folder: &Path, url: &str, loops: &[&str]) -> Server {
        let config = format!(
            "loops = {loops:?}\n[store]\nurl = {url:?}\nobjects = \"file://{}\"\n[tools]\nguest = {:?}\n\
             [rollout]\ntick_ms = 100\nlease_ms = 2000\nconcurrency = {PER_PROCESS}\n",
            folder.parent().unwrap().join("objects").display(),
            guest().display().to_string(),
        );
        let arguments = serving(folder, &config);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        Server::start(program(&arguments)).unwrap()
    }

    fn new(folder: &Path, url: &str) -> Self {
        Self {
            folder: folder.to_owned(),
            url: url.to_owned(),
            gateway: Self::process(&folder.join("gateway"), url, &["serve", "collect"]),
            workers: Vec::new(),
            begun: 0,
        }
    }

    /// Starts and ends workers until there are so many. The last ones end, as a deployment may choose.
    async fn resize(&mut self, wanted: u64) {
        while (self.workers.len() as u64) < wanted {
            self.begun += 1;
            let folder = self.folder.join(format!("worker-{}", self.begun));
            let url = self.url.clone();
            let start = move || Self::process(&folder, &url, &["serve", "collect", "rollout"]);
            self.workers
                .push(tokio::task::spawn_blocking(start).await.unwrap());
        }
        while self.workers.len() as u64 > wanted {
            let worker = self.workers.pop().unwrap();
            let ended = tokio::task::spawn_blocking(|| worker.stop()).await.unwrap();
            assert_eq!(ended.code, Some(0), "{ended:?}");
        }
    }

    /// The work that waits, as the API has it.
    async fn scaling(&self) -> Value {
        let http = client().unwrap();
        let list: Value = get(&http, &self.gateway.url, "/v1/scaling").await.unwrap();
        list["data"][0].clone()
    }

    /// The same by the page that Prometheus reads, and by the database.
    async fn elsewhere(&self) -> [u64; 2] {
        let page = client().unwrap();
        let page = page.get(format!("{}/metrics", self.gateway.url));
        let page = page.send().await.unwrap().text().await.unwrap();
        let line = page
            .lines()
            .find_map(|line| line.strip_prefix("hone_scaling_open{loop=\"rollout\"} "));
        let said = database::Server::shared().asked(
            DATABASE,
            "select open from hone.scaling where role = 'rollout'",
        );
        [line.unwrap(), said.trim()].map(|number| number.parse().unwrap())
    }

    /// Scales until nothing is left to do and nobody is left who did it; the replicas of each look, and after how many looks
    /// it was done.
    async fn work(&mut self, scaler: &mut Scaler) -> (Vec<u64>, usize) {
        let (mut seen, mut done) = (vec![scaler.replicas], None);
        for look in 1..=POLLS {
            let open = self.scaling().await["open"].as_u64().unwrap();
            if open == 0 && done.is_none() {
                done = Some(look);
            }
            let replicas = scaler.look(open);
            self.resize(replicas).await;
            seen.push(replicas);
            if replicas == 0 {
                return (seen, done.unwrap());
            }
            tokio::time::sleep(POLL).await;
        }
        panic!("it is never done: {seen:?}, {}", self.scaling().await);
    }
}

/// A task that takes a moment.
fn task(country: &str) -> Value {
    let mut task = short(country, true);
    let test = task["tests"]["test.sh"].as_str().unwrap();
    task["tests"]["test.sh"] = json!(format!("sleep 0.5; {test}"));
    task
}

/// Ten times the work starts more processes, all of it is done once, and none is left at the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_come_with_the_work_and_go_with_it() {
    let (folder, _) = temporary().unwrap();
    let url = fresh(DATABASE).await;
    let mut fleet = Fleet::new(folder.path(), &url);
    let http = client().unwrap();
    let at = fleet.gateway.url.clone();
    let tasks = ["France", "Italy", "Spain", "Japan"].map(task);
    // The gateway takes orders although no process works on them.
    let set = json!({"name": "capitals", "tasks": tasks});
    let set = post(&http, &at, "/v1/task-sets", set).await.unwrap();
    let mut scaler = Scaler::new(PER_PROCESS, 3);
    let (seen, _) = fleet.work(&mut scaler).await;
    assert!(seen.contains(&1), "{seen:?}");

    for groups in [2_u64, 20] {
        let order = json!({
            "task_set": set["id"], "agent": "answer", "evaluate": true, "version": 0, "attempts": 2, "groups": groups,
            "tokens_max": 24,
        });
        let order = post(&http, &at, "/v1/rollouts", order).await.unwrap();
        let row = fleet.scaling().await;
        let open = groups * 2;
        assert_eq!(row["to_begin"], open, "{row}");
        assert_eq!(row["wanted"], open.div_ceil(PER_PROCESS), "{row}");
        assert_eq!(fleet.elsewhere().await, [open; 2]);
        let begun = Instant::now();
        let (seen, done) = fleet.work(&mut scaler).await;
        println!(
            "{open} episodes: done after {done} looks, all ended after {:.0?}; processes {seen:?}",
            begun.elapsed()
        );
        assert!(turns(&seen) <= 1, "{seen:?}");
        assert!(groups < 20 || seen.contains(&3), "{seen:?}");
        let path = format!("/v1/rollouts/{}", order["id"].as_str().unwrap());
        let order = get(&http, &at, &path).await.unwrap();
        let of = |state: &str| order["episodes"][state].as_u64().unwrap_or(0);
        assert_eq!(of("done"), open, "{order}");
        assert_eq!(order["status"], "done", "{order}");
    }
    fleet.gateway.stop();
    assert_eq!(broken_laws(&url).await, Vec::<String>::new());
}
