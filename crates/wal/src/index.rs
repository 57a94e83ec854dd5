//! What of the log is still needed, and where it is: for each group its facts and the runs of its entries, each with
//! the number of the batch that holds it, and for each batch how much of it is needed.
//!
//! The same rules serve appends and recovery ([`Index::apply`]), so that the log means the same to both. Space is
//! freed from the oldest batch on: what supersedes is always younger than what it supersedes, so no note of a removal
//! goes before what it removed.

use crate::frame::{Frame, WalRecord};
use crate::header::{Item, Position};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use tidelock_base::{GroupId, LogIndex, ReplicaId, Term};

/// Something true, and the batch that says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fact<T> {
    pub(crate) batch: u64,
    pub(crate) value: T,
}

/// See [`WalRecord::HardState`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardState {
    /// Latest term seen.
    pub term: Term,
    /// Who got the vote in that term; 0 for no one.
    pub vote: ReplicaId,
    /// Highest index known as committed.
    pub commit: LogIndex,
}

/// An installed snapshot whose installation was not reported as finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstalledSnapshot {
    /// Last index in the snapshot.
    pub index: LogIndex,
    /// Its term.
    pub term: Term,
    /// The manifest.
    pub blob: Bytes,
}

/// Live entries of one group in one batch: indexes `first..=last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) batch: u64,
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// Of the entries as encoded; an estimate once some of the run is gone.
    pub(crate) bytes: u64,
}

impl Run {
    const fn count(&self) -> u64 {
        self.last - self.first + 1
    }

    /// Keeps only `first..=last`, which is not empty.
    fn shrink(&mut self, first: u64, last: u64) {
        let before = self.count();
        (self.first, self.last) = (first, last);
        self.bytes = self.bytes / before * self.count() + self.bytes % before * self.count() / before;
    }
}

#[derive(Debug, Default)]
pub(crate) struct Group {
    pub(crate) created: Option<Fact<(ReplicaId, Bytes)>>,
    pub(crate) hard: Option<Fact<HardState>>,
    /// None while `snapshot` says where the log starts.
    pub(crate) truncated: Option<Fact<(LogIndex, Term)>>,
    pub(crate) snapshot: Option<Fact<InstalledSnapshot>>,
    pub(crate) members: Option<Fact<Bytes>>,
    pub(crate) damaged: Option<Fact<()>>,
    pub(crate) arrival: Option<Fact<(u64, bool)>>,
    /// Damage of unknown groups in batches up to this one does not concern this group.
    pub(crate) sound_since: u64,
    /// Ascending, without overlap; gaps only where something was damaged.
    pub(crate) runs: VecDeque<Run>,
    /// Where the group is listed in the open batch: number of the batch and place in its list.
    pub(crate) listed: (u64, usize),
}

/// One batch of the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    pub(crate) number: u64,
    pub(crate) at: Position,
    pub(crate) total_len: u64,
    /// Facts and runs that point here.
    live: u64,
    /// The batch that has to be durable before this one may be forgotten: whose records made it unneeded.
    emptied_by: u64,
}

/// Batches in the order of their numbers.
#[derive(Debug, Default)]
pub(crate) struct Batches {
    list: VecDeque<Batch>,
}

impl Batches {
    /// Adds the batch of that number unless it is there.
    pub(crate) fn open(&mut self, number: u64) {
        if self.list.back().is_none_or(|last| last.number < number) {
            self.list.push_back(Batch {
                number,
                at: Position::default(),
                total_len: 0,
                live: 0,
                emptied_by: number,
            });
        }
    }

    pub(crate) fn get(&self, number: u64) -> Option<&Batch> {
        let at = self.list.partition_point(|batch| batch.number < number);
        self.list.get(at).filter(|batch| batch.number == number)
    }

    fn get_mut(&mut self, number: u64) -> Option<&mut Batch> {
        let at = self.list.partition_point(|batch| batch.number < number);
        self.list.get_mut(at).filter(|batch| batch.number == number)
    }

    pub(crate) fn place(&mut self, number: u64, at: Position, total_len: u64) {
        if let Some(batch) = self.get_mut(number) {
            (batch.at, batch.total_len) = (at, total_len);
        }
    }

    fn hold(&mut self, number: u64) {
        if let Some(batch) = self.get_mut(number) {
            batch.live += 1;
        }
    }

    fn release(&mut self, number: u64, now: u64) {
        if let Some(batch) = self.get_mut(number) {
            debug_assert!(batch.live > 0, "batch {number} is released once too often");
            batch.live = batch.live.saturating_sub(1);
            if batch.live == 0 {
                batch.emptied_by = now;
            }
        }
    }

    /// Forgets the oldest batches that nothing needs, given that batches up to `synced` are durable.
    pub(crate) fn forget_unneeded(&mut self, synced: u64) {
        while self
            .list
            .pop_front_if(|batch| batch.live == 0 && batch.emptied_by <= synced)
            .is_some()
        {}
    }

    /// Number of the oldest batch that is needed, or may be.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.list.front().map(|batch| batch.number)
    }
}

/// What a frame means for entries that are kept outside of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing.
    None,
    /// The entry is in; with `supersedes`, what was at its index and above is out.
    Entered { supersedes: bool },
    /// Entries up to this index are out.
    Floor(LogIndex),
    /// All entries are out.
    Cleared,
    /// All entries are out, and the group is gone.
    Gone,
}

#[derive(Debug, Default)]
pub(crate) struct Index {
    pub(crate) groups: BTreeMap<GroupId, Group>,
    pub(crate) meta: BTreeMap<u8, Fact<Bytes>>,
    pub(crate) batches: Batches,
}

fn set<T>(slot: &mut Option<Fact<T>>, batches: &mut Batches, batch: u64, value: T) {
    batches.hold(batch);
    if let Some(old) = slot.replace(Fact { batch, value }) {
        batches.release(old.batch, batch);
    }
}

fn clear<T>(slot: &mut Option<Fact<T>>, batches: &mut Batches, batch: u64) {
    if let Some(old) = slot.take() {
        batches.release(old.batch, batch);
    }
}

impl Group {
    /// Last index that a checkpoint or snapshot covers, and its term.
    pub(crate) fn floor(&self) -> Option<(LogIndex, Term)> {
        let snapshot = self
            .snapshot
            .as_ref()
            .map(|fact| (fact.value.index, fact.value.term));
        snapshot.or_else(|| self.truncated.as_ref().map(|fact| fact.value))
    }

    fn floor_index(&self) -> u64 {
        self.floor().map_or(0, |(index, _)| index.0)
    }

    /// The batches of all facts, for what goes over them without looking at each.
    pub(crate) fn fact_batches(&self) -> impl Iterator<Item = u64> {
        [
            self.created.as_ref().map(|fact| fact.batch),
            self.hard.as_ref().map(|fact| fact.batch),
            self.truncated.as_ref().map(|fact| fact.batch),
            self.snapshot.as_ref().map(|fact| fact.batch),
            self.members.as_ref().map(|fact| fact.batch),
            self.damaged.as_ref().map(|fact| fact.batch),
            self.arrival.as_ref().map(|fact| fact.batch),
        ]
        .into_iter()
        .flatten()
    }

    fn release_all(&mut self, batches: &mut Batches, batch: u64) {
        for fact in self.fact_batches() {
            batches.release(fact, batch);
        }
        self.clear_runs(batches, batch);
    }

    fn clear_runs(&mut self, batches: &mut Batches, batch: u64) {
        for run in self.runs.drain(..) {
            batches.release(run.batch, batch);
        }
    }

    /// Drops entries at `index` and above.
    fn supersede(&mut self, batches: &mut Batches, batch: u64, index: u64) {
        while let Some(run) = self.runs.back_mut().filter(|run| run.last >= index) {
            if run.first < index {
                run.shrink(run.first, index - 1);
            } else {
                batches.release(run.batch, batch);
                self.runs.pop_back();
            }
        }
    }

    /// Drops entries at `index` and below.
    fn raise_floor(&mut self, batches: &mut Batches, batch: u64, index: u64) {
        while let Some(run) = self.runs.front_mut().filter(|run| run.first <= index) {
            if run.last > index {
                run.shrink(index + 1, run.last);
            } else {
                batches.release(run.batch, batch);
                self.runs.pop_front();
            }
        }
    }

    fn enter(&mut self, batches: &mut Batches, run: Run) {
        if let Some(last) = self
            .runs
            .back_mut()
            .filter(|last| last.batch == run.batch && last.last + 1 == run.first)
        {
            last.last = run.last;
            last.bytes += run.bytes;
        } else {
            batches.hold(run.batch);
            self.runs.push_back(run);
        }
    }

    /// Puts an entry into the middle of the log, in place of the one of its index.
    fn enter_kept(&mut self, batches: &mut Batches, run: Run) {
        let index = run.first;
        let mut at = self.runs.partition_point(|old| old.last < index);
        if let Some(old) = self.runs.get_mut(at).filter(|old| old.first <= index) {
            let whole = *old;
            match (whole.first < index, whole.last > index) {
                (false, false) => {
                    batches.release(whole.batch, run.batch);
                    self.runs.remove(at);
                }
                (false, true) => old.shrink(index + 1, whole.last),
                (true, false) => {
                    old.shrink(whole.first, index - 1);
                    at += 1;
                }
                (true, true) => {
                    old.shrink(whole.first, index - 1);
                    let mut above = whole;
                    above.shrink(index + 1, whole.last);
                    batches.hold(whole.batch);
                    at += 1;
                    self.runs.insert(at, above);
                }
            }
        }
        let before = at.checked_sub(1).and_then(|before| self.runs.get_mut(before));
        if let Some(before) = before.filter(|before| before.batch == run.batch && before.last + 1 == index) {
            before.last = index;
            before.bytes += run.bytes;
        } else {
            batches.hold(run.batch);
            self.runs.insert(at, run);
        }
    }
}

impl Index {
    /// Takes note of a frame in the batch of that number, which is the youngest.
    pub(crate) fn apply(&mut self, batch: u64, frame: &Frame<'_>) -> Effect {
        self.batches.open(batch);
        match *frame {
            Frame::Record { kept, record } => self.apply_record(batch, kept, &record),
            Frame::Damaged { group } => {
                let group = self.groups.entry(group).or_default();
                set(&mut group.damaged, &mut self.batches, batch, ());
                Effect::None
            }
            Frame::Arrival {
                group,
                lane_id,
                complete,
            } => {
                let group = self.groups.entry(group).or_default();
                set(&mut group.arrival, &mut self.batches, batch, (lane_id, complete));
                Effect::None
            }
        }
    }

    fn apply_record(&mut self, batch: u64, kept: bool, record: &WalRecord<'_>) -> Effect {
        let batches = &mut self.batches;
        let Some(id) = record.group() else {
            if let WalRecord::Meta { key, blob } = *record {
                let value = Bytes::copy_from_slice(blob);
                batches.hold(batch);
                if let Some(old) = self.meta.insert(key, Fact { batch, value }) {
                    batches.release(old.batch, batch);
                }
            }
            return Effect::None;
        };
        if let WalRecord::Destroyed { group } = *record {
            if let Some(mut group) = self.groups.remove(&group) {
                group.release_all(batches, batch);
            }
            return Effect::Gone;
        }
        let group = self.groups.entry(id).or_default();
        match *record {
            WalRecord::Entry { index, data, .. } => {
                let bytes = (crate::frame::FRAME_HEAD_BYTES + data.len()) as u64;
                group.entry(batches, batch, kept, index.0, bytes)
            }
            WalRecord::HardState {
                term, vote, commit, ..
            } => {
                set(&mut group.hard, batches, batch, HardState { term, vote, commit });
                Effect::None
            }
            WalRecord::Truncated { index, term, .. } => group.truncate(batches, batch, index, term),
            WalRecord::Created { replica, blob, .. } => group.create(batches, batch, kept, replica, blob),
            WalRecord::SnapshotInstalled {
                index, term, blob, ..
            } => {
                let blob = Bytes::copy_from_slice(blob);
                group.install(batches, batch, kept, InstalledSnapshot { index, term, blob })
            }
            WalRecord::Members { blob, .. } => {
                set(&mut group.members, batches, batch, Bytes::copy_from_slice(blob));
                Effect::None
            }
            WalRecord::Healed { .. } => {
                clear(&mut group.damaged, batches, batch);
                group.sound_since = batch;
                Effect::None
            }
            WalRecord::Destroyed { .. } | WalRecord::Meta { .. } => Effect::None,
        }
    }

    /// What a group has lost is not needed, as of the batch of that number.
    pub(crate) fn not_damaged(&mut self, id: GroupId, batch: u64) {
        if let Some(group) = self.groups.get_mut(&id) {
            clear(&mut group.damaged, &mut self.batches, batch);
        }
    }

    /// Damage: the batch of that number is lost, and it had this to say about a group.
    pub(crate) fn apply_lost(&mut self, batch: u64, item: &Item) -> Effect {
        self.batches.open(batch);
        let id = GroupId(item.group);
        if item.flags & Item::DESTROYED != 0 {
            if let Some(mut group) = self.groups.remove(&id) {
                group.release_all(&mut self.batches, batch);
            }
            return Effect::Gone;
        }
        let group = self.groups.entry(id).or_default();
        set(&mut group.damaged, &mut self.batches, batch, ());
        if item.flags & Item::SNAPSHOT != 0 {
            group.clear_runs(&mut self.batches, batch);
            return Effect::Cleared;
        }
        if item.first == 0 {
            return Effect::None;
        }
        group.supersede(&mut self.batches, batch, item.first);
        Effect::Entered { supersedes: true }
    }
}

impl Group {
    fn entry(&mut self, batches: &mut Batches, batch: u64, kept: bool, index: u64, bytes: u64) -> Effect {
        // A checkpoint covers committed entries only, which nothing supersedes.
        if index <= self.floor_index() {
            return Effect::None;
        }
        if !kept {
            self.supersede(batches, batch, index);
        }
        let run = Run {
            batch,
            first: index,
            last: index,
            bytes,
        };
        if kept {
            self.enter_kept(batches, run);
        } else {
            self.enter(batches, run);
        }
        Effect::Entered { supersedes: !kept }
    }

    fn truncate(&mut self, batches: &mut Batches, batch: u64, index: LogIndex, term: Term) -> Effect {
        let installing = self
            .snapshot
            .as_ref()
            .is_some_and(|fact| fact.value.index > index);
        let behind = self.truncated.as_ref().is_some_and(|fact| fact.value.0 > index);
        if installing || behind {
            return Effect::None;
        }
        clear(&mut self.snapshot, batches, batch);
        set(&mut self.truncated, batches, batch, (index, term));
        self.raise_floor(batches, batch, index.0);
        Effect::Floor(index)
    }

    fn create(
        &mut self,
        batches: &mut Batches,
        batch: u64,
        kept: bool,
        replica: ReplicaId,
        blob: &[u8],
    ) -> Effect {
        let same = self.created.as_ref().is_some_and(|fact| fact.value.0 == replica);
        let anew = !kept && !same;
        if anew {
            let listed = self.listed;
            self.release_all(batches, batch);
            *self = Self {
                sound_since: batch,
                listed,
                ..Self::default()
            };
        }
        set(
            &mut self.created,
            batches,
            batch,
            (replica, Bytes::copy_from_slice(blob)),
        );
        if anew { Effect::Cleared } else { Effect::None }
    }

    fn install(
        &mut self,
        batches: &mut Batches,
        batch: u64,
        kept: bool,
        snapshot: InstalledSnapshot,
    ) -> Effect {
        let index = snapshot.index;
        clear(&mut self.truncated, batches, batch);
        set(&mut self.snapshot, batches, batch, snapshot);
        if kept {
            self.raise_floor(batches, batch, index.0);
            Effect::Floor(index)
        } else {
            self.clear_runs(batches, batch);
            Effect::Cleared
        }
    }
}
