//! The acknowledgements of one consumer that have come in during a turn.
//!
//! Those of one kind that follow one another become one command of sequence ranges. The order between kinds is kept:
//! a refusal and an acknowledgement of the same message mean something else the other way round.

use bytes::Bytes;
use std::collections::VecDeque;
use tidelock_base::StreamSeq;
use tidelock_jetstream::consumer::AckKind;

/// Acknowledgements of a turn, in order.
#[derive(Debug, Default)]
pub(crate) struct AckBatch {
    runs: VecDeque<Run>,
    /// Memory to be used again.
    spare: Vec<StreamSeq>,
}

/// Acknowledgements that become one command.
#[derive(Debug)]
pub(crate) struct Run {
    /// What they say.
    pub(crate) kind: AckKind,
    /// Why, for terminations.
    pub(crate) reason: Vec<u8>,
    /// Of which messages, in the order in which they came.
    pub(crate) seqs: Vec<StreamSeq>,
    /// Where it is awaited that they count.
    pub(crate) replies: Vec<Bytes>,
}

impl AckBatch {
    /// Whether nothing has come in.
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Takes an acknowledgement. An empty `reply` awaits nothing.
    pub(crate) fn add(&mut self, kind: AckKind, reason: &[u8], seq: StreamSeq, reply: &[u8]) {
        if self
            .runs
            .back()
            .is_none_or(|run| run.kind != kind || run.reason != reason)
        {
            let seqs = std::mem::take(&mut self.spare);
            self.runs.push_back(Run {
                kind,
                reason: reason.to_vec(),
                seqs,
                replies: Vec::new(),
            });
        }
        if let Some(run) = self.runs.back_mut() {
            run.seqs.push(seq);
            if !reply.is_empty() {
                run.replies.push(Bytes::copy_from_slice(reply));
            }
        }
    }

    /// Takes the first run out.
    pub(crate) fn take(&mut self) -> Option<Run> {
        self.runs.pop_front()
    }

    /// Gives the memory of a run back.
    pub(crate) fn give_back(&mut self, mut seqs: Vec<StreamSeq>) {
        if seqs.capacity() > self.spare.capacity() {
            seqs.clear();
            self.spare = seqs;
        }
    }
}

impl Run {
    /// The ranges of the command, inclusive and ascending, in place of what `out` holds. With `all`, one of them stands
    /// for everything before it: the highest counts, and of those above `delivered`, which mean nothing, none.
    pub(crate) fn ranges(&mut self, all: bool, delivered: StreamSeq, out: &mut Vec<(StreamSeq, StreamSeq)>) {
        out.clear();
        if all {
            let highest = self.seqs.iter().copied().filter(|seq| *seq <= delivered).max();
            out.extend(highest.map(|seq| (seq, seq)));
            return;
        }
        if !self.seqs.is_sorted() {
            self.seqs.sort_unstable();
        }
        for seq in self.seqs.iter().copied() {
            match out.last_mut() {
                Some((_, to)) if *to == seq => {}
                Some((_, to)) if to.0.checked_add(1) == Some(seq.0) => *to = seq,
                Some(_) | None => out.push((seq, seq)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn run(seqs: &[u64]) -> Run {
        let seqs = seqs.iter().copied().map(StreamSeq).collect();
        Run {
            kind: AckKind::Ack,
            reason: Vec::new(),
            seqs,
            replies: Vec::new(),
        }
    }

    fn ranges(seqs: &[u64], all: bool, delivered: u64) -> Vec<(u64, u64)> {
        let mut out = vec![(StreamSeq(9), StreamSeq(9))];
        run(seqs).ranges(all, StreamSeq(delivered), &mut out);
        out.into_iter().map(|(from, to)| (from.0, to.0)).collect()
    }

    #[test]
    fn sequences_become_ranges() {
        assert_eq!(ranges(&[], false, 100), []);
        assert_eq!(ranges(&[1, 2, 3], false, 100), [(1, 3)]);
        assert_eq!(ranges(&[3, 1, 2, 2, 9, 7], false, 100), [(1, 3), (7, 7), (9, 9)]);
        assert_eq!(ranges(&[u64::MAX, 0], false, 100), [(0, 0), (u64::MAX, u64::MAX)]);
    }

    #[test]
    fn one_stands_for_all_before_it() {
        assert_eq!(ranges(&[3, 1, 2], true, 100), [(3, 3)]);
        assert_eq!(ranges(&[3, 101, 2], true, 100), [(3, 3)]);
        assert_eq!(ranges(&[101], true, 100), []);
    }

    #[test]
    fn kinds_keep_their_order() {
        let mut batch = AckBatch::default();
        let nak = AckKind::Nak { delay_ns: None };
        for (kind, seq) in [(AckKind::Ack, 1), (AckKind::Ack, 2), (nak, 3), (AckKind::Ack, 3)] {
            batch.add(kind, b"", StreamSeq(seq), b"");
        }
        batch.add(AckKind::Term, b"a", StreamSeq(4), b"inbox");
        batch.add(AckKind::Term, b"b", StreamSeq(5), b"");
        let runs: Vec<_> = std::iter::from_fn(|| batch.take()).collect();
        let shape: Vec<_> = runs
            .iter()
            .map(|run| (run.kind, run.seqs.len(), run.replies.len()))
            .collect();
        assert_eq!(
            shape,
            [
                (AckKind::Ack, 2, 0),
                (nak, 1, 0),
                (AckKind::Ack, 1, 0),
                (AckKind::Term, 1, 1),
                (AckKind::Term, 1, 0)
            ]
        );
        assert!(batch.is_empty());
    }

    proptest! {
        #[test]
        fn ranges_hold_exactly_the_sequences(seqs in prop::collection::vec(0_u64..60, 0..40)) {
            let found = ranges(&seqs, false, 0);
            let listed: Vec<u64> = found.iter().flat_map(|(from, to)| *from..=*to).collect();
            let expected: Vec<u64> = seqs.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
            prop_assert_eq!(listed, expected);
            prop_assert!(found.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0), "neighbours are merged");
        }
    }
}
