//! Launches that are recorded and started together, so that a driver can prepare those that repeat.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::ffi::c_void;

/// One launch of a kernel.
#[derive(Debug, Clone, Copy)]
pub struct Launch {
    /// The kernel's name.
    pub kernel: &'static str,
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: u32,
    /// Bytes of a block's memory beside what the kernel has.
    pub room: u32,
    /// The kernel's argument.
    pub args: *const c_void,
}

/// How many blocks a kernel has, and how large they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) grid: [u32; 3],
    pub(super) block: u32,
    pub(super) room: u32,
}

impl From<([u32; 3], u32)> for Size {
    fn from((grid, block): ([u32; 3], u32)) -> Self {
        let room = 0;
        Self { grid, block, room }
    }
}

/// Lists that were started once, and prepared ones that are kept.
const ONCE: usize = 8;
const READY: usize = 64;

/// Launches in order, with copies of their arguments.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Launches {
    args: Vec<u64>,
    each: Vec<Recorded>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Recorded {
    kernel: &'static str,
    size: Size,
    /// Where its argument begins.
    args: usize,
}

impl Launches {
    /// Adds one; `args` is the struct that the kernel takes.
    pub(super) fn push<T: Copy>(&mut self, kernel: &'static str, size: impl Into<Size>, args: &T) {
        const { assert!(size_of::<T>().is_multiple_of(8) && align_of::<T>() <= 8) };
        let recorded = Recorded {
            kernel,
            size: size.into(),
            args: self.args.len(),
        };
        self.each.push(recorded);
        let from = std::ptr::from_ref(args).cast::<u64>();
        for word in 0..size_of::<T>() / 8 {
            // SAFETY: it is within the struct, and gaps of arguments are fields (`args.rs`).
            self.args.push(unsafe { from.add(word).read_unaligned() });
        }
    }

    /// Forgets all of them.
    pub(super) fn clear(&mut self) {
        self.args.clear();
        self.each.clear();
    }

    /// The launches; what they point to belongs to the list.
    pub fn iter(&self) -> impl Iterator<Item = Launch> {
        self.each.iter().map(|recorded| Launch {
            kernel: recorded.kernel,
            grid: recorded.size.grid,
            block: recorded.size.block,
            room: recorded.size.room,
            args: self.args[recorded.args..].as_ptr().cast(),
        })
    }
}

/// Lists that come again, and what a driver made of them to start them sooner.
pub struct Repeats<G> {
    once: VecDeque<Launches>,
    ready: VecDeque<(Launches, G)>,
}

impl<G> Default for Repeats<G> {
    fn default() -> Self {
        Self {
            once: VecDeque::new(),
            ready: VecDeque::new(),
        }
    }
}

impl<G> Repeats<G> {
    /// What was made of this list; `make` makes it where it comes again.
    pub fn prepared(
        &mut self,
        launches: &Launches,
        make: impl FnOnce() -> Option<G>,
    ) -> Option<&G> {
        if self.find(launches).is_none() {
            let graph = self.again(launches).then(make).flatten()?;
            self.keep(launches.clone(), graph);
        }
        self.ready.front().map(|(_, graph)| graph)
    }

    /// What was made of this list.
    fn find(&mut self, launches: &Launches) -> Option<&G> {
        let at = self.ready.iter().position(|(own, _)| own == launches)?;
        let found = self.ready.remove(at)?;
        self.ready.push_front(found);
        self.ready.front().map(|(_, graph)| graph)
    }

    /// Whether the list was started lately and is worth preparing; it is remembered.
    fn again(&mut self, launches: &Launches) -> bool {
        if self.once.contains(launches) {
            self.once.retain(|own| own != launches);
            return true;
        }
        self.once.truncate(ONCE - 1);
        self.once.push_front(launches.clone());
        false
    }

    /// Keeps what was made of a list, and gives back what nothing asked for the longest.
    fn keep(&mut self, launches: Launches, graph: G) -> Option<G> {
        self.ready.push_front((launches, graph));
        if self.ready.len() <= READY {
            return None;
        }
        self.ready.pop_back().map(|(_, graph)| graph)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(number: u64) -> Launches {
        let mut list = Launches::default();
        list.push("place", ([1, 2, 3], 32), &[7u64, number]);
        list.push("gate", ([4, 1, 1], 128), &number);
        list
    }

    #[test]
    fn a_list_gives_back_what_was_put_in() {
        let list = list(9);
        let told: Vec<(&str, [u32; 3], u32, u64)> = list
            .iter()
            // SAFETY: each argument has a word.
            .map(|l| unsafe { (l.kernel, l.grid, l.block, *l.args.cast::<u64>()) })
            .collect();
        let wanted = [("place", [1, 2, 3], 32, 7), ("gate", [4, 1, 1], 128, 9)];
        assert_eq!(told, wanted);
    }

    #[test]
    fn what_comes_again_is_prepared_once_and_what_is_forgotten_is_given_back() {
        let mut repeats = Repeats::default();
        for number in 0..READY as u64 {
            assert!(repeats.find(&list(number)).is_none());
            assert!(!repeats.again(&list(number)), "the first time");
            assert!(repeats.again(&list(number)), "the second time");
            assert_eq!(repeats.keep(list(number), number), None);
            assert_eq!(repeats.find(&list(number)), Some(&number));
        }
        assert_eq!(repeats.find(&list(0)), Some(&0), "and is new again");
        assert_eq!(repeats.keep(list(99), 99), Some(1), "the oldest goes");
        assert_eq!(repeats.find(&list(1)), None);
    }

    #[test]
    fn only_what_was_started_lately_is_remembered() {
        let mut repeats = Repeats::<()>::default();
        for number in 0..=ONCE as u64 {
            assert!(!repeats.again(&list(number)));
        }
        assert!(!repeats.again(&list(0)), "it is long ago");
        assert!(repeats.again(&list(ONCE as u64)));
    }
}
