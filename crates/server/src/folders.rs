//! Folders whose names are durable.
//!
//! A file that is synced is found again only if its folder is, and that one's folder in turn: a name is part of the folder
//! that it stands in (fsync(2)). File systems with a journal mostly see to it themselves; none has to.

use std::collections::HashSet;
use std::io::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The folders below a root that are known to be durable.
pub(crate) struct Folders {
    root: PathBuf,
    durable: Mutex<HashSet<PathBuf>>,
}

impl Folders {
    pub(crate) fn below(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            durable: Mutex::new(HashSet::from([root.to_owned()])),
        }
    }

    /// Makes a folder below the root, and those between. Who made it does not count: it may have been a process that did
    /// not live to sync it.
    ///
    /// # Errors
    /// Of the file system; also if the folder is not below the root.
    pub(crate) fn make(&self, folder: &Path) -> Result<()> {
        let mut durable = self.durable.lock().unwrap_or_else(PoisonError::into_inner);
        let missing: Vec<&Path> = folder
            .ancestors()
            .take_while(|one| !durable.contains(*one))
            .collect();
        for one in missing.into_iter().rev() {
            if !one.starts_with(&self.root) {
                return Err(Error::from(ErrorKind::InvalidInput));
            }
            make_one(one)?;
            sync_above(one)?;
            durable.insert(one.to_owned());
        }
        Ok(())
    }
}

/// Makes a folder and those above it that are missing. The names of all that were made, and its own in any case, are
/// durable then.
///
/// # Errors
/// Of the file system.
pub(crate) fn make(folder: &Path) -> Result<()> {
    // A relative path ends in an empty one: the present folder.
    let is_missing = |one: &&Path| !one.as_os_str().is_empty() && !one.is_dir();
    let missing: Vec<&Path> = folder.ancestors().take_while(is_missing).collect();
    for one in missing.into_iter().rev() {
        make_one(one)?;
        sync_above(one)?;
    }
    sync_above(folder)
}

fn make_one(folder: &Path) -> Result<()> {
    match std::fs::create_dir(folder) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists && folder.is_dir() => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(Error::from(ErrorKind::NotADirectory)),
        made => made,
    }
}

/// Makes the name of a file or folder durable.
fn sync_above(path: &Path) -> Result<()> {
    let above = path.parent().filter(|above| !above.as_os_str().is_empty());
    std::fs::File::open(above.unwrap_or_else(|| Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_made_with_those_above_and_files_are_not_taken_for_them() {
        let temporary = tempfile::tempdir().expect("a folder");
        let root = temporary.path().join("a/b");
        make(&root).expect("room");
        make(&root).expect("again");
        let folders = Folders::below(&root);
        folders.make(&root.join("c/d")).expect("room");
        folders.make(&root.join("c")).expect("known");
        assert!(root.join("c/d").is_dir());
        std::fs::write(root.join("file"), "").expect("room");
        assert_eq!(
            folders.make(&root.join("file")).map_err(|error| error.kind()),
            Err(ErrorKind::NotADirectory)
        );
        assert!(folders.make(&root.join("file/below")).is_err());
        assert!(make(&root.join("file/below")).is_err());
        let above = temporary.path().join("elsewhere");
        assert!(folders.make(&above).is_err() && !above.exists());
    }
}
