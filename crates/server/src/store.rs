//! The store's folder: which one, whose it is, and opening what is in it.

use crate::Fatal;
use crate::disk::FileDisk;
use crate::folders;
use crate::random;
use anyhow::Result;
use rustix::fs::{FlockOperation, flock};
use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidelock_base::NodeId;
use tidelock_conf::JetStreamOptions;
use tidelock_node::{NOTE_BYTES_MAX, decode_note, encode_note};
use tidelock_record::{Disk, FilePath, IoError, IoOp, IoOutput};
use tidelock_wal::{DamagedGroups, LaneConfig, RecoveredAll, WalError, recover_all};

/// An open store.
pub(crate) struct Store {
    /// Its folder.
    pub(crate) folder: PathBuf,
    /// Its files.
    pub(crate) disk: Arc<FileDisk>,
    /// The server's id, which lives in the store.
    pub(crate) node: NodeId,
    /// Holds the lock for as long as the server runs.
    _lock: File,
}

impl Store {
    /// Opens the store of these options, or makes it. Its folder is `<store_dir>/jetstream/tidelock`, or
    /// `tidelock-<domain>` where a server of another domain has that.
    ///
    /// # Errors
    /// [`Fatal`] if the folder is not one, is in use by a server of the same domain, or holds a nats-server's data.
    pub(crate) fn open(options: &JetStreamOptions) -> Result<Self> {
        let base = base_folder(options);
        if base.exists() && !base.is_dir() {
            return Err(cannot("storage directory is not a directory"));
        }
        folders::make(&base).map_err(|e| {
            cannot(&format!(
                "could not create storage directory - {}: {e}",
                base.display()
            ))
        })?;
        refuse_foreign(&base)?;
        let domain = options.domain.as_deref().unwrap_or_default();
        let (folder, lock) = lock_folder(&base, domain)?;
        let disk = Arc::new(FileDisk::open(&folder).map_err(|e| cannot_use(&folder, e))?);
        let node = node_id(&*disk, &folder)?;
        Ok(Self {
            folder,
            disk,
            node,
            _lock: lock,
        })
    }

    /// Free bytes for this server where the store is, what its own log and reserve have there included: that is no
    /// message's, and is used again.
    ///
    /// # Errors
    /// When the file system cannot be asked.
    pub(crate) fn free_bytes(&self) -> Result<u64> {
        let IoOutput::Space { free, .. } = self.space()? else {
            return Ok(0);
        };
        Ok(free.saturating_add(self.log_bytes().unwrap_or(0)))
    }

    fn space(&self) -> Result<IoOutput> {
        self.disk
            .run(&IoOp::Space)
            .map_err(|e| cannot_use(&self.folder, e))
    }

    fn log_bytes(&self) -> Result<u64, IoError> {
        let wal = FilePath::new("wal")?;
        let mut folders = vec![FilePath::new("reserve")?];
        for lane in self.disk.list(&wal)? {
            folders.push(wal.join(&lane)?);
        }
        let mut bytes = 0;
        for folder in folders {
            for file in self.disk.list(&folder)? {
                bytes += self.disk.size(&folder.join(&file)?)?;
            }
        }
        Ok(bytes)
    }

    /// The log's budget and the length of its segments: those of the design, and less on a small file system, where
    /// they would be most of it.
    ///
    /// # Errors
    /// When the file system cannot be asked.
    pub(crate) fn log_sizes(&self, workers: u16) -> Result<(u64, u64)> {
        let total = match self.space()? {
            IoOutput::Space { total, .. } => total,
            IoOutput::Done | IoOutput::Data(_) | IoOutput::Names(_) | IoOutput::Size(_) => u64::MAX,
        };
        Ok(log_sizes(total, workers))
    }

    /// Opens the lanes of `workers` workers.
    ///
    /// # Errors
    /// When the log cannot be opened.
    pub(crate) fn recover(&self, workers: u16) -> Result<RecoveredAll> {
        let seed = u64::from_le_bytes(random::bytes()?);
        let config = LaneConfig {
            segment_bytes: self.log_sizes(workers)?.1,
            ..LaneConfig::new(seed)
        };
        let recovered = match recover_all(&*self.disk, workers, &config) {
            Err(
                WalError::Full { .. }
                | WalError::Io {
                    error: IoError::NoSpace,
                    ..
                },
            ) => {
                // What is kept for checkpoints on a full disk is worth less than a log that can be opened.
                self.give_up_reserve();
                recover_all(&*self.disk, workers, &config)
            }
            other => other,
        };
        let recovered = recovered.map_err(|e| cannot_use(&self.folder, e))?;
        for (_, lane) in &recovered.lanes {
            for damage in &lane.damage {
                tracing::error!(
                    "Write-ahead log: {} bytes at {}/{}:{} are damaged; {}",
                    damage.bytes,
                    self.folder.display(),
                    damage.file,
                    damage.offset,
                    Concerned(&damage.groups)
                );
            }
        }
        Ok(recovered)
    }
}

impl Store {
    fn give_up_reserve(&self) {
        let Ok(dir) = FilePath::new("reserve") else { return };
        for name in self.disk.list(&dir).unwrap_or_default() {
            if let Ok(file) = dir.join(&name) {
                let _ = self.disk.run(&IoOp::Remove { file });
            }
        }
    }
}

/// Bytes of a worker's log before it is checkpointed, and of one of its segments.
fn log_sizes(total: u64, workers: u16) -> (u64, u64) {
    const MIB: u64 = 1 << 20;
    let log = (total / 32 / u64::from(workers.max(1))).clamp(4 * MIB, 64 * MIB);
    let segment = 1 << (log / 4).ilog2();
    (log, segment)
}

/// `<store_dir>/jetstream`.
pub(crate) fn base_folder(options: &JetStreamOptions) -> PathBuf {
    let store_dir = match &options.store_dir {
        Some(folder) => PathBuf::from(folder),
        None => std::env::temp_dir().join("nats"),
    };
    store_dir.join("jetstream")
}

fn cannot(text: &str) -> anyhow::Error {
    Fatal(format!("Can't start JetStream: {text}")).into()
}

/// A file or folder of the store cannot be used: an error of the system alone would not say which.
fn cannot_use(path: &Path, error: impl Display) -> anyhow::Error {
    cannot(&format!("{}: {error}", path.display()))
}

/// A nats-server's store has a folder for each account with `streams` in it.
fn refuse_foreign(base: &Path) -> Result<()> {
    for entry in std::fs::read_dir(base)
        .map_err(|e| cannot_use(base, e))?
        .flatten()
    {
        let name = entry.file_name().to_string_lossy().into_owned();
        let theirs =
            entry.path().join("streams").is_dir() || name == "_js_" || entry.path().join("_js_").is_dir();
        if theirs && !name.starts_with("tidelock") {
            return Err(cannot(&format!(
                "{} holds the streams of a nats-server, which this version cannot read; use another store_dir",
                base.display()
            )));
        }
    }
    Ok(())
}

/// Finds the folder that this domain's server uses, and locks it.
fn lock_folder(base: &Path, domain: &str) -> Result<(PathBuf, File)> {
    let own = base.join(format!("tidelock-{domain}"));
    let common = base.join("tidelock");
    if !domain.is_empty() && own.is_dir() {
        return lock(&own, domain)?.map_err(|_| in_use(&own));
    }
    match lock(&common, domain)? {
        Ok(locked) => Ok(locked),
        Err(other) if other == domain || domain.is_empty() => Err(in_use(&common)),
        Err(_) => lock(&own, domain)?.map_err(|_| in_use(&own)),
    }
}

fn in_use(folder: &Path) -> anyhow::Error {
    cannot(&format!("{} is in use by another server", folder.display()))
}

/// Locks a folder; if another server has it, that server's domain is the inner error.
fn lock(folder: &Path, domain: &str) -> Result<Result<(PathBuf, File), String>> {
    folders::make(folder).map_err(|e| cannot_use(folder, e))?;
    let path = folder.join("lock");
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o640)
        .open(&path)
        .map_err(|e| cannot_use(&path, e))?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        let mut other = String::new();
        file.read_to_string(&mut other)
            .map_err(|e| cannot_use(&path, e))?;
        return Ok(Err(other.trim().to_owned()));
    }
    let mut before = String::new();
    // Written only if it changes: a full disk may have no room for it.
    if file.read_to_string(&mut before).is_err() || before != domain {
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(domain.as_bytes()))
            .map_err(|e| cannot_use(&path, e))?;
    }
    Ok(Ok((folder.to_owned(), file)))
}

/// The file with the store's own random id, which is made with the store.
const NODE_FILE: &str = "node";

/// Reads the store's id, or makes one for a store that is new. An id that is wrong would make this server another one,
/// for which no replica was ever placed; so anything doubtful refuses the start.
fn node_id(disk: &dyn Disk, folder: &Path) -> Result<NodeId> {
    let file = FilePath::new(NODE_FILE).map_err(|e| cannot(&e.to_string()))?;
    let read = disk
        .size(&file)
        .and_then(|size| disk.read(&file, 0, size.min(NOTE_BYTES_MAX + 1)));
    let path = folder.join(NODE_FILE);
    match read {
        Ok(bytes) => decode_node(&bytes).ok_or_else(|| doubtful(&path, "is damaged")),
        Err(IoError::NotFound) if is_new(disk, folder)? => {
            let id = NodeId(u64::from_le_bytes(random::bytes()?).max(1));
            let data = encode_node(id);
            disk.run(&IoOp::Replace { file, data })
                .map_err(|e| cannot_use(&path, e))?;
            Ok(id)
        }
        Err(IoError::NotFound) => Err(doubtful(&path, "is missing")),
        Err(error) => Err(cannot_use(&path, error)),
    }
}

fn encode_node(id: NodeId) -> bytes::Bytes {
    encode_note(&[(NODE_FILE, format!("{:016x}", id.0))])
}

fn decode_node(bytes: &[u8]) -> Option<NodeId> {
    let [id] = decode_note(bytes, [NODE_FILE])?;
    u64::from_str_radix(&id, 16).ok().map(NodeId)
}

fn doubtful(path: &Path, what: &str) -> anyhow::Error {
    let folder = path.parent().unwrap_or(path);
    cannot(&format!(
        "the file {}, which says whose store this is, {what}. Nothing was deleted. Put the file back from a backup; or, if \
         other servers of its cluster have its streams, move {} away: the server then starts empty and is filled by them",
        path.display(),
        folder.display()
    ))
}

/// Whether nothing was ever kept in the store.
fn is_new(disk: &dyn Disk, folder: &Path) -> Result<bool> {
    for name in ["wal", "groups", "streams"] {
        let dir = FilePath::new(name).map_err(|e| cannot(&e.to_string()))?;
        match disk.list(&dir) {
            Ok(names) if names.is_empty() => {}
            Ok(_) => return Ok(false),
            Err(IoError::NotFound) => {}
            Err(error) => return Err(cannot_use(&folder.join(name), error)),
        }
    }
    let cluster = FilePath::new("cluster").map_err(|e| cannot(&e.to_string()))?;
    Ok(disk.size(&cluster) == Err(IoError::NotFound))
}

/// The groups of a damaged place, for the log.
struct Concerned<'a>(&'a DamagedGroups);

impl Display for Concerned<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let DamagedGroups::Known(groups) = self.0 else {
            return f.write_str("which groups had records there cannot be told");
        };
        f.write_str("there were records of")?;
        let mut comma = "";
        for (group, range) in groups {
            match (group.0, range) {
                (0, _) => write!(f, "{comma} the server itself")?,
                (1, None) => write!(f, "{comma} the metadata")?,
                (1, Some((first, last))) => write!(f, "{comma} the metadata (entries {first} to {last})")?,
                (_, None) => write!(f, "{comma} group {group}")?,
                (_, Some((first, last))) => write!(f, "{comma} group {group} (entries {first} to {last})")?,
            }
            comma = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidelock_base::LogIndex;
    use tidelock_record::MemDisk;

    fn file() -> FilePath {
        FilePath::new(NODE_FILE).expect("a path")
    }

    fn text(result: Result<NodeId>) -> String {
        format!("{:#}", result.expect_err("a doubtful id"))
    }

    #[test]
    fn a_store_keeps_its_id_and_any_change_of_the_file_is_noticed() {
        let disk = MemDisk::new();
        let folder = Path::new("/s");
        let id = node_id(&disk, folder).expect("a new store");
        assert_eq!(node_id(&disk, folder).expect("its id"), id);
        let bits = disk.size(&file()).expect("a file") * 8;
        for bit in 0..bits {
            disk.flip_bit(&file(), bit);
            let text = text(node_id(&disk, folder));
            assert!(
                text.contains("the file /s/node, which says whose store this is, is damaged"),
                "{text}"
            );
            disk.flip_bit(&file(), bit);
        }
        let len = 8;
        let file = file();
        disk.run(&IoOp::Truncate { file, len }).expect("room");
        assert!(text(node_id(&disk, folder)).contains("is damaged"));
    }

    #[test]
    fn a_store_with_data_does_not_get_another_id() {
        let disk = MemDisk::new();
        let folder = Path::new("/s");
        let log = FilePath::new("wal/lane-0000/slot-00000000").expect("a path");
        let op = IoOp::Create { file: log, len: 4096 };
        disk.run(&op).expect("room");
        let text = text(node_id(&disk, folder));
        assert!(text.contains("is missing"), "{text}");
        assert_eq!(disk.size(&file()), Err(IoError::NotFound));
    }

    #[test]
    fn what_keeps_a_store_from_opening_is_named() {
        let temporary = tempfile::tempdir().expect("a folder");
        let options = JetStreamOptions {
            store_dir: Some(temporary.path().display().to_string()),
            ..JetStreamOptions::default()
        };
        let folder = temporary.path().join("jetstream/tidelock");
        let refused = |at: &Path| {
            let error = Store::open(&options).err().expect("a refusal");
            let text = format!("{error:#}");
            let start = format!("Can't start JetStream: {}: ", at.display());
            assert!(text.starts_with(&start), "{text}");
        };
        // Things of the wrong kind are refused to the superuser, too.
        std::fs::create_dir_all(folder.join("lock")).expect("a folder");
        refused(&folder.join("lock"));
        std::fs::remove_dir_all(&folder).expect("it is there");
        std::fs::create_dir_all(folder.join("node")).expect("a folder");
        refused(&folder.join("node"));
        std::fs::remove_dir_all(&folder).expect("it is there");
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join("groups"), "").expect("room");
        refused(&folder.join("groups"));
        std::fs::remove_dir_all(&folder).expect("it is there");
        std::fs::write(&folder, "").expect("room");
        refused(&folder);
        let below_a_file = JetStreamOptions {
            store_dir: Some(folder.display().to_string()),
            ..JetStreamOptions::default()
        };
        let text = format!("{:#}", Store::open(&below_a_file).err().expect("a refusal"));
        assert!(text.contains("tidelock/jetstream: "), "{text}");
    }

    #[test]
    fn damage_is_told_in_words() {
        let range = Some((LogIndex(2), LogIndex(5)));
        let groups = DamagedGroups::Known(vec![(1.into(), range), (4.into(), None)]);
        let text = Concerned(&groups).to_string();
        assert_eq!(
            text,
            "there were records of the metadata (entries 2 to 5), group 4"
        );
    }

    #[test]
    fn the_log_takes_a_small_part_of_a_small_disk() {
        assert_eq!(log_sizes(80 << 20, 1), (4 << 20, 1 << 20));
        assert_eq!(log_sizes(1 << 30, 1), (32 << 20, 8 << 20));
        assert_eq!(log_sizes(1 << 30, 4), (8 << 20, 2 << 20));
        assert_eq!(log_sizes(2 << 30, 1), (64 << 20, 16 << 20));
        assert_eq!(log_sizes(u64::MAX, 8), (64 << 20, 16 << 20));
    }
}
