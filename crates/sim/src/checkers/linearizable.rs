//! The history of each key is linearizable (promise P2; Herlihy and Wing, "Linearizability: A Correctness Condition for
//! Concurrent Objects", TOPLAS 1990).
//!
//! The search is Wing and Gong's ("Testing and Verifying Concurrent Objects", JPDC 1993) with Lowe's memory of what was
//! tried ("Testing for linearizability", CCPE 2017). The object is a register whose value has a revision; a conditional
//! write replaces the value if the revision is the one expected. An operation without an end may take effect at any
//! time after its begin, or never.

use super::few;
use crate::history::{History, KvAction, KvOp, NEVER, WriteResult};
use std::collections::{BTreeMap, BTreeSet};

/// States that are tried for one key before its history counts as undecided.
const STATES_MAX: usize = 2_000_000;

/// The register: value and revision. The revision of a write whose answer was lost is not known until somebody sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Register {
    /// 0 while there is none.
    value: u64,
    /// `Some(0)` while there is none.
    revision: Option<u64>,
}

pub(super) fn check(history: &History) -> Vec<String> {
    let mut by_key: BTreeMap<usize, Vec<&KvOp>> = BTreeMap::new();
    for op in &history.kv {
        by_key.entry(op.key).or_default().push(op);
    }
    let mut found = Vec::new();
    for (key, ops) in by_key {
        if let Err(text) = linearize(&ops) {
            found.push(format!("key {key}: {text}"));
        }
    }
    few(found)
}

impl Register {
    /// What becomes of the register if this operation takes effect now; `None` if it cannot have.
    fn after(self, action: &KvAction) -> Option<Self> {
        match action {
            KvAction::Read(None) => (self.value == 0).then_some(self),
            KvAction::Read(Some((revision, value))) => {
                (self.value == *value).then_some(())?;
                self.seen(*revision)
            }
            KvAction::Write {
                expected,
                value,
                result: WriteResult::Stored(revision),
            } => {
                self.seen(*expected)?;
                (*revision > *expected).then_some(Self {
                    value: *value,
                    revision: Some(*revision),
                })
            }
            KvAction::Write {
                expected,
                result: WriteResult::Conflict(last),
                ..
            } => {
                if expected == last {
                    None
                } else {
                    self.seen(*last)
                }
            }
            KvAction::Write {
                expected,
                value,
                result: WriteResult::Unknown,
            } => {
                self.seen(*expected)?;
                Some(Self {
                    value: *value,
                    revision: None,
                })
            }
        }
    }

    /// The register if its revision is this one.
    fn seen(self, revision: u64) -> Option<Self> {
        match self.revision {
            Some(known) => (known == revision).then_some(self),
            None => (revision > 0).then_some(Self {
                revision: Some(revision),
                ..self
            }),
        }
    }
}

/// Which operations have taken effect, in bits.
type Done = Vec<u64>;

fn has(done: &Done, op: usize) -> bool {
    done.get(op / 64).is_some_and(|word| word >> (op % 64) & 1 == 1)
}

fn flip(done: &mut Done, op: usize) {
    if let Some(word) = done.get_mut(op / 64) {
        *word ^= 1 << (op % 64);
    }
}

/// Looks for an order in which all operations could have taken effect one after the other.
///
/// # Errors
/// There is none; the text says how far it could be explained.
fn linearize(ops: &[&KvOp]) -> Result<(), String> {
    let mut ops: Vec<&KvOp> = ops.to_vec();
    ops.sort_by_key(|op| op.begin);
    let must = ops.iter().filter(|op| op.end != NEVER).count();
    let start = Register {
        value: 0,
        revision: Some(0),
    };
    let mut done: Done = vec![0; ops.len().div_ceil(64)];
    let mut tried: BTreeSet<(Done, Register)> = BTreeSet::new();
    // Each step: the operation that took effect, the register before it.
    let mut path: Vec<(usize, Register)> = Vec::new();
    let (mut register, mut next, mut ended, mut farthest) = (start, 0, 0, 0);
    let mut blocker: Option<usize> = None;
    loop {
        if ended == must {
            return Ok(());
        }
        if tried.len() > STATES_MAX {
            return Err("too many interleavings to decide".to_owned());
        }
        match candidate(&ops, &done, next, register, &mut tried) {
            Some((op, after)) => {
                path.push((op, register));
                flip(&mut done, op);
                register = after;
                ended += usize::from(ops.get(op).is_some_and(|op| op.end != NEVER));
                if ended > farthest {
                    farthest = ended;
                    blocker = None;
                }
                next = 0;
            }
            None => {
                if blocker.is_none() {
                    blocker = first_open(&ops, &done);
                }
                let Some((op, before)) = path.pop() else {
                    let why = blocker
                        .and_then(|op| ops.get(op))
                        .map(|op| format!("{op:?}"))
                        .unwrap_or_default();
                    return Err(format!(
                        "not linearizable: {farthest} of {must} operations can be explained, not {why}"
                    ));
                };
                flip(&mut done, op);
                register = before;
                ended -= usize::from(ops.get(op).is_some_and(|op| op.end != NEVER));
                next = op + 1;
            }
        }
    }
}

/// The first operation that has not taken effect and has an end.
fn first_open(ops: &[&KvOp], done: &Done) -> Option<usize> {
    ops.iter()
        .enumerate()
        .filter(|(n, op)| op.end != NEVER && !has(done, *n))
        .min_by_key(|(_, op)| op.end)
        .map(|(n, _)| n)
}

/// The first operation from `next` on that may take effect now and leads to something that was not tried.
fn candidate(
    ops: &[&KvOp],
    done: &Done,
    next: usize,
    register: Register,
    tried: &mut BTreeSet<(Done, Register)>,
) -> Option<(usize, Register)> {
    // What begins after another one's end cannot come before it.
    let first_end = first_open(ops, done)
        .and_then(|n| ops.get(n))
        .map_or(NEVER, |op| op.end);
    for (n, op) in ops.iter().enumerate().skip(next) {
        if op.begin > first_end {
            return None;
        }
        if has(done, n) {
            continue;
        }
        if let Some(after) = register.after(&op.action) {
            let mut then = done.clone();
            flip(&mut then, n);
            if tried.insert((then, after)) {
                return Some((n, after));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::ClientId;

    fn op(begin: u64, end: u64, action: KvAction) -> KvOp {
        KvOp {
            key: 0,
            begin,
            end,
            action,
            by: ClientId(0),
        }
    }

    const fn read(found: Option<(u64, u64)>) -> KvAction {
        KvAction::Read(found)
    }

    const fn write(expected: u64, value: u64, result: WriteResult) -> KvAction {
        KvAction::Write {
            expected,
            value,
            result,
        }
    }

    fn fits(ops: &[KvOp]) -> bool {
        let mut history = History::default();
        history.kv = ops.to_vec();
        check(&history).is_empty()
    }

    use WriteResult::{Conflict, Stored, Unknown};

    #[test]
    fn one_after_the_other() {
        assert!(fits(&[
            op(1, 2, read(None)),
            op(3, 4, write(0, 7, Stored(1))),
            op(5, 6, read(Some((1, 7)))),
            op(7, 8, write(0, 8, Conflict(1))),
            op(9, 10, write(1, 9, Stored(4))),
            op(11, 12, read(Some((4, 9)))),
        ]));
        let stale = [
            op(1, 2, write(0, 7, Stored(1))),
            op(3, 4, write(1, 8, Stored(2))),
            op(5, 6, read(Some((1, 7)))),
        ];
        assert!(!fits(&stale), "a stale read");
        assert!(
            !fits(&[op(1, 2, write(0, 7, Stored(1))), op(3, 4, read(None))]),
            "a lost write"
        );
        assert!(
            !fits(&[
                op(1, 2, write(0, 7, Stored(1))),
                op(3, 4, write(1, 8, Conflict(1)))
            ]),
            "a false conflict"
        );
        let lost = [op(1, 2, write(0, 7, Stored(1))), op(3, 4, write(0, 8, Stored(2)))];
        assert!(!fits(&lost), "a lost update");
    }

    #[test]
    fn at_the_same_time() {
        let write_then = |read_end| {
            [
                op(1, 10, write(0, 7, Stored(1))),
                op(2, read_end, read(Some((1, 7)))),
                op(4, 5, read(None)),
            ]
        };
        assert!(fits(&write_then(9)));
        assert!(!fits(&write_then(3)), "once seen, always seen");
    }

    #[test]
    fn without_an_end() {
        let unknown = op(1, NEVER, write(0, 7, Unknown));
        assert!(fits(&[
            unknown.clone(),
            op(2, 3, read(None)),
            op(4, 5, read(Some((3, 7))))
        ]));
        assert!(
            fits(&[unknown.clone(), op(2, 3, write(0, 8, Stored(4)))]),
            "never"
        );
        assert!(fits(&[
            unknown.clone(),
            op(2, 3, write(0, 8, Conflict(3))),
            op(4, 5, read(Some((3, 7))))
        ]));
        assert!(!fits(&[
            unknown.clone(),
            op(2, 3, write(0, 8, Conflict(3))),
            op(4, 5, read(Some((4, 7))))
        ]));
        assert!(
            !fits(&[op(2, 3, read(Some((3, 7)))), op(4, NEVER, write(0, 7, Unknown))]),
            "before its begin"
        );
        assert!(
            !fits(&[unknown, op(2, 3, read(Some((3, 7)))), op(4, 5, read(None))]),
            "and gone again"
        );
    }
}
