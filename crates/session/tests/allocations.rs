//! The path of a small message allocates nothing once buffers are warm.

#![expect(
    unsafe_code,
    reason = "a global allocator that counts can only be written with unsafe"
)]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fmt;

use common::identity;
use std::sync::Arc;
use tidelock_base::Mono;
use tidelock_session::{
    Authentication, ChunkPool, Delivered, Host, Inbound, LogLevel, Outbound, Publish, Settings, SubSlot,
};
use tidelock_wire::{Connect, Info};

thread_local! {
    /// Allocations of this thread; other threads belong to the test runner.
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is handed to the system allocator as it came; counting touches a thread-local cell that is
// initialised at compile time and so does not allocate itself.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = COUNT.try_with(|c| c.set(c.get() + 1));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Delivers every publish to all subscriptions of the connection and of one that has no headers.
struct Worker {
    own: Outbound,
    plain: Outbound,
    plain_slot: Option<SubSlot>,
    slots: Vec<SubSlot>,
    pool: ChunkPool,
    restricted: bool,
}

impl Host for Worker {
    fn outbound(&mut self) -> (&mut Outbound, &mut ChunkPool) {
        (&mut self.own, &mut self.pool)
    }

    fn authenticate(&mut self, _: &Connect) -> Authentication {
        Authentication::Accepted(identity("p", self.restricted.then(common::restricted)))
    }

    fn publish(&mut self, message: &Publish<'_>) {
        for slot in &self.slots {
            let delivered = self.own.deliver(*slot, message, &mut self.pool);
            assert!(matches!(delivered, Delivered::Ok | Delivered::Denied));
        }
        if let Some(slot) = self.plain_slot {
            assert_eq!(self.plain.deliver(slot, message, &mut self.pool), Delivered::Ok);
        }
    }

    fn subscribed(&mut self, slot: SubSlot) {
        self.slots.push(slot);
    }

    fn unsubscribed(&mut self, _: SubSlot) {}

    fn first_pong(&mut self) -> Option<Info> {
        None
    }

    fn log(&mut self, _: LogLevel, text: fmt::Arguments<'_>) {
        panic!("{text}");
    }
}

fn drain(out: &mut Outbound, pool: &mut ChunkPool) -> usize {
    let n = out.pending();
    out.advance(n, pool);
    n
}

fn session(restricted: bool) -> (Inbound, Worker) {
    let settings = Arc::new(Settings::default());
    let mut worker = Worker {
        own: Outbound::new(&settings),
        plain: Outbound::new(&settings),
        plain_slot: None,
        slots: Vec::new(),
        pool: ChunkPool::new(),
        restricted,
    };
    // The other connection subscribes through a worker of its own and lends its outbound half.
    let mut other = Inbound::new(Arc::clone(&settings), Mono(0), 0);
    other.receive(
        Mono(0),
        b"CONNECT {\"verbose\":false}\r\nSUB s.> 9\r\n",
        &mut worker,
    );
    worker.plain_slot = worker.slots.pop();
    worker.plain = std::mem::replace(&mut worker.own, Outbound::new(&settings));
    let mut inbound = Inbound::new(settings, Mono(0), 0);
    let connect =
        b"CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":true}\r\nSUB s.> 1\r\nSUB s.* q 2\r\n";
    let received = inbound.receive(Mono(0), connect, &mut worker);
    assert_eq!(received.consumed, connect.len());
    (inbound, worker)
}

#[test]
fn receive_publish_and_deliver_allocate_nothing() {
    for restricted in [false, true] {
        let (mut inbound, mut worker) = session(restricted);
        let mut input = Vec::new();
        for i in 0..200 {
            let subject = i % 7;
            input.extend_from_slice(format!("PUB s.{subject} 5\r\nhello\r\n").as_bytes());
            input.extend_from_slice(
                format!("PUB s.{subject} _INBOX.{i} 128\r\n{}\r\n", "x".repeat(128)).as_bytes(),
            );
            input.extend_from_slice(b"HPUB s.hdr 12 14\r\nNATS/1.0\r\n\r\nhi\r\npub  s.odd\t1\r\nx\r\n");
        }
        let mut turn = |cut: usize| {
            let first = inbound.receive(Mono(1), &input[..cut], &mut worker);
            let second = inbound.receive(Mono(1), &input[first.consumed..], &mut worker);
            assert_eq!(first.consumed + second.consumed, input.len());
            drain(&mut worker.own, &mut worker.pool) + drain(&mut worker.plain, &mut worker.pool)
        };
        // Replies open permissions to answer, which are kept; the connection without that feature is measured.
        let sent: usize = (0..3).map(|_| turn(1000)).sum();
        assert!(sent > 3 * 200 * 500);
        let before = COUNT.with(Cell::get);
        for i in 0..20 {
            turn(500 + i * 77);
        }
        assert_eq!(COUNT.with(Cell::get) - before, 0, "restricted: {restricted}");
    }
}

#[test]
fn large_payloads_use_their_buffers_again() {
    let (mut inbound, mut worker) = session(false);
    let message = [
        format!("PUB s.big {}\r\n", 65_536).as_bytes(),
        &[b'x'; 65_536],
        b"\r\n",
    ]
    .concat();
    let mut turn = || {
        let mut rest = message.as_slice();
        for n in [1000, 30_000, usize::MAX] {
            let received = inbound.receive(Mono(1), &rest[..n.min(rest.len())], &mut worker);
            rest = &rest[received.consumed..];
        }
        assert!(rest.is_empty());
        let sent = drain(&mut worker.own, &mut worker.pool);
        assert_eq!(sent, 2 * (65_538 + "MSG s.big 1 65536\r\n".len()));
        drain(&mut worker.plain, &mut worker.pool);
    };
    for _ in 0..70 {
        turn();
    }
    let before = COUNT.with(Cell::get);
    for _ in 0..100 {
        turn();
    }
    // The control line that is kept, and the counter that a shared buffer needs.
    assert!(COUNT.with(Cell::get) - before <= 100 * 3);
}
