//! What is still to happen, in the order of time; at the same instant, in the order in which it was planned.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use tidelock_base::Mono;

/// Planned events.
#[derive(Debug)]
pub(crate) struct Queue<E> {
    heap: BinaryHeap<Reverse<Planned<E>>>,
    next: u64,
}

#[derive(Debug)]
struct Planned<E> {
    at: Mono,
    number: u64,
    event: E,
}

impl<E> Planned<E> {
    const fn key(&self) -> (Mono, u64) {
        (self.at, self.number)
    }
}

impl<E> PartialEq for Planned<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<E> Eq for Planned<E> {}

impl<E> PartialOrd for Planned<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Planned<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl<E> Queue<E> {
    pub(crate) const fn new() -> Self {
        Self {
            heap: BinaryHeap::new(),
            next: 0,
        }
    }

    pub(crate) fn push(&mut self, at: Mono, event: E) {
        self.next += 1;
        self.heap.push(Reverse(Planned {
            at,
            number: self.next,
            event,
        }));
    }

    /// When the next event is.
    pub(crate) fn next_at(&self) -> Option<Mono> {
        self.heap.peek().map(|Reverse(planned)| planned.at)
    }

    pub(crate) fn pop(&mut self) -> Option<(Mono, E)> {
        self.heap
            .pop()
            .map(|Reverse(planned)| (planned.at, planned.event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_decides_then_order_of_planning() {
        let mut queue = Queue::new();
        for (at, event) in [(5, 'c'), (1, 'a'), (5, 'd'), (2, 'b')] {
            queue.push(Mono(at), event);
        }
        assert_eq!(queue.next_at(), Some(Mono(1)));
        let all: String = std::iter::from_fn(|| queue.pop())
            .map(|(_, event)| event)
            .collect();
        assert_eq!(all, "abcd");
    }
}
