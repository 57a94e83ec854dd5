//! What of this node's store is damaged: where, and which groups could not be opened for it.
//!
//! A group that could not be opened is kept: its files and its records in the log stay as they are until the metadata
//! has removed that replica for good, or has put another one in its place (DESIGN section 9, promise P4).

use super::GroupId;
use super::checkpoint::{FileJob, checkpoint_file};
use crate::worker::{Core, IoJob, IoOwner};
use std::collections::BTreeMap;
use tidelock_base::ReplicaId;
use tidelock_record::{FilePath, IoDone, IoOp, IoOutput, IoRequest};
use tidelock_wal::{Damage, DamagedGroups, WalRecord};

/// Why a group cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unopened {
    /// Something that was durable is damaged or gone.
    Damaged(String),
    /// Anything else: an error of the disk, a format that this version does not know.
    Failed(String),
}

impl Unopened {
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Damaged(text) | Self::Failed(text) => text,
        }
    }

    /// Says which file it is about.
    pub(super) fn in_file(self, path: &str) -> Self {
        match self {
            Self::Damaged(text) => Self::Damaged(format!("{text} ({path})")),
            Self::Failed(text) => Self::Failed(format!("{text} ({path})")),
        }
    }
}

impl std::fmt::Display for Unopened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())
    }
}

/// A fixed text states damage.
impl From<&'static str> for Unopened {
    fn from(text: &'static str) -> Self {
        Self::Damaged(text.to_owned())
    }
}

/// A text that was made of an error.
impl From<String> for Unopened {
    fn from(text: String) -> Self {
        Self::Failed(text)
    }
}

/// A group that could not be opened.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    /// The replica; 0 if that is lost, too.
    pub(super) replica: ReplicaId,
    /// Why, and where.
    pub(super) why: Unopened,
    /// What is left of it shows that it has voted or taken entries.
    pub(super) begun: bool,
    /// Where its blocks are.
    pub(super) folders: Vec<FilePath>,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Damages {
    places: Vec<Damage>,
    kept: BTreeMap<GroupId, Kept>,
}

impl Damages {
    /// What the log has found.
    pub(super) fn found(&mut self, places: Vec<Damage>) {
        self.places = places;
    }

    pub(super) fn keep(&mut self, group: GroupId, kept: Kept) {
        self.kept.insert(group, kept);
    }

    /// A group of this id that could not be opened.
    pub(super) fn kept(&self, group: GroupId) -> Option<&Kept> {
        self.kept.get(&group)
    }

    /// The groups that could not be opened and whose replica is known.
    pub(super) fn replicas(&self) -> impl Iterator<Item = (GroupId, ReplicaId)> + '_ {
        let known = self.kept.iter().filter(|(_, kept)| kept.replica.0 != 0);
        known.map(|(group, kept)| (*group, kept.replica))
    }

    /// Another replica has taken its place.
    pub(super) fn forget(&mut self, group: GroupId) {
        self.kept.remove(&group);
    }

    /// Whether something of a group may be lost from the log.
    pub(super) fn touch(&self, group: GroupId) -> bool {
        self.places_of(group).next().is_some()
    }

    /// The places in the log at which something of a group may be lost.
    fn places_of(&self, group: GroupId) -> impl Iterator<Item = &Damage> {
        self.places.iter().filter(move |damage| match &damage.groups {
            DamagedGroups::All => true,
            DamagedGroups::Known(groups) => groups.iter().any(|(id, _)| *id == group),
        })
    }
}

impl Core {
    /// The path of a file or folder of the store, as far as this node knows where the store lies.
    pub(super) fn path_of(&self, name: &str) -> String {
        match self.shared.store_folder.get() {
            Some(folder) => format!("{folder}/{name}"),
            None => name.to_owned(),
        }
    }

    /// Adds to what is damaged where in the log that is.
    pub(super) fn with_places(&self, group: GroupId, why: Unopened) -> Unopened {
        let places: Vec<String> = self
            .groups
            .damages
            .places_of(group)
            .map(|damage| format!("{}:{}", self.path_of(damage.file.as_str()), damage.offset))
            .collect();
        match why {
            Unopened::Damaged(text) if !places.is_empty() => {
                Unopened::Damaged(format!("{text}; the log is damaged at {}", places.join(", ")))
            }
            why => why,
        }
    }

    /// Where the files of a group are that could not be opened, for log lines.
    pub(super) fn files_of(&self, group: GroupId, kept: &Kept) -> String {
        let log = FilePath::new("wal");
        let files = kept
            .folders
            .iter()
            .cloned()
            .chain(checkpoint_file(group))
            .chain(log);
        let paths: Vec<String> = files.map(|file| self.path_of(file.as_str())).collect();
        paths.join(", ")
    }

    /// The metadata has removed a replica for good that could not be opened: what is left of it goes. Another one of
    /// its group that is here by now has files of its own.
    pub(super) fn remove_kept(&mut self, group: GroupId, replica: ReplicaId) {
        let waits = self.groups.presence.replicas().any(|(other, _)| other == group);
        if waits || self.slot(group).is_some() {
            return;
        }
        let Some(kept) = self.groups.damages.kept.remove(&group) else {
            return;
        };
        if kept.replica != replica {
            self.groups.damages.keep(group, kept);
            return;
        }
        self.groups.log(&WalRecord::Destroyed { group });
        self.remove_files(group);
        for dir in kept.folders {
            let op = IoOp::List { dir: dir.clone() };
            let request = self.groups.files.request(FileJob::Folder(dir), op);
            self.node_io(vec![request]);
        }
    }

    /// The names in a folder that is to be emptied.
    pub(super) fn folder_listed(&mut self, dir: &FilePath, done: &IoDone) {
        let Ok(IoOutput::Names(names)) = &done.result else {
            return;
        };
        let files = names.iter().filter_map(|name| dir.join(name).ok());
        let requests = files
            .map(|file| self.groups.files.request(FileJob::Removal, IoOp::Remove { file }))
            .collect();
        self.node_io(requests);
    }

    fn node_io(&mut self, requests: Vec<IoRequest>) {
        if !requests.is_empty() {
            self.out.io.push(IoJob {
                owner: IoOwner::Node,
                requests,
                inline: false,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_named_for_the_groups_that_may_have_lost_something_there() {
        let damage = |offset, groups| Damage {
            file: FilePath::new("wal/lane-0000/slot-00000000").expect("a path"),
            offset,
            bytes: 4096,
            groups,
        };
        let mut damages = Damages::default();
        damages.found(vec![
            damage(
                1,
                DamagedGroups::Known(vec![(GroupId(1), None), (GroupId(3), None)]),
            ),
            damage(2, DamagedGroups::All),
        ]);
        let offsets = |group| -> Vec<u64> {
            let places = damages.places_of(GroupId(group));
            places.map(|damage| damage.offset).collect()
        };
        assert_eq!(
            (offsets(1), offsets(2), offsets(3)),
            (vec![1, 2], vec![2], vec![1, 2])
        );
    }
}
