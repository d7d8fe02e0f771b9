//! The one loop.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use crate::{Clock, Effects, Event, Inbox, LoopPhase, LoopState, Shutdown, StatusRegistry, Switch};

/// How a loop is driven.
#[derive(Clone)]
pub struct DriveConfig {
    /// The loop's name in the status registry.
    pub name: &'static str,
    /// How often it looks for work that no message announced.
    pub tick: Duration,
    /// Most effects under way at once; further ones wait, and so does the inbox.
    pub effects_in_flight_max: usize,
    /// How long finishing may take after the stop began.
    pub drain_deadline: Duration,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The status registry.
    pub registry: StatusRegistry,
}

/// How a drive ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Everything under way was finished.
    Drained,
    /// The deadline came first; effects were abandoned.
    Deadline,
}

/// Runs a loop until shutdown, then drains it. The inbox is read only while there is room for
/// effects, so a slow effect makes its queue fill up and never its memory.
pub async fn drive<R, H>(
    mut state: R,
    effects: H,
    inbox: Inbox<R::Input>,
    shutdown: Shutdown,
    config: DriveConfig,
) -> Ended
where
    R: LoopState,
    H: Effects<R>,
{
    let switch = config.registry.enter(config.name);
    let mut running = FuturesUnordered::new();
    let mut waiting = std::collections::VecDeque::new();
    let mut ticks = interval(config.tick);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    let mut draining: Option<Instant> = None;
    let mut closed = false;
    let mut next = Some(Event::Started);
    loop {
        if let Some(event) = next.take() {
            waiting.extend(state.step(config.clock.now_ms(), event));
            let phase = match draining {
                Some(_) => LoopPhase::Draining,
                None => LoopPhase::Running,
            };
            let in_flight = running.len() + waiting.len();
            write_status(&config, phase, &state, &inbox, in_flight);
        }
        while running.len() < config.effects_in_flight_max.max(1) {
            let Some(effect) = waiting.pop_front() else {
                break;
            };
            running.push(perform(effects.clone(), switch.clone(), effect));
        }
        let at_rest = running.is_empty() && waiting.is_empty() && state.is_idle();
        if draining.is_some() && at_rest && inbox.stats().depth == 0 {
            return Ended::Drained;
        }
        let deadline = draining.unwrap_or_else(|| Instant::now() + Duration::from_secs(86_400));
        let paused = draining.is_none() && switch.is_paused();
        if paused {
            config
                .registry
                .update(config.name, |s| s.state = LoopPhase::Paused);
        }
        next = tokio::select! {
            biased;
            () = sleep_until(deadline), if draining.is_some() => return Ended::Deadline,
            () = shutdown.wait(), if draining.is_none() => {
                draining = Some(Instant::now() + config.drain_deadline);
                Some(Event::Draining)
            }
            Some(report) = running.next(), if !running.is_empty() => Some(Event::Reported(report)),
            () = switch.until(!paused), if draining.is_none() => None,
            value = inbox.recv(), if waiting.is_empty() && !paused && !closed => {
                closed = value.is_none();
                value.map(Event::Arrived)
            }
            _ = ticks.tick(), if !paused => Some(Event::Ticked),
        };
    }
}

/// Carries out an effect; while the loop is paused it neither begins nor ends.
async fn perform<R: LoopState, H: Effects<R>>(
    effects: H,
    switch: Switch,
    effect: R::Effect,
) -> R::Report {
    switch.free().await;
    let report = effects.perform(effect).await;
    switch.free().await;
    report
}

fn write_status<R: LoopState>(
    config: &DriveConfig,
    phase: LoopPhase,
    state: &R,
    inbox: &Inbox<R::Input>,
    in_flight: usize,
) {
    let stats = inbox.stats();
    config.registry.update(config.name, |s| {
        s.state = phase;
        s.steps += 1;
        s.last_step_ms = config.clock.now_ms();
        s.effects_in_flight = in_flight;
        s.queue_depth = stats.depth;
        s.queue_limit = stats.limit;
        s.queue_dropped = stats.dropped;
        s.numbers = state.observe().into_iter().collect();
    });
}

#[cfg(test)]
#[path = "drive_tests.rs"]
mod tests;
