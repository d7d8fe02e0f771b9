//! Sends tasks to a server in parts, and waits until enough of them are checked.

use std::collections::BTreeMap;
use std::time::Duration;

use hone_api_types::tasks::{FileContent, TaskRequest};
use reqwest::Method;
use serde_json::{Value, json};

use super::super::call::{Call, Server, send};
use super::miner::Miner;

/// Most bytes of a request, below what servers take where nobody says otherwise.
const PART_BYTES_MAX: usize = 6 << 20;
/// Tasks that are being checked at once.
const AHEAD: u64 = 8;
/// Tasks that are checked beside those that would be enough, because some are refused.
const SPARE: u64 = 2;
/// How often the set is looked at, and how often at most.
const LOOK_EVERY: Duration = Duration::from_millis(500);
const LOOKS_MAX: u32 = 12 * 60 * 60;
/// What stands where the end of tests' output begins in a note.
const DETAILS: [&str; 2] = [" (reward", ": "];

/// A set that grows.
pub(super) struct Upload<'a> {
    server: &'a Server,
    name: String,
    held_out: f64,
    /// Its id, once it is made.
    id: Option<String>,
}

/// How many tasks of a set are where.
struct States {
    new: u64,
    ready: u64,
    refused: u64,
}

impl States {
    fn of(set: &Value) -> Self {
        let of = |state: &str| set["states"][state].as_u64().unwrap_or(0);
        Self {
            new: of("new"),
            ready: of("ready"),
            refused: of("refused") + of("quarantined"),
        }
    }
}

async fn post(server: &Server, path: String, body: Value) -> Result<Value, String> {
    let call = Call {
        method: Method::POST,
        path,
        body: Some(body),
        show: |_| String::new(),
    };
    send(server, &call).await
}

/// A content in the form that takes fewer bytes.
fn content_of(bytes: Vec<u8>) -> FileContent {
    let escaped = bytes
        .iter()
        .filter(|byte| **byte < 32 && !b"\n\r\t".contains(byte))
        .count();
    match escaped > bytes.len() / 20 {
        true => FileContent::bytes_of(&bytes),
        false => FileContent::of(bytes),
    }
}

impl<'a> Upload<'a> {
    pub(super) fn new(server: &'a Server, name: String, held_out: f64) -> Self {
        Self {
            server,
            name,
            held_out,
            id: None,
        }
    }

    /// The id of the set, which is made when the first task is there.
    async fn set(&mut self) -> Result<String, String> {
        if let Some(id) = &self.id {
            return Ok(id.clone());
        }
        let made = post(
            self.server,
            "/v1/task-sets".to_owned(),
            json!({ "name": self.name }),
        )
        .await?;
        let id = made["id"]
            .as_str()
            .ok_or("the server named no set")?
            .to_owned();
        self.id = Some(id.clone());
        Ok(id)
    }

    async fn add(&mut self, miner: &mut Miner, tasks: Vec<TaskRequest>) -> Result<(), String> {
        let path = format!("/v1/task-sets/{}/tasks", self.set().await?);
        let contents = miner.drafter.contents.take().into_values();
        let contents = contents.map(|content| serde_json::to_value(content_of(content)));
        for files in parts(contents)? {
            post(self.server, path.clone(), json!({ "files": files })).await?;
        }
        let tasks = tasks.into_iter().map(serde_json::to_value);
        for tasks in parts(tasks)? {
            let body = json!({ "tasks": tasks, "held_out_share": self.held_out });
            post(self.server, path.clone(), body).await?;
        }
        Ok(())
    }

    async fn look(&self) -> Result<Option<Value>, String> {
        let Some(id) = &self.id else {
            return Ok(None);
        };
        let call = Call::get(format!("/v1/task-sets/{id}"), |_| String::new());
        send(self.server, &call).await.map(Some)
    }

    /// Adds what a miner finds until so many tasks are ready, or there is no more; then all are checked.
    pub(super) async fn fill(mut self, miner: &mut Miner, wanted: u64) -> Result<Value, String> {
        let (mut is_over, mut said) = (false, String::new());
        for _ in 0..LOOKS_MAX {
            let set = self.look().await?;
            let states = States::of(set.as_ref().unwrap_or(&Value::Null));
            is_over |= states.ready >= wanted;
            let line = format!(
                "{} ready, {} refused, {} being checked; {}",
                states.ready,
                states.refused,
                states.new,
                miner.progress()
            );
            if line != said {
                eprintln!("{line}");
                said = line;
            }
            let left = (wanted.saturating_sub(states.ready) + SPARE).min(AHEAD);
            let mut tasks = Vec::new();
            while !is_over && states.new + (tasks.len() as u64) < left {
                match miner.next()? {
                    Some(task) => tasks.push(task),
                    None => is_over = true,
                }
            }
            if !tasks.is_empty() {
                self.add(miner, tasks).await?;
            } else if is_over && states.new == 0 {
                return self.end(miner, set, wanted);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Err(format!(
            "tasks are still being checked; hone tasks show {} says how far that is",
            self.name
        ))
    }

    fn end(&self, miner: &Miner, set: Option<Value>, wanted: u64) -> Result<Value, String> {
        let rows = set.as_ref().and_then(|set| set["data"].as_array());
        let notes = rows
            .into_iter()
            .flatten()
            .filter_map(|task| task["note"].as_str());
        let mut refused: BTreeMap<String, usize> = BTreeMap::new();
        for note in notes {
            let end = DETAILS.iter().filter_map(|mark| note.find(mark)).min();
            *refused
                .entry(note[..end.unwrap_or(note.len())].to_owned())
                .or_default() += 1;
        }
        list("not made into tasks", &miner.skipped);
        list("refused by their check", &refused);
        let ready = States::of(set.as_ref().unwrap_or(&Value::Null)).ready;
        if ready < wanted
            && let Some(hint) = miner.hint()
        {
            eprintln!("{hint}");
        }
        match set {
            Some(set) if ready > 0 => Ok(set),
            Some(_) => Err(format!(
                "no task is ready: the check refused all of them; hone tasks show {} says why",
                self.name
            )),
            None => Err(miner.nothing()),
        }
    }
}

fn list(what: &str, reasons: &BTreeMap<String, usize>) {
    if reasons.is_empty() {
        return;
    }
    eprintln!("{what}:");
    let mut reasons: Vec<_> = reasons.iter().collect();
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    for (reason, count) in reasons {
        eprintln!("{count:>6}  {reason}");
    }
}

/// Values in lists that fit a request each.
fn parts(
    values: impl Iterator<Item = serde_json::Result<Value>>,
) -> Result<Vec<Vec<Value>>, String> {
    let (mut parts, mut bytes) = (Vec::new(), 0);
    for value in values {
        let value = value.map_err(|error| error.to_string())?;
        let more = value.to_string().len() + 1;
        match parts.last_mut() {
            Some(part) if bytes + more <= PART_BYTES_MAX => {
                let part: &mut Vec<Value> = part;
                part.push(value);
                bytes += more;
            }
            _ => {
                parts.push(vec![value]);
                bytes = more;
            }
        }
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn parts_fit_a_request() {
        let values = [
            "x".repeat(PART_BYTES_MAX / 2),
            "a".to_owned(),
            "b".repeat(PART_BYTES_MAX - 9),
            "c".to_owned(),
        ];
        let all = parts(values.iter().map(|value| Ok(json!(value)))).unwrap();
        let sizes: Vec<usize> = all.iter().map(Vec::len).collect();
        assert_eq!(sizes, [2, 2]);
        assert_eq!(all.concat().len(), 4);
    }

    #[test]
    fn a_content_is_sent_in_few_bytes() {
        for bytes in [vec![0; 1_000], b"text\n".repeat(100), vec![255; 1_000]] {
            let sent = serde_json::to_string(&content_of(bytes.clone())).unwrap();
            assert!(sent.len() < bytes.len() * 3 / 2 + 20, "{sent}");
        }
    }
}
