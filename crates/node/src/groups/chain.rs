//! The file of a group's checkpoints, `groups/<id>`: a base, which stands alone, and the deltas that followed it.
//!
//! A base is written as a new file that takes the old one's place; a delta is appended and synced. So a file never holds
//! a delta of an older base, and a crash can only tear the last one, which nobody counts on before its sync has
//! returned. Records begin on pages of 4 KiB: to append one rewrites nothing that was durable.
//!
//! ```text
//! record: magic "TLCHECK2" | crc32c u32 of all that follows | length u64, from the magic to the end of the state
//!     | crc32c of the record before u32 (0 in a base) | number u64 (0 in a base, one more in each delta)
//!     | replica u64 | index u64 | term u64 | index of the members u64
//!     | folder (length u64, text) | members (length u64, bytes) | state (length u64, bytes)
//!     | in the file only: zeros up to the next page
//! ```
//! A delta counts if it is whole, of the same replica, next by number, and names the sum of the record before. What
//! follows one that does not is not looked at. Whether a delta that counted is missing, the log knows: it has
//! recorded how far it was told to forget.

use bytes::Bytes;
use tidelock_base::{LogIndex, ReplicaId, Term};
use tidelock_replica::{LogPosition, Members};

const MAGIC: &[u8; 8] = b"TLCHECK2";
/// Where the sum lies, and where what it covers begins.
const SUM_AT: usize = MAGIC.len();
const COVERED_AT: usize = SUM_AT + 4;
const LEN_AT: usize = COVERED_AT;
/// Records begin at multiples of this.
const PAGE: usize = 4096;
/// More deltas than this are not kept: a start reads them all.
const DELTAS_MAX: u64 = 64;
/// Deltas may outgrow a base that is smaller than this.
const BASE_BYTES_MIN: u64 = 64 << 10;

/// What the checkpoints of a group bring back.
#[derive(Debug)]
pub(super) struct Checkpoint {
    /// Whose it is.
    pub(super) replica: ReplicaId,
    pub(super) folder: String,
    pub(super) position: LogPosition,
    pub(super) members_at: LogIndex,
    pub(super) members: Members,
    /// The state of the machine: of the base, and of each delta after it.
    pub(super) states: Vec<Bytes>,
}

/// What a record says beside the state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head<'a> {
    pub(super) replica: ReplicaId,
    pub(super) folder: &'a str,
    pub(super) position: LogPosition,
    pub(super) members_at: LogIndex,
    pub(super) members: &'a Members,
}

/// The last record of a file, so far: what the next one goes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tip {
    number: u64,
    sum: u32,
    /// Bytes of the base, and of the whole file.
    base: u64,
    end: u64,
}

impl Tip {
    /// Whether the next record has to be a base: there are many deltas, or they are larger than the base together.
    pub(super) fn is_outgrown(&self) -> bool {
        self.number >= DELTAS_MAX || self.end - self.base > self.base.max(BASE_BYTES_MIN)
    }

    /// Where the next record begins, in bytes from the start of the file.
    pub(super) const fn end(&self) -> u64 {
        self.end
    }
}

/// A record that is being written.
pub(super) struct RecordWriter<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
    number: u64,
    state_at: usize,
    before: Option<Tip>,
}

impl<'a> RecordWriter<'a> {
    /// Begins a record at the end of `out`: a delta after `before`, or else a base. The state is to be appended to
    /// [`RecordWriter::out`].
    pub(super) fn begin(out: &'a mut Vec<u8>, before: Option<Tip>, head: &Head<'_>) -> Self {
        let start = out.len();
        let number = before.map_or(0, |tip| tip.number + 1);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&[0; 4 + 8]);
        out.extend_from_slice(&before.map_or(0, |tip| tip.sum).to_le_bytes());
        for n in [
            number,
            head.replica.0,
            head.position.index.0,
            head.position.term.0,
            head.members_at.0,
        ] {
            out.extend_from_slice(&n.to_le_bytes());
        }
        put(out, head.folder.as_bytes());
        put(out, &head.members.encode());
        put(out, &[]);
        let state_at = out.len();
        Self {
            out,
            start,
            number,
            state_at,
            before,
        }
    }

    /// Where the state goes.
    pub(super) const fn out(&mut self) -> &mut Vec<u8> {
        self.out
    }

    /// Ends the record. It stands alone: nothing is appended to it.
    pub(super) fn end_alone(self) {
        self.seal();
    }

    /// Ends a record of a file and fills its last page.
    pub(super) fn end_page(self) -> Tip {
        let (number, before, start) = (self.number, self.before, self.start);
        let (out, sum) = self.seal();
        let bytes = (out.len() - start).next_multiple_of(PAGE);
        out.resize(start + bytes, 0);
        let bytes = bytes as u64;
        Tip {
            number,
            sum,
            base: before.map_or(bytes, |tip| tip.base),
            end: before.map_or(0, |tip| tip.end) + bytes,
        }
    }

    fn seal(self) -> (&'a mut Vec<u8>, u32) {
        let Self {
            out, start, state_at, ..
        } = self;
        let state = (out.len() - state_at) as u64;
        set(out, state_at - 8, &state.to_le_bytes());
        let len = (out.len() - start) as u64;
        set(out, start + LEN_AT, &len.to_le_bytes());
        let sum = crc32c::crc32c(out.get(start + COVERED_AT..).unwrap_or_default());
        set(out, start + SUM_AT, &sum.to_le_bytes());
        (out, sum)
    }
}

/// Bytes of a record beside its state, more or less.
pub(super) const RECORD_BYTES: usize = 512;
/// The most that fills a page.
pub(super) const PADDING_BYTES: usize = PAGE;

/// A record, cut into its parts.
struct Record {
    sum: u32,
    len: usize,
    link: u32,
    number: u64,
    checkpoint: Checkpoint,
}

impl Record {
    /// The record at the beginning of the bytes, if it is whole.
    fn read(bytes: &Bytes) -> Option<Self> {
        let mut rest = bytes.strip_prefix(MAGIC)?;
        let sum = u32::from_le_bytes(chunk(&mut rest)?);
        let len = usize::try_from(number(&mut &*rest)?).ok()?;
        if crc32c::crc32c(bytes.get(COVERED_AT..len)?) != sum {
            return None;
        }
        let mut rest = bytes.get(LEN_AT + 8..len)?;
        let link = u32::from_le_bytes(chunk(&mut rest)?);
        let number_in_file = number(&mut rest)?;
        let replica = ReplicaId(number(&mut rest)?);
        let index = LogIndex(number(&mut rest)?);
        let term = Term(number(&mut rest)?);
        let members_at = LogIndex(number(&mut rest)?);
        let folder = String::from_utf8(take(&mut rest)?.to_vec()).ok()?;
        let members = Members::decode(take(&mut rest)?).ok()?;
        let state = bytes.slice_ref(take(&mut rest)?);
        if !rest.is_empty() {
            return None;
        }
        Some(Self {
            sum,
            len,
            link,
            number: number_in_file,
            checkpoint: Checkpoint {
                replica,
                folder,
                position: LogPosition { index, term },
                members_at,
                members,
                states: vec![state],
            },
        })
    }

    const fn is_base(&self) -> bool {
        self.number == 0 && self.link == 0
    }
}

impl Checkpoint {
    /// Reads a record that stands alone; `None` if it is damaged, or a delta.
    pub(super) fn decode(bytes: &Bytes) -> Option<Self> {
        let record = Record::read(bytes)?;
        (record.is_base() && record.len == bytes.len()).then_some(record.checkpoint)
    }

    /// Reads a file: its base, and those deltas that count. Answers also how many bytes at the end are none of them.
    /// `None` if the base is damaged.
    pub(super) fn read_file(bytes: &Bytes) -> Option<(Self, usize)> {
        let mut last = Record::read(bytes).filter(Record::is_base)?;
        let mut states = std::mem::take(&mut last.checkpoint.states);
        let mut at = last.len.next_multiple_of(PAGE);
        while at < bytes.len() {
            let next = Record::read(&bytes.slice(at..)).filter(|next| {
                next.number == last.number + 1
                    && next.link == last.sum
                    && next.checkpoint.replica == last.checkpoint.replica
                    && next.checkpoint.position.index >= last.checkpoint.position.index
            });
            let Some(mut next) = next else { break };
            states.append(&mut next.checkpoint.states);
            at += next.len.next_multiple_of(PAGE);
            last = next;
        }
        let mut checkpoint = last.checkpoint;
        checkpoint.states = states;
        Some((checkpoint, bytes.len().saturating_sub(at)))
    }
}

/// Appends a length and bytes.
pub(super) fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&u64::try_from(bytes.len()).unwrap_or(u64::MAX).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Takes what [`put`] has appended.
pub(super) fn take<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = usize::try_from(number(rest)?).ok()?;
    let (front, back) = rest.split_at_checked(len)?;
    *rest = back;
    Some(front)
}

fn number(rest: &mut &[u8]) -> Option<u64> {
    chunk(rest).map(u64::from_le_bytes)
}

fn chunk<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (front, back) = rest.split_first_chunk::<N>()?;
    *rest = back;
    Some(*front)
}

/// Fills in what was not known when its place was made.
fn set(out: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = out.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record of replica 5 at an index, whose state is a text.
    fn record(out: &mut Vec<u8>, before: Option<Tip>, index: u64, state: &str) -> Tip {
        record_of(ReplicaId(5), out, before, index, state)
    }

    fn record_of(replica: ReplicaId, out: &mut Vec<u8>, before: Option<Tip>, index: u64, state: &str) -> Tip {
        let members = Members::of_voters(&[ReplicaId(1), ReplicaId(5)]);
        let head = Head {
            replica,
            folder: "7.1",
            position: LogPosition {
                index: LogIndex(index),
                term: Term(2),
            },
            members_at: LogIndex(4),
            members: &members,
        };
        let mut writer = RecordWriter::begin(out, before, &head);
        writer.out().extend_from_slice(state.as_bytes());
        writer.end_page()
    }

    /// Index and states that a file brings back, and what is left over.
    fn read(bytes: &[u8]) -> Option<(u64, Vec<String>, usize)> {
        let (checkpoint, rest) = Checkpoint::read_file(&Bytes::copy_from_slice(bytes))?;
        let text = |state: &Bytes| String::from_utf8(state.to_vec()).expect("text");
        let states = checkpoint.states.iter().map(text).collect();
        Some((checkpoint.position.index.0, states, rest))
    }

    fn texts(states: &[&str]) -> Vec<String> {
        states.iter().map(|state| (*state).to_owned()).collect()
    }

    /// A base and two deltas, and where each ends.
    fn three() -> (Vec<u8>, [Tip; 3]) {
        let mut file = Vec::new();
        let base = record(&mut file, None, 9, "base");
        let first = record(&mut file, Some(base), 12, "first");
        let second = record(&mut file, Some(first), 20, &"second".repeat(1_000));
        (file, [base, first, second])
    }

    #[test]
    fn a_base_and_its_deltas_come_back() {
        let (file, [base, first, second]) = three();
        assert_eq!((base.end, first.end, second.end), (4_096, 8_192, 16_384));
        assert_eq!(file.len(), 16_384);
        let (checkpoint, rest) = Checkpoint::read_file(&Bytes::from(file.clone())).expect("whole");
        assert_eq!(
            (
                checkpoint.replica,
                checkpoint.folder.as_str(),
                checkpoint.members_at,
                rest
            ),
            (ReplicaId(5), "7.1", LogIndex(4), 0)
        );
        assert_eq!(
            checkpoint.members,
            Members::of_voters(&[ReplicaId(1), ReplicaId(5)])
        );
        assert_eq!(
            read(&file),
            Some((20, texts(&["base", "first", &"second".repeat(1_000)]), 0))
        );
    }

    #[test]
    fn a_record_that_stands_alone_is_a_base_without_a_page_to_fill() {
        let members = Members::of_voters(&[ReplicaId(1)]);
        let head = Head {
            replica: ReplicaId(1),
            folder: "1-1",
            position: LogPosition::default(),
            members_at: LogIndex(0),
            members: &members,
        };
        let mut out = Vec::new();
        let mut writer = RecordWriter::begin(&mut out, None, &head);
        writer.out().extend_from_slice(b"state");
        writer.end_alone();
        assert!(out.len() < RECORD_BYTES && out.ends_with(b"state"));
        let whole = Bytes::from(out);
        let read = Checkpoint::decode(&whole).expect("whole");
        assert_eq!(
            (read.folder.as_str(), read.states),
            ("1-1", vec![Bytes::from_static(b"state")])
        );
        for at in 0..whole.len() {
            let mut damaged = whole.to_vec();
            damaged[at] ^= 1;
            assert!(Checkpoint::decode(&Bytes::from(damaged)).is_none(), "{at}");
            assert!(Checkpoint::decode(&whole.slice(..at)).is_none(), "{at}");
        }
        let (file, [base, first, _]) = three();
        let delta = Bytes::from(file).slice(usize::try_from(base.end).expect("small")..);
        let len = Record::read(&delta).expect("whole").len;
        assert!(first.end > base.end && Checkpoint::decode(&delta.slice(..len)).is_none());
    }

    #[test]
    fn a_delta_that_is_torn_or_damaged_ends_the_chain_before_it() {
        let (file, [base, first, _]) = three();
        let bytes = Bytes::from(file.clone());
        let spans = [0, base.end, first.end].map(|start| {
            let start = usize::try_from(start).expect("small");
            start..start + Record::read(&bytes.slice(start..)).expect("whole").len
        });
        let all = texts(&["base", "first", &"second".repeat(1_000)]);
        let upto = |lost: Option<usize>| {
            let count = lost.unwrap_or(3);
            (count > 0).then(|| all.get(..count).expect("three").to_vec())
        };
        for at in (0..file.len()).filter(|at| at % 97 == 0 || at % PAGE < 200) {
            let mut damaged = file.clone();
            damaged[at] ^= 0x10;
            let hurt = spans.iter().position(|span| span.contains(&at));
            assert_eq!(
                read(&damaged).map(|read| read.1),
                upto(hurt),
                "a bit of byte {at}"
            );
            let cut = spans.iter().position(|span| span.end > at);
            let short = file.get(..at).expect("there");
            assert_eq!(read(short).map(|read| read.1), upto(cut), "cut at {at}");
        }
    }

    #[test]
    fn a_delta_without_the_one_before_is_not_applied() {
        let (file, [base, first, _]) = three();
        let (base, first) = (
            usize::try_from(base.end).expect("small"),
            usize::try_from(first.end).expect("small"),
        );
        let mut gap = file.get(..base).expect("there").to_vec();
        gap.extend_from_slice(file.get(first..).expect("there"));
        assert_eq!(read(&gap), Some((9, texts(&["base"]), file.len() - first)));
        // Nor with a hole where it should be.
        let mut hole = file.clone();
        hole.get_mut(base..first).expect("there").fill(0);
        assert_eq!(read(&hole), Some((9, texts(&["base"]), file.len() - base)));
        assert_eq!(read(file.get(base..).expect("there")), None, "there is no base");
    }

    #[test]
    fn a_delta_of_another_base_or_replica_is_not_applied() {
        let mut old = Vec::new();
        let old_base = record(&mut old, None, 8, "old base");
        record(&mut old, Some(old_base), 12, "old first");
        let mut file = Vec::new();
        let base = record(&mut file, None, 9, "base");
        let at = usize::try_from(base.end).expect("small");
        let mut mixed = file.clone();
        mixed.extend_from_slice(old.get(at..).expect("there"));
        assert_eq!(read(&mixed), Some((9, texts(&["base"]), PAGE)));
        let mut foreign = file.clone();
        record_of(ReplicaId(6), &mut foreign, Some(base), 12, "foreign");
        assert_eq!(read(&foreign), Some((9, texts(&["base"]), PAGE)));
        let mut backwards = file.clone();
        record(&mut backwards, Some(base), 8, "backwards");
        assert_eq!(read(&backwards), Some((9, texts(&["base"]), PAGE)));
    }

    #[test]
    fn a_new_base_is_due_when_the_deltas_outgrow_it_or_are_many() {
        let mut file = Vec::new();
        let mut tip = record(&mut file, None, 1, &"b".repeat(100_000));
        let base = tip.base;
        let mut index = 1;
        while !tip.is_outgrown() {
            index += 1;
            tip = record(&mut file, Some(tip), index, &"d".repeat(20_000));
        }
        assert!((base + 1..base + 30_000).contains(&(tip.end - base)), "{tip:?}");
        let mut file = Vec::new();
        let mut tip = record(&mut file, None, 1, &"b".repeat(10_000_000));
        let mut deltas = 0;
        while !tip.is_outgrown() {
            deltas += 1;
            tip = record(&mut file, Some(tip), 1, "small");
        }
        assert_eq!(deltas, DELTAS_MAX);
        // A small base is not replaced at each step.
        let mut file = Vec::new();
        let base = record(&mut file, None, 1, "small");
        let tip = record(&mut file, Some(base), 2, &"d".repeat(20_000));
        assert!(!tip.is_outgrown());
    }
}
