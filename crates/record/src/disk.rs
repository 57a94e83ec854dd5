//! The port through which every file is reached.
//!
//! A core hands out [`IoRequest`]s and is later given [`IoDone`]s; whoever runs the core executes the operations,
//! on helper threads or in place, through [`Disk::run`]. Operations of one core run in the order in which they were
//! handed out unless it says otherwise; one that must follow another is handed out after the other's end.
//!
//! Durability, operation by operation, is part of the contract: see [`IoOp`].

use bytes::Bytes;
use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// Path of a file or directory, relative to the store's directory, its names parted by `/`.
///
/// Names are neither empty nor `.` nor `..`, hold no NUL and no backslash, and do not end in `.tmp`, which is how
/// unfinished files are called. The empty path is the store's directory itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilePath(Arc<str>);

impl FilePath {
    /// The store's directory.
    #[must_use]
    pub fn root() -> Self {
        Self(Arc::from(""))
    }

    /// A path from its text.
    ///
    /// # Errors
    /// [`IoError::InvalidPath`] if a name is not allowed.
    pub fn new(path: &str) -> Result<Self, IoError> {
        let allowed = |name: &str| {
            !matches!(name, "" | "." | "..") && !name.contains(['\0', '\\']) && !name.ends_with(".tmp")
        };
        if path.is_empty() || path.split('/').all(allowed) {
            Ok(Self(Arc::from(path)))
        } else {
            Err(IoError::InvalidPath)
        }
    }

    /// The path of `name` in this directory; `name` may be a path itself.
    ///
    /// # Errors
    /// [`IoError::InvalidPath`] if a name is not allowed.
    pub fn join(&self, name: &str) -> Result<Self, IoError> {
        if self.0.is_empty() {
            Self::new(name)
        } else {
            Self::new(&format!("{}/{name}", self.0))
        }
    }

    /// The text, without a leading or trailing `/`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The directory that holds this file; the root for a name without `/`.
    #[must_use]
    pub fn parent(&self) -> Self {
        self.0
            .rsplit_once('/')
            .map_or_else(Self::root, |(dir, _)| Self(Arc::from(dir)))
    }

    /// The last name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.rsplit_once('/').map_or(&*self.0, |(_, name)| name)
    }
}

impl fmt::Display for FilePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A number by which the core that asked recognises the end of its operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IoToken(pub u64);

/// One operation on a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IoOp {
    /// Writes the parts, one after the other, from `offset` on. The file must exist; it grows if need be, a gap
    /// reads as zeros. With `sync` the data (and the length) is durable when the operation ends; without, a crash
    /// may keep, lose or tear it, sector by sector. After an error the range holds anything.
    Write {
        /// The file, which must exist.
        file: FilePath,
        /// Bytes from the start of the file.
        offset: u64,
        /// What to write.
        parts: Vec<Bytes>,
        /// Whether to make it durable before the operation ends.
        sync: bool,
    },
    /// Reads up to `len` bytes from `offset` on; fewer come only where the file ends. Answers
    /// [`IoOutput::Data`].
    Read {
        /// The file, which must exist.
        file: FilePath,
        /// Bytes from the start of the file.
        offset: u64,
        /// Most bytes to read.
        len: u64,
    },
    /// Makes a new file of `len` zeros that are really written, not a hole. Atomic and durable: after a crash the
    /// file is there whole, or not at all. An empty one (`len` 0) may be gone after a crash until its first sync,
    /// which makes its name durable as well: what is written piece by piece is worth nothing before. Directories above
    /// it are made as needed. Refused with [`IoError::AlreadyExists`].
    Create {
        /// The file, which must not exist.
        file: FilePath,
        /// Length in bytes, may be 0.
        len: u64,
    },
    /// Makes earlier writes and truncations of the file durable, and the name of a new one. After an error this file must not be synced
    /// again: the system may have dropped the data and would report success (DESIGN section 9, "Disk trouble").
    Sync {
        /// The file, which must exist.
        file: FilePath,
    },
    /// Replaces the content of a file, which need not exist, atomically and durably: after a crash, and after an
    /// error, the file has the old content or the new. Directories above it are made as needed.
    Replace {
        /// The file.
        file: FilePath,
        /// Its whole new content.
        data: Bytes,
    },
    /// As [`IoOp::Replace`], but writes over a file that is given up for it: needs no new space where `data` is not
    /// longer than that one. After an error, `reserve` may be gone.
    ReplaceFrom {
        /// The file.
        file: FilePath,
        /// Its whole new content.
        data: Bytes,
        /// The file that is given up, which must exist.
        reserve: FilePath,
    },
    /// Gives a file another name, replacing a file of that name; durable when the operation ends, atomic. The
    /// content is as durable as it was. Directories above `to` are made as needed.
    Rename {
        /// The file's name, which must exist.
        from: FilePath,
        /// Its new name.
        to: FilePath,
    },
    /// Cuts or extends (with zeros) a file to `len` bytes. Not durable before a `Sync`.
    Truncate {
        /// The file, which must exist.
        file: FilePath,
        /// Length in bytes.
        len: u64,
    },
    /// Removes a file; one that is not there counts as removed. Not durable: after a crash the file may be back,
    /// until another file of its directory was created, replaced or renamed.
    Remove {
        /// The file.
        file: FilePath,
    },
    /// The names (not paths) of files and directories directly in `dir`, sorted by bytes; unfinished files are
    /// left out. A directory that is not there is empty. Answers [`IoOutput::Names`].
    List {
        /// The directory.
        dir: FilePath,
    },
    /// The length of a file. Answers [`IoOutput::Size`].
    Size {
        /// The file, which must exist.
        file: FilePath,
    },
    /// How much room there is where the files are. Answers [`IoOutput::Space`].
    Space,
}

/// What a finished operation answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IoOutput {
    /// Nothing but the success.
    Done,
    /// Bytes read.
    Data(Bytes),
    /// Names in a directory, sorted.
    Names(Vec<String>),
    /// Length of a file in bytes.
    Size(u64),
    /// What the file system has for this user, in bytes.
    Space {
        /// Still to be had.
        free: u64,
        /// All of it, used or not; `u64::MAX` where there is no end.
        total: u64,
    },
}

/// An operation that a core wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoRequest {
    /// Comes back in the [`IoDone`].
    pub token: IoToken,
    /// What to do.
    pub op: IoOp,
}

/// The end of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoDone {
    /// From the [`IoRequest`].
    pub token: IoToken,
    /// How it went.
    pub result: Result<IoOutput, IoError>,
}

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum IoError {
    /// No such file.
    #[error("no such file")]
    NotFound,
    /// `Create` of a file that is there.
    #[error("file exists")]
    AlreadyExists,
    /// The disk, or the quota, is full.
    #[error("no space left on device")]
    NoSpace,
    /// The path has a name that is not allowed.
    #[error("invalid path")]
    InvalidPath,
    /// Everything else; the text is the system's.
    #[error("{0}")]
    Device(Arc<str>),
}

/// Executes file operations, one at a time for the caller, and waits for their end. A core calls this itself only
/// at start, for recovery.
pub trait Disk {
    /// Does one operation.
    ///
    /// # Errors
    /// See [`IoError`]; which operation refuses what is said at [`IoOp`].
    fn run(&self, op: &IoOp) -> Result<IoOutput, IoError>;

    /// Reads, for callers that wait: [`IoOp::Read`].
    ///
    /// # Errors
    /// [`IoError::NotFound`], [`IoError::Device`].
    fn read(&self, file: &FilePath, offset: u64, len: u64) -> Result<Bytes, IoError> {
        let file = file.clone();
        match self.run(&IoOp::Read { file, offset, len })? {
            IoOutput::Data(data) => Ok(data),
            IoOutput::Done | IoOutput::Names(_) | IoOutput::Size(_) | IoOutput::Space { .. } => {
                Err(wrong_output())
            }
        }
    }

    /// Lists, for callers that wait: [`IoOp::List`].
    ///
    /// # Errors
    /// [`IoError::Device`].
    fn list(&self, dir: &FilePath) -> Result<Vec<String>, IoError> {
        match self.run(&IoOp::List { dir: dir.clone() })? {
            IoOutput::Names(names) => Ok(names),
            IoOutput::Done | IoOutput::Data(_) | IoOutput::Size(_) | IoOutput::Space { .. } => {
                Err(wrong_output())
            }
        }
    }

    /// Length of a file, for callers that wait: [`IoOp::Size`].
    ///
    /// # Errors
    /// [`IoError::NotFound`], [`IoError::Device`].
    fn size(&self, file: &FilePath) -> Result<u64, IoError> {
        match self.run(&IoOp::Size { file: file.clone() })? {
            IoOutput::Size(size) => Ok(size),
            IoOutput::Done | IoOutput::Data(_) | IoOutput::Names(_) | IoOutput::Space { .. } => {
                Err(wrong_output())
            }
        }
    }
}

fn wrong_output() -> IoError {
    IoError::Device(Arc::from("the disk answered something else than was asked"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_inside_the_store() {
        for bad in [
            "/etc", "a//b", "..", "a/../b", "a/", ".", "a\\b", "a\0", "x.tmp", "x.tmp/y",
        ] {
            assert_eq!(FilePath::new(bad), Err(IoError::InvalidPath), "{bad:?}");
        }
        let path = FilePath::root()
            .join("wal")
            .and_then(|dir| dir.join("3/a.seg"))
            .unwrap();
        assert_eq!(path.as_str(), "wal/3/a.seg");
        assert_eq!((path.parent().as_str(), path.name()), ("wal/3", "a.seg"));
        assert_eq!(FilePath::new("a").unwrap().parent(), FilePath::root());
    }
}
