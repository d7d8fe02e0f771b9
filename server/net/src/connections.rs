//! The connections that are open: who has which, and which of them is closed first where there is no room
//! for another.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::counted;
use crate::timed::UnderWay;

/// A connection that has just answered may still be sending: it is not closed before.
const JUST_ANSWERED: Duration = Duration::from_millis(250);

/// All open connections.
#[derive(Clone, Default)]
pub(crate) struct Connections(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    next: u64,
    open: HashMap<u64, Entry>,
    addresses: HashMap<IpAddr, usize>,
}

struct Entry {
    address: IpAddr,
    under_way: UnderWay,
    close: Arc<Notify>,
    is_closing: bool,
}

/// An open connection, until it is dropped.
pub(crate) struct Open {
    table: Connections,
    number: u64,
    /// What of it is under way.
    pub(crate) under_way: UnderWay,
    close: Arc<Notify>,
}

impl Connections {
    fn table(&self) -> MutexGuard<'_, Table> {
        // Every change leaves it whole, whatever panicked later.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection, or none if its address has as many as it may. Loopback has no such limit.
    pub(crate) fn enter(&self, address: IpAddr, most: usize) -> Option<Open> {
        let is_loopback = address.to_canonical().is_loopback();
        let address = counted(address);
        let mut table = self.table();
        let count = table.addresses.entry(address).or_default();
        if most > 0 && *count >= most && !is_loopback {
            return None;
        }
        *count += 1;
        let (under_way, close) = (UnderWay::default(), Arc::new(Notify::new()));
        let number = table.next;
        table.next += 1;
        let entry = Entry {
            address,
            under_way: under_way.clone(),
            close: close.clone(),
            is_closing: false,
        };
        table.open.insert(number, entry);
        Some(Open {
            table: self.clone(),
            number,
            under_way,
            close,
        })
    }

    /// Whether an address has as many connections as it may. Loopback has no such limit.
    pub(super) fn is_full(&self, address: IpAddr, most: usize) -> bool {
        let is_loopback = address.to_canonical().is_loopback();
        let count = self.table().addresses.get(&counted(address)).copied();
        most > 0 && !is_loopback && count.unwrap_or_default() >= most
    }

    /// Has an idle connection closed, of this address where one is named: one that never asked anything
    /// before one that did, then one of the address that has most, and the longest idle first. False where
    /// every connection is at work.
    pub(crate) fn shed(&self, of: Option<IpAddr>) -> bool {
        let of = of.map(counted);
        let now = Instant::now();
        let mut table = self.table();
        let Table {
            open, addresses, ..
        } = &mut *table;
        let idle = open
            .values_mut()
            .filter(|entry| of.is_none_or(|address| address == entry.address) && !entry.is_closing);
        let longest = idle
            .filter_map(|entry| {
                let (has_asked, since) = entry.under_way.idle()?;
                let is_over = !has_asked || now.duration_since(since) >= JUST_ANSWERED;
                let count = addresses.get(&entry.address).copied();
                is_over.then_some(((has_asked, Reverse(count), since), entry))
            })
            .min_by_key(|(key, _)| *key);
        let Some((_, entry)) = longest else {
            return false;
        };
        entry.is_closing = true;
        entry.close.notify_one();
        true
    }

    /// How many are open.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.table().open.len()
    }
}

impl Open {
    /// Returns when it is to be closed, because others need its place. One that began to answer meanwhile
    /// is left alone.
    pub(crate) async fn shed(&self) {
        loop {
            self.close.notified().await;
            if self.under_way.idle().is_some() {
                return;
            }
            if let Some(entry) = self.table.table().open.get_mut(&self.number) {
                entry.is_closing = false;
            }
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut table = self.table.table();
        let Some(entry) = table.open.remove(&self.number) else {
            return;
        };
        if let Some(count) = table.addresses.get_mut(&entry.address) {
            *count -= 1;
            if *count == 0 {
                table.addresses.remove(&entry.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_cannot_take_every_place() {
        let all = Connections::default();
        let (stranger, local): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), [127, 0, 0, 1].into());
        let first = all.enter(stranger, 2);
        let second = all.enter(stranger, 2);
        assert!(first.is_some() && second.is_some());
        assert!(all.enter(stranger, 2).is_none());
        assert!(all.enter([10, 0, 0, 2].into(), 2).is_some());
        assert!(all.enter(stranger, 0).is_some(), "0 is no limit");
        drop(first);
        assert!(all.enter(stranger, 2).is_some());
        let many: Vec<_> = (0..9).map(|_| all.enter(local, 2)).collect();
        // Of IPv6 a network is one, and IPv4 in it is what it is.
        let parse = |text: &str| text.parse::<IpAddr>().expect("an address");
        let network: Vec<_> = ["2001:db8::1", "2001:db8::2"]
            .map(|text| all.enter(parse(text), 2))
            .into();
        assert!(network.iter().all(Option::is_some));
        assert!(all.enter(parse("2001:db8::3"), 2).is_none());
        assert!(all.enter(parse("2001:db8:0:1::1"), 2).is_some());
        let inner: Vec<_> = (0..9)
            .map(|_| all.enter(parse("::ffff:127.0.0.1"), 2))
            .collect();
        assert!(inner.iter().all(Option::is_some));
        assert!(many.iter().all(Option::is_some));
        drop((second, many, network, inner));
        assert!(all.table().addresses.is_empty() && all.count() == 0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_idle_go_first_and_those_at_work_stay() {
        let all = Connections::default();
        let address = |n: u8| IpAddr::from([10, 0, 0, n]);
        let enter = |n| all.enter(address(n), 0).expect("no limit");
        let is_shed = async |open: &Open| {
            tokio::time::timeout(Duration::from_millis(1), open.shed())
                .await
                .is_ok()
        };
        let (working, asked) = (enter(1), enter(1));
        let busy = working.under_way.begin();
        drop(asked.under_way.begin());
        tokio::time::advance(Duration::from_secs(1)).await;
        let (older, newer) = (enter(2), enter(3));
        assert!(all.shed(Some(address(3))), "of one address");
        assert!(is_shed(&newer).await && !is_shed(&older).await);
        assert!(all.shed(None), "one that never asked anything");
        assert!(is_shed(&older).await && !is_shed(&asked).await);
        assert!(all.shed(None));
        assert!(is_shed(&asked).await);
        assert!(!all.shed(None), "the last one is at work");
        assert!(!is_shed(&working).await);
        drop((older, newer, asked));
        drop(busy);
        assert!(!all.shed(None), "its answer may still be on its way");
        tokio::time::advance(JUST_ANSWERED).await;
        assert!(all.shed(None));
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_most_connections_gives_first() {
        let all = Connections::default();
        let enter = async |n: u8| {
            let open = all.enter([10, 0, 0, n].into(), 3).expect("below the limit");
            drop(open.under_way.begin());
            tokio::time::advance(JUST_ANSWERED).await;
            open
        };
        let one = enter(1).await;
        let many = [enter(2).await, enter(2).await, enter(2).await];
        assert!(all.is_full([10, 0, 0, 2].into(), 3) && !all.is_full([10, 0, 0, 1].into(), 3));
        let is_shed = async |open: &Open| {
            let shed = tokio::time::timeout(Duration::from_millis(1), open.shed());
            shed.await.is_ok()
        };
        assert!(all.shed(None));
        assert!(is_shed(&many[0]).await && !is_shed(&one).await);
        drop(many);
        assert!(all.shed(None));
        assert!(is_shed(&one).await);
    }
}
