//! The folders with blocks, `streams/<group>-…`, at a start: whose they are, and which of them nobody needs.
//!
//! A group has one folder, and two while it is filled by a snapshot: its own, and the one that the snapshot's files are
//! put into. If the server dies, one of the two may be of no use any more, depending on how far it had come:
//!
//! - Before the log has recorded the snapshot nothing names the new folder. It is emptied at the next start.
//! - From then on the log names the new folder, and the last checkpoint still names the old one. The old one is emptied
//!   when a checkpoint of the new state is durable, after a start as without one.
//! - When that checkpoint is durable nothing names the old folder.
//!
//! **Why it is safe to empty a folder that is not named** (promise P4): a group is opened from its file of checkpoints and
//! from its records in the log, and from nothing else; a folder that neither of them names is never read again. That
//! holds where both were read whole. So nothing is removed of a group that could not be opened, of which the log may have
//! lost records, or of which it knows nothing. What the metadata says, or does not say, does not matter. The record of an
//! installed snapshot may have been cut with a torn end of the log; then the replica is where it was before, and is filled
//! again.

use super::checkpoint::blocks_folder;
use tidelock_base::GroupId;
use tidelock_record::{Disk, FilePath, IoOp};

/// The names of all folders with blocks.
pub(super) struct Folders {
    names: Vec<String>,
}

impl Folders {
    /// Waits for the disk. If it cannot tell, there are none to be looked at.
    pub(super) fn list(disk: &dyn Disk) -> Self {
        let names = FilePath::new("streams").and_then(|streams| disk.list(&streams));
        Self {
            names: names.unwrap_or_default(),
        }
    }

    fn names_of(&self, group: GroupId) -> impl Iterator<Item = &String> {
        let prefix = format!("{}-", group.0);
        self.names.iter().filter(move |name| name.starts_with(&prefix))
    }

    /// The folders of a group.
    pub(super) fn of(&self, group: GroupId) -> Vec<FilePath> {
        self.names_of(group)
            .filter_map(|name| blocks_folder(name).ok())
            .collect()
    }

    /// Empties the folders of a group that are not named. See the module's text for when that may be done. What cannot
    /// be removed is left to the next start.
    pub(super) fn remove_unnamed(&self, group: GroupId, named: &[String], disk: &dyn Disk) {
        for name in self.names_of(group).filter(|name| !named.contains(name)) {
            let files = files_of(name, disk);
            if !files.is_empty() {
                tracing::info!("Group {group}: files that nothing names any more are removed from {name:?}");
            }
            for file in files {
                if let Err(error) = disk.run(&IoOp::Remove { file: file.clone() }) {
                    tracing::warn!("{} cannot be removed: {error}", file.as_str());
                }
            }
        }
    }

    /// The files in these folders of a group.
    pub(super) fn files_in(&self, group: GroupId, named: &[String], disk: &dyn Disk) -> Vec<FilePath> {
        self.names_of(group)
            .filter(|name| named.contains(name))
            .flat_map(|name| files_of(name, disk))
            .collect()
    }
}

fn files_of(folder: &str, disk: &dyn Disk) -> Vec<FilePath> {
    let Ok(dir) = blocks_folder(folder) else {
        return Vec::new();
    };
    let names = disk.list(&dir).unwrap_or_default();
    names.iter().filter_map(|name| dir.join(name).ok()).collect()
}
