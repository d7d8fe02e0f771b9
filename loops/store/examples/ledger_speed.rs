//! How many turns a second become durable, by batch size:
//! `cargo run --release -p hone-store --example ledger_speed [folder]`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hone_domain::{Message, Role, Turn, TurnId};
use hone_store::suite::World;
use hone_store::{Ledger, SqliteConfig, SqliteLedger};
use uuid::Uuid;

const TIME: Duration = Duration::from_secs(3);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = std::env::args()
        .nth(1)
        .map_or_else(std::env::temp_dir, Into::into);
    let folder = root.join(format!("hone-speed-{}", std::process::id()));
    println!(
        "{:>8} {:>12} {:>12} {:>12}",
        "batch", "prompt", "turns/s", "ms/commit"
    );
    for prompt in [200, 12_000] {
        for batch in [1, 8, 64] {
            let (turns_per_s, commit_ms) = measure(&folder, batch, prompt).await?;
            println!("{batch:>8} {prompt:>12} {turns_per_s:>12.0} {commit_ms:>12.2}");
        }
    }
    Ok(())
}

async fn measure(
    folder: &std::path::Path,
    batch: usize,
    prompt: u32,
) -> Result<(f64, f64), Box<dyn std::error::Error>> {
    let ledger = Arc::new(SqliteLedger::open(&SqliteConfig::in_folder(folder)).await?);
    let world = World::new(ledger.clone());
    // About four characters a token, as a long system prompt and a short question.
    let system = Message::text(Role::System, "word ".repeat(prompt as usize * 4 / 5));
    let (mut turns, mut commits) = (0, 0);
    let started = Instant::now();
    while started.elapsed() < TIME {
        let made: Vec<Turn> = (0..batch)
            .map(|i| {
                let mut turn = world.turn();
                turn.id = TurnId(Uuid::now_v7());
                turn.messages[0] = system.clone();
                turn.messages[1].content = format!("question {commits} {i}");
                turn.prompt_tokens = (0..prompt).collect();
                turn
            })
            .collect();
        ledger.record_turns(&made).await?;
        turns += batch;
        commits += 1;
    }
    let seconds = started.elapsed().as_secs_f64();
    ledger.close().await;
    std::fs::remove_dir_all(folder)?;
    Ok((turns as f64 / seconds, seconds * 1e3 / f64::from(commits)))
}
