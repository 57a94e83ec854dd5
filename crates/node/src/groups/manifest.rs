//! What a snapshot is made of: the state, and the block files that it needs.
//!
//! The manifest travels in the frame that offers the snapshot, and is what the log keeps of one that was installed. The
//! state does not stand in it, since it may be as large as all messages of a stream in memory: it is fetched in pieces, like
//! the files. A replica that keeps its log on a disk keeps the state in a file beside the blocks until its first own
//! checkpoint.

use super::chain::{Checkpoint, put, take};
use super::checkpoint::blocks_folder;
use bytes::Bytes;
use std::collections::VecDeque;
use tidelock_base::LogIndex;
use tidelock_record::{Disk, FilePath, IoError};
use tidelock_replica::Members;

/// Name of the state among the files of a snapshot. Blocks have numbers for names.
pub(super) const STATE: &str = "state";

/// A file of a snapshot, or its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct File {
    pub(super) name: String,
    /// Bytes.
    pub(super) len: u64,
    /// CRC-32C of all of it.
    pub(super) crc: u32,
}

impl File {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        put(out, self.name.as_bytes());
        put(out, &self.len.to_le_bytes());
        put(out, &self.crc.to_le_bytes());
    }

    fn take(rest: &mut &[u8]) -> Option<Self> {
        Some(Self {
            name: std::str::from_utf8(take(rest)?).ok()?.to_owned(),
            len: u64::from_le_bytes(take(rest)?.try_into().ok()?),
            crc: u32::from_le_bytes(take(rest)?.try_into().ok()?),
        })
    }
}

/// See the module's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Manifest {
    /// Where the receiver keeps it, below `streams`: a folder that is named after the position, so that it can stand beside
    /// the one that is in use.
    pub(super) folder: String,
    /// The state first.
    pub(super) files: VecDeque<File>,
}

impl Manifest {
    /// Begins the manifest of a state that is kept in this folder by its leader. The files are to be appended.
    pub(super) fn begin(folder: &str, state: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, folder.as_bytes());
        let state = File {
            name: STATE.to_owned(),
            len: state.len() as u64,
            crc: crc32c::crc32c(state),
        };
        state.put(&mut out);
        out
    }

    /// Reads the manifest of a snapshot up to `index`; `None` if it is none.
    pub(super) fn decode(bytes: &[u8], index: LogIndex) -> Option<Self> {
        let mut rest = bytes;
        let folder = std::str::from_utf8(take(&mut rest)?).ok()?;
        let base = folder.split('.').next().unwrap_or_default();
        let folder = format!("{base}.{index}");
        let mut files = VecDeque::new();
        while !rest.is_empty() {
            files.push_back(File::take(&mut rest)?);
        }
        let begins = files.front().is_some_and(|state: &File| state.name == STATE);
        begins.then_some(Self { folder, files })
    }

    /// What the state says; `None` if it is damaged.
    pub(super) fn checkpoint(&self, state: &Bytes) -> Option<Checkpoint> {
        Some(Checkpoint {
            folder: self.folder.clone(),
            ..Checkpoint::decode(state)?
        })
    }

    /// What the log has kept of an installed snapshot up to `index`.
    pub(super) fn of_blob(blob: &[u8], index: LogIndex) -> Option<Self> {
        let mut rest = blob;
        take(&mut rest)?;
        Self::decode(rest, index)
    }

    /// The state of an installed snapshot, from the file that it was put into. Waits for the disk.
    ///
    /// # Errors
    /// A text if it cannot be read, or is damaged.
    pub(super) fn read(&self, disk: &dyn Disk) -> Result<Checkpoint, String> {
        let file = state_file(&self.folder).map_err(|error| error.to_string())?;
        let bytes = disk.size(&file).and_then(|size| disk.read(&file, 0, size));
        let bytes = bytes.map_err(|error| format!("{}: {error}", file.as_str()))?;
        let is_it = |state: &File| state.len == bytes.len() as u64 && state.crc == crc32c::crc32c(&bytes);
        let state = self.files.front().filter(|state| is_it(state));
        state
            .and_then(|_| self.checkpoint(&bytes))
            .ok_or_else(|| format!("{} is damaged", file.as_str()))
    }
}

/// What the log keeps of an installed snapshot.
pub(super) fn installed_blob(members: &Members, manifest: &Bytes) -> Vec<u8> {
    let mut out = Vec::new();
    put(&mut out, &members.encode());
    out.extend_from_slice(manifest);
    out
}

/// Whether what is in this folder has come by a snapshot.
pub(super) fn is_of_snapshot(folder: &str) -> bool {
    folder.contains('.')
}

/// Where the state of a received snapshot lies.
pub(super) fn state_file(folder: &str) -> Result<FilePath, IoError> {
    blocks_folder(folder)?.join(STATE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_comes_back_and_a_part_of_it_does_not() {
        let block = File {
            name: "7".to_owned(),
            len: 3,
            crc: 9,
        };
        let mut bytes = Manifest::begin("4-2.17", b"state");
        let without = bytes.len();
        block.put(&mut bytes);
        let read = Manifest::decode(&bytes, LogIndex(30)).expect("whole");
        assert_eq!(read.folder, "4-2.30");
        let state = File {
            name: STATE.to_owned(),
            len: 5,
            crc: crc32c::crc32c(b"state"),
        };
        assert_eq!(read.files, [state, block]);
        for len in 0..bytes.len() {
            let part = Manifest::decode(bytes.get(..len).expect("shorter"), LogIndex(30));
            assert!(
                part.is_none_or(|part| len == without && part.files.len() == 1),
                "{len}"
            );
        }
        let blob = installed_blob(&Members::default(), &Bytes::from(bytes));
        assert_eq!(Manifest::of_blob(&blob, LogIndex(30)), Some(read));
    }
}
