//! The store's folder: which one, whose it is, and opening what is in it.

use crate::Fatal;
use crate::disk::FileDisk;
use crate::random;
use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidelock_base::NodeId;
use tidelock_conf::JetStreamOptions;
use tidelock_record::{Disk, FilePath, IoOp};
use tidelock_wal::{LaneConfig, RecoveredAll, recover_all};

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
        std::fs::create_dir_all(&base)
            .map_err(|e| cannot(&format!("could not create storage directory - {e}")))?;
        refuse_foreign(&base)?;
        let domain = options.domain.as_deref().unwrap_or_default();
        let (folder, lock) = lock_folder(&base, domain)?;
        let disk = Arc::new(FileDisk::open(&folder).with_context(|| format!("{}", folder.display()))?);
        let node = node_id(&*disk)?;
        Ok(Self {
            folder,
            disk,
            node,
            _lock: lock,
        })
    }

    /// Opens the lanes of `workers` workers.
    ///
    /// # Errors
    /// When the log cannot be opened.
    pub(crate) fn recover(&self, workers: u16) -> Result<RecoveredAll> {
        let seed = u64::from_le_bytes(random::bytes()?);
        let recovered =
            recover_all(&*self.disk, workers, &LaneConfig::new(seed)).map_err(|e| cannot(&e.to_string()))?;
        for (_, lane) in &recovered.lanes {
            for damage in &lane.damage {
                tracing::error!(
                    "Write-ahead log: {} bytes of {} at {} are damaged: {:?}",
                    damage.bytes,
                    damage.file,
                    damage.offset,
                    damage.groups
                );
            }
        }
        Ok(recovered)
    }
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

/// A nats-server's store has a folder for each account with `streams` in it.
fn refuse_foreign(base: &Path) -> Result<()> {
    for entry in std::fs::read_dir(base)?.flatten() {
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
    std::fs::create_dir_all(folder).map_err(|e| cannot(&format!("{}: {e}", folder.display())))?;
    let path = folder.join("lock");
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o640)
        .open(&path)?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        let mut other = String::new();
        file.read_to_string(&mut other)?;
        return Ok(Err(other.trim().to_owned()));
    }
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(domain.as_bytes())?;
    Ok(Ok((folder.to_owned(), file)))
}

/// The store's own random id, made with the store.
fn node_id(disk: &dyn Disk) -> Result<NodeId> {
    let file = FilePath::new("node").map_err(|e| cannot(&e.to_string()))?;
    if let Ok(bytes) = disk.read(&file, 0, 64) {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let id = u64::from_str_radix(text.trim(), 16)
            .map_err(|_| cannot("the store's id cannot be read; the file `node` in it is damaged"))?;
        return Ok(NodeId(id));
    }
    let id = NodeId(u64::from_le_bytes(random::bytes()?).max(1));
    let data = format!("{:016x}\n", id.0).into_bytes().into();
    disk.run(&IoOp::Replace { file, data })
        .map_err(|e| cannot(&e.to_string()))?;
    Ok(id)
}
