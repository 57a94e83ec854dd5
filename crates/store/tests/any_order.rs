//! Pieces of a block may reach the disk in any order, and beside each other: whoever carries out the operations may use
//! several threads. What must not happen while a piece is on its way is any other operation on its file.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests panic like the tests they serve"
)]

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use tidelock_base::{StreamSeq, Wall};
use tidelock_record::{Disk, FilePath, IoDone, IoError, IoOp, IoRequest, MemDisk, encode_into};
use tidelock_store::{Lookup, RemoveError, Store, StoreConfig, StoreEvent, StoreKind};

#[derive(Clone, Debug)]
enum Step {
    /// Stores a message with so many bytes.
    Append(usize),
    Remove(prop::sample::Index),
    Flush,
    /// One of the operations on their way ends.
    End(prop::sample::Index),
    /// So does one of them, but without success.
    Fail(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        10 => (1_000..150_000_usize).prop_map(Step::Append),
        4 => any::<prop::sample::Index>().prop_map(Step::Remove),
        1 => Just(Step::Flush),
        12 => any::<prop::sample::Index>().prop_map(Step::End),
        1 => any::<prop::sample::Index>().prop_map(Step::Fail),
    ]
}

/// A store, and what it has asked for that has not ended.
struct World {
    store: Store,
    disk: MemDisk,
    out: Vec<IoRequest>,
    live: Vec<u64>,
}

impl World {
    fn new() -> Self {
        let config = StoreConfig {
            block_bytes: 2 << 20,
            tail_bytes: 64 << 10,
            ..StoreConfig::new(StoreKind::File, FilePath::new("s").unwrap())
        };
        Self {
            store: Store::new(config),
            disk: MemDisk::new(),
            out: Vec::new(),
            live: Vec::new(),
        }
    }

    fn append(&mut self, len: usize) {
        let seq = self.store.last_seq().next();
        self.store
            .append(seq, Wall(1), record(&vec![seq.value().to_le_bytes()[0]; len]))
            .unwrap();
        self.live.push(seq.value());
    }

    /// Takes what is to be done next; nothing but pieces may meet a piece on its way.
    fn ask(&mut self) {
        for request in self.store.take_io() {
            let file = file_of(&request.op);
            for other in &self.out {
                let meets = file.is_some() && file == file_of(&other.op);
                assert!(
                    !meets || is_piece(&request.op) && is_piece(&other.op) || !is_change(&other.op),
                    "{:?} while {:?} is on its way",
                    request.op,
                    other.op,
                );
            }
            self.out.push(request);
        }
    }

    fn end(&mut self, at: usize, fails: bool) {
        let request = self.out.swap_remove(at);
        let result = if fails {
            Err(IoError::NoSpace)
        } else {
            self.disk.run(&request.op)
        };
        let done = IoDone {
            token: request.token,
            result,
        };
        if let StoreEvent::WriteFailed(_) = self.store.io_done(&done) {
            self.store.resume_writes();
        }
    }

    fn end_all(&mut self) {
        loop {
            self.ask();
            if self.out.is_empty() && !self.store.has_work() {
                return;
            }
            while !self.out.is_empty() {
                self.end(self.out.len() - 1, false);
            }
        }
    }

    fn remove(&mut self, at: usize) {
        let seq = StreamSeq(self.live[at]);
        match self.store.remove(seq) {
            Ok(_) => {
                self.live.swap_remove(at);
            }
            Err(RemoveError::Need(need)) => {
                self.store.fetch(need);
            }
            Err(error) => panic!("message {seq} is gone: {error:?}"),
        }
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Append(len) => self.append(*len),
            Step::Remove(at) if !self.live.is_empty() => self.remove(at.index(self.live.len())),
            Step::Flush => self.store.flush(),
            Step::End(at) if !self.out.is_empty() => self.end(at.index(self.out.len()), false),
            Step::Fail(at) if !self.out.is_empty() => {
                let at = at.index(self.out.len());
                let fails = is_piece(&self.out[at].op) || matches!(self.out[at].op, IoOp::Sync { .. });
                self.end(at, fails);
            }
            Step::Remove(_) | Step::End(_) | Step::Fail(_) => {}
        }
        self.ask();
    }

    fn get(&mut self, seq: u64) -> Lookup {
        loop {
            match self.store.get(StreamSeq(seq)) {
                Lookup::Cold(need) => {
                    self.store.fetch(need);
                    self.end_all();
                }
                other => return other,
            }
        }
    }
}

fn record(payload: &[u8]) -> Bytes {
    let mut out = BytesMut::new();
    encode_into(&mut out, b"a", b"", payload).unwrap();
    out.freeze()
}

fn file_of(op: &IoOp) -> Option<&FilePath> {
    match op {
        IoOp::Write { file, .. }
        | IoOp::Read { file, .. }
        | IoOp::Create { file, .. }
        | IoOp::Sync { file }
        | IoOp::Remove { file } => Some(file),
        _ => None,
    }
}

fn is_piece(op: &IoOp) -> bool {
    matches!(op, IoOp::Write { sync: false, .. })
}

fn is_change(op: &IoOp) -> bool {
    !matches!(op, IoOp::Read { .. })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn nothing_meets_a_piece_on_its_way(steps in prop::collection::vec(step(), 1..250)) {
        let mut world = World::new();
        for step in &steps {
            world.take(step);
        }
        world.end_all();
        world.store.flush();
        world.end_all();
        prop_assert_eq!(world.store.msgs(), world.live.len() as u64);
        for seq in world.live.clone() {
            let lookup = world.get(seq);
            prop_assert!(matches!(lookup, Lookup::Found(_)), "{}: {:?}", seq, lookup);
        }
    }
}
