//! Which cluster this store belongs to, told apart from the log: the file `cluster`.
//!
//! A server whose replica of the metadata is damaged or gone must not take itself for a new one: it would found a
//! cluster, or help to found one, beside the one that it belongs to. So the file is written once the metadata has
//! committed something, and again when the number of servers changes. It has the checksum of a note (`note.rs`).

use super::checkpoint::FileJob;
use super::{GroupId, Machine};
use crate::note::{NOTE_BYTES_MAX, decode_note, encode_note};
use crate::worker::{Core, IoJob, IoOwner};
use bytes::Bytes;
use tidelock_base::{ClusterId, LogIndex, NodeId, ReplicaId};
use tidelock_jetstream::meta::Meta;
use tidelock_record::{Disk, FilePath, IoDone, IoError, IoOp};

/// Name of the file.
pub(super) const FILE: &str = "cluster";
const NAMES: [&str; 3] = ["cluster", "node", "servers"];

/// What the file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Belonging {
    /// The cluster.
    pub(super) cluster: ClusterId,
    /// This server.
    pub(super) node: NodeId,
    /// Servers of the cluster, this one included.
    pub(super) servers: usize,
}

/// What was found at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// No file: the store never had metadata that had committed something.
    Nothing,
    /// A file that cannot be read.
    Damaged,
    /// A sound file.
    Sound(Belonging),
}

/// What is known of the file while the server runs.
#[derive(Debug, Default)]
pub(super) struct Noted {
    /// What it says.
    written: Option<Belonging>,
    /// What is being written.
    writing: Option<Belonging>,
}

impl Belonging {
    fn encode(&self) -> Bytes {
        let values = [
            format!("{:032x}", self.cluster.0),
            format!("{:016x}", self.node.0),
            self.servers.to_string(),
        ];
        let lines: Vec<(&str, String)> = NAMES.into_iter().zip(values).collect();
        encode_note(&lines)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let [cluster, node, servers] = decode_note(bytes, NAMES)?;
        Some(Self {
            cluster: ClusterId(u128::from_str_radix(&cluster, 16).ok()?),
            node: NodeId(u64::from_str_radix(&node, 16).ok()?),
            servers: servers.parse().ok()?,
        })
    }

    /// Reads the file of a store.
    ///
    /// # Errors
    /// Those of the disk, other than that there is no such file.
    pub(super) fn read(disk: &dyn Disk) -> Result<Found, IoError> {
        let file = FilePath::new(FILE)?;
        match disk
            .size(&file)
            .and_then(|size| disk.read(&file, 0, size.min(NOTE_BYTES_MAX + 1)))
        {
            Ok(bytes) => Ok(Self::decode(&bytes).map_or(Found::Damaged, Found::Sound)),
            Err(IoError::NotFound) => Ok(Found::Nothing),
            Err(error) => Err(error),
        }
    }
}

impl Core {
    /// Compares what was found with the metadata, which is sound.
    ///
    /// # Errors
    /// When files of two stores were mixed; the text is for the log.
    pub(super) fn check_belonging(&mut self, found: Found) -> Result<(), String> {
        let me = self.shared.identity.node;
        let Some(meta) = self.meta() else { return Ok(()) };
        match found {
            Found::Nothing => {}
            Found::Damaged => {
                tracing::error!(
                    "The file {} is damaged; it is written again from the metadata",
                    self.path_of(FILE)
                );
            }
            Found::Sound(belonging) if belonging.node != me => {
                return Err(format!(
                    "the file {} is that of server {:016x}, and the file `node` beside it says that this is server \
                     {:016x}: one of the two belongs to another store",
                    self.path_of(FILE),
                    belonging.node.0,
                    me.0
                ));
            }
            Found::Sound(belonging) if belonging.cluster != meta.cluster() => {
                return Err(format!(
                    "the file {} is of cluster {:032x} and the metadata in the log of cluster {:032x}: they belong to \
                     different stores",
                    self.path_of(FILE),
                    belonging.cluster.0,
                    meta.cluster().0
                ));
            }
            Found::Sound(belonging) => self.groups.noted.written = Some(belonging),
        }
        Ok(())
    }

    /// What the file has to say, once there is something to say.
    fn belonging(&self) -> Option<Belonging> {
        let slot = self.slot(GroupId::META)?;
        let Machine::Meta(meta) = &slot.machine else {
            return None;
        };
        // What was founded and has not committed anything may still turn out never to have been.
        let begun = slot.raft.applied_index() > LogIndex(1) && slot.failed.is_none();
        begun.then(|| Belonging {
            cluster: meta.cluster(),
            node: self.shared.identity.node,
            servers: meta.servers().count(),
        })
    }

    /// Writes the file unless it says what it has to; answers whether it does.
    pub(super) fn note_belonging(&mut self) -> bool {
        let Some(belonging) = self.belonging() else {
            return self.groups.noted.written.is_some() || self.slot(GroupId::META).is_none();
        };
        let noted = &mut self.groups.noted;
        if noted.written == Some(belonging) || self.groups.lane.lane.is_none() {
            return true;
        }
        let Ok(file) = FilePath::new(FILE) else {
            return true;
        };
        if noted.writing.is_none() {
            noted.writing = Some(belonging);
            let data = belonging.encode();
            let op = IoOp::Replace { file, data };
            let request = self.groups.files.request(FileJob::Belonging, op);
            self.out.io.push(IoJob {
                owner: IoOwner::Node,
                requests: vec![request],
                inline: false,
            });
        }
        false
    }

    /// The file is written, or could not be: then it is tried again at the next look at the formation.
    pub(super) fn belonging_written(&mut self, done: &IoDone) {
        let writing = self.groups.noted.writing.take();
        match &done.result {
            Ok(_) => self.groups.noted.written = writing,
            Err(error) => tracing::warn!("The file {} cannot be written: {error}", self.path_of(FILE)),
        }
    }
}

/// Says why the metadata with which a replica began is not that of this server, if so.
pub(super) fn foreign(founding: &Meta, replica: ReplicaId, me: NodeId) -> Option<String> {
    let mine = founding
        .server(me)
        .is_some_and(|server| server.meta_replica == replica);
    if mine {
        return None;
    }
    let owner = founding.servers().find(|server| server.meta_replica == replica);
    let owner = owner.map_or_else(
        || "another server".to_owned(),
        |server| format!("server {:016x} ({})", server.spec.id.0, server.spec.name),
    );
    Some(format!(
        "the metadata in this store does not know it as that of this server, which is {:016x} by the file `node`: it is \
         that of {owner}. The file belongs to another store",
        me.0
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidelock_record::MemDisk;

    #[test]
    fn what_is_written_is_read_back_and_damage_is_told_from_nothing() {
        let disk = MemDisk::new();
        assert_eq!(Belonging::read(&disk), Ok(Found::Nothing));
        let belonging = Belonging {
            cluster: ClusterId(7),
            node: NodeId(9),
            servers: 3,
        };
        let file = FilePath::new(FILE).expect("a path");
        let data = belonging.encode();
        let op = IoOp::Replace {
            file: file.clone(),
            data,
        };
        disk.run(&op).expect("room");
        assert_eq!(Belonging::read(&disk), Ok(Found::Sound(belonging)));
        assert!(disk.flip_bit(&file, 100));
        assert_eq!(Belonging::read(&disk), Ok(Found::Damaged));
    }
}
