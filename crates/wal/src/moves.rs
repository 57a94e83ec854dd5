//! Opening all lanes of a store on any number of workers: groups of lanes that no worker has move to lanes that have
//! one, and lanes that are empty for good are removed.
//!
//! A move copies the group with one note before (`Arrival`, not complete) and one after (complete), each with the id
//! of the lane it comes from. After a crash a copy without the second note is dropped, since its source is whole; a
//! copy with it makes the source stale. A source lane is declared drained, durably, once all its groups are copied
//! and synced; only then are its files removed.

use crate::config::{LaneConfig, WalError};
use crate::frame::{Frame, WalRecord};
use crate::lane::Lane;
use crate::recover::{Arrivals, Recovered, RecoveredGroup, drop_half_arrived, lane_dir, open};
use std::collections::BTreeMap;
use tidelock_base::GroupId;
use tidelock_record::{Disk, IoOp};

/// A group that is in another lane than before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The group.
    pub group: GroupId,
    /// Number of the lane it was in.
    pub from: u16,
    /// Number of the lane it is in.
    pub to: u16,
}

/// All lanes of a store.
#[derive(Debug, Default)]
pub struct RecoveredAll {
    /// The lanes `0..active`, in order, and what each holds. Node-wide facts of lanes that are gone are in lane 0,
    /// as is the report of their damage.
    pub lanes: Vec<(Lane, Recovered)>,
    /// Groups that have moved.
    pub moved: Vec<Moved>,
}

struct Opened {
    lane: Lane,
    recovered: Recovered,
    arrivals: Arrivals,
}

impl Opened {
    /// Takes a group out of the lane, if it is there.
    fn forget(&mut self, group: GroupId) {
        if self.recovered.groups.remove(&group).is_some() {
            self.lane
                .append_frame(&Frame::plain(WalRecord::Destroyed { group }));
        }
    }
}

/// Opens the lanes `0..active` (at least one) and moves the groups of all others into them: group `g` goes to lane
/// `g % active`. Waits for the disk; for the start of a node only.
///
/// # Errors
/// As [`recover`](crate::recover). After an error nothing is lost: the next start goes on with the moves.
pub fn recover_all(disk: &dyn Disk, active: u16, config: &LaneConfig) -> Result<RecoveredAll, WalError> {
    let active = active.max(1);
    let mut lanes = BTreeMap::new();
    for number in numbers(disk, active, config)? {
        let (lane, recovered, arrivals) = open(disk, number, config.clone())?;
        lanes.insert(
            number,
            Opened {
                lane,
                recovered,
                arrivals,
            },
        );
    }
    for opened in lanes.values_mut() {
        drop_half_arrived(&mut opened.lane, &mut opened.recovered);
        let groups = &opened.recovered.groups;
        opened.arrivals.retain(|id, _| groups.contains_key(id));
    }
    drop_stale(&mut lanes);
    drop_older(&mut lanes);

    let mut all = RecoveredAll::default();
    let inactive = lanes.split_off(&active);
    let mut active_lanes: Vec<Opened> = lanes.into_values().collect();
    for opened in &mut active_lanes {
        opened.lane.finish(disk)?;
    }
    for (from, source) in inactive {
        move_lane(disk, &mut active_lanes, from, source, &mut all.moved)?;
    }
    for opened in active_lanes {
        let mut lane = opened.lane;
        lane.prepare(disk);
        all.lanes.push((lane, opened.recovered));
    }
    Ok(all)
}

/// Numbers of the lanes to open: the active ones, and all that have a directory with something in it.
fn numbers(disk: &dyn Disk, active: u16, config: &LaneConfig) -> Result<Vec<u16>, WalError> {
    let listed = disk.list(&config.dir).map_err(|error| WalError::Io {
        file: config.dir.clone(),
        error,
    })?;
    let mut numbers: Vec<u16> = (0..active).collect();
    for number in listed
        .iter()
        .filter_map(|name| name.strip_prefix("lane-")?.parse().ok())
    {
        let dir = lane_dir(config, number)?;
        let files = disk
            .list(&dir)
            .map_err(|error| WalError::Io { file: dir, error })?;
        if number >= active && !files.is_empty() {
            numbers.push(number);
        }
    }
    numbers.sort_unstable();
    numbers.dedup();
    Ok(numbers)
}

/// Drops each copy of a group from which a complete copy was made elsewhere.
fn drop_stale(lanes: &mut BTreeMap<u16, Opened>) {
    let complete: Vec<(GroupId, u64)> = lanes
        .values()
        .flat_map(|opened| &opened.arrivals)
        .filter(|(_, (_, complete))| *complete)
        .map(|(group, (from, _))| (*group, *from))
        .collect();
    for (group, from) in complete {
        for source in lanes.values_mut().filter(|opened| opened.lane.id.id == from) {
            if source.recovered.groups.remove(&group).is_some() {
                source
                    .lane
                    .append_frame(&Frame::plain(WalRecord::Destroyed { group }));
            }
        }
    }
}

/// Drops older replicas of groups of which a younger one is there: the group was destroyed in one lane and created in
/// another, and of the two only the creation was durable at the crash.
fn drop_older(lanes: &mut BTreeMap<u16, Opened>) {
    let mut youngest = BTreeMap::new();
    for (id, group) in lanes.values().flat_map(|opened| &opened.recovered.groups) {
        let replica = youngest.entry(*id).or_insert(group.replica);
        *replica = group.replica.max(*replica);
    }
    for opened in lanes.values_mut() {
        let older = |(id, group): (&GroupId, &RecoveredGroup)| {
            let younger = youngest.get(id).is_some_and(|replica| *replica > group.replica);
            younger.then_some(*id)
        };
        let drop: Vec<GroupId> = opened.recovered.groups.iter().filter_map(older).collect();
        for group in drop {
            opened.forget(group);
        }
    }
}

/// Copies all groups of a lane into active ones and removes the lane.
fn move_lane(
    disk: &dyn Disk,
    active: &mut [Opened],
    from: u16,
    mut source: Opened,
    moved: &mut Vec<Moved>,
) -> Result<(), WalError> {
    let count = active.len() as u64;
    let source_id = source.lane.id.id;
    for (id, group) in std::mem::take(&mut source.recovered.groups) {
        // One that is there all the same lost the note that its copy is complete.
        active.iter_mut().for_each(|opened| opened.forget(id));
        let at = usize::try_from(id.0 % count).unwrap_or(0);
        let Some(target) = active.get_mut(at) else {
            continue;
        };
        copy(&mut target.lane, source_id, id, &group);
        target.recovered.groups.insert(id, group);
        moved.push(Moved {
            group: id,
            from,
            to: target.lane.number(),
        });
    }
    if let Some(first) = active.first_mut() {
        for (key, blob) in source.recovered.meta {
            if !first.recovered.meta.contains_key(&key) {
                let record = WalRecord::Meta { key, blob: &blob };
                first.lane.append_frame(&Frame::kept(record));
                first.recovered.meta.insert(key, blob);
            }
        }
        first.recovered.damage.append(&mut source.recovered.damage);
        first.recovered.cut_bytes += source.recovered.cut_bytes;
    }
    for target in active.iter_mut() {
        target.lane.finish(disk)?;
    }
    remove(disk, source.lane)
}

/// Appends all there is of a group.
fn copy(target: &mut Lane, source_id: u64, id: GroupId, group: &RecoveredGroup) {
    let arrival = |complete| Frame::Arrival {
        group: id,
        lane_id: source_id,
        complete,
    };
    target.append_frame(&arrival(false));
    let mut kept = |record| {
        target.append_frame(&Frame::kept(record));
    };
    if group.replica.0 != 0 {
        kept(WalRecord::Created {
            group: id,
            replica: group.replica,
            blob: &group.created,
        });
    }
    match (&group.snapshot, group.truncated) {
        (Some(snapshot), _) => kept(WalRecord::SnapshotInstalled {
            group: id,
            index: snapshot.index,
            term: snapshot.term,
            blob: &snapshot.blob,
        }),
        (None, Some((index, term))) => kept(WalRecord::Truncated {
            group: id,
            index,
            term,
        }),
        (None, None) => {}
    }
    if let Some(blob) = &group.members {
        kept(WalRecord::Members { group: id, blob });
    }
    for entry in &group.entries {
        kept(WalRecord::Entry {
            group: id,
            index: entry.index,
            term: entry.term,
            kind: entry.kind,
            data: &entry.data,
        });
    }
    if let Some(hard) = &group.hard_state {
        kept(WalRecord::HardState {
            group: id,
            term: hard.term,
            vote: hard.vote,
            commit: hard.commit,
        });
    }
    if group.damaged {
        target.append_frame(&Frame::Damaged { group: id });
    }
    target.append_frame(&arrival(true));
}

/// Declares a lane drained and removes its files, the control files last: a crash may bring back any file whose removal
/// is not durable, and segments without a control file would be taken for a lane.
fn remove(disk: &dyn Disk, mut lane: Lane) -> Result<(), WalError> {
    lane.write_control(disk, true)?;
    let names = disk.list(&lane.dir).unwrap_or_default();
    let (control, slots): (Vec<_>, Vec<_>) = names.iter().partition(|name| name.starts_with("control-"));
    remove_files(disk, &lane, &slots);
    // Makes those removals durable, and the other slot say the same: either of the two may come back.
    lane.write_control(disk, true)?;
    remove_files(disk, &lane, &control);
    Ok(())
}

fn remove_files(disk: &dyn Disk, lane: &Lane, names: &[&String]) {
    for name in names {
        // What stays is recognised as drained at the next start, and removed then.
        if let Ok(file) = lane.dir.join(name) {
            let _ = disk.run(&IoOp::Remove { file });
        }
    }
}
