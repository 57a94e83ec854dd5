//! Opening a lane: reads what is there, rebuilds the groups, and leaves the log ready for appends.
//!
//! - Only what lies beyond the highest synced position stated anywhere may be a torn write, and is cut.
//! - A whole batch beyond that position counts, but whether it is durable is not known (the kernel may hold it only
//!   in memory, and a sync of its file may have failed before). It is written again, under its number, to a new
//!   segment; the old one is sealed before it.
//! - Bytes missing below that position are damage. The batch's own header or the next one names the groups that
//!   lost something; if neither can be read, all groups of the lane are suspect. Damage is noted in the log, so that
//!   it is not forgotten with the segment that shows it.
//! - A start never writes to a segment that it found: it begins a new one.

use crate::batch::{ClosedBatch, LaneId, Repeated};
use crate::config::{LaneConfig, WalError};
use crate::frame::{Frame, Frames, WalRecord, share};
use crate::header::{Header, Item, Position};
use crate::index::{Effect, Group, HardState, Index, InstalledSnapshot};
use crate::lane::{Lane, LaneEvent, LogEnd, replace_control, rewrite_control};
use crate::scan::{Chain, Found, Piece, find};
use crate::segments::{Segment, Segments, Spare, segment_file};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use tidelock_base::{GroupId, LogIndex, ReplicaId, Term};
use tidelock_record::{Disk, FilePath, IoDone, IoError};

/// A start leaves so many generations out, so that a segment which an earlier run had begun, and of which nothing can
/// be read, is not taken for one of this run.
const GENERATIONS_LEFT_OUT: u64 = 1024;

/// An entry as it was logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredEntry {
    /// Place in the group's log.
    pub index: LogIndex,
    /// Term in which it was proposed.
    pub term: Term,
    /// Kind, as the replica numbers them.
    pub kind: u8,
    /// What the state machine gets.
    pub data: Bytes,
}

/// A group as the log has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveredGroup {
    /// Raft id of the replica; 0 if that is lost, and then the group is damaged.
    pub replica: ReplicaId,
    /// Blob of its [`WalRecord::Created`].
    pub created: Bytes,
    /// None if no vote or term was logged.
    pub hard_state: Option<HardState>,
    /// Entries up to here are covered by a checkpoint or by `snapshot`; none if the log starts at its beginning.
    pub truncated: Option<(LogIndex, Term)>,
    /// Ascending by index and above `truncated`; without a gap unless the group is damaged.
    pub entries: Vec<RecoveredEntry>,
    /// A snapshot was installed, and that its files are in place was not logged yet: the node finishes it.
    pub snapshot: Option<InstalledSnapshot>,
    /// The last membership logged.
    pub members: Option<Bytes>,
    /// Records of the group were lost: it may have voted and appended what is not here. A replica of several must
    /// be replaced under a new id (`Created`); a single one is dealt with by the node and then `Healed`. Records that
    /// later ones have made unneeded are not missed.
    pub damaged: bool,
    /// If it is damaged: at most the last of its terms, votes, commits and memberships is lost, and no entry. A replica
    /// that is alone goes on without.
    pub log_is_whole: bool,
}

/// Which groups lost records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DamagedGroups {
    /// These, with the range of entries that the lost batch held, if it held any; `0` stands for node-wide facts.
    Known(Vec<(GroupId, Option<(LogIndex, LogIndex)>)>),
    /// It cannot be told: all that the lane had then.
    All,
}

/// A place in the log that was synced and cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file.
    pub file: FilePath,
    /// First byte of the damaged batches.
    pub offset: u64,
    /// Bytes from there on.
    pub bytes: u64,
    /// Who is concerned.
    pub groups: DamagedGroups,
}

/// What was found in a lane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// The lane did not exist, or was drained, and has been made new.
    pub is_new: bool,
    /// All groups.
    pub groups: BTreeMap<GroupId, RecoveredGroup>,
    /// Node-wide facts.
    pub meta: BTreeMap<u8, Bytes>,
    /// Bytes of a torn write that were cut, as far as they can be told from free space.
    pub cut_bytes: u64,
    /// What is lost. Reported at each start as long as the segment is retained.
    pub damage: Vec<Damage>,
}

/// Opens a lane, or makes a new one. Waits for the disk; for the start of a node only.
///
/// # Errors
/// [`WalError::Io`] if files cannot be listed, or the control file or the first batch cannot be written;
/// [`WalError::Unsupported`] if a newer version wrote the lane. Damaged content is no error.
pub fn recover(disk: &dyn Disk, lane: u16, config: LaneConfig) -> Result<(Lane, Recovered), WalError> {
    let (mut lane, mut recovered, _) = open(disk, lane, config)?;
    drop_half_arrived(&mut lane, &mut recovered);
    lane.finish(disk)?;
    lane.prepare(disk);
    Ok((lane, recovered))
}

/// For each group that came from another lane: the id of that lane, and whether it came whole.
pub(crate) type Arrivals = BTreeMap<GroupId, (u64, bool)>;

/// Path of a lane's directory.
pub(crate) fn lane_dir(config: &LaneConfig, lane: u16) -> Result<FilePath, WalError> {
    let file = config.dir.clone();
    config
        .dir
        .join(&format!("lane-{lane:04}"))
        .map_err(|error| WalError::Io { file, error })
}

/// Opens a lane but for the last step, the writing of what it has to note.
pub(crate) fn open(
    disk: &dyn Disk,
    number: u16,
    config: LaneConfig,
) -> Result<(Lane, Recovered, Arrivals), WalError> {
    let config = config.checked();
    let dir = lane_dir(&config, number)?;
    let found = find(disk, &dir, number)?;
    let drained = found.control.as_ref().is_some_and(|control| control.drained);
    let old_id = found.lane_id.filter(|_| !drained);
    let id = LaneId {
        lane: number,
        id: old_id.unwrap_or_else(|| mix(config.seed, number)),
    };
    let chain = found.chain();
    let mut replay = Replay::default();
    replay.run(&found, &chain, &dir)?;
    replay.judge_groups();

    let mut recovered = replay.recovered();
    recovered.is_new = old_id.is_none();
    let arrivals = replay.arrivals();
    let (segments, leftovers) = replay.segments(&found, &chain, &dir, config.segment_bytes);
    let end = std::mem::take(&mut replay.end);
    let mut lane = Lane::assemble(id, config, dir, std::mem::take(&mut replay.index), segments, end);
    // Which segments are free must be durable before one of them is written to.
    lane.control.sequence = found.control.as_ref().map_or(0, |control| control.sequence);
    lane.write_control(disk, false)?;
    if recovered.is_new {
        // Both slots are there from the beginning, so that a start on a full disk can write over one.
        lane.write_control(disk, false)?;
    }
    for file in leftovers {
        if let Some(op) = lane.segments.add_spare(file) {
            // A file that cannot be removed is met again at the next start.
            let _ = disk.run(&op);
        }
    }
    for (batch, repeated) in std::mem::take(&mut replay.tail) {
        lane.write_again(batch, repeated);
    }
    for group in &replay.to_note {
        lane.append_frame(&Frame::Damaged { group: *group });
    }
    Ok((lane, recovered, arrivals))
}

/// A lane id from the random seed (finaliser of SplitMix64).
fn mix(seed: u64, lane: u16) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(u64::from(lane) + 1));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Groups that were being copied here when the node stopped: the lane they came from still has them.
pub(crate) fn drop_half_arrived(lane: &mut Lane, recovered: &mut Recovered) {
    let half: Vec<GroupId> = lane
        .index
        .groups
        .iter()
        .filter(|(_, group)| group.arrival.as_ref().is_some_and(|fact| !fact.value.1))
        .map(|(id, _)| *id)
        .collect();
    for group in half {
        lane.append_frame(&Frame::plain(WalRecord::Destroyed { group }));
        recovered.groups.remove(&group);
    }
}

/// What of a group is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    /// Nothing that is still needed.
    Nothing,
    /// At most the last term, vote, commit or membership.
    LastFacts,
    /// More, or it cannot be told.
    More,
}

#[derive(Default)]
struct Replay {
    index: Index,
    entries: BTreeMap<GroupId, BTreeMap<u64, RecoveredEntry>>,
    /// Number of the last batch, read or lost.
    last: u64,
    /// Numbers of lost batches.
    lost: BTreeSet<u64>,
    /// Groups that are not sound since later than this batch may have lost records.
    suspect_up_to: u64,
    damage: Vec<Damage>,
    cut_bytes: u64,
    end: LogEnd,
    /// Batches beyond the end, to be written again.
    tail: Vec<(ClosedBatch, Repeated)>,
    /// Number of the last durable batch of each generation.
    last_numbers: BTreeMap<u64, u64>,
    /// What lost batches had of each group.
    lost_items: BTreeMap<GroupId, Vec<(u64, Item)>>,
    /// Groups whose damage the log does not note yet.
    to_note: BTreeSet<GroupId>,
    /// Groups that have lost nothing that is still needed.
    unharmed: BTreeSet<GroupId>,
    /// Groups that have lost no entry.
    whole: BTreeSet<GroupId>,
}

impl Replay {
    fn run(&mut self, found: &Found, chain: &Chain, dir: &FilePath) -> Result<(), WalError> {
        self.cut_bytes = chain.torn_bytes;
        self.end.number = found.control.as_ref().map_or(0, |control| control.number);
        let mut reached = Position::default();
        let mut pieces = chain.pieces.iter().peekable();
        while let Some(piece) = pieces.next() {
            let goes_on = match piece {
                Piece::Batch { generation, header } => {
                    reached = header.end();
                    self.batch(found, chain, dir, *generation, header)?
                }
                Piece::Hole { from, to } => {
                    let next = pieces.peek().and_then(|piece| match piece {
                        Piece::Batch { header, .. } => Some(header),
                        Piece::Hole { .. } => None,
                    });
                    reached = Position { offset: *to, ..*from };
                    *from < chain.synced && self.hole(found, dir, *from, *to, next)
                }
            };
            if !goes_on {
                return Ok(());
            }
        }
        self.cut_bytes += found.torn_bytes(reached);
        Ok(())
    }

    /// Takes in a batch; false if it is the torn end of the log.
    fn batch(
        &mut self,
        found: &Found,
        chain: &Chain,
        dir: &FilePath,
        generation: u64,
        header: &Header,
    ) -> Result<bool, WalError> {
        let Some(scan) = found.scans.get(&generation) else {
            return Ok(true);
        };
        let bytes = scan.bytes(header);
        let durable = header.end() <= chain.synced;
        let body = header.body(&bytes).map(|body| share(&bytes, body));
        // Numbers rise along a log. One that does not was never the next batch, whatever its checksum says.
        let follows = header.number > self.last.max(self.end.number);
        if !durable && (body.is_none() || !follows) {
            self.cut_bytes += header.total_len as u64;
            return Ok(false);
        }
        self.last = header.number;
        let file = segment_file(dir, scan.file.slot);
        match body {
            Some(body) => {
                self.index.batches.open(header.number);
                self.index
                    .batches
                    .place(header.number, header.stamp.at, header.total_len as u64);
                self.frames(header.number, &body)
                    .map_err(|_| WalError::Unsupported { file })?;
            }
            None => self.lose(
                header.number,
                Some(&header.items),
                file,
                header.stamp.at.offset,
                header.end().offset,
            ),
        }
        if durable {
            self.last_numbers.insert(generation, header.number);
            self.end = LogEnd {
                synced: header.end(),
                number: header.number,
                last: header.repeated(),
            };
        } else {
            self.tail
                .push((ClosedBatch::again(header.number, &bytes), header.repeated()));
        }
        Ok(true)
    }

    fn frames(&mut self, number: u64, body: &Bytes) -> Result<(), crate::frame::UnknownFrame> {
        for frame in Frames::new(body) {
            let frame = frame?;
            let effect = self.index.apply(number, &frame);
            let Some(group) = frame.group() else {
                continue;
            };
            let entry = match frame {
                Frame::Record {
                    record:
                        WalRecord::Entry {
                            index,
                            term,
                            kind,
                            data,
                            ..
                        },
                    ..
                } => Some(RecoveredEntry {
                    index,
                    term,
                    kind,
                    data: share(body, data),
                }),
                Frame::Record { .. } | Frame::Damaged { .. } | Frame::Arrival { .. } => None,
            };
            let from = entry.as_ref().map_or(0, |entry| entry.index.0);
            self.effect(group, effect, from, entry);
        }
        Ok(())
    }

    /// Does to the entries what a frame meant.
    fn effect(&mut self, group: GroupId, effect: Effect, from: u64, entry: Option<RecoveredEntry>) {
        match effect {
            Effect::None => {}
            Effect::Entered { supersedes } => {
                let entries = self.entries.entry(group).or_default();
                if supersedes && entries.last_key_value().is_some_and(|(last, _)| *last >= from) {
                    entries.split_off(&from);
                }
                entries.extend(entry.map(|entry| (from, entry)));
            }
            Effect::Floor(index) => {
                let entries = self.entries.entry(group).or_default();
                *entries = entries.split_off(&(index.0 + 1));
            }
            Effect::Cleared | Effect::Gone => {
                self.entries.remove(&group);
            }
        }
    }

    /// Takes note of bytes without a header. Always goes on.
    fn hole(
        &mut self,
        found: &Found,
        dir: &FilePath,
        from: Position,
        to: u64,
        next: Option<&Header>,
    ) -> bool {
        let bytes = to - from.offset;
        let end = Position { offset: to, ..from };
        let control = found
            .control
            .as_ref()
            .filter(|control| next.is_none() && control.synced == end);
        let told = match (next, control) {
            (Some(next), _) => Some((next.number - 1, next.prev_total, next.prev_items.as_slice())),
            (None, Some(control)) => Some((
                control.number,
                control.last.total_len,
                control.last.items.as_slice(),
            )),
            (None, None) => None,
        };
        // Only if one batch fills the hole does the list of one batch say it all.
        let known = told.filter(|(_, total_len, _)| u64::from(*total_len) == bytes);
        let highest = next.map_or(u64::MAX >> 8, |next| next.number - 1);
        let stated = told.map_or(self.last + 1, |(number, ..)| number);
        let number = stated.clamp(self.last.min(highest), highest).max(self.last);
        let slot = found.scans.get(&from.generation).map(|scan| scan.file.slot);
        let file = slot.map_or_else(|| dir.clone(), |slot| segment_file(dir, slot));
        self.last = number;
        self.last_numbers.insert(from.generation, number);
        self.lose(number, known.map(|(_, _, items)| items), file, from.offset, to);
        self.end = LogEnd {
            synced: end,
            number,
            last: known.map_or_else(Repeated::default, |(_, total_len, items)| Repeated {
                total_len,
                items: items.to_vec(),
            }),
        };
        true
    }

    /// A batch is lost, with the items that are known of it.
    fn lose(&mut self, number: u64, items: Option<&[Item]>, file: FilePath, offset: u64, end: u64) {
        self.lost.insert(number);
        let groups = match items {
            None => {
                self.suspect_up_to = number;
                DamagedGroups::All
            }
            Some(items) => {
                for item in items.iter().filter(|item| item.group != 0) {
                    let lost = self.lost_items.entry(GroupId(item.group)).or_default();
                    lost.push((number, *item));
                    let effect = self.index.apply_lost(number, item);
                    self.effect(GroupId(item.group), effect, item.first, None);
                }
                let range =
                    |item: &Item| (item.first > 0).then_some((LogIndex(item.first), LogIndex(item.last)));
                DamagedGroups::Known(
                    items
                        .iter()
                        .map(|item| (GroupId(item.group), range(item)))
                        .collect(),
                )
            }
        };
        self.damage.push(Damage {
            file,
            offset,
            bytes: end - offset,
            groups,
        });
    }

    /// Decides which groups are damaged, and which of those the log has to note.
    fn judge_groups(&mut self) {
        for (id, group) in &self.index.groups {
            let noted = group
                .damaged
                .as_ref()
                .is_some_and(|fact| !self.lost.contains(&fact.batch));
            let suspect = group.sound_since < self.suspect_up_to;
            let incomplete = group.created.is_none() || self.has_gap(*id);
            if !noted && !suspect && !incomplete && group.damaged.is_some() {
                let loss = self.loss(*id, group);
                if loss == Loss::Nothing {
                    self.unharmed.insert(*id);
                    continue;
                }
                if loss == Loss::LastFacts {
                    self.whole.insert(*id);
                }
            }
            if !noted && (group.damaged.is_some() || suspect || incomplete) {
                self.to_note.insert(*id);
            }
        }
        for id in &self.unharmed {
            self.index.not_damaged(*id, self.last);
        }
    }

    /// What a group misses of what was in lost batches, all of which are known.
    fn loss(&self, id: GroupId, group: &Group) -> Loss {
        let floor = group.floor().map_or(0, |(index, _)| index.0);
        let hard = group.hard.as_ref().map_or(0, |fact| fact.batch);
        let mut loss = Loss::Nothing;
        let items = self.lost_items.get(&id).into_iter().flatten();
        for (number, item) in items.filter(|(number, _)| *number > group.sound_since) {
            let replaced = Item::DESTROYED | Item::SNAPSHOT | Item::LASTING;
            if item.flags & replaced != 0 || item.last > floor {
                return Loss::More;
            }
            if item.flags & Item::OTHER != 0 && hard < *number {
                loss = Loss::LastFacts;
            }
        }
        loss
    }

    /// Whether entries are missing between the floor and the last one.
    fn has_gap(&self, id: GroupId) -> bool {
        let Some((last, entries)) = self
            .entries
            .get(&id)
            .and_then(|entries| Some((*entries.last_key_value()?.0, entries)))
        else {
            return false;
        };
        let floor = self.index.groups.get(&id).and_then(|group| group.floor());
        let first = entries.first_key_value().map_or(0, |(first, _)| *first);
        let start = floor.map_or(first, |(index, _)| index.0 + 1);
        last + 1 - start != entries.len() as u64
    }

    fn recovered(&mut self) -> Recovered {
        let mut recovered = Recovered {
            cut_bytes: self.cut_bytes,
            damage: std::mem::take(&mut self.damage),
            ..Recovered::default()
        };
        for (id, group) in &self.index.groups {
            let entries = self.entries.remove(id).unwrap_or_default().into_values();
            // Copied, so that a few retained entries do not keep a whole segment in memory.
            let copied = entries.map(|entry| RecoveredEntry {
                data: Bytes::copy_from_slice(&entry.data),
                ..entry
            });
            let created = group.created.as_ref().map(|fact| fact.value.clone());
            let (replica, created) = created.unwrap_or_default();
            let one = RecoveredGroup {
                replica,
                created,
                hard_state: group.hard.as_ref().map(|fact| fact.value),
                truncated: group.floor(),
                entries: copied.collect(),
                snapshot: group.snapshot.as_ref().map(|fact| fact.value.clone()),
                members: group.members.as_ref().map(|fact| fact.value.clone()),
                damaged: !self.unharmed.contains(id)
                    && (group.damaged.is_some() || self.to_note.contains(id)),
                log_is_whole: self.whole.contains(id),
            };
            recovered.groups.insert(*id, one);
        }
        let meta = self.index.meta.iter();
        recovered.meta = meta.map(|(key, fact)| (*key, fact.value.clone())).collect();
        recovered
    }

    fn arrivals(&self) -> Arrivals {
        let arrival = |(id, group): (&GroupId, &Group)| Some((*id, group.arrival.as_ref()?.value));
        self.index.groups.iter().filter_map(arrival).collect()
    }

    /// The segments of the log, and the files that are not part of it.
    fn segments(
        &self,
        found: &Found,
        chain: &Chain,
        dir: &FilePath,
        segment_bytes: u64,
    ) -> (Segments, Vec<Spare>) {
        let next_generation = found.last_generation() + GENERATIONS_LEFT_OUT;
        let mut segments = Segments::new(dir.clone(), segment_bytes, found.next_slot, next_generation);
        let mut leftovers = found.blank.clone();
        let mut last_number = 0;
        for (generation, scan) in &found.scans {
            if !chain.generations.contains(generation) {
                leftovers.push(scan.file);
                continue;
            }
            last_number = self.last_numbers.get(generation).copied().unwrap_or(last_number);
            segments.list.push_back(Segment {
                generation: *generation,
                slot: scan.file.slot,
                len: scan.file.len,
                used: scan.batches.last().map_or(0, |header| header.end().offset),
                last_number,
                sealed: Position::default(),
                closed: true,
                condemned: false,
            });
        }
        (segments, leftovers)
    }
}

impl Lane {
    /// Writes the control file and waits.
    pub(crate) fn write_control(&mut self, disk: &dyn Disk, drained: bool) -> Result<(), WalError> {
        let control = self.next_control(drained);
        let file = self.dir.clone();
        let written = match disk.run(&replace_control(&self.dir, &control)) {
            Err(IoError::NoSpace) => disk.run(&rewrite_control(&self.dir, &control)),
            other => other,
        };
        written.map_err(|error| WalError::Io { file, error })?;
        self.control.synced = control.synced;
        Ok(())
    }

    /// Writes all that was appended, and waits.
    pub(crate) fn finish(&mut self, disk: &dyn Disk) -> Result<(), WalError> {
        loop {
            let mut requests = self.take_requests();
            requests.extend(self.cut().into_iter().flat_map(|(_, requests)| requests));
            if requests.is_empty() {
                return Ok(());
            }
            for request in requests {
                let result = disk.run(&request.op);
                let event = self.done(&IoDone {
                    token: request.token,
                    result,
                });
                if let LaneEvent::Broken(error) = event {
                    let file = self.dir.clone();
                    return Err(match error {
                        IoError::NoSpace => WalError::Full {
                            file,
                            bytes: self.waiting_bytes().max(self.segments.least_bytes()),
                        },
                        error => WalError::Io { file, error },
                    });
                }
            }
        }
    }

    /// Makes a file ahead of use if there is none. If that fails, the lane is short.
    pub(crate) fn prepare(&mut self, disk: &dyn Disk) {
        if self.segments.wants_spare() {
            self.make_file(0);
            // Nothing is open, so that nothing but the creation can fail.
            let _ = self.finish(disk);
        }
    }
}
